"""A transport over a `TlsSocket`, for aiohttp and for streams of messages.

asyncio's own transport for TLS takes all that it is given, encrypts it at once and queues it. This
one does as the transports without TLS do: the socket takes what it can, the rest is kept as it is,
and the protocol has to pause. So the bytes that go to many readers stay shared until the moment
each of them is encrypted, and a stream may also send past it, straight into the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer
    from fanlog.listeners.tls import TlsSocket

_VECTORS_MAX = 64
_HIGH_BYTES = 64 * 1024


class TlsTransport(asyncio.Transport):
    """One connection after its handshake. `inlet` is a buffer that all of them share: what is read
    is taken out of it at once."""

    def __init__(
        self,
        sock: TlsSocket,
        protocol: asyncio.Protocol,
        loop: asyncio.AbstractEventLoop,
        inlet: memoryview,
    ) -> None:
        super().__init__(
            {
                "socket": sock,
                "sslcontext": sock.context,
                "ssl_object": sock,
                "peername": sock.getpeername(),
                "sockname": sock.getsockname(),
            }
        )
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol = protocol
        self._loop = loop
        self._inlet = inlet
        self._kept: deque[SendBuffer] = deque()
        self._kept_bytes = 0
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._protocol_paused = False
        self._reading = False
        self._closing = False
        self._eof = False
        self._over = False

    def start(self) -> None:
        self._protocol.connection_made(self)
        self.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # Reading

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            size = self._sock.recv_into(self._inlet)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self._end(fault)
            return
        if size:
            self._protocol.data_received(self._inlet[:size].tobytes())
        else:
            self._protocol.eof_received()
            self.close()

    # Writing

    def write(self, data: Any) -> None:
        if self._closing or self._eof or not data:
            return
        if isinstance(data, bytearray):
            # It may change before it is gone.
            data = bytes(data)
        if self._kept:
            self._keep(data)
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as fault:
            self._end(fault)
            return
        if sent < len(data):
            self._loop.add_writer(self._fd, self._writable)
            self._keep(memoryview(data)[sent:] if sent else data)

    def _keep(self, data: SendBuffer) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def _writable(self) -> None:
        try:
            sent = self._sock.sendmsg(islice(self._kept, _VECTORS_MAX))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self._end(fault)
            return
        self._kept_bytes -= sent
        while sent:
            first = self._kept[0]
            if sent < len(first):
                self._kept[0] = memoryview(first)[sent:]
                break
            sent -= len(first)
            self._kept.popleft()
        if not self._kept:
            self._loop.remove_writer(self._fd)
        if self._protocol_paused and self._kept_bytes <= self._low:
            self._protocol_paused = False
            self._protocol.resume_writing()
        if not self._kept:
            self._emptied()

    def _emptied(self) -> None:
        if self._closing:
            self._end(None)
        elif self._eof:
            self._shut()

    def get_write_buffer_size(self) -> int:
        return self._kept_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else _HIGH_BYTES if low is None else 4 * low
        self._low = low if low is not None else self._high // 4

    # Ending

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof:
            return
        self._eof = True
        if not self._kept:
            self._shut()

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as fault:
            self._end(fault)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Closes once all is sent."""
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if not self._kept:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, fault: Exception | None) -> None:
        if self._over:
            return
        self._over = self._closing = True
        self.pause_reading()
        self._loop.remove_writer(self._fd)
        self._kept.clear()
        self._kept_bytes = 0
        self._loop.call_soon(self._lost, fault)

    def _lost(self, fault: Exception | None) -> None:
        try:
            self._protocol.connection_lost(fault)
        finally:
            if fault is None and not self._eof:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
            self._sock.close()
            # The protocol knows this transport: both would stay in memory.
            self._protocol = asyncio.Protocol()
