"""One native peer's connection to upstream: its frames go both ways as they are.

A peer's frames wait in memory until upstream has greeted it. Above a limit its socket is not read.

Law: a peer sends the epoch of the greeting with its outcomes of jobs and its offset commits. If
upstream is at another epoch than the edge said in its greeting, the peer has to connect again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from fanlog.client.core.handshake import hello
from fanlog.edge.reach import PeerProtocol, UpstreamReach
from fanlog.errors import ConnectError, ConnectionLostError, FanlogError, FormatError
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    FrameCutter,
    FrameKind,
    feed_frame,
    frame,
    read_frame_header,
)
from fanlog.format.header import KIND_BATCH
from fanlog.format.messages import Welcome, decode
from fanlog.identity import Login

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer

# Bytes that wait for upstream to take them, of one peer.
_WAITING_BYTES_MAX = 1 << 20
_CONNECT_SECONDS = 10.0
_OUTDATED = "The edge's upstream has been restarted, or another node is the primary now."


class RelayedPeer(Protocol):
    """What a relay needs of its peer."""

    # Its credentials.
    shown: Login | None
    greeted_epoch: int

    @property
    def client(self) -> str: ...

    @property
    def address(self) -> str: ...

    async def check_login(self) -> None:
        """Raises if upstream would refuse the peer."""
        ...

    def hold_up(self) -> None:
        """Upstream is full: stops reading from the peer."""
        ...

    def relieve(self) -> None:
        """Upstream takes bytes again."""
        ...

    def pass_back(self, pieces: list[SendBuffer]) -> None:
        """Sends what upstream has sent."""
        ...

    def lost_upstream(self, error: FanlogError) -> None:
        """The peer's upstream requests are lost with the connection: the peer reconnects."""
        ...


def _is_ours(kind: int, request: int) -> bool:
    """Whether the frame answers a request of the edge itself: a ping, or a new login."""
    return kind in (FrameKind.PONG, FrameKind.OK) and not request


class NativeRelay(PeerProtocol):
    """One peer's connection to upstream: frames go both ways as they are."""

    def __init__(self, session: RelayedPeer, reach: UpstreamReach) -> None:
        self._session = session
        self._reach = reach
        self._cutter = FrameCutter(1 << 31)
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._greeted = False
        self._closed = False
        self._feed = 0
        self._timer = asyncio.get_running_loop().call_later(_CONNECT_SECONDS, self._too_late)
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._session.check_login()
            await self._reach.open(lambda: self, self._session.address)
        except FanlogError as fault:
            self._fail(fault)

    def _too_late(self) -> None:
        if not self._greeted:
            self._fail(
                ConnectError(
                    f"The edge's upstream {self._reach.name} did not answer within "
                    f"{_CONNECT_SECONDS:.0f} s. Try again when it runs."
                )
            )

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # To upstream

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        if self._transport is None or not self._greeted:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes > _WAITING_BYTES_MAX:
                self._session.hold_up()
        else:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._session.hold_up()

    def resume_writing(self) -> None:
        self._session.relieve()

    # From upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no `asyncio.Transport` by its class.
        self._transport = cast("asyncio.Transport", transport)
        transport = self._transport
        if self._closed:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_WAITING_BYTES_MAX)
        transport.write(hello(self._session.client, self._session.shown))

    def data_received(self, data: bytes) -> None:
        out: list[SendBuffer] = []
        batches = False
        try:
            for kind, buffer, at, end in self._cutter.cut(data):
                if kind == KIND_BATCH:
                    if not batches:
                        # Whatever the peer was last sent, these are of another subscription.
                        out.append(feed_frame(self._feed))
                        batches = True
                    out.append(buffer[at:end])
                    continue
                header = read_frame_header(buffer, at)
                if kind == FrameKind.FEED:
                    self._feed = header.aux
                    batches = False
                elif kind == FrameKind.WELCOME:
                    welcome = decode(Welcome, memoryview(buffer)[at + FRAME_HEADER_BYTES : end])
                    if welcome.epoch != self._session.greeted_epoch:
                        self._fail(ConnectionLostError(_OUTDATED))
                        return
                    self._welcomed()
                elif not _is_ours(kind, header.request):
                    out.append(buffer[at:end])
        except FormatError as fault:
            self._fail(ConnectionLostError(f"The edge's upstream sent damaged bytes: {fault}"))
            return
        if out:
            self._session.pass_back(out)

    def _welcomed(self) -> None:
        self._greeted = True
        self._timer.cancel()
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._transport is not None:
            self._transport.write(b"".join(waiting))
        self._session.relieve()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        because = f": {exc}" if exc else "."
        self._fail(ConnectionLostError(f"The edge lost its upstream {self._reach.name}{because}"))

    def _fail(self, error: FanlogError) -> None:
        if not self._closed:
            self.close()
            self._session.lost_upstream(error)

    def close(self, *, goodbye: bool = False) -> None:
        """`goodbye` tells upstream that the peer does not come back."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        self._connecting.cancel()
        if self._transport is not None:
            if goodbye:
                self._transport.write(frame(FrameKind.GOODBYE))
            self._transport.close()
