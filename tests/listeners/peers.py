"""A real listener on a free port, and raw peers that may say anything to it.

Law: `serving` ends only if the broker did: no exception reached the loop, no fault of the broker's
own was logged, a normal client still works, and every log holds whole, valid batches in order.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

import fanlog
from fanlog.broker.messages.topics import Partition
from fanlog.client.core.handshake import hello
from fanlog.config import BrokerOptions, Config, ListenerOptions, RedisOptions
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.batch import Batch, check_batch, encode_batch, split_batches
from fanlog.format.frames import (
    FETCHED_HEAD,
    FRAME_HEADER_BYTES,
    Ack,
    FrameCutter,
    FrameKind,
    frame,
    known_kind,
    message_frame,
    read_acks,
    read_frame_header,
)
from fanlog.format.messages import decode
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.node import Node

HOST = "127.0.0.1"
# Nothing is measured by it: it only turns a hang into a failure.
PATIENCE_SECONDS = 100.0

T = TypeVar("T")
Message = msgspec.Struct | Sequence[msgspec.Struct]


class Frame(NamedTuple):
    """One frame that the broker sent."""

    kind: FrameKind
    request: int
    aux: int
    payload: bytes

    def read(self, kind: type[T]) -> T:
        return decode(kind, self.payload)

    @property
    def failure(self) -> messages.ErrorAnswer:
        assert self.kind is FrameKind.ERROR, self
        return self.read(messages.ErrorAnswer)


class Fetched(NamedTuple):
    visible_end: int
    start_offset: int
    batches: list[Batch]


def as_frame(kind: int, data: bytes, at: int, end: int) -> Frame:
    if kind == FrameKind.BATCH:
        check_batch(data, at)
        return Frame(FrameKind.BATCH, 0, 0, data[at:end])
    header = read_frame_header(data, at)
    payload = data[at + FRAME_HEADER_BYTES : end]
    return Frame(known_kind(kind), header.request, header.aux, payload)


class Peer:
    """A bare socket. It says what it is told to, and cuts what comes back into frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._cutter = FrameCutter(1 << 30)
        self._frames: list[Frame] = []
        self._request = 0

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.sock, data), PATIENCE_SECONDS)

    def finish_sending(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    async def recv(self) -> bytes:
        """Some bytes; none once the broker has closed."""
        got = self._loop.sock_recv(self.sock, 1 << 16)
        try:
            return await asyncio.wait_for(got, PATIENCE_SECONDS)
        except ConnectionError:
            return b""

    async def frame(self) -> Frame | None:
        """The broker's next frame; None once it has closed."""
        while not self._frames:
            data = await self.recv()
            if not data:
                return None
            self._frames += [as_frame(*cut) for cut in self._cutter.cut(data)]
        return self._frames.pop(0)

    async def expect(self, kind: FrameKind) -> Frame:
        """The next frame, which must be of this kind."""
        got = await self.frame()
        assert got is not None, f"the broker closed where a {kind.name} was due"
        assert got.kind is kind, (got.kind.name, got.payload[:300])
        return got

    async def until(self, kind: FrameKind) -> Frame:
        """The next frame of this kind; what comes before it is dropped."""
        while True:
            got = await self.frame()
            assert got is not None, f"the broker closed before a {kind.name} came"
            if got.kind is kind:
                return got

    async def rest(self) -> list[Frame]:
        """Every frame up to the broker's close."""
        frames: list[Frame] = []
        while (got := await self.frame()) is not None:
            frames.append(got)
        return frames

    async def fault(self) -> messages.ErrorAnswer:
        """Why the broker ends this connection: its last frame, and then it closes."""
        frames = await self.rest()
        assert frames, "the broker closed without a word"
        assert frames[-1].request == 0
        return frames[-1].failure

    async def greet(self) -> messages.Welcome:
        await self.send(hello("a peer"))
        return (await self.expect(FrameKind.WELCOME)).read(messages.Welcome)

    async def ask(self, kind: FrameKind, message: Message | None = None, aux: int = 0) -> Frame:
        """Sends a request and takes its answer, dropping what comes in between."""
        self._request += 1
        payload = b"" if message is None else msgspec.msgpack.encode(message)
        await self.send(frame(kind, payload, request=self._request, aux=aux))
        while True:
            got = await self.frame()
            assert got is not None, f"the broker closed instead of answering {kind.name}"
            if got.request == self._request:
                return got

    async def frames_until_pong(self) -> list[Frame]:
        """What the broker has sent up to now."""
        mark = 0xFFFF_FFFF
        await self.send(frame(FrameKind.PING, request=mark))
        frames: list[Frame] = []
        while True:
            got = await self.frame()
            assert got is not None, "the broker closed instead of answering PING"
            if got.request == mark:
                return frames
            frames.append(got)

    async def open_topic(self, name: str, **settings: Any) -> int:
        """The number of a topic, which is made if need be."""
        settings.setdefault("durability", "memory")
        wanted = messages.CreateTopic(name, settings, exist_ok=True, compare=())
        answer = await self.ask(FrameKind.CREATE_TOPIC, wanted)
        return answer.read(fanlog.TopicInfo).number

    async def publish(self, data: bytes) -> Ack:
        """Sends one batch and takes its acknowledgement."""
        await self.send(data)
        return acks_of(await self.until(FrameKind.ACK))[0]

    async def fetch(self, number: int, offset: int = 0, **options: int) -> Fetched:
        wanted = messages.Fetch(number, options.pop("partition", 0), offset, **options)
        answer = await self.ask(FrameKind.FETCH, wanted)
        assert answer.kind is FrameKind.FETCHED, answer
        return fetched(answer)

    def close(self) -> None:
        self.sock.close()


def acks_of(got: Frame) -> list[Ack]:
    assert got.kind is FrameKind.ACK
    return list(read_acks(memoryview(got.payload)))


def fetched(got: Frame) -> Fetched:
    visible_end, start_offset, zero = FETCHED_HEAD.unpack_from(got.payload)
    assert zero == 0
    data = got.payload[FETCHED_HEAD.size :]
    batches = [Batch(data[at : at + h.length], h) for at, h in split_batches(data)]
    return Fetched(visible_end, start_offset, batches)


def request(kind: FrameKind, message: Message, number: int = 1, aux: int = 0) -> bytes:
    return message_frame(kind, message, request=number, aux=aux)


class Serving:
    """A node with its listener."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.listener = node.listen()
        self._peers: list[Peer] = []
        self.stopped = False

    async def stop(self) -> None:
        """Stops the broker before the test ends."""
        self.stopped = True
        await self.node.stop()

    @property
    def port(self) -> int:
        return self.listener.port

    async def dial(self, *, receive_bytes: int = 0, port: int = 0) -> Peer:
        """A peer that has said nothing yet. `receive_bytes` makes the kernel's buffer small;
        `port` is that of another listener than the native one."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        peer = Peer(sock)
        self._peers.append(peer)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.sock_connect(sock, (HOST, port or self.port)), PATIENCE_SECONDS)
        return peer

    async def greeted(self, *, receive_bytes: int = 0) -> Peer:
        peer = await self.dial(receive_bytes=receive_bytes)
        await peer.greet()
        return peer

    def client(self, **options: Any) -> Any:
        return fanlog.connect(f"fanlog://{HOST}:{self.port}", **options)

    async def check_works(self) -> None:
        """A normal client publishes and reads back."""
        async with self.client() as client:
            receipt = await client.publish("still.works", b"yes")
            async with client.subscribe("still.works", start=receipt.offset) as works:
                message = await works.next(PATIENCE_SECONDS)
                assert (message.offset, message.value) == (receipt.offset, b"yes")

    async def check_logs(self) -> None:
        """Every log is whole, valid batches, whose offsets follow each other."""
        for topic in self.node.core.catalog:
            for partition in topic.partitions:
                await self._check_log(partition)

    async def _check_log(self, partition: Partition) -> None:
        offset = partition.log.start_offset
        while offset < partition.visible_end:
            found: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()

            def done(
                got: list[memoryview] | FanlogError,
                found: asyncio.Future[list[memoryview]] = found,
            ) -> None:
                if isinstance(got, FanlogError):
                    found.set_exception(got)
                else:
                    found.set_result(got)

            self.node.core.reading.fetch(partition, offset, 1 << 20, done)
            for piece in await found:
                for at, header in split_batches(piece):
                    check_batch(piece, at)
                    assert header.base_offset == offset
                    offset = header.next_offset

    def connection_of(self, peer: Peer) -> SocketConnection:
        """The broker's end of a peer's connection."""
        host, port = peer.sock.getsockname()
        return next(c for c in self.listener._connections if c.peer == f"{host}:{port}")

    def close_peers(self) -> None:
        for peer in self._peers:
            peer.close()

    @property
    def connections(self) -> int:
        return self.node.core.connections

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for something that the broker will do by itself."""

        async def look() -> None:
            while not true():  # noqa: ASYNC110 - the broker has no event for a test
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), PATIENCE_SECONDS)


class _Faults(logging.Handler):
    """What the broker logged as wrong on its own side."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if record.exc_info:
            said += f": {record.exc_info[1]!r}"
        self.found.append(said)


