"""A resumable stream as server-sent events: a cursor over its topic, in a view that all its readers
share. The view shows the end, and then the connection closes. Everything else that ends the reading
is an `end` with an error."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fanlog.client.core.receiving import lost_error
from fanlog.client.core.stream_core import gone_error, silent_error
from fanlog.errors import FanlogError, ForbiddenError, UnauthenticatedError
from fanlog.format.messages import Joined, Notice, Position
from fanlog.format.sse_views import end_event, has_end
from fanlog.format.streams import position_text
from fanlog.format.web_frames import sse_event
from fanlog.listeners.web import operations as ops
from fanlog.listeners.web.entrance import ENDED
from fanlog.listeners.web.following import FollowedSubscription, Following, WantedSubscription
from fanlog.model import Gap, Start

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort


class StreamTimeouts(NamedTuple):
    """When a silent writer counts as dead, and the interval of pings on a silent connection."""

    idle_seconds: float
    comment_seconds: float


class StreamEvents:
    """One reader of a stream: the connection's session, and the reader of its only subscription."""

    transport = "sse"

    def __init__(
        self,
        listener: WebPort,
        connection: WebConnection,
        guest: Guest,
        patience: StreamTimeouts,
    ) -> None:
        self._listener = listener
        self._connection = connection
        self._patience = patience
        self.id = secrets.token_hex(8)
        self.guest = guest
        guest.named(self.id)
        self.permit = permit = guest.permit
        self.user = guest.who.user
        self.address = connection.peer
        self.since_us = time.time_ns() // 1000
        self.following = Following(listener, connection, permit)
        self._followed: FollowedSubscription | None = None
        self._begin: Position | None = None
        self._ended = False
        self._ending: asyncio.Task[None] | None = None
        self._commented_at = self._heard_at = listener.loop.time()
        self._seen_end = 0

    async def begin(self, topic: str, position: Position | None) -> None:
        """Adds the subscription. Nothing is sent yet, so that an error still becomes a status."""
        wanted = WantedSubscription(
            target=topic,
            kind="sse-stream",
            # Not the earliest record left: a missing part before it must be noticed.
            start=Start("offset", 0),
            positions=None if position is None else (position,),
            missing="fail",
        )
        self.following.check(wanted)
        self._followed = await self.following.begin(wanted, self, self.user)
        if not self._followed.joined:
            # It was deleted during the lookup.
            raise gone_error(topic)
        self._begin = self._followed.positions()[0]
        self._connection.stamp_with(self._look)

    def start(self) -> None:
        """Sends the head of the answer at once, so that a reader sees the connection before the
        first token."""
        assert self._followed is not None
        self._connection.write(b": stream\n\n")
        self._listener.connections.add(self)
        self.following.start(self._followed, announced=True)

    def _look(self, *pieces: SendBuffer) -> tuple[SendBuffer, ...]:
        """The pieces to send: nothing after the end."""
        if self._ended:
            return ()
        for i, piece in enumerate(pieces):
            if has_end(piece):
                self._end()
                return pieces[: i + 1]
        return pieces

    def _end(self) -> None:
        """Closes when the peer has read everything. Not at once, because the fan-out is running."""
        self._ended = True
        self._ending = self._listener.loop.create_task(self._close())

    async def _close(self) -> None:
        await self._connection.writable()
        self._connection.finish("the stream has ended")

    def _fail(self, error: FanlogError, offset: int | None = None) -> None:
        """Ends with an error. Without an offset the reader keeps the id that it has."""
        if not self._ended:
            self._connection.tell(end_event(self._id_at(offset), error.code, str(error)))
            self._end()

    def _id_at(self, offset: int | None) -> str:
        if offset is None or self._begin is None:
            return ""
        return position_text(msgspec.structs.replace(self._begin, offset=offset))

    # The reader of the subscription

    def gap(self, gap: Gap, number: int) -> None:
        self._fail(lost_error(gap), gap.first)

    def joined(self, joined: Joined) -> None:
        """A stream is never written again: its deletion is its end."""

    def left(self, number: int, name: str) -> None:
        self._fail(gone_error(name))

    def notice(self, notice: Notice) -> None:
        """The reader gets an end instead."""

    # The connection's talk

    def feed(self, data: bytes) -> None:
        """The client has nothing to send. Its bytes are dropped."""

    def held_up(self) -> bool:
        return False

    def recheck(self) -> None:
        """Permissions have changed: closes the connection if it may no longer read the stream."""
        if self._ended or self._connection.closing:
            return
        if not self.guest.renew():
            self._connection.evict(UnauthenticatedError(ENDED))
        elif self.following.forbidden():
            self._connection.evict(ForbiddenError("This stream may not be read any more."))

    def swept(self, now: float) -> None:
        expires_us = self.guest.expires_us
        if expires_us and self._listener.core.now_us() >= expires_us:
            self.recheck()
        if self._connection.closing:
            return
        if self._connection.is_stalled(now):
            self._connection.abort()
            return
        self._look_for_writer(now)
        if now - self._commented_at >= self._patience.comment_seconds:
            self._commented_at = now
            if not self._connection.blocked:
                # Keeps the connection in use, and detects a dead peer.
                self._connection.write(b": alive\n\n")

    def _look_for_writer(self, now: float) -> None:
        cursors = self._followed.subscription.cursors if self._followed is not None else ()
        for cursor in cursors:
            end = cursor.partition.visible_end
            if end != self._seen_end or not cursor.live:
                self._seen_end, self._heard_at = end, now
            elif now - self._heard_at >= self._patience.idle_seconds:
                topic = cursor.partition.topic.name
                self._fail(silent_error(topic, self._patience.idle_seconds), end)
                return

    def farewell(self, error: FanlogError) -> bytes:
        return end_event("", error.code, str(error))

    def drain(self, after_ms: int) -> None:
        self._come_back("draining", after_ms)

    def _come_back(self, reason: str, after_ms: int = 0) -> None:
        """The reader continues at its id, on another process."""
        frame = ops.ReconnectFrame(after_ms=after_ms, reason=reason)
        last = b"retry: %d\n" % after_ms + sse_event(ops.encode(frame), "reconnect")
        self._connection.finish(f"sent away: {reason}", last)

    def upstream(self, *, up: bool) -> None:
        """An unreachable writer counts as silent."""

    def closed(self) -> None:
        self.following.close()
        self._listener.connections.remove(self)

    # The server API

    def subscriptions(self) -> list[str]:
        """The subscribed targets."""
        return self.following.targets()

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        """The server API ends the connection."""
        if reconnect:
            self._come_back(reason)
        else:
            last = end_event("", "disconnected", reason)
            self._connection.finish(f"disconnected: {reason}", last)
