"""Presence on the event loop: it passes signals and ticks to the roster, and changes of rooms to
their watchers. It uses only `signal` and `on_signal` of the bus, so it works over any bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from fanlog.broker.presence.rooms import RoomChange, RoomLimits, Rooms, RoomSize, RoomUser
from fanlog.broker.presence.roster import Roster, RosterLimits
from fanlog.errors import InvalidArgumentError, LimitError, allow_more
from fanlog.format.presence import CONNECTION_BYTES_MAX, USER_BYTES_MAX, is_info
from fanlog.model import TOPIC_NAME_BYTES_MAX

if TYPE_CHECKING:
    from fanlog.config_web import WebOptions
    from fanlog.listeners.web.ports import Bus

logger = logging.getLogger("fanlog.presence")

CHANNEL = "presence"
# Changes within this time are sent together.
_TICK_SECONDS = 0.1


class PresentUserAnswer(msgspec.Struct, frozen=True):
    """A user in a topic. `info` is that of the user's newest connection; `connections` 0 means that
    the last one was lost a moment ago."""

    user: str
    connections: int
    info: msgspec.Raw | UnsetType = UNSET


class PresenceOf(msgspec.Struct, frozen=True):
    """The users in a topic. `count` is their number. A topic with very many users has no list."""

    topic: str
    count: int
    connections: int
    users: list[PresentUserAnswer] | UnsetType = UNSET


class _Joined(msgspec.Struct, frozen=True):
    user: str
    info: msgspec.Raw | UnsetType = UNSET


class _Left(msgspec.Struct, frozen=True):
    user: str


class _PresenceFrame(msgspec.Struct, frozen=True, tag="presence"):
    topic: str
    count: int
    joined: list[_Joined] | UnsetType = UNSET
    left: list[_Left] | UnsetType = UNSET
    users: list[PresentUserAnswer] | UnsetType = UNSET


class PresenceEvent:
    """A change of a room, rendered once for all notified clients: each transport has one `key`."""

    __slots__ = ("_rendered", "json", "topic")

    def __init__(self, topic: str, json: bytes) -> None:
        self.topic = topic
        self.json = json
        self._rendered: dict[str, bytes] = {}

    def rendered(self, key: str, make: Callable[[bytes], bytes]) -> bytes:
        """What `make` makes of the JSON: the same bytes for everybody with this key."""
        made = self._rendered.get(key)
        if made is None:
            made = self._rendered[key] = make(self.json)
        return made


class Watcher(Protocol):
    """A connection that follows presence changes."""

    def presence_changed(self, event: PresenceEvent) -> None: ...


class Presence:
    """The users in each topic. Runs on the loop only."""

    def __init__(
        self, bus: Bus, options: WebOptions, clock: Callable[[], float] | None = None
    ) -> None:
        self._bus = bus
        self._options = options
        self._clock = clock or asyncio.get_running_loop().time
        self._rooms = Rooms(
            RoomLimits(
                grace_seconds=options.presence_grace_seconds,
                list_max=options.presence_list_max,
                count_seconds=options.presence_count_seconds,
            )
        )
        limits = RosterLimits(
            heartbeat_seconds=options.presence_heartbeat_seconds,
            timeout_seconds=options.presence_timeout_seconds,
            connections_max=options.presence_connections_max,
            processes_max=options.presence_processes_max,
            info_bytes_max=options.presence_info_bytes_max,
        )
        self.roster = Roster(bus.process, self._rooms, limits, self._clock())
        self._joins: dict[str, set[str]] = {}
        self._watchers: dict[str, dict[Watcher, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._working = False

    def start(self) -> None:
        """Announces this process to the others."""
        self._bus.on_signal(CHANNEL, self._hear)
        self._bus.on_state.append(self._bus_changed)
        self._tick()

    def close(self) -> None:
        """Says goodbye, so that the others need not wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.roster.stop()
            self._send()

    # Who is there

    def join(self, topic: str, connection: str, user: str, info: bytes = b"") -> None:
        """A connection becomes present in a topic, or changes its info. A connection without a user
        counts as a user of its own."""
        self.check(topic, connection, user, info)
        joins = self._joins.setdefault(connection, set())
        if topic not in joins:
            try:
                self._check_room(joins)
            except LimitError:
                if not joins:
                    del self._joins[connection]
                raise
            joins.add(topic)
        self.roster.join(topic, connection, _name(user, connection), info, self._clock())

    def check(self, topic: str, connection: str, user: str, info: bytes) -> None:
        """Raises what is wrong with a connection that wants to join."""
        for what, text, most in (
            ("topic's name", topic, TOPIC_NAME_BYTES_MAX),
            ("connection's id", connection, CONNECTION_BYTES_MAX),
            ("user's name", _name(user, connection), USER_BYTES_MAX),
        ):
            if not 1 <= len(text.encode(errors="replace")) <= most:
                raise InvalidArgumentError(f"A {what} has 1 to {most} bytes: use a shorter one.")
        most = self._options.presence_info_bytes_max
        if len(info) > most:
            raise LimitError(
                f"The info has {len(info)} bytes, and may have {most}. Leave something out. "
                + allow_more("web.presence_info_bytes_max")
            )
        if not is_info(info, most):
            raise InvalidArgumentError("The info is not JSON.")

    def _check_room(self, joins: set[str]) -> None:
        options = self._options
        if len(joins) >= options.presence_joins_max:
            raise LimitError(
                f"This connection is present in {len(joins)} topics, which is the limit. Leave "
                "some, or open another connection. " + allow_more("web.presence_joins_max")
            )
        if self._rooms.size >= options.presence_connections_max:
            raise LimitError(
                f"{self._rooms.size} connections are present in topics, which is the limit. "
                + allow_more("web.presence_connections_max")
            )

    def leave(self, topic: str, connection: str) -> None:
        """Ends the connection's presence there. The user stays present for the grace time."""
        joins = self._joins.get(connection)
        if joins is not None and topic in joins:
            joins.discard(topic)
            if not joins:
                del self._joins[connection]
            self.roster.leave(topic, connection, self._clock())

    def gone(self, connection: str) -> None:
        """The connection is closed: it leaves all its topics."""
        for topic in list(self._joins.get(connection, ())):
            self.leave(topic, connection)

    def snapshot(self, topic: str) -> PresenceOf:
        rooms = self._rooms
        users = rooms.users(topic)
        return PresenceOf(
            topic,
            rooms.count(topic),
            rooms.connections(topic),
            UNSET if users is None else [_present(user) for user in users],
        )

    def sizes(self) -> Iterator[RoomSize]:
        """How many are in each topic with somebody in it."""
        return self._rooms.sizes()

    # Watchers

    def watch(self, topic: str, watcher: Watcher) -> None:
        """Notifies the watcher of changes in the topic from now on."""
        self._watchers.setdefault(topic, {})[watcher] = None
        self._rooms.watch(topic)

    def unwatch(self, topic: str, watcher: Watcher) -> None:
        watchers = self._watchers.get(topic)
        if watchers is None or watchers.pop(watcher, watcher) is not None:
            return
        if not watchers:
            del self._watchers[topic]
            self._rooms.unwatch(topic)

    def _tell(self, change: RoomChange) -> None:
        event = PresenceEvent(change.topic, msgspec.json.encode(_frame(change)))
        for watcher in list(self._watchers.get(change.topic, ())):
            try:
                watcher.presence_changed(event)
            except Exception:
                # One that fails must not keep the others from hearing.
                logger.exception("a watcher of %s failed", change.topic)

    # The bus

    def _hear(self, data: bytes) -> None:
        self.roster.hear(data, self._clock())
        self._work()

    def _work(self) -> None:
        """Does what takes long, a little in each turn of the loop."""
        if not self._working and self.roster.step():
            self._working = True
            asyncio.get_running_loop().call_soon(self._work_on)

    def _work_on(self) -> None:
        self._working = False
        self._send()
        if self._timer is not None:
            self._work()

    def _bus_changed(self, up: bool) -> None:
        if up:
            self.roster.rejoin()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        self.tick()

    def tick(self) -> None:
        """Does what is due: for the timer, and for tests that hand time in."""
        now = self._clock()
        self.roster.tick(now)
        self._work()
        self._rooms.tick(now)
        self._send()
        for change in self._rooms.take_changes(now):
            self._tell(change)

    def _send(self) -> None:
        for data in self.roster.take_signals():
            self._bus.signal(CHANNEL, data)


def _name(user: str, connection: str) -> str:
    return user or f"~{connection}"


def _info(info: bytes) -> msgspec.Raw | UnsetType:
    return msgspec.Raw(info) if info else UNSET


def _present(user: RoomUser) -> PresentUserAnswer:
    return PresentUserAnswer(user.user, user.connections, _info(user.info))


def _frame(change: RoomChange) -> _PresenceFrame:
    if change.users is not None:
        users = [_present(user) for user in change.users]
        return _PresenceFrame(change.topic, change.count, users=users)
    if not change.joined and not change.left:
        return _PresenceFrame(change.topic, change.count)
    joined = [_Joined(user.user, _info(user.info)) for user in change.joined]
    left = [_Left(user) for user in change.left]
    return _PresenceFrame(change.topic, change.count, joined, left)
