"""Fanlog's native protocol: batches out, the same batches back, and ACK frames that count them.

Law: a unit is one batch, encoded once by `fanlog.format` before the clock starts. The broker stamps
a batch's header in place, so that a subscriber receives exactly as many bytes as were published.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from fanlog.bench.systems import BenchError
from fanlog.bench.wires.base import TOPIC, read_exactly
from fanlog.format.batch import encode_batch
from fanlog.format.frames import (
    ACK_ENTRY,
    FRAME_HEADER_BYTES,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    FrameCutter,
    FrameKind,
    message_frame,
)
from fanlog.format.messages import (
    CreateTopic,
    ErrorAnswer,
    Hello,
    NamedTopic,
    OpenTopic,
    Refused,
    Subscribe,
    Subscribed,
    TopicOpened,
    Welcome,
    decode,
)
from fanlog.identity import Login
from fanlog.model import DurabilityName, TopicInfo

FRAME_BYTES_MAX = 16 << 20
NAME = TOPIC.decode()
SUBSCRIPTION = 1
# Where a batch has its first sequence, in words of 8 bytes; a batch is a whole number of them.
SEQUENCE_WORD = 5
WORD_BYTES = 8
T = TypeVar("T")


class FanlogFanout:
    """A topic with one partition, published to in batches of a fixed size."""

    def __init__(
        self,
        payload: bytes,
        batch: int,
        durability: DurabilityName = "memory",
        *,
        key: str = "",
    ) -> None:
        """`key` is for a broker with logins."""
        self.messages = batch
        self._key = key
        self._durability: DurabilityName = durability
        self._values = [payload] * batch
        self._unit = encode_batch(self._values)
        self.received_bytes = len(self._unit)

    def prepare(self, publisher: socket.socket, subscribers: Sequence[socket.socket]) -> None:
        number = open_topic(publisher, self._durability, 1, key=self._key)
        self._unit = encode_batch(self._values, topic=number)
        for sock in subscribers:
            greet(sock, self._key)
            ask(
                sock,
                FrameKind.SUBSCRIBE,
                Subscribe(target=NAME),
                Subscribed,
                aux=SUBSCRIPTION,
            )
        # One batch before the measurement: the broker sends a header before a subscriber's first
        # batch, which must not be counted.
        publisher.sendall(self._unit)
        skip_until(publisher, FrameKind.ACK)
        for sock in subscribers:
            skip_until(sock, FrameKind.BATCH)

    def unit(self) -> bytes:
        return self._unit

    def join(self, publishers: Sequence[socket.socket]) -> None:
        for sock in publishers:
            greet(sock, self._key)
            ask(sock, FrameKind.OPEN_TOPIC, OpenTopic(NAME), TopicOpened)

    def request(self) -> bytes:
        return self._unit

    def maybe_answer(self, subscribers: int) -> None:
        """An ACK frame has the offset in it."""

    def answer_bytes(self, subscribers: int) -> int:
        return FRAME_HEADER_BYTES + ACK_ENTRY.size


class FanlogTopic:
    """A topic with a durability, published to in batches that go to its partitions in turn."""

    def __init__(
        self,
        payload: bytes,
        batch: int,
        durability: DurabilityName,
        partitions: int,
        name: str = NAME,
        *,
        key: str = "",
    ) -> None:
        self.messages = batch
        self._key = key
        self._values = [payload] * batch
        self._durability: DurabilityName = durability
        self._partitions = partitions
        self._name = name
        self._number = 0
        self._cutter = FrameCutter(FRAME_BYTES_MAX)

    def prepare(self, publisher: socket.socket) -> None:
        self._number = open_topic(
            publisher, self._durability, self._partitions, self._name, key=self._key
        )

    def cycle(self) -> list[bytes]:
        return [
            encode_batch(self._values, topic=self._number, partition=partition)
            for partition in range(self._partitions)
        ]

    def acknowledged(self, received: bytes) -> int:
        count = 0
        for kind, data, begin, end in self._cutter.cut(received):
            if kind != FrameKind.ACK:
                raise refusal(kind, data[begin + FRAME_HEADER_BYTES : end])
            count += (end - begin - FRAME_HEADER_BYTES) // ACK_ENTRY.size
        return count

    def stored(self, publisher: socket.socket) -> int:
        # A topic in memory deletes old records, so the end offsets give the count.
        topic = ask(publisher, FrameKind.DESCRIBE_TOPIC, NamedTopic(self._name), TopicInfo)
        return sum(partition.visible_end for partition in topic.partitions)


class FanlogProducer(FanlogTopic):
    """The same with one partition, and batches that carry a producer's id and running numbers.
    With id 0 the broker ignores them: plain publishing, at the same cost for the load generator."""

    def __init__(
        self, payload: bytes, batch: int, durability: DurabilityName, producer_id: int
    ) -> None:
        super().__init__(payload, batch, durability, 1, f"{NAME}.{producer_id}")
        self._producer_id = producer_id
        self._unit_words = len(encode_batch(self._values)) // WORD_BYTES

    def cycle(self) -> list[bytes]:
        return [encode_batch(self._values, topic=self._number, producer_id=self._producer_id)]

    def renumber(self, block: memoryview, first_unit: int) -> None:
        """Gives each batch of a block the sequence that follows the one before. The client's
        checksum does not cover it."""
        words = block.cast("Q")
        first, units = first_unit * self.messages, len(words) // self._unit_words
        numbers = array("Q", range(first, first + units * self.messages, self.messages))
        words[SEQUENCE_WORD :: self._unit_words] = memoryview(numbers)


def open_topic(
    sock: socket.socket,
    durability: DurabilityName,
    partitions: int,
    name: str = NAME,
    *,
    key: str = "",
) -> int:
    """Greet, create the topic, and return the number that batches carry."""
    greet(sock, key)
    settings: dict[str, int | str] = {"partitions": partitions, "durability": durability}
    ask(sock, FrameKind.CREATE_TOPIC, CreateTopic(name, settings), msgspec.Raw)
    return ask(sock, FrameKind.OPEN_TOPIC, OpenTopic(name), TopicOpened).number


def greet(sock: socket.socket, key: str = "") -> None:
    """HELLO and WELCOME."""
    login = Login(key=key) if key else None
    hello = Hello(versions=(PROTOCOL_VERSION,), client="fanlog bench", login=login)
    ask(sock, FrameKind.HELLO, hello, Welcome, aux=MAGIC)


def ask(
    sock: socket.socket, kind: FrameKind, message: msgspec.Struct, answer: type[T], aux: int = 0
) -> T:
    """Sends a request and returns its answer. Other frames before it are skipped."""
    sock.sendall(message_frame(kind, message, request=1, aux=aux))
    while True:
        got, payload = read_frame(sock)
        if got in (FrameKind.OK, FrameKind.WELCOME):
            return decode(answer, payload)
        if got in (FrameKind.ERROR, FrameKind.REFUSED):
            raise refusal(got, payload)


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    """Kind and payload of the next frame; a batch's payload begins inside its header."""
    prefix = read_exactly(sock, PREFIX_BYTES)
    length, kind = PREFIX.unpack(prefix)
    rest = read_exactly(sock, length - PREFIX_BYTES)
    return kind, rest[FRAME_HEADER_BYTES - PREFIX_BYTES :]


def skip_until(sock: socket.socket, wanted: FrameKind) -> None:
    """Read frames up to and including the first of this kind."""
    kind, payload = read_frame(sock)
    while kind != wanted:
        if kind in (FrameKind.ERROR, FrameKind.REFUSED, FrameKind.GAP):
            raise refusal(kind, payload)
        kind, payload = read_frame(sock)


def refusal(kind: int, payload: bytes) -> BenchError:
    """The error for an unexpected frame."""
    if kind == FrameKind.REFUSED:
        return BenchError(f"Fanlog refused a batch: {decode(Refused, payload).message}")
    if kind == FrameKind.ERROR:
        return BenchError(f"Fanlog answered with an error: {decode(ErrorAnswer, payload).message}")
    return BenchError(f"Fanlog sent a frame of kind {kind:#04x} that was not expected")
