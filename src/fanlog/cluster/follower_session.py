"""The follower's end of the connection to its primary. It greets, asks for everything, and hands
what it receives to the replica. A connection is used once; the owner dials again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from fanlog.client.core.handshake import hello, lost_error, no_greeting, not_greeted
from fanlog.client.link import Dial, Link
from fanlog.errors import FanlogError, ProtocolError, RequestTimeoutError, from_wire
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    FrameCutter,
    FrameKind,
    check_welcome,
    frame,
    message_frame,
    read_frame_header,
)
from fanlog.format.messages import ErrorAnswer, Welcome, decode
from fanlog.format.replication import (
    FOLLOWER_CLIENT,
    Applied,
    Follow,
    Followed,
    ReplicaEnd,
    ReplicaEnds,
    Replicated,
    ReplicaTopic,
    ReplicaTopics,
    applied_frame,
    read_replicated,
)
from fanlog.identity import Login
from fanlog.model import MIB

logger = logging.getLogger("fanlog.cluster")

# A frame holds a turn's pieces of one partition, or a block of a log.
_FRAME_BYTES_MAX = 1024 * MIB
_FOLLOW_REQUEST = 1
# Logs of one page of ends.
_PAGE_ENDS = 5000
# A primary sends a heartbeat several times a second.
_SILENCE_SECONDS = 5.0


class ReplicaPort(Protocol):
    """The replica, as far as a session needs it."""

    async def adopt(
        self, followed: Followed, topics: Sequence[ReplicaTopic]
    ) -> Sequence[ReplicaEnd]:
        """Makes what is here a part of the primary's history. Where the logs end after that."""
        ...

    def apply(self, sent: Replicated) -> None:
        """Appends. Raises if that can't be; then the session ends."""
        ...

    @property
    def applied(self) -> Applied:
        """How far it is in the primary's reign."""
        ...

    @property
    def unsynced_position(self) -> int:
        """The newest position with something that need not be synced."""
        ...


