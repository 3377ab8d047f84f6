"""What `fanlog bench stalls` makes a broker do while others ping it: the operations whose cost
grows with what the broker holds.

Law: an operation's preparation is not measured. Both run in the load process, speak the native
protocol, and leave nothing behind that a later operation would notice.

It is long because operations prepare for each other: their order is part of what is measured.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fanlog.bench.acked import acked_load
from fanlog.bench.systems import HOST, BenchError
from fanlog.bench.wires.base import connect
from fanlog.bench.wires.fanlog import (
    FRAME_BYTES_MAX,
    SEQUENCE_WORD,
    WORD_BYTES,
    FanlogTopic,
    ask,
    greet,
    read_frame,
    refusal,
)
from fanlog.client.aio import Client
from fanlog.client.aio import connect as connect_client
from fanlog.format.batch import encode_batch
from fanlog.format.frames import (
    ACK_ENTRY,
    FRAME_HEADER_BYTES,
    FrameCutter,
    FrameKind,
    message_frame,
    read_frame_header,
)
from fanlog.format.messages import (
    BrokerStatus,
    CommitOffsets,
    CreateTopic,
    DeleteRecords,
    Fetch,
    Goodbye,
    GrowTopic,
    JoinGroup,
    NamedTopic,
    OpenTopic,
    PartitionOffset,
    Position,
    Positions,
    Subscribe,
    Subscribed,
    TopicOpened,
)
from fanlog.model import INTERNAL_PREFIX, KIB, MIB, PARTITIONS_MAX, TopicInfo
from fanlog.telemetry.snapshot import Snapshot

T = TypeVar("T")

RECORD_BYTES = 1024
RECORDS_A_BATCH = 64
WINDOW_BATCHES = 64
WAIT_TIMEOUT_S = 120.0
POLL_S = 0.05
PIPELINED = 256
RECEIVE_BYTES = 1 << 18
FETCH_BYTES = 8 * MIB
SMALL_SEGMENT_BYTES = 64 * KIB
POSITIONS_A_FRAME = 1000
# Small frames while pings are measured: the snapshot counts, not the commits.
POSITIONS_A_MEASURED_FRAME = 100
LEDGER = INTERNAL_PREFIX + "cursors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of everything. Pings count until `afterwards_s` after an answer, because the work in
    that time belongs to the operation, too."""

    topics: int = 100_000
    log_bytes: int = 1024 * MIB
    positions: int = 1_000_000
    producers: int = 10_000
    runs: int = 128
    segments: int = 2_000
    groups: int = 10_000
    partitions: int = 1_000
    journal_bytes: int = 128 * MIB
    wide: int = 4096
    group_positions: int = 12 * PARTITIONS_MAX
    following: int = 300
    dead_letters: int = 1_000
    connections: int = 10_000
    idle_s: float = 3.0
    afterwards_s: float = 0.5
    retention_s: int = 8


FULL = Scale()
SMALL = Scale(
    topics=200,
    log_bytes=4 * MIB,
    positions=2_000,
    producers=50,
    runs=4,
    segments=10,
    groups=20,
    partitions=10,
    journal_bytes=2 * MIB,
    wide=10,
    group_positions=10,
    following=3,
    dead_letters=5,
    connections=5,
    idle_s=0.2,
    afterwards_s=0.05,
    retention_s=2,
)