@asynccontextmanager
async def serving(
    folder: Path | None = None, broker: BrokerOptions | None = None, **options: Any
) -> AsyncIterator[Serving]:
    """A broker with a listener; `options` are those of `ListenerOptions`."""
    options = {"host": HOST, "port": 0, "drain_seconds": 0.0} | options
    config = Config(
        listener=ListenerOptions(**options),
        redis=RedisOptions(host=HOST, port=0),
        broker=broker or BrokerOptions(),
    )
    faults = _Faults()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.found.append(str(context)))
    logging.getLogger("fanlog").addHandler(faults)
    node = Node(folder, config)
    node.start()
    served = Serving(node)
    try:
        try:
            yield served
            if not served.stopped:
                await served.check_works()
                await served.check_logs()
        finally:
            served.close_peers()
    finally:
        if not served.stopped:
            await node.stop()
        logging.getLogger("fanlog").removeHandler(faults)
        loop.set_exception_handler(None)
    assert not faults.found


def one_message(number: int, value: bytes = b"hello", **given: Any) -> bytes:
    """A batch of one message, as a client sends it."""
    return encode_batch([value], topic=number, **given)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """`data` with other bytes at `at`."""
    return data[:at] + new + data[at + len(new) :]


def raw_frame(length: int, kind: int, *, version: int = 1, rest: bytes = b"\0" * 10) -> bytes:
    """A frame whose header claims anything."""
    return length.to_bytes(4, "little") + bytes([kind, version]) + rest