class FollowerSession:
    """One connection. `run` returns when it is over, with the reason. `on_heard` is called with
    each frame of the primary."""

    def __init__(
        self,
        replica: ReplicaPort,
        dial: Dial,
        follow: Follow,
        login: Callable[[], Awaitable[Login | None]],
        on_heard: Callable[[Replicated], None],
    ) -> None:
        self._replica = replica
        self._dial = dial
        self._follow = follow
        self._login = login
        self._on_heard = on_heard
        self._cutter = FrameCutter(_FRAME_BYTES_MAX)
        self._link: Link | None = None
        self._over: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._greeted = False
        self._followed: Followed | None = None
        self._topics: list[ReplicaTopic] = []
        self._adopting: asyncio.Task[None] | None = None
        # What the replica had before that says nothing about what it has now.
        self._adopted = False
        self._reported: Applied | None = None
        self._heard_at = 0.0
        # Whether it has once had everything in this reign.
        self.level = False

    async def run(self) -> FanlogError:
        link = self._link = Link(self._received, self._lost)
        silent: asyncio.Task[None] | None = None
        try:
            link.transport = await self._dial(link)
            self._heard_at = asyncio.get_running_loop().time()
            silent = asyncio.create_task(self._watch_silence(link))
            link.write(hello(FOLLOWER_CLIENT + self._follow.node, await self._login()))
            why = await self._over
        except FanlogError as fault:
            why = fault
        finally:
            if silent is not None:
                silent.cancel()
            if self._adopting is not None:
                self._adopting.cancel()
                await asyncio.gather(self._adopting, return_exceptions=True)
            link.close()
        return why if isinstance(why, FanlogError) else lost_error(why)

    async def _watch_silence(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SILENCE_SECONDS / 4)
            if self._adopting is not None and not self._adopted:
                # Reading and cutting large logs may take minutes: both hear that the other lives.
                link.write(frame(FrameKind.PING))
            if loop.time() - self._heard_at > _SILENCE_SECONDS:
                if not self._greeted:
                    self._end(no_greeting(link.peer, _SILENCE_SECONDS))
                else:
                    self._end(
                        RequestTimeoutError(f"The primary at {link.peer} is silent. Is it paused?")
                    )

    def fail(self, why: FanlogError) -> None:
        """The replica takes nothing more."""
        self._end(why)

    def _end(self, why: Exception) -> None:
        if not self._over.done():
            self._over.set_result(why)

    def _lost(self, link: Link, why: Exception | None) -> None:
        if not self._greeted:
            self._end(not_greeted(link.peer, why))
        else:
            self._end(lost_error(why))

    # Frames

    def _received(self, link: Link, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        data = self._cutter.join(bytes(data))
        if not self._greeted and data:
            check_welcome(data)
        at, size = 0, len(data)
        while size - at >= PREFIX_BYTES and not self._over.done():
            length, kind = PREFIX.unpack_from(data, at)
            self._cutter.check_length(length, kind)
            if at + length > size:
                break
            header = read_frame_header(data, at)
            payload = memoryview(data)[at + FRAME_HEADER_BYTES : at + length]
            at += length
            try:
                self._take(link, kind, header.request, payload)
            except FanlogError as fault:
                self._end(fault)
            except Exception as fault:
                logger.exception("the replica has failed")
                self._end(FanlogError(f"The replica has failed: {fault!r}. Report this."))
        if at < size:
            self._cutter.keep(data, at)
        self.report()

    def _take(self, link: Link, kind: int, request: int, payload: memoryview) -> None:
        if kind == FrameKind.REPLICATE and self._followed is not None:
            sent = read_replicated(payload)
            if sent.epoch != self._followed.epoch:
                raise ProtocolError(
                    f"A frame of epoch {sent.epoch} came in the reign of {self._followed.epoch}."
                )
            self._replica.apply(sent)
            self.level = self.level or sent.position > 0
            self._on_heard(sent)
        elif kind == FrameKind.WELCOME:
            decode(Welcome, payload)
            self._greeted = True
            link.write(message_frame(FrameKind.FOLLOW, self._follow, request=_FOLLOW_REQUEST))
        elif kind == FrameKind.OK and request == _FOLLOW_REQUEST:
            self._followed = decode(Followed, payload)
        elif kind == FrameKind.REPLICA_TOPICS:
            page = decode(ReplicaTopics, payload)
            self._topics += page.topics
            if page.last:
                self._adopting = asyncio.create_task(self._adopt(link))
        elif kind == FrameKind.ERROR:
            answer = decode(ErrorAnswer, payload)
            raise from_wire(answer.code, answer.message)

    async def _adopt(self, link: Link) -> None:
        assert self._followed is not None
        topics, self._topics = self._topics, []
        try:
            ends = list(await self._replica.adopt(self._followed, topics))
        except FanlogError as fault:
            self._end(fault)
            return
        except Exception as fault:
            logger.exception("the replica can't be compared with its primary")
            self._end(FanlogError(f"The replica has failed: {fault!r}. Report this."))
            return
        self._adopted = True
        for i in range(0, len(ends), _PAGE_ENDS):
            page = ReplicaEnds(tuple(ends[i : i + _PAGE_ENDS]))
            link.write(message_frame(FrameKind.REPLICA_ENDS, page))
        link.write(message_frame(FrameKind.REPLICA_ENDS, ReplicaEnds((), last=True)))

    def report(self) -> None:
        """Tells the primary how far the replica is, if it is further than before."""
        applied = self._replica.applied
        if not self._adopted or self._link is None or applied == self._reported:
            return
        if self._followed is None or applied.epoch != self._followed.epoch:
            return
        if waits_for_sync(applied, self._reported, self._replica.unsynced_position):
            return
        self._reported = applied
        self._link.write(applied_frame(applied))


def waits_for_sync(applied: Applied, reported: Applied | None, unsynced_position: int) -> bool:
    """Whether a report has time until the sync that follows: only `written` has grown, and only by
    what has to be synced. No publisher waits for that alone, and each report wakes the primary."""
    if reported is None or unsynced_position > reported.written:
        return False
    return applied._replace(written=reported.written) == reported
