"""Compares what publishers use with what they may use: rates of users and topics, and quotas.

Law: no work for a record or a batch, and none at all while nothing is limited. A read of a
connection is counted by how far it has moved its partitions; topics are charged once a turn, with
what it stored. Back-pressure comes first: a connection above its rate is not read for a while. A
publisher that would have to wait longer than `limits.pause_seconds_max` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fanlog.broker.authority import Permit
from fanlog.broker.messages.inboxes import is_inbox
from fanlog.broker.messages.restrictions import Restrictions
from fanlog.broker.messages.topic_limits import TopicLimits
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.config_limits import LimitOptions
from fanlog.errors import FanlogError, QuotaExceededError, RateLimitedError
from fanlog.format.batch import split_batches
from fanlog.identity import Identity
from fanlog.model import INTERNAL_PREFIX
from fanlog.security.connections import ConnectionCounts
from fanlog.security.limits import RateBuckets, RateTable
from fanlog.security.lockout import Lockout, LockoutGuard
from fanlog.security.quotas import AllowanceOf, QuotaTable, Share

# A wait that is shorter is not worth a timer.
_WAIT_SECONDS_MIN = 0.001


class Metering:
    """`on` is whether anything may be limited: listeners look at it before they ask."""

    def __init__(
        self,
        options: LimitOptions,
        now_us: Callable[[], int],
        *,
        guarded: bool,
    ) -> None:
        """`guarded`: there are accounts, which may have limits of their own."""
        self._options = options
        self.now_us = now_us
        # Partitions that the intake puts something of a watched publisher into, and the
        # offset at which they continued before. None: nobody is watched.
        self._touched: dict[Partition, int] | None = None
        self._pauses = self._refusals = 0
        self._table = RateTable(options)
        self._quotas = QuotaTable(options)
        self.pause_seconds_max = options.pause_seconds_max
        self._guarded = guarded
        # Whether an account with its own rate was in use.
        self._accounts_limited = False
        self.on = False
        self.epoch = 0
        # Topics with a rate.
        self._limited_topics = 0
        self.settings_changed()
        self.connections = ConnectionCounts(options)
        self.logins = LockoutGuard(Lockout(options), now_us)

    def settings_changed(self) -> None:
        self._quotas.renew()
        self._look()
        # The rates that connections know may be outdated.
        self.epoch += 1

    def _look(self) -> None:
        """Whether anything may be limited now."""
        options = self._options
        everybody = options.messages_per_second or options.bytes_per_second
        limited = everybody or self._limited_topics or self._quotas.bounded
        self.on = bool(limited or self._accounts_limited)

    def limit_accounts(self) -> None:
        """A client whose account has a rate has logged in."""
        if not self._accounts_limited:
            self._accounts_limited = True
            self.settings_changed()

    # Publishers

    def rates_of(self, who: Identity) -> RateBuckets | None:
        return self._table.maybe_of(who, self.now_us())

    def watch(self) -> None:
        """The next `settle` counts everything that the intake takes from now on."""
        self._touched = {}

    def settle(self, rates: RateBuckets | None, size: int) -> float:
        """Counts the `size` bytes that the intake has taken since `watch`. Returns how long to
        pause reading from their publisher."""
        touched, self._touched = self._touched or {}, None
        messages, debt, now_us = 0, 0.0, 0
        for partition, before in touched.items():
            messages += partition.next_offset - before
            limits = partition.topic.limits
            if limits is not None and limits.rates is not None and limits.rates.in_debt:
                now_us = now_us or self.now_us()
                debt = max(debt, limits.rates.debt_seconds(now_us))
        if rates is not None:
            now_us = now_us or self.now_us()
            rates.take(messages, size, now_us)
            if rates.in_debt:
                debt = max(debt, rates.debt_seconds(now_us))
        return self._pause(debt) if debt else 0.0

    def weigh(self, rates: RateBuckets | None, data: bytes) -> float:
        """The same for whole batches that are staged, and in no partition yet."""
        if rates is None:
            return 0.0
        messages = sum(header.record_count for _, header in split_batches(data))
        now_us = self.now_us()
        rates.take(messages, len(data), now_us)
        return self._pause(rates.debt_seconds(now_us))

    def charge(
        self, rates: RateBuckets | None, topic: BrokerTopic | None, messages: int, size: int
    ) -> float:
        """The same for messages that are not in batches yet. Raises RateLimitedError instead if
        their publisher, or the topic, is too far above its rate."""
        now_us = self.now_us()
        limits = None if topic is None else topic.limits
        ours = None if limits is None else limits.rates
        debt = self._checked((rates, ours), self.pause_seconds_max, now_us)
        if rates is not None:
            rates.take(messages, size, now_us)
            debt = max(debt, rates.debt_seconds(now_us))
        return self._pause(debt)

    def charge_at_once(
        self, rates: RateBuckets | None, topic: BrokerTopic | None, messages: int, size: int
    ) -> None:
        """The same for a request that can't be paused: it is refused while its publisher is above
        the rate."""
        now_us = self.now_us()
        limits = None if topic is None else topic.limits
        self._checked((rates, None if limits is None else limits.rates), 0.0, now_us)
        if rates is not None:
            rates.take(messages, size, now_us)

    def _checked(self, owing: Sequence[RateBuckets | None], debt_max: float, now_us: int) -> float:
        """The debt; raises RateLimitedError if it is too large."""
        most = 0.0
        for rates in owing:
            if rates is not None:
                debt = rates.debt_seconds(now_us)
                if debt > debt_max:
                    self._refusals += 1
                    raise rates.refusal(now_us)
                most = max(most, debt)
        return most

    def _pause(self, debt: float) -> float:
        if debt < _WAIT_SECONDS_MIN:
            return 0.0
        self._pauses += 1
        return min(debt, self.pause_seconds_max)

    def counters(self) -> dict[str, int]:
        """How often each limit was reached, by action."""
        return {
            "paused": self._pauses,
            "refused": self._refusals,
            "locked_out": self.logins.lockout.refused,
        }

    def maybe_refusal(self, rates: RateBuckets | None) -> RateLimitedError | None:
        """The error for a publisher that is too far above its rate."""
        if rates is None or not rates.in_debt:
            return None
        now_us = self.now_us()
        if rates.debt_seconds(now_us) <= self.pause_seconds_max:
            return None
        return rates.refusal(now_us)

    def touch(self, partition: Partition, origin: Restrictions) -> FanlogError | None:
        """A publisher starts to publish to a partition; the error against it, or None."""
        if self._touched is not None:
            self._touched.setdefault(partition, partition.next_offset)
        return self.maybe_fault(partition.topic, origin)

    def maybe_fault(self, topic: BrokerTopic, origin: Restrictions) -> FanlogError | None:
        """The error against a batch of this origin for the topic, or None."""
        fault = origin.limited
        if fault is None and topic.limits is not None:
            fault = topic.limits.maybe_fault(self.pause_seconds_max)
        self._refusals += fault is not None
        return fault

    # Topics

    def check_new(self, name: str, owner: str) -> None:
        """Raises QuotaExceededError if there may be no topic of this name and owner."""
        if (self.on or self._guarded) and not is_inbox(name):
            try:
                self._quotas.check_new(name, owner)
            except QuotaExceededError:
                self._refusals += 1
                raise

    def adopt(self, topic: BrokerTopic) -> None:
        """A topic is there, or has other settings."""
        name, settings = topic.name, topic.settings
        if is_inbox(name) or name.startswith(INTERNAL_PREFIX):
            return
        messages, size = settings.messages_per_second_max, settings.bytes_per_second_max
        quotas = self._quotas.of(name, settings.owner)
        known = topic.limits
        self.drop(topic)
        rates = None if known is None else known.rates
        if not messages and not size:
            rates = None
        elif rates is None or not rates.is_for(messages, size):
            rates = RateBuckets(
                f"Topic {name!r} gets", messages, size, self._options.burst_seconds, self.now_us()
            )
        if rates is None and not quotas:
            return
        share = Share(quotas, stored_bytes_of(topic))
        topic.limits = TopicLimits(rates, share, self.now_us)
        if rates is not None:
            self._limited_topics += 1
        self._look()

    def drop(self, topic: BrokerTopic) -> None:
        """A topic is deleted."""
        limits, topic.limits = topic.limits, None
        if limits is not None:
            limits.end()
            self._limited_topics -= limits.rates is not None
            self._look()

    def recount(self, topic: BrokerTopic) -> None:
        """Messages of a topic may have been deleted."""
        if topic.limits is not None:
            topic.limits.recount(stored_bytes_of(topic))

    def know_accounts(self, allowance_of: AllowanceOf) -> None:
        """The quotas of owners' accounts, by name."""
        self._quotas.allowance_of = allowance_of
        self._quotas.renew()
        self._look()

    def renew(self) -> None:
        """Accounts have changed: their quotas may have."""
        self._quotas.renew()
        self._look()
        self.epoch += 1


class Meter:
    """The rates of one connection. They are looked up again when it logs in as somebody else, and
    when settings or accounts change."""

    __slots__ = ("_epoch", "_metering", "_permit", "_rates", "_who")

    def __init__(self, metering: Metering, permit: Permit) -> None:
        self._metering = metering
        self._permit = permit
        self._who: Identity | None = None
        self._epoch = 0
        self._rates: RateBuckets | None = None

    @property
    def rates(self) -> RateBuckets | None:
        who, epoch = self._permit.who, self._metering.epoch
        if who is not self._who or epoch != self._epoch:
            self._who, self._epoch = who, epoch
            self._rates = self._metering.rates_of(who)
        return self._rates


def stored_bytes_of(topic: BrokerTopic) -> int:
    return sum(partition.log.bytes for partition in topic.partitions)
