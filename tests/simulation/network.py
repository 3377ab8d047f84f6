"""The network: connections of two byte streams between processes, and what happens to them.

Bytes of a stream arrive in order, in pieces that chance cuts, after delays that chance chooses. A
connection may be cut after any byte, and a path between two machines may swallow everything for a
while, in one direction or both. As with TCP, what is swallowed arrives when the path is back,
unless one of the ends is gone: then the other is told with a reset.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.transport import SimulatedTransport
from tests.simulation.world import World, active

if TYPE_CHECKING:
    from tests.simulation.process import Process

_FIRST_PORT = 40_000
# A machine that was without power resets old connections only when it is up again.
_BOOT_DELAYS = 500
_AGAIN_SECONDS = 0.1


class Weather:
    """How the network is: delays in seconds, and the sizes of what arrives and fits."""

    def __init__(self) -> None:
        self.delay_min = 0.000_05
        self.delay_max = 0.002
        # One piece in so many takes much longer.
        self.slow_share = 0.02
        self.slow_seconds = 0.2
        self.split_share = 0.2
        self.buffer_bytes = 256 * 1024


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class NetworkSocket:
    """A non-blocking socket, as far as Fanlog's listeners and the transport use one."""

    def __init__(self, network: Network, process: Process) -> None:
        self.network = network
        self.process = process
        self._fd = process.take_number()
        process.sockets[self._fd] = self

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> bytes:
        raise OSError(errno.ENOPROTOOPT, "not counted")

    def readable(self) -> bool:
        raise NotImplementedError

    def writable(self) -> bool:
        return False

    def abandon(self, *, silently: bool) -> None:
        """Its process is gone."""
        raise NotImplementedError

    def close(self) -> None:
        self.process.sockets.pop(self._fd, None)


class ListeningSocket(NetworkSocket):
    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        super().__init__(network, process)
        self._address = address
        self._arrived: deque[Stream] = deque()
        if address in network.listening:
            self.process.sockets.pop(self._fd)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        network.listening[address] = self

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def arrive(self, stream: Stream) -> None:
        self._arrived.append(stream)
        self.process.loop.wake()

    def readable(self) -> bool:
        return bool(self._arrived)

    def accept(self) -> tuple[Stream, tuple[str, int]]:
        if not self._arrived:
            raise BlockingIOError
        stream = self._arrived.popleft()
        return stream, stream.peer_address

    def abandon(self, *, silently: bool) -> None:
        self.network.listening.pop(self._address, None)

    def close(self) -> None:
        super().close()
        self.network.listening.pop(self._address, None)
        for stream in self._arrived:
            stream.close()