Step = Callable[[int, Scale], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """Its name in the report, with `scale`'s numbers filled in; its preparation; and the
    operation."""

    name: str
    prepare: Step
    run: Step

    def label(self, scale: Scale) -> str:
        return self.name.format(scale=scale, log_gib=scale.log_bytes / (1024 * MIB))


# Asking


def opened(port: int) -> socket.socket:
    """A connection after its handshake."""
    sock = connect(port)
    sock.settimeout(WAIT_TIMEOUT_S)
    greet(sock)
    return sock


def asked(port: int, kind: FrameKind, message: msgspec.Struct, answer: type[T], aux: int = 0) -> T:
    """One request on a connection of its own."""
    with opened(port) as sock:
        return ask(sock, kind, message, answer, aux)


def ask_many(sock: socket.socket, frames: Iterable[bytes]) -> None:
    """Send requests, some of them ahead of their answers, which must all be OK."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    waiting = 0
    some: list[bytes] = []

    def flush() -> None:
        nonlocal waiting
        waiting += len(some)
        sock.sendall(b"".join(some))
        some.clear()
        while waiting:
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise BenchError("the broker closed the connection")
            for kind, data, begin, end in cutter.cut(received):
                if kind in (FrameKind.ERROR, FrameKind.REFUSED):
                    raise refusal(kind, data[begin + FRAME_HEADER_BYTES : end])
                waiting -= kind == FrameKind.OK

    for frame in frames:
        some.append(frame)
        if len(some) >= PIPELINED:
            flush()
    flush()


def with_client(port: int, work: Callable[[Client], Awaitable[object]]) -> None:
    """What a user's program asks, with the client that it uses."""

    async def run() -> None:
        async with connect_client(f"fanlog://{HOST}:{port}") as client:
            await work(client)

    asyncio.run(run())


def describe(port: int, name: str) -> TopicInfo:
    return asked(port, FrameKind.DESCRIBE_TOPIC, NamedTopic(name), TopicInfo)


def create(port: int, name: str, **settings: int | str) -> None:
    asked(port, FrameKind.CREATE_TOPIC, CreateTopic(name, settings), msgspec.Raw)


def delete(port: int, name: str) -> None:
    with opened(port) as sock:
        ask_many(sock, [message_frame(FrameKind.DELETE_TOPIC, NamedTopic(name), request=1)])


# Logs


class FilledTopic(FanlogTopic):
    """A topic with chosen settings; with `keys`, its records have some hundred of them."""

    def __init__(self, name: str, *, keys: bool = False, **settings: int | str) -> None:
        partitions = int(settings.get("partitions", 1))
        super().__init__(b"x" * RECORD_BYTES, RECORDS_A_BATCH, "os", partitions, name)
        self._settings = settings
        self._keys = keys

    def prepare(self, publisher: socket.socket) -> None:
        greet(publisher)
        wanted = CreateTopic(self._name, self._settings)
        ask(publisher, FrameKind.CREATE_TOPIC, wanted, msgspec.Raw)
        self._number = ask(
            publisher, FrameKind.OPEN_TOPIC, OpenTopic(self._name), TopicOpened
        ).number

    def cycle(self) -> list[bytes]:
        if not self._keys:
            return super().cycle()
        return [
            encode_batch(
                self._values,
                keys=[b"key %06d" % (batch * RECORDS_A_BATCH + i) for i in range(RECORDS_A_BATCH)],
                topic=self._number,
            )
            for batch in range(16)
        ]


def fill(port: int, topic: FilledTopic, log_bytes: int) -> None:
    """Publish this number of bytes."""
    with acked_load(topic, port, WINDOW_BATCHES * RECORDS_A_BATCH) as load:
        units = max(1, log_bytes // load.unit_bytes)
        while load.acknowledged_units < units:
            load.send(min(units, load.acknowledged_units + load.window_units) * load.unit_bytes)
            load.receive()


def nothing(port: int, scale: Scale) -> None:
    """No preparation."""


def idle(port: int, scale: Scale) -> None:
    time.sleep(scale.idle_s)


def fill_large(port: int, scale: Scale) -> None:
    fill(port, FilledTopic("large"), scale.log_bytes)


def fetch_large(port: int, scale: Scale) -> None:
    """From the first record on, as much at a time as the broker gives."""
    with opened(port) as sock:
        number = ask(sock, FrameKind.OPEN_TOPIC, OpenTopic("large"), TopicOpened).number
        records = min(scale.log_bytes, 512 * MIB) // RECORD_BYTES
        for offset in range(0, records * 9 // 10, FETCH_BYTES // RECORD_BYTES):
            wanted = Fetch(number, 0, offset, FETCH_BYTES)
            sock.sendall(message_frame(FrameKind.FETCH, wanted, request=1))
            kind, payload = read_frame(sock)
            if kind != FrameKind.FETCHED:
                raise refusal(kind, payload)


def delete_large(port: int, scale: Scale) -> None:
    delete(port, "large")


def fill_segments(port: int, scale: Scale) -> None:
    topic = FilledTopic("segments", segment_bytes=SMALL_SEGMENT_BYTES)
    fill(port, topic, scale.segments * SMALL_SEGMENT_BYTES)


def delete_all_records(port: int, scale: Scale) -> None:
    end = describe(port, "segments").partitions[0].visible_end
    wanted = DeleteRecords("segments", (PartitionOffset(0, end),))
    asked(port, FrameKind.DELETE_RECORDS, wanted, Positions)


def fill_expiring(port: int, scale: Scale) -> None:
    topic = FilledTopic(
        "expiring", segment_bytes=SMALL_SEGMENT_BYTES, retention_seconds=scale.retention_s
    )
    fill(port, topic, scale.segments * SMALL_SEGMENT_BYTES)


def wait_for_retention(port: int, scale: Scale) -> None:
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while time.monotonic() < deadline:
        partition = describe(port, "expiring").partitions[0]
        if partition.start_offset == partition.visible_end:
            return
        time.sleep(POLL_S)
    raise BenchError(f"retention deleted nothing within {WAIT_TIMEOUT_S:.0f} s")


def fill_keyed(port: int, scale: Scale) -> None:
    topic = FilledTopic("keyed", keys=True, cleanup="compact", segment_bytes=1 * MIB)
    fill(port, topic, min(scale.log_bytes, 64 * MIB))


def compact(port: int, scale: Scale) -> None:
    asked(port, FrameKind.COMPACT_TOPIC, NamedTopic("keyed"), TopicInfo)


def publish_past_journal(port: int, scale: Scale) -> None:
    topic = FilledTopic("synced", durability="fsync", partitions=scale.partitions)
    fill(port, topic, scale.journal_bytes)


# Producers


def fill_producers(port: int, scale: Scale) -> None:
    """Everybody publishes in turn, so that no two batches of one follow each other."""
    size = len(encode_batch([b"x"], producer_id=1))
    room = size * scale.producers * scale.runs + 2 * MIB
    create(port, "produced", segment_bytes=max(SMALL_SEGMENT_BYTES, room))
    with opened(port) as sock:
        number = ask(sock, FrameKind.OPEN_TOPIC, OpenTopic("produced"), TopicOpened).number
        block = bytearray(
            b"".join(
                encode_batch([b"x"], topic=number, producer_id=producer)
                for producer in range(1, scale.producers + 1)
            )
        )
        words = memoryview(block).cast("Q")
        for run in range(scale.runs):
            for at in range(SEQUENCE_WORD, len(words), size // WORD_BYTES):
                words[at] = run
            send_acked(sock, block, scale.producers)


def send_acked(sock: socket.socket, data: bytes | bytearray, batches: int) -> None:
    """Send batches in stretches, each acknowledged before the next."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    size = len(data) // batches
    view = memoryview(data)
    for first in range(0, batches, PIPELINED):
        waiting = min(PIPELINED, batches - first)
        sock.sendall(view[first * size : (first + waiting) * size])
        while waiting:
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise BenchError("the broker closed the publisher's connection")
            for kind, got, begin, end in cutter.cut(received):
                if kind != FrameKind.ACK:
                    raise refusal(kind, got[begin + FRAME_HEADER_BYTES : end])
                waiting -= (end - begin - FRAME_HEADER_BYTES) // ACK_ENTRY.size


def roll_produced(port: int, scale: Scale) -> None:
    """One more producer fills the segment, until the next one begins."""
    with opened(port) as sock:
        number = ask(sock, FrameKind.OPEN_TOPIC, OpenTopic("produced"), TopicOpened).number
        batch = encode_batch([b"x" * (256 * KIB)], topic=number)
        for _ in range(32):
            send_acked(sock, batch, 1)
            if describe(port, "produced").partitions[0].segments > 1:
                return
    raise BenchError("no new segment was begun")


# Positions and groups


def commit_frames(scale: Scale, count: int, a_frame: int) -> Iterable[bytes]:
    """Commits of `count` positions: each name's in every partition, one name after the other."""
    names = max(1, scale.positions // scale.partitions)
    done = 0
    while True:
        for name in range(names):
            for first in range(0, scale.partitions, a_frame):
                indexes = range(first, min(first + a_frame, scale.partitions))
                positions = tuple(Position("positions", index, 0) for index in indexes)
                commit = CommitOffsets(f"reader {name}", positions)
                yield message_frame(FrameKind.COMMIT, commit, request=1)
                done += len(indexes)
                if done >= count:
                    return


def commit_positions(port: int, scale: Scale) -> None:
    create(port, "positions", durability="memory", partitions=scale.partitions)
    with opened(port) as sock:
        for frame in commit_frames(scale, scale.positions, POSITIONS_A_FRAME):
            ask_many(sock, [frame])


def commit_until_snapshot(port: int, scale: Scale) -> None:
    """Commit again, until the ledger has been written anew and what was before it is gone."""
    before = describe(port, LEDGER).partitions[0].start_offset
    # Small ledgers are not worth a snapshot before they have some 20,000 records.
    most = 4 * scale.positions + 50_000
    with opened(port) as sock:
        frames = commit_frames(scale, most, POSITIONS_A_MEASURED_FRAME)
        for number, frame in enumerate(frames):
            ask_many(sock, [frame])
            if number % 50 == 0 and describe(port, LEDGER).partitions[0].start_offset > before:
                return
    raise BenchError("the ledger of positions was not written anew")


def delete_positions(port: int, scale: Scale) -> None:
    delete(port, "positions")


def make_groups(port: int, scale: Scale) -> None:
    """Groups that have committed and have no members."""
    create(port, "grouped", durability="memory")

    def join(number: int) -> bytes:
        wanted = JoinGroup(group=f"group.{number}", member="one", target="grouped")
        return message_frame(FrameKind.JOIN_GROUP, wanted, request=1, aux=number)

    def commit(number: int) -> bytes:
        wanted = CommitOffsets("", (Position("grouped", 0, 0),))
        return message_frame(FrameKind.COMMIT, wanted, request=1, aux=number)

    def leave(number: int) -> bytes:
        return message_frame(FrameKind.UNSUBSCRIBE, Goodbye(), request=1, aux=number)

    with opened(port) as sock:
        for first in range(1, scale.groups + 1, PIPELINED):
            numbers = range(first, min(first + PIPELINED, scale.groups + 1))
            sock.sendall(b"".join(map(join, numbers)))
            wait_until_joined(sock, set(numbers))
            ask_many(sock, map(commit, numbers))
            ask_many(sock, map(leave, numbers))


def wait_until_joined(sock: socket.socket, numbers: set[int]) -> None:
    """Until each of these subscriptions is answered, and has got its partition."""
    cutter = FrameCutter(FRAME_BYTES_MAX)
    answers = len(numbers)
    while numbers or answers:
        received = sock.recv(RECEIVE_BYTES)
        if not received:
            raise BenchError("the broker closed the connection")
        for kind, data, begin, end in cutter.cut(received):
            if kind in (FrameKind.ERROR, FrameKind.REFUSED):
                raise refusal(kind, data[begin + FRAME_HEADER_BYTES : end])
            answers -= kind == FrameKind.OK
            if kind == FrameKind.JOINED:
                numbers.discard(read_frame_header(data, begin).aux)


def list_groups(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.list())


# Topics


def create_topics(port: int, scale: Scale) -> None:
    with opened(port) as sock:
        ask_many(
            sock,
            (
                message_frame(
                    FrameKind.CREATE_TOPIC,
                    CreateTopic(f"user.{number}", {"durability": "memory"}),
                    request=1,
                )
                for number in range(scale.topics)
            ),
        )


def list_topics(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.topics())


def ask_status(port: int, scale: Scale) -> None:
    with opened(port) as sock:
        for _ in range(10):
            ask(sock, FrameKind.STATUS, Goodbye(), BrokerStatus)


def ask_metrics(port: int, scale: Scale) -> None:
    """The first looks at everything, and the others at what the broker keeps of it."""
    with opened(port) as sock:
        for _ in range(100):
            ask(sock, FrameKind.METRICS, Goodbye(), Snapshot)


def subscribe_to_all(port: int, scale: Scale) -> None:
    asked(port, FrameKind.SUBSCRIBE, Subscribe(target="user.*", wildcard=True), Subscribed, aux=1)


def create_on_disk(port: int, scale: Scale) -> None:
    for number in range(20):
        create(port, f"disk.{number}", durability="fsync")


def grow_topic(port: int, scale: Scale) -> None:
    create(port, "growing", durability="fsync")
    asked(port, FrameKind.GROW_TOPIC, GrowTopic("growing", scale.partitions), TopicInfo)


# The order matters: what a later one needs, an earlier one has left.
OPERATIONS = (
    Operation("nothing at all", nothing, idle),
    Operation("create 20 topics, fsync", nothing, create_on_disk),
    Operation("grow a topic to {scale.partitions:,} partitions", nothing, grow_topic),
    Operation("fetch 8 MiB at a time", fill_large, fetch_large),
    Operation("delete a topic of {log_gib:.1f} GiB", nothing, delete_large),
    Operation(
        "delete the records of {scale.segments:,} segments", fill_segments, delete_all_records
    ),
    Operation("compact a topic", fill_keyed, compact),
    Operation("roll with {scale.producers:,} producers", fill_producers, roll_produced),
    Operation("sync {scale.partitions:,} partitions", nothing, publish_past_journal),
    Operation("snapshot {scale.positions:,} positions", commit_positions, commit_until_snapshot),
    Operation("delete a topic with {scale.positions:,} positions", nothing, delete_positions),
    Operation("list {scale.groups:,} groups", make_groups, list_groups),
    Operation("list {scale.topics:,} topics", create_topics, list_topics),
    Operation("status with {scale.topics:,} topics", nothing, ask_status),
    Operation("metrics of {scale.topics:,} topics", nothing, ask_metrics),
    Operation("subscribe to {scale.topics:,} topics", nothing, subscribe_to_all),
)
# On a broker of their own, which looks for what to delete all the time.
HOUSEKEEPING = (
    Operation("retention of {scale.segments:,} segments", fill_expiring, wait_for_retention),
    Operation("housekeeping of {scale.topics:,} topics", create_topics, idle),
)
