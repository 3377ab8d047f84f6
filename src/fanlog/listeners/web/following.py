"""The subscriptions of one web connection. Each is checked, followed on the bus, and read from the
core in a view. WebSocket and SSE share this code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import msgspec

from fanlog.broker.messages.missing_topics import maybe_notice
from fanlog.client.arguments import as_start
from fanlog.errors import ClosedError, InvalidArgumentError, LimitError, allow_more
from fanlog.format.messages import Joined, Position, Subscribe
from fanlog.format.patterns import is_pattern
from fanlog.format.web_filters import Filter
from fanlog.format.web_positions import parse_position
from fanlog.format.web_views import ViewKind, views_for
from fanlog.identity import Verb
from fanlog.listeners.web.operations import Missing, StartSpec
from fanlog.model import SlowPolicy, Start

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.messages.latest_values import LatestTables, LatestUse
    from fanlog.broker.messages.topics import BrokerSubscription
    from fanlog.broker.ports import Reader
    from fanlog.config_web import WebOptions
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.ports import Bus

# Topics in the answer to a subscription. The others follow one by one.
JOINED_AT_ONCE = 1000
Key = tuple[str, str]


class WantedSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A requested subscription. `positions` (also an empty one) means that the reader resumes: they
    have precedence over `start`."""

    target: str
    kind: ViewKind
    start: Start = Start()
    partitions: tuple[int, ...] | None = None
    positions: tuple[Position, ...] | None = None
    filter: Filter | None = None
    latest: bool = False
    missing: Missing = "wait"
    policy: SlowPolicy = SlowPolicy.CATCH_UP

    @property
    def key(self) -> Key:
        return self.target, "" if self.filter is None else self.filter.text

    @property
    def wildcard(self) -> bool:
        return is_pattern(self.target)

    @property
    def snapshot(self) -> bool:
        """Whether it starts with the latest values. A returning client has them."""
        return self.latest and self.positions is None


class FollowedSubscription:
    """A subscription, and its joined topics that its reader does not know yet. `snapshot` has the
    latest values, which come before its messages. `uses` counts its users."""

    __slots__ = ("joined", "snapshot", "subscription", "uses", "wanted")

    def __init__(
        self, wanted: WantedSubscription, subscription: BrokerSubscription, joined: list[Joined]
    ) -> None:
        self.wanted = wanted
        self.subscription = subscription
        self.joined = joined
        self.snapshot: list[bytes] = []
        self.uses: list[LatestUse] = []

    def positions(self, limit: int | None = JOINED_AT_ONCE) -> list[Position]:
        """Its start positions, as many as fit in one answer. Positions of missing topics stay as
        given: the topics may come back."""
        absent = self.subscription.absent
        return [
            *positions_of(self.joined[:limit]),
            *(absent.values() if absent else ()),
        ]

    def numbers(self) -> dict[str, str]:
        return {str(joined.number): joined.name for joined in self.joined[:JOINED_AT_ONCE]}


class FollowingHost(Protocol):
    """What subscriptions need of their listener."""

    bus: Bus
    options: WebOptions

    @property
    def latest(self) -> LatestTables: ...