class Stream(NetworkSocket):
    """One end of a connection. `_way` holds what is on its way to the other end."""

    def __init__(
        self, network: Network, process: Process, name: str, peer_address: tuple[str, int]
    ) -> None:
        super().__init__(network, process)
        self.name = name
        self.peer_address = peer_address
        self.peer: Stream
        self._inbox = bytearray()
        self._way: deque[bytes | None] = deque()
        self._way_bytes = 0
        self._arrives_at = 0.0
        self._error: OSError | None = None
        self._ended = False
        self._closed = False
        self._shut = False
        self._silent = False
        self._severed = False
        # So many bytes get through before the connection is cut.
        self.bytes_left: int | None = None

    # What a process does

    def send(self, data: bytes | memoryview) -> int:
        self._check()
        if self._shut:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room = self._room()
        if room <= 0:
            raise BlockingIOError
        part = bytes(data[:room])
        self._put(part)
        return len(part)

    def sendmsg(self, buffers: list[bytes | memoryview]) -> int:
        return self.send(b"".join(buffers))

    def recv_into(self, buffer: memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def recv(self, size: int) -> bytes:
        if self._inbox:
            data = bytes(self._inbox[:size])
            del self._inbox[:size]
            self.peer.process.loop.wake()
            return data
        self._check()
        if self._ended:
            return b""
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self._check()
        if not self._shut:
            self._shut = True
            self._put(None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        super().close()
        if self._inbox:
            # As a kernel does with what nobody has read.
            self.network.reset(self.peer, self.network.delay())
        elif not self._shut:
            self._shut = True
            self._put(None)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _room(self) -> int:
        return self.network.weather.buffer_bytes - self._way_bytes - len(self.peer._inbox)

    def readable(self) -> bool:
        return bool(self._inbox) or self._ended or self._error is not None

    def writable(self) -> bool:
        return self._error is not None or self._room() > 0

    # What the network does

    def _put(self, data: bytes | None) -> None:
        if self._severed:
            return
        network = self.network
        for piece in (None,) if data is None else network.split(data):
            self._way.append(piece)
            self._way_bytes += len(piece or b"")
            when = network.world.now + network.delay()
            self._arrives_at = max(self._arrives_at + 1e-7, when)
            network.world.at(self._arrives_at, self._arrive)

    def _arrive(self) -> None:
        """The next piece gets there, if the path is open."""
        if not self._way or self.network.is_blocked(self, self.peer):
            return
        piece = self._way.popleft()
        self._way_bytes -= len(piece or b"")
        peer, note = self.peer, self.network.world.note
        if peer._error is not None:
            return
        if peer._closed or not peer.process.alive:
            note(f"net {self.name} nobody there")
            self.network.reset(self, self.network.delay() * (_BOOT_DELAYS if peer._silent else 1))
            return
        if piece is None:
            note(f"net {self.name} end")
            peer._ended = True
        else:
            if self.bytes_left is not None:
                piece = piece[: self.bytes_left]
                self.bytes_left -= len(piece)
            note(f"net {self.name} {len(piece)} {zlib.crc32(piece)}")
            peer._inbox += piece
            if self.bytes_left == 0:
                self.network.cut(self)
        peer.process.loop.wake()

    def resume(self) -> None:
        """The path is open again: what was held arrives."""
        for _ in range(len(self._way)):
            self._arrives_at = max(
                self._arrives_at + 1e-7, self.network.world.now + self.network.delay()
            )
            self.network.world.at(self._arrives_at, self._arrive)

    def break_off(self) -> None:
        """This end hears of a reset."""
        if self._error is None and not self._closed:
            self._error = _reset()
            if not self.process.alive:
                return
            self.network.world.note(f"net {self.name} reset")
            self.process.loop.wake()

    @property
    def over(self) -> bool:
        """Whether both ends are done with it."""
        return all(end._closed or end._error is not None for end in (self, self.peer))

    def lose_way(self) -> None:
        """What is on its way never gets there."""
        self._way.clear()
        self._way_bytes = 0

    def sever(self) -> None:
        """Nothing gets there any more. What follows a loss must not arrive either: a stream of
        bytes has no hole."""
        self._severed = True
        self.lose_way()

    def abandon(self, *, silently: bool) -> None:
        self._closed = True
        self._silent = silently
        if silently:
            # A machine without power sends nothing. Its peers notice when it is up again and they
            # send something, or by the silence.
            self.lose_way()
        elif not self._shut:
            self._shut = True
            self._put(None)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.listening: dict[tuple[str, int], ListeningSocket] = {}
        self.streams: list[Stream] = []
        # Paths that swallow everything: from one address to another.
        self._blocked: set[tuple[str, str]] = set()
        self._dice = world.dice("network")
        self._port = _FIRST_PORT

    # Chance

    def delay(self) -> float:
        weather = self.weather
        delay = self._dice.uniform(weather.delay_min, weather.delay_max)
        if self._dice.random() < weather.slow_share:
            delay += self._dice.uniform(0, weather.slow_seconds)
        return delay

    def split(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._dice.random() >= self.weather.split_share:
            return [data]
        at = self._dice.randrange(1, len(data))
        return [data[:at], data[at:]]

    # Connections

    async def connect(
        self, process: Process, make: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        source = process.machine.address
        await asyncio.sleep(self.delay())
        while self._is_cut_off(source, host):  # noqa: ASYNC110 - packets are sent again and again
            await asyncio.sleep(_AGAIN_SECONDS)
        listener = self.listening.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._port += 1
        label = f"{process.name}:{self._port}"
        near = Stream(self, process, f"{label}>", (host, port))
        far = Stream(self, listener.process, f"{label}<", (source, self._port))
        near.peer, far.peer = far, near
        self.streams = [stream for stream in self.streams if not stream.over]
        self.streams += [near, far]
        self.world.note(f"net {label} connected to {host}:{port}")
        listener.arrive(far)
        protocol = make()
        return SimulatedTransport(process.loop, near, protocol), protocol

    def create_server(self, process: Process, port: int) -> ListeningSocket:
        """Whatever host it is asked for: a machine has one address here."""
        return ListeningSocket(self, process, (process.machine.address, port))

    def open_streams(self) -> list[Stream]:
        return [stream for stream in self.streams if not stream.over]

    # Faults

    def cut(self, stream: Stream) -> None:
        """Ends a connection now, whatever is on its way."""
        for end in (stream, stream.peer):
            end.sever()
            self.reset(end, self.delay())

    def reset(self, stream: Stream, seconds: float) -> None:
        self.world.after(seconds, stream.break_off)

    def block(self, source: str, target: str) -> None:
        self.world.note(f"net blocks {source} to {target}")
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self._blocked.discard((source, target))
        for stream in self.open_streams():
            stream.resume()

    def unblock_all(self) -> None:
        if self._blocked:
            self.world.note("net open")
        self._blocked.clear()
        for stream in self.open_streams():
            stream.resume()

    def _is_cut_off(self, one: str, other: str) -> bool:
        return (one, other) in self._blocked or (other, one) in self._blocked

    def is_blocked(self, source: Stream, target: Stream) -> bool:
        ends = source.process.machine.address, target.process.machine.address
        return ends in self._blocked


class SimulatedSocketModule:
    """`socket`, for listeners."""

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def create_server(self, address: tuple[str, int], **_: Any) -> ListeningSocket:
        process = active().current
        assert process is not None
        return process.machine.network.create_server(process, address[1])
