"""A connection to a web listener that continues at another process: from one request on, its bytes
are forwarded as they are, in both directions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiohttp import hdrs, web

if TYPE_CHECKING:
    from collections.abc import Callable

# They are written again, for the body as it was read.
_BODY_HEADERS = frozenset({hdrs.CONTENT_LENGTH, hdrs.TRANSFER_ENCODING, hdrs.EXPECT})


class Tunnel(asyncio.Protocol):
    """The client's end. `other` is the end at the other process."""

    def __init__(self, peer: str, ended: Callable[[Tunnel], None]) -> None:
        self.peer = peer
        self.other = FarEnd(self)
        self._ended = ended
        self.transport: asyncio.Transport | None = None
        self.heard_at = 0.0

    def joined(self, transport: asyncio.Transport) -> None:
        """The client's connection is ours."""
        self.transport = transport
        self.heard_at = asyncio.get_running_loop().time()
        if self.other.transport is None or self.other.transport.is_closing():
            transport.abort()
            return
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends both connections."""
        for transport in (self.transport, self.other.transport):
            if transport is not None:
                transport.close()
        self._ended(self)


class FarEnd(asyncio.Protocol):
    """The end of a tunnel at the other process."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no `asyncio.Transport` by its class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        near = self._tunnel.transport
        self._tunnel.heard_at = asyncio.get_running_loop().time()
        if near is not None:
            near.write(data)

    def pause_writing(self) -> None:
        if self._tunnel.transport is not None:
            self._tunnel.transport.pause_reading()

    def resume_writing(self) -> None:
        near = self._tunnel.transport
        if near is not None and not near.is_closing():
            near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.close()


def request_bytes(request: web.Request, body: bytes) -> bytes:
    """A request as it came, with its whole body."""
    lines = [f"{request.method} {request.raw_path} HTTP/1.1".encode()]
    lines += [
        name + b": " + value
        for name, value in request.raw_headers
        if name.decode("latin-1").title() not in _BODY_HEADERS
    ]
    if body or hdrs.CONTENT_LENGTH in request.headers or request.body_exists:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
