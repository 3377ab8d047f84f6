"""Token buckets: the publish rates of users, keys, addresses and topics. Pure: the time is an
argument.

A bucket may go into debt. Received bytes are taken as a whole, and then the connection is not read
until the debt is paid: that is the back-pressure. A client is refused only if it owes more than the
longest pause.

The table has a bounded size, however many users and addresses there are: it has those with a
connection, and the last few thousand others.
"""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakValueDictionary

from fanlog.config_limits import LimitOptions
from fanlog.errors import RateLimitedError
from fanlog.identity import Allowance, Identity
from fanlog.security.addresses import Sources

# Rates of clients without a connection: HTTP requests come and go.
_KEPT_MAX = 10_000
# A debt at a rate of almost nothing: past this it makes no difference, and a number of hundreds of
# digits, or infinity, is of no use in an answer.
_DEBT_SECONDS_MAX = 365 * 86_400.0


class Bucket:
    """A rate per second. The level is below 0 while there is a debt."""

    __slots__ = ("_at_us", "_burst", "_per_us", "level", "per_second")

    def __init__(self, per_second: float, burst_seconds: float, now_us: int) -> None:
        self.per_second = per_second
        self._per_us = per_second / 1_000_000
        self._burst = max(1.0, per_second * burst_seconds)
        self.level = self._burst
        self._at_us = now_us

    def take(self, amount: float, now_us: int) -> None:
        passed_us = now_us - self._at_us
        level = self.level
        # A clock that goes back pays nothing, and costs nothing.
        if passed_us > 0:
            level = min(level + passed_us * self._per_us, self._burst)
        self._at_us = now_us
        self.level = level - amount

    def debt_seconds(self, now_us: int) -> float:
        """How long until the debt is paid; 0 if there is none."""
        if self.level >= 0:
            return 0.0
        self.take(0, now_us)
        if self.level >= 0:
            return 0.0
        return min(-self.level / self.per_second, _DEBT_SECONDS_MAX)


class RateBuckets:
    """The buckets of one user, key, address or topic: messages, bytes, or both."""

    __slots__ = ("__weakref__", "_bytes", "_messages", "subject")

    def __init__(
        self,
        subject: str,
        messages_per_second: float,
        bytes_per_second: float,
        burst_seconds: float,
        now_us: int,
    ) -> None:
        """`subject` begins the sentence of a refusal."""
        self.subject = subject
        self._messages = (
            Bucket(messages_per_second, burst_seconds, now_us) if messages_per_second else None
        )
        self._bytes = Bucket(bytes_per_second, burst_seconds, now_us) if bytes_per_second else None

    def is_for(self, messages_per_second: float, bytes_per_second: float) -> bool:
        """Whether these are the rates."""
        messages = 0.0 if self._messages is None else self._messages.per_second
        size = 0.0 if self._bytes is None else self._bytes.per_second
        return (messages, size) == (messages_per_second, bytes_per_second)

    @property
    def in_debt(self) -> bool:
        """Whether there was a debt at the last check. It may be paid since."""
        if self._messages is not None and self._messages.level < 0:
            return True
        return self._bytes is not None and self._bytes.level < 0

    def take(self, messages: int, size: int, now_us: int) -> None:
        if self._messages is not None:
            self._messages.take(messages, now_us)
        if self._bytes is not None:
            self._bytes.take(size, now_us)

    def debt_seconds(self, now_us: int) -> float:
        """How long nothing more should come."""
        debt = 0.0 if self._messages is None else self._messages.debt_seconds(now_us)
        if self._bytes is not None:
            debt = max(debt, self._bytes.debt_seconds(now_us))
        return debt

    def refusal(self, now_us: int) -> RateLimitedError:
        """The error for requests while the debt is too large."""
        debt = self.debt_seconds(now_us)
        rates: list[str] = []
        if self._messages is not None:
            rates.append(f"{self._messages.per_second:g} messages")
        if self._bytes is not None:
            rates.append(f"{self._bytes.per_second:g} bytes")
        return RateLimitedError(
            f"{self.subject} more than its {' or '.join(rates)} per second. Nothing was "
            f"stored. Publish again in {debt:.1f} s, and less at a time.",
            retry_after_seconds=debt,
        )


class RateTable:
    """The rates of all publishers."""

    def __init__(self, options: LimitOptions) -> None:
        self._options = options
        self._sources = Sources(options.exempt_addresses)
        self._known: WeakValueDictionary[str, RateBuckets] = WeakValueDictionary()
        self._kept: OrderedDict[str, RateBuckets] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def maybe_of(self, who: Identity, now_us: int) -> RateBuckets | None:
        """The rates of a client; None without a limit. One object per account or address, on all
        connections and listeners."""
        allowance = Allowance() if who.account is None else who.account.allowance
        options = self._options
        messages = allowance.messages_per_second or options.messages_per_second
        size = allowance.bytes_per_second or options.bytes_per_second
        if not messages and not size:
            return None
        key, subject = self._key_of(who)
        if not key:
            return None
        rates = self._known.get(key)
        if rates is None or not rates.is_for(messages, size):
            rates = RateBuckets(subject, messages, size, options.burst_seconds, now_us)
            self._known[key] = rates
        self._kept[key] = rates
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return rates

    def _key_of(self, who: Identity) -> tuple[str, str]:
        account = who.account
        if account is None:
            source = self._sources.maybe_of(who.address)
            return (f"address {source}", f"The address {source} publishes") if source else ("", "")
        if account.kind == "key":
            return f"key {account.id}", f"The key {account.name!r} publishes"
        return f"user {account.name}", f"The user {account.name!r} publishes"