class Following:
    """All subscriptions of one connection."""

    def __init__(self, host: FollowingHost, connection: WebConnection, permit: Permit) -> None:
        self._bus = host.bus
        self._options = host.options
        self._latest = host.latest
        self._connection = connection
        self._permit = permit
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._begun: dict[Key, FollowedSubscription] = {}
        self._beginning: dict[Key, WantedSubscription] = {}

    def targets(self) -> list[str]:
        return [followed.wanted.target for followed in self._begun.values()]

    def __len__(self) -> int:
        return len(self._begun) + len(self._beginning)

    def check(self, wanted: WantedSubscription) -> None:
        """Raises if it can't start; otherwise counts it against the limits."""
        self._permit.ask(Verb.SUBSCRIBE, wanted.target)
        if wanted.key in self._begun or wanted.key in self._beginning:
            raise InvalidArgumentError(
                f"This connection already follows {wanted.target!r} with that filter. Unsubscribe "
                "first, or use another connection."
            )
        if len(self) >= self._options.subscriptions_max:
            raise LimitError(
                f"This connection has {len(self)} subscriptions, which is the limit. Follow many "
                "topics with one pattern, or use another connection. "
                + allow_more("web.subscriptions_max")
            )
        self._beginning[wanted.key] = wanted

    async def begin(
        self, wanted: WantedSubscription, reader: Reader, client: str
    ) -> FollowedSubscription:
        """The subscription after `check`. `start` starts it; before that the caller sends the start
        positions."""
        key, bus = wanted.key, self._bus
        followed: FollowedSubscription | None = None
        try:
            await bus.follow(wanted.target, wildcard=wanted.wildcard)
        except BaseException:
            self._forget(wanted)
            raise
        try:
            followed = await self._add(wanted, reader, client)
            if wanted.snapshot:
                await self._take_snapshot(followed)
            if self._beginning.get(key) is not wanted or followed.subscription.closed:
                raise ClosedError(
                    f"The subscription to {wanted.target!r} was ended before it began."
                )
        except BaseException:
            self._forget(wanted)
            if followed is None:
                bus.unfollow(wanted.target, wildcard=wanted.wildcard)
            else:
                bus.core.subscriptions.remove(followed.subscription)
                self._let_go(followed)
            raise
        del self._beginning[key]
        self._begun[key] = followed
        return followed

    def _forget(self, wanted: WantedSubscription) -> None:
        if self._beginning.get(wanted.key) is wanted:
            del self._beginning[wanted.key]

    async def _add(
        self, wanted: WantedSubscription, reader: Reader, client: str
    ) -> FollowedSubscription:
        subscription, joined = await self._bus.core.subscriptions.add(
            next(self._numbers),
            Subscribe(
                target=wanted.target,
                wildcard=wanted.wildcard,
                # A reader that is disconnected in the middle of a snapshot then resumes at the
                # first message.
                start=Start("earliest") if wanted.snapshot else wanted.start,
                partitions=wanted.partitions,
                resume=wanted.positions,
                missing=wanted.missing,
                policy=wanted.policy,
            ),
            self._connection,
            reader,
            client,
            permit=self._permit,
            views=views_for(wanted.kind, wanted.target, wanted.filter),
        )
        return FollowedSubscription(wanted, subscription, joined)

    async def _take_snapshot(self, followed: FollowedSubscription) -> None:
        """The latest values of all topics; their cursors continue after them."""
        for joined in followed.joined:
            topic = self._bus.core.catalog.find(joined.name)
            if topic is None or topic.number != joined.number:
                continue
            use = self._latest.open(topic)
            followed.uses.append(use)
            await use.ready()
            followed.snapshot += await use.begin(followed.subscription)

    def start(self, followed: FollowedSubscription, *, announced: bool = False) -> None:
        """Starts a subscription that its reader knows. `announced`: it knows all joined topics."""
        untold = [] if announced else followed.joined[JOINED_AT_ONCE:]
        followed.joined = []
        if not followed.snapshot:
            self._start(followed, untold)
            return
        task = asyncio.get_running_loop().create_task(self._show(followed, untold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _show(self, followed: FollowedSubscription, untold: list[Joined]) -> None:
        """Sends a snapshot piece by piece, as the peer reads, and then the messages."""
        snapshot, followed.snapshot = followed.snapshot, []
        for piece in snapshot:
            await self._connection.writable()
            if followed.subscription.closed:
                return
            self._connection.push(followed.subscription, [memoryview(piece)])
        if not followed.subscription.closed:
            self._start(followed, untold)

    def _start(self, followed: FollowedSubscription, untold: list[Joined]) -> None:
        core, subscription = self._bus.core, followed.subscription
        notice = maybe_notice(core.catalog, subscription.target, wildcard=subscription.wildcard)
        if notice is not None and self._permit.may(Verb.DESCRIBE, notice.topic):
            subscription.reader.notice(notice)
        core.subscriptions.start(subscription, untold)

    def end(self, key: Key) -> bool:
        """Whether there was one."""
        if self._beginning.pop(key, None) is not None:
            return True
        followed = self._begun.pop(key, None)
        if followed is None:
            return False
        followed.subscription.keeper.leave(followed.subscription)
        self._let_go(followed)
        return True

    def forbidden(self) -> list[Key]:
        """Subscriptions that the connection may no longer read."""
        return [
            key
            for key, followed in self._begun.items()
            if not self._permit.may(Verb.SUBSCRIBE, followed.wanted.target)
        ]

    def close(self) -> None:
        """The connection is gone."""
        begun, self._begun = self._begun, {}
        self._beginning.clear()
        for followed in begun.values():
            followed.subscription.keeper.lost(followed.subscription)
            self._let_go(followed)
        for task in self._tasks:
            task.cancel()

    def _let_go(self, followed: FollowedSubscription) -> None:
        """Releases the resources of an ended subscription."""
        for use in followed.uses:
            use.close()
        wanted = followed.wanted
        self._bus.unfollow(wanted.target, wildcard=wanted.wildcard)


def positions_of(joined: Iterable[Joined]) -> list[Position]:
    """The start positions in joined topics."""
    return [
        Position(topic.name, start.partition, start.offset, topic.epoch, topic.number)
        for topic in joined
        for start in topic.starts
    ]


def read_start(given: str | StartSpec) -> tuple[Start, tuple[int, ...] | None]:
    """The start and the partitions, in a client's notation."""
    if isinstance(given, str):
        return as_start("latest" if given == "live" else given), None
    named = {
        name: value
        for name in ("offset", "time", "last")
        if (value := getattr(given, name)) is not None
    }
    if len(named) != 1:
        raise InvalidArgumentError(
            "A start is 'live', 'earliest', or one of offset, time and last, such as "
            '{"last": 50}.'
        )
    partitions = None if given.partition is None else (given.partition,)
    if given.offset is not None:
        return Start("offset", given.offset), partitions
    if partitions is not None:
        raise InvalidArgumentError("A partition goes with an offset, not with a time or last.")
    if given.last is not None:
        return Start("last", given.last), None
    return as_start(given.time or "", "time"), None


def read_before(given: str | int | None) -> int | None:
    """The offset before which history is wanted. A position may be given instead."""
    if given is None or isinstance(given, int):
        return given
    return parse_position(given).offset
