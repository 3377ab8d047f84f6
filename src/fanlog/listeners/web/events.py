"""Server-sent events: one or more subscriptions as an endless answer to a GET.

| part of an event | content                                                                   |
| ---------------- | ------------------------------------------------------------------------- |
| `id`             | where the reader is behind it; handed back as `Last-Event-ID`             |
| `event`          | nothing for a message; else `subscribed`, `snapshot`, `snapshot-end`,     |
|                  | `gap`, `joined`, `left`, `notice`, `presence`, `upstream`, `expiring`,    |
|                  | `reconnect`, `end` or `error`                                             |
| `data`           | JSON: the message, or what a WebSocket client gets in the same case       |

The id of one topic with one partition is its position. Of several partitions it is a vector of all
of them, which readers at the same position share. `-` is the id before there is any topic to read.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from fanlog.errors import (
    FanlogError,
    ForbiddenError,
    InvalidArgumentError,
    LimitError,
    UnauthenticatedError,
    allow_more,
)
from fanlog.format.messages import Joined, Notice, Position
from fanlog.format.patterns import fits, is_pattern
from fanlog.format.web_frames import sse_event
from fanlog.format.web_positions import Vector, parse_event_id, print_position, print_positions
from fanlog.listeners.web import operations as ops
from fanlog.listeners.web.connection_presence import ConnectionPresence, Wish
from fanlog.listeners.web.entrance import ENDED
from fanlog.listeners.web.following import (
    FollowedSubscription,
    Following,
    WantedSubscription,
    positions_of,
)
from fanlog.listeners.web.login_watch import LoginWatch
from fanlog.listeners.web.reader_events import gap_frame
from fanlog.model import Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanlog.broker.ports import SendBuffer
    from fanlog.format.web_views import ViewKind
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort
    from fanlog.listeners.web.presence import PresenceEvent

NO_TOPIC = "-"
_PING = b": ping\n\n"
# After a broken connection a browser returns after a time between these, so that not all return at
# the same time when a process dies.
_RETRY_MS = (500, 3000)
# Other bytes in the head of a request with an id.
_HEAD_BYTES = 1024


class EventStream:
    """One client that reads events. It is the connection's session."""

    transport = "sse"

    def __init__(self, listener: WebPort, connection: WebConnection, guest: Guest) -> None:
        self._listener = listener
        self._bus = listener.bus
        self._connection = connection
        self.id = secrets.token_hex(8)
        self.address = connection.peer
        self.since_us = time.time_ns() // 1000
        self.guest = guest
        guest.named(self.id)
        self.permit = guest.permit
        self.user = user = guest.who.user
        self._watch = LoginWatch(listener, guest)
        self.following = Following(listener, connection, self.permit)
        self.present = ConnectionPresence(
            listener.presence, self.permit, self.id, user, self._tell_presence
        )
        self._followed: list[FollowedSubscription] = []
        # None: one partition, whose position is the whole id.
        self._vector: Vector | None = None
        self._presence: Wish = False
        self._pinged_at = listener.loop.time()

    # Beginning

    async def begin(self, wanted: Sequence[WantedSubscription], presence: Wish = False) -> None:
        """Adds the subscriptions. Nothing is sent yet, so that an error still becomes a status."""
        self._presence = presence
        if presence:
            for one in wanted:
                self.present.check(one.target, presence)
        kind = self._kind_of(wanted)
        self._followed = await self._add(wanted, kind)
        if kind == "sse" and not self._is_single():
            # The topic was created again meanwhile, or has more partitions.
            for followed in self._followed:
                self.following.end(followed.wanted.key)
            self._followed = await self._add(wanted, kind := "sse-vector")
        if kind == "sse-vector":
            known = [p for followed in self._followed for p in followed.positions(limit=None)]
            self._vector = self._listener.vectors.of(known)
            self._connection.stamp_with(self._stamp)
            self._check_size()

    def _kind_of(self, wanted: Sequence[WantedSubscription]) -> ViewKind:
        if len(wanted) == 1 and not wanted[0].wildcard and wanted[0].partitions in (None, (0,)):
            topic = self._bus.core.catalog.find(wanted[0].target)
            if topic is not None and len(topic.partitions) == 1:
                return "sse"
        return "sse-vector"

    async def _add(
        self, wanted: Sequence[WantedSubscription], kind: ViewKind
    ) -> list[FollowedSubscription]:
        chosen = [msgspec.structs.replace(one, kind=kind) for one in wanted]
        for one in chosen:
            self.following.check(one)
        return [
            await self.following.begin(one, EventReader(self, one), self.user) for one in chosen
        ]

    def _is_single(self) -> bool:
        joined = self._followed[0].joined
        return len(joined) == 1 and [start.partition for start in joined[0].starts] == [0]

    def start(self) -> None:
        """The head of the answer was sent: sends the reader's positions, and starts the cursors."""
        begun, self._followed = self._followed, []
        known = [p for followed in begun for p in followed.positions(limit=None)]
        begin = {
            "targets": [followed.wanted.target for followed in begun],
            "positions": print_positions(known),
        }
        own = self.id_at(known[0]) if known else self._vector_id()
        event = sse_event(msgspec.json.encode(begin), "subscribed", own)
        self._connection.write(b"retry: %d\n" % random.randint(*_RETRY_MS) + event)
        self._listener.connections.add(self)
        for followed in begun:
            self.following.start(followed, announced=True)
            if self._connection.closing:
                # It had to leave at once.
                return
        self._begin_presence()
        # Permissions may have changed meanwhile.
        self.recheck()

    def _begin_presence(self) -> None:
        try:
            if self._presence:
                for target in self.following.targets():
                    self.present.begin(target, self._presence)
        except FanlogError as fault:
            self.fail(fault)

    def _tell_presence(self, event: PresenceEvent) -> None:
        self._connection.tell(event.rendered("sse", _presence_event))

    def _stamp(self, *pieces: SendBuffer) -> tuple[bytes]:
        """Completes the ids in pieces. Readers at the same position share the bytes."""
        assert self._vector is not None
        self._vector, data = self._listener.vectors.stamp(self._vector, *pieces)
        return (data,)

    # Ids

    @property
    def epoch(self) -> int:
        return self._bus.core.epoch

    def _vector_id(self) -> str:
        return "" if self._vector is None else self._vector.text or NO_TOPIC

    def id_at(self, position: Position) -> str:
        """The id of an event that moves the reader to a position."""
        if self._vector is None:
            return print_position(position.offset, position.epoch, position.number)
        self._vector = self._listener.vectors.moved(self._vector, position)
        return self._vector_id()

    def id_joined(self, joined: Joined) -> str | None:
        """The id after joining a topic; None if this kind of id can't express it: the reader must
        reconnect."""
        positions = positions_of([joined])
        if self._vector is None:
            single = [position.partition for position in positions] == [0]
            return self.id_at(positions[0]) if single else None
        vectors = self._listener.vectors
        if all(key.number != joined.number for key in self._vector.reached):
            self._vector = vectors.without(self._vector, joined.name)
        for position in positions:
            self._vector = vectors.moved(self._vector, position)
        self._check_size()
        return self._vector_id()

    def id_without(self, topic: str) -> str:
        if self._vector is None:
            return ""
        self._vector = self._listener.vectors.without(self._vector, topic)
        return self._vector_id()

    def _check_size(self) -> None:
        """An id must fit into a header, or the reader could not resume."""
        limit = self._listener.options.header_bytes_max - _HEAD_BYTES
        if self._vector is not None and len(self._vector.text) > limit:
            raise LimitError(
                "These are too many topics for server-sent events: their positions do not fit into "
                "an id. Use a WebSocket, or fewer topics. " + allow_more("web.header_bytes_max")
            )

    # Notices to the reader

    def tell(self, frame: msgspec.Struct, event: str, id: str = "") -> None:
        self._connection.tell(sse_event(ops.encode(frame), event, id))

    def fail(self, error: FanlogError) -> None:
        self._connection.evict(error)

    def come_back(self, reason: str, after_ms: int = 0) -> None:
        """Asks the reader to reconnect. It resumes at its id."""
        frame = ops.ReconnectFrame(after_ms=after_ms, reason=reason)
        last = b"retry: %d\n" % after_ms + sse_event(ops.encode(frame), "reconnect")
        self._connection.finish(f"sent away: {reason}", last)

    # The connection's talk

    def feed(self, data: bytes) -> None:
        """The client has nothing to send. Its bytes are dropped."""

    def held_up(self) -> bool:
        return False

    def recheck(self) -> None:
        """Permissions have changed: closes the connection if its login is no longer valid, or if it
        may no longer read all its topics."""
        if self._connection.closing:
            return
        if not self.guest.renew():
            self.fail(UnauthenticatedError(ENDED))
        elif self.permit.guarded and (forbidden := self.following.forbidden()):
            self.fail(ForbiddenError(f"{forbidden[0][0]!r} may not be read any more."))

    def swept(self, now: float) -> None:
        login = self._watch.look()
        if login == "over":
            self.recheck()
        elif login == "ends":
            self.tell(self._watch.frame(), "expiring")
        if self._connection.closing:
            return
        if self._connection.is_stalled(now):
            self._connection.abort()
        elif now - self._pinged_at >= self._listener.options.ping_seconds:
            self._pinged_at = now
            if not self._connection.blocked:
                self._connection.write(_PING)

    def farewell(self, error: FanlogError) -> bytes:
        return sse_event(ops.encode(ops.failed_of(error)), "error")

    def drain(self, after_ms: int) -> None:
        self.come_back("draining", after_ms)

    def upstream(self, *, up: bool) -> None:
        self.tell(ops.UpstreamFrame(up=up), "upstream")

    def closed(self) -> None:
        self.following.close()
        self.present.close()
        self._listener.connections.remove(self)

    # The server API

    def subscriptions(self) -> list[str]:
        """The subscribed targets."""
        return self.following.targets()

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        """The server API ends the connection."""
        if reconnect:
            self.come_back(reason)
        else:
            error = sse_event(ops.encode(ops.OperationFault("disconnected", reason)), "error")
            self._connection.finish(f"disconnected: {reason}", error)


