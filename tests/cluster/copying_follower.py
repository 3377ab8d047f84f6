"""A follower with real files at the end of a primary's link, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fanlog.cluster.replica import Replica
from fanlog.config import LogOptions
from fanlog.format.batch import Batch, split_batches
from fanlog.format.replication import Followed, ReplicaEnds, Replicated
from fanlog.log.partition import PartitionLog
from tests.broker.stage import HandRuntime
from tests.cluster.model_follower import ModelFollower

T = TypeVar("T")


class HandReplicaRuntime(HandRuntime):
    # Whether threads work at once.
    at_once = False

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        super().in_background(work, done)
        if self.at_once:
            self.run()

    def post(self, call: object, /) -> None:
        self.soon(call)  # type: ignore[arg-type]


class CopyingFollower(ModelFollower):
    def __init__(self, folder: Path, epoch: int, *, complete: bool = True) -> None:
        super().__init__()
        self.runtime = HandReplicaRuntime()
        self.epoch = epoch
        self.incomplete = False
        self.replica = Replica(
            folder, LogOptions(), self.runtime, self._note_incomplete, complete=complete
        )
        self.replica.open()

    def _note_incomplete(self) -> None:
        self.incomplete = True

    def answer_topics(self) -> None:
        assert self.link is not None
        self.runtime.at_once = True
        found = asyncio.run(self.replica.adopt(Followed(self.epoch), list(self.topics.values())))
        self.runtime.at_once = False
        self.link.ends(ReplicaEnds(tuple(found), last=True))

    def _apply(self, sent: Replicated) -> None:
        self.frames.append(sent)
        self.replica.apply(sent)

    def applied(self, epoch: int) -> None:
        assert self.link is not None
        self.link.take_applied(self.replica.applied)

    def log(self, name: str, partition: int = 0) -> PartitionLog:
        store = self.replica._store  # pyright: ignore[reportPrivateUsage]
        topic = next(topic for topic in store.topics if topic.name == name)
        return topic.logs[partition]


def records(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Keys and values by their offsets."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        block = log.read(offset, log.end_offset)
        for at, header in split_batches(block.data):
            batch = Batch(block.data[at : at + header.length])
            for i, record in enumerate(batch.offsets):
                found[record] = batch.keys[i], batch.values[i]
        offset = block.next_offset
    return found


def last_values(log: PartitionLog) -> dict[bytes, bytes]:
    """The last value of each key that is not deleted."""
    found: dict[bytes, bytes] = {}
    for key, value in records(log).values():
        assert key is not None
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
