"""A primary's logs and its followers, without a network: real stores in real folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec

from fanlog.cluster.replica import Replica, describe_topics
from fanlog.config import LogOptions
from fanlog.format.frames import FRAME_HEADER_BYTES
from fanlog.format.header import read_header
from fanlog.format.replication import (
    Followed,
    ReplicaEvent,
    ReplicaPiece,
    Replicated,
    ReplicaTopic,
    read_replicated,
    replicate_frame,
)
from fanlog.log.opening import StoredTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, Sample, append, make_batch, read_batches

OS = TopicSettings(retention_seconds=0)
FSYNC = TopicSettings(durability="fsync", retention_seconds=0)
# A test that waits longer has failed.
PATIENCE_SECONDS = 60


class Loop:
    """The runtime of a replica: posted calls run in `settle`."""

    def __init__(self) -> None:
        self.posted: Queue[Callable[[], None]] = Queue()

    def now_us(self) -> int:
        return 0

    def post(self, call: Callable[[], None], /) -> None:
        self.posted.put(call)

    def in_background(self, work: Callable[[], Any], done: Callable[[Any], None], /) -> None:
        try:
            result: Any = work()
        except Exception as fault:  # noqa: BLE001 - handed on
            result = fault
        done(result)

    def run(self) -> None:
        while not self.posted.empty():
            self.posted.get()()

    def settle(self, replica: Replica) -> None:
        """Waits until everything that was taken is durable, or has failed."""
        syncing = replica._syncing  # pyright: ignore[reportPrivateUsage]
        while syncing.completed < syncing.given:
            self.posted.get(timeout=PATIENCE_SECONDS)()


class Follower:
    def __init__(self, folder: Path, options: LogOptions = OPTIONS) -> None:
        self.loop = Loop()
        self.incomplete = False
        self.moves = 0
        self.folder = folder
        self._options = options
        self.begin_anew()

    def begin_anew(self, **options: Any) -> None:
        """As a process does."""
        self.replica = Replica(
            self.folder,
            self._options,
            self.loop,
            self._note_incomplete,
            moved=self._moved,
            sync=_sync,
            **options,
        )
        self.replica.open()

    def _moved(self) -> None:
        self.moves += 1

    def _note_incomplete(self) -> None:
        self.incomplete = True

    @property
    def topics(self) -> dict[str, StoredTopic]:
        store = self.replica._store  # pyright: ignore[reportPrivateUsage]
        return {topic.name: topic for topic in store.topics}

    def log(self, name: str = "t", partition: int = 0) -> PartitionLog:
        return self.topics[name].logs[partition]

    def batches(self, name: str = "t", partition: int = 0) -> list[bytes]:
        log = self.log(name, partition)
        return list(read_batches(log, log.start_offset))

    def settle(self) -> None:
        self.loop.settle(self.replica)

    def reopen(self) -> None:
        """Stops cleanly, and starts again."""
        self.replica.close()
        self.replica.open()


def _sync(fd: int) -> None:
    """As it is when it is called."""
    os.fdatasync(fd)


class Primary:
    """A store that appends, and what it sends."""

    def __init__(self, folder: Path, epoch: int | None = None) -> None:
        self.store = LogStore(folder, OPTIONS, epoch)
        self.store.open()
        self.position = 0
        self.sent: list[Replicated] = []
        self.events: list[ReplicaEvent] = []
        self.pieces: list[ReplicaPiece] = []

    @property
    def epoch(self) -> int:
        return self.store.epoch

    def create(self, name: str = "t", settings: TopicSettings = OS) -> StoredTopic:
        topic = self.store.create(name, settings)
        small = msgspec.structs.replace(settings, segment_bytes=4 * KIB)
        for log in topic.logs:
            log.settings = small
        self.events.append(ReplicaEvent(topic.number, name, settings))
        return topic

    def log(self, name: str = "t", partition: int = 0) -> PartitionLog:
        topic = next(topic for topic in self.store.topics if topic.name == name)
        return topic.logs[partition]

    def publish(
        self,
        name: str = "t",
        partition: int = 0,
        *,
        count: int = 1,
        size: int = 100,
        producer: tuple[int, int, int] = (0, 0, 0),
    ) -> Sample:
        log = self.log(name, partition)
        batch = make_batch(
            log.end_offset,
            count=count,
            size=size,
            owner=log.owner,
            time_us=log.end_offset,
            epoch=self.epoch,
            producer=producer,
        )
        append(log, batch)
        self.pieces.append(ReplicaPiece(*log.owner, batch.base, batch.next, batch.data))
        return batch

    def frame(self) -> Replicated:
        """A turn's events and pieces, as they come out of the frame's bytes."""
        self.position += 1
        sent = Replicated(self.epoch, self.position, 0, 0, 0, self.events, self.pieces)
        self.events, self.pieces = [], []
        payload = b"".join(replicate_frame(sent))[FRAME_HEADER_BYTES:]
        self.sent.append(read_replicated(memoryview(payload)))
        return self.sent[-1]

    @property
    def topics(self) -> list[ReplicaTopic]:
        return describe_topics(self.store.topics)

    def bring_level(self, follower: Follower) -> None:
        """What a session does: reconciles, catches up, then says the position."""
        self.events.clear()
        self.pieces.clear()
        followed = Followed(self.epoch, *self.store.history)
        found = asyncio.run(follower.replica.adopt(followed, self.topics))
        ends = {(end.topic, end.partition): end.end for end in found}
        for topic in self.store.topics:
            for log in topic.logs:
                offset = ends.get(log.owner, log.start_offset)
                follower.replica.apply(self.catch_up(log, offset))
        follower.replica.apply(self.frame())
        follower.settle()

    def catch_up(self, log: PartitionLog, offset: int) -> Replicated:
        pieces: list[ReplicaPiece] = []
        while offset < log.end_offset:
            block = log.read(offset, log.end_offset)
            pieces.append(
                ReplicaPiece(*log.owner, block.base_offset, block.next_offset, block.data)
            )
            offset = block.next_offset
        return Replicated(self.epoch, 0, 0, 0, 0, (), pieces)

    def batches(self, name: str = "t", partition: int = 0) -> list[bytes]:
        log = self.log(name, partition)
        return list(read_batches(log, log.start_offset))

    def close(self) -> None:
        self.store.close(clean=True)


def check_equal(primary: Primary, *followers: Follower) -> None:
    """All have the same topics, and the same bytes."""
    for follower in followers:
        mine = {(t.number, t.name): t for t in primary.store.topics}
        theirs = {(t.number, t.name): t for t in follower.topics.values()}
        assert theirs.keys() == mine.keys()
        for key, topic in mine.items():
            assert theirs[key].settings == topic.settings
            for i, log in enumerate(topic.logs):
                copy = theirs[key].logs[i]
                assert (copy.start_offset, copy.end_offset) == (log.start_offset, log.end_offset)
                assert follower.batches(topic.name, i) == primary.batches(topic.name, i)


def offsets(batches: Sequence[bytes]) -> list[int]:
    return [read_header(batch).base_offset for batch in batches]