def _presence_event(json: bytes) -> bytes:
    return sse_event(json, "presence")


class EventReader:
    """Sends the notices of one subscription."""

    __slots__ = ("_stream", "_wanted")

    def __init__(self, stream: EventStream, wanted: WantedSubscription) -> None:
        self._stream = stream
        self._wanted = wanted

    def gap(self, gap: Gap, number: int) -> None:
        stream = self._stream
        frame, position = gap_frame(stream.epoch, self._wanted, gap, number)
        stream.tell(frame, "gap", stream.id_at(position))

    def joined(self, joined: Joined) -> None:
        stream, (target, filter_text) = self._stream, self._wanted.key
        try:
            own = stream.id_joined(joined)
        except LimitError as error:
            stream.fail(error)
            return
        if own is None:
            stream.come_back("the topic has more partitions")
            return
        positions = print_positions(positions_of([joined]))
        frame = ops.JoinedFrame(
            target=target, filter=filter_text, topic=joined.name, positions=positions
        )
        stream.tell(frame, "joined", own)

    def left(self, number: int, name: str) -> None:
        target, filter_text = self._wanted.key
        frame = ops.LeftFrame(target=target, filter=filter_text, topic=name)
        self._stream.tell(frame, "left", self._stream.id_without(name))

    def notice(self, notice: Notice) -> None:
        target, filter_text = self._wanted.key
        frame = ops.NoticeFrame(
            target=target, filter=filter_text, kind=notice.kind, topic=notice.topic
        )
        self._stream.tell(frame, "notice")


def read_event_id(text: str, targets: Sequence[str]) -> tuple[Position, ...]:
    """The positions in an id that a reader hands back."""
    if text == NO_TOPIC:
        return ()
    single = targets[0] if len(targets) == 1 and not is_pattern(targets[0]) else ""
    positions = parse_event_id(text, single)
    if any(not position.topic for position in positions):
        raise InvalidArgumentError(
            f"{text[:80]!r} is a position of one topic, but these are several. Use the id of an "
            "event of the same stream."
        )
    return positions


def positions_for(positions: Sequence[Position], target: str) -> tuple[Position, ...]:
    """The positions in a target's topics."""
    if not is_pattern(target):
        return tuple(p for p in positions if p.topic == target)
    return tuple(p for p in positions if fits(p.topic, target))
