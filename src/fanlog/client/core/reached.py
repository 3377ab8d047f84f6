"""How far a reader is in a partition, and what that is worth after a reconnect: the broker may have
lost what the reader has, and then other messages have the same offsets."""

from __future__ import annotations

from typing import NamedTuple

from fanlog.format.batch import Batch
from fanlog.format.messages import Claim, Position
from fanlog.model import TopicPartition


class Reached(NamedTuple):
    """The next offset wanted; the epoch of the log that it is an offset of, and its topic."""

    offset: int
    epoch: int
    number: int = 0


def reached(batch: Batch, offset: int) -> Reached:
    """An offset of a batch, or the one behind it."""
    header = batch.header
    return Reached(offset, header.leader_epoch, header.topic)


def as_positions(tps: dict[TopicPartition, Reached]) -> tuple[Position, ...]:
    return tuple(Position(*tp, *at) for tp, at in tps.items())


def as_claim(at: Position, committed: int) -> Claim:
    return Claim(at.topic, at.partition, at.offset, at.epoch, at.number, committed)


class Partings:
    """Where logs have parted from what this reader had of them. What it still holds of the old log
    is given to the application, and does not count as progress in the new one."""

    __slots__ = ("_parted",)

    def __init__(self) -> None:
        self._parted: dict[TopicPartition, tuple[Reached, Reached]] = {}

    def note(self, tp: TopicPartition, before: Reached, start: Reached) -> None:
        """The reader was at `before`, and continues at `start` of a log that is another from there
        on."""
        self._parted[tp] = before, start

    def is_stale(self, batch: Batch) -> bool:
        """Whether a batch is of a log that the broker does not have any more."""
        if not self._parted:
            return False
        header = batch.header
        parted = self._parted.get(TopicPartition(batch.topic_name, header.partition))
        if parted is None:
            return False
        before, start = parted
        # What is new there has a later epoch. Brokers without a folder draw theirs: it need not be
        # higher, but it is that of the new log.
        return (
            header.topic == before.number
            and header.leader_epoch <= before.epoch
            and header.leader_epoch != start.epoch
            and batch.next_offset > start.offset
        )
