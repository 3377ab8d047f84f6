"""asyncio's transport on a simulated connection: for clients, which have no socket of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.network import Stream

_RECEIVE_BYTES = 256 * 1024


class SimulatedTransport(asyncio.Transport):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, stream: Stream, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._loop = loop
        self._stream = stream
        self._fd = stream.fileno()
        self._protocol = protocol
        self._kept = bytearray()
        self._closing = False
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._watch)

    def _watch(self) -> None:
        if not self._closing:
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            data = self._stream.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as fault:
            self._end(fault)
            return
        if data:
            self._protocol.data_received(data)
        elif not self._protocol.eof_received():
            self.close()

    def write(self, data: Any) -> None:
        if not self._kept:
            try:
                sent = self._stream.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as fault:
                self._end(fault)
                return
            data = data[sent:]
            if data:
                self._loop.add_writer(self._fd, self._writable)
        self._kept += data

    def _writable(self) -> None:
        try:
            sent = self._stream.send(bytes(self._kept))
        except BlockingIOError:
            return
        except OSError as fault:
            self._end(fault)
            return
        del self._kept[:sent]
        if not self._kept:
            self._loop.remove_writer(self._fd)
            if self._closing:
                self._loop.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        """As in asyncio: what was written goes out first."""
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._fd)
        if not self._kept:
            self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, fault: Exception | None) -> None:
        self._kept.clear()
        self._loop.remove_writer(self._fd)
        if not self._closing or fault is not None:
            self._closing = True
            self._loop.remove_reader(self._fd)
            self._loop.call_soon(self._lost, fault)

    def _lost(self, fault: Exception | None) -> None:
        if self._fd >= 0:
            self._fd = -1
            self._stream.close()
            self._protocol.connection_lost(fault)
