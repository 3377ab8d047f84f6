"""What the core and a worker tell each other, over a pair of sockets that the worker inherits. A
message is four bytes of length, little-endian, and a struct as MessagePack.

Law: it ends with either of them. A worker whose channel is closed has lost its core, and ends.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import msgspec

from fanlog.config import Config
from fanlog.errors import FormatError
from fanlog.format.messages import ConnectionPage, ConnectionsRequest

_LENGTH = struct.Struct("<I")
_MESSAGE_BYTES_MAX = 256 * 1024 * 1024


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """To a worker, first: what it is. Ports in `config` are those that all workers share; the
    listeners that are not in `listeners` stay closed."""

    number: int
    config: Config
    socket: str
    secret: bytes
    listeners: tuple[str, ...]
    log_json: bool


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """To a worker: the settings have changed."""

    config: Config


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """To a worker: end, once everything is answered."""


class AskConnections(msgspec.Struct, frozen=True, tag="connections"):
    """To a worker: list or close some of its connections."""

    id: int
    wanted: ConnectionsRequest


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """From a worker: its ports are open."""


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker: it can't start, and why."""

    reason: str


class FoundConnections(msgspec.Struct, frozen=True, tag="found"):
    """From a worker: the answer."""

    id: int
    page: ConnectionPage


class ListenerCounts(msgspec.Struct, frozen=True):
    """A listener of a worker. All but `connections` are since the worker's start."""

    connections: int = 0
    accepted: int = 0
    refused: int = 0
    auth_failures: int = 0


class WorkerReport(msgspec.Struct, frozen=True, tag="report"):
    """From a worker, once a second: what it has counted since its start, and what it has now."""

    listeners: dict[str, ListenerCounts] = {}
    subscriptions: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0


ToWorker = Begin | Apply | Drain | AskConnections
FromWorker = Opened | StartFailed | WorkerReport | FoundConnections

_encode = msgspec.msgpack.Encoder().encode
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class WorkerChannel:
    """One end. Only the other process of the pair has the other one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: ToWorker | FromWorker) -> None:
        """Sends, or drops it if the other end is gone."""
        if not self._writer.is_closing():
            data = _encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the other end has not taken."""
        return self._writer.transport.get_write_buffer_size()

    async def next_to_worker(self) -> ToWorker | None:
        """The next message to a worker; None when the core is gone."""
        data = await self._next()
        return None if data is None else _to_worker.decode(data)

    async def next_from_worker(self) -> FromWorker | None:
        """The next message of a worker; None when it is gone."""
        data = await self._next()
        return None if data is None else _from_worker.decode(data)

    async def _next(self) -> bytes | None:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MESSAGE_BYTES_MAX:
                raise FormatError(f"A message between the processes has {length} bytes.")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def flush(self) -> None:
        """Waits until the other end has everything, or is gone."""
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        self._writer.close()


async def open_channel(sock: socket.socket) -> WorkerChannel:
    """This process's end of the pair."""
    sock.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    return WorkerChannel(reader, writer)
