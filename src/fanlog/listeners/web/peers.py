"""One connection to the web listener, as long as it speaks HTTP. aiohttp reads the requests. This
is in front of it: so the listener knows every connection and how long its request takes, and can
take the connection over for a stream of messages."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol, cast

from fanlog.listeners.tls import TlsSocket

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

    from fanlog.identity import Identity


class PeerOwner(Protocol):
    """What a connection needs of its listener."""

    loop: asyncio.AbstractEventLoop

    def connected(self, peer: HttpPeer) -> None: ...
    def disconnected(self, peer: HttpPeer, *, still_open: bool = False) -> None: ...


class HttpPeer(asyncio.Protocol):
    """A connection with aiohttp's protocol, `http`."""

    __slots__ = (
        "_listener",
        "_stalled",
        "active",
        "certificate_names",
        "half_since",
        "http",
        "login",
        "peer",
        "since",
        "sock",
        "taken",
        "transport",
    )

    def __init__(
        self, listener: PeerOwner, http: RequestHandler, peer: str, sock: socket.socket
    ) -> None:
        self._listener = listener
        self.http = http
        self.peer = peer
        self.sock = sock
        # The names in the client's certificate, where TLS has seen one.
        self.certificate_names: tuple[str, ...] = (
            sock.certificate_names if isinstance(sock, TlsSocket) else ()
        )
        self.active = 0
        # Since when a request is incomplete. A new connection owes one, too.
        self.half_since: float | None = listener.loop.time()
        self.since = listener.loop.time()
        self.transport: asyncio.Transport
        self.taken = False
        # The last credentials and their user, so that equal ones need no new check.
        self.login: tuple[str, Identity] | None = None
        # Bytes that wait for a peer that reads nothing, and since when they are above the limit.
        self._stalled: tuple[int, float] = (0, 0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._listener.connected(self)
        self.http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.half_since is None and not self.active:
            self.half_since = self._listener.loop.time()
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        self.http.eof_received()
        return None

    def pause_writing(self) -> None:
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.http.resume_writing()

    @property
    def age_seconds(self) -> float:
        """How long it has been open."""
        return self._listener.loop.time() - self.since

    def is_stalled(self, now: float, limit_seconds: float) -> bool:
        """Whether the peer has read nothing of an answer for this long."""
        kept = self.transport.get_write_buffer_size()
        before, since = self._stalled
        if not kept or kept != before:
            self._stalled = (kept, now)
            return False
        return now - since > limit_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.taken:
            self.http.connection_lost(exc)
        self._listener.disconnected(self)

    def take_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Gives the connection to another protocol, which answers the request. aiohttp no longer
        uses it. The kernel takes written bytes at once, or the protocol is paused."""
        transport = self.transport
        self.taken = True
        transport.set_write_buffer_limits(high=0)
        transport.set_protocol(protocol)
        self._listener.disconnected(self, still_open=True)
        # A fast client may have sent more than its request; aiohttp has buffered that.
        early = bytes(getattr(self.http, "_message_tail", b""))
        if early:
            self._listener.loop.call_soon(protocol.data_received, early)
        # aiohttp forgets the connection. It would close the transport if it still had it.
        self.http.transport = None
        self.http.connection_lost(None)
        return transport
