"""Producers of a partition: which batch may come next, and where a repeated one was stored.

A producer numbers its records per partition. The broker stores a batch only if it continues the
producer's numbers, answers a repeat with its first offset, and refuses a gap. While a producer's
numbers and the partition's offsets grow in step, one `run` describes them all.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import chain
from typing import NamedTuple

from fanlog.errors import OutOfSequenceError
from fanlog.log.producers import ProducerHistory
from fanlog.model import PRODUCER_ID_MAX


class SequenceRun(NamedTuple):
    """`records` records from `first_sequence` on, stored from `base_offset` on."""

    first_sequence: int
    base_offset: int
    records: int


class Producer:
    """One producer of one partition. The newest run has its own fields, because the hot path only
    extends it."""

    __slots__ = ("epoch", "next_sequence", "run_base", "run_next", "run_sequence", "runs")

    def __init__(self, epoch: int, first_sequence: int, base_offset: int) -> None:
        self.epoch = epoch
        self.next_sequence = first_sequence
        self.run_sequence = first_sequence
        self.run_base: int = base_offset
        self.run_next = base_offset
        self.runs: deque[SequenceRun] | None = None

    def extend(self, count: int, base_offset: int, runs_max: int) -> None:
        """The producer's next `count` records were given the offsets from `base_offset` on."""
        if base_offset != self.run_next:
            if self.run_next > self.run_base:
                if self.runs is None:
                    self.runs = deque(maxlen=runs_max)
                self.runs.append(
                    SequenceRun(self.run_sequence, self.run_base, self.run_next - self.run_base)
                )
            self.run_sequence = self.next_sequence
            self.run_base = base_offset
        self.run_next = base_offset + count
        self.next_sequence += count

    def offset_of(self, sequence: int, count: int) -> int:
        """The offset of a repeated batch, or the error if it is unknown."""
        if sequence + count <= self.next_sequence:
            if sequence >= self.run_sequence:
                return self.run_base + sequence - self.run_sequence
            for run in reversed(self.runs or ()):
                if run.first_sequence <= sequence < run.first_sequence + run.records:
                    return run.base_offset + sequence - run.first_sequence
        raise OutOfSequenceError(
            f"The batch has sequence {sequence} to {sequence + count - 1}, but this producer's "
            f"next is {self.next_sequence}. Resend from there, in order."
        )

    def history(self, producer_id: int) -> ProducerHistory:
        """All runs that are remembered, as the log keeps them."""
        numbers = array("Q", chain.from_iterable(self.runs or ()))
        if self.run_next > self.run_base:
            numbers.extend((self.run_sequence, self.run_base, self.run_next - self.run_base))
        return ProducerHistory(producer_id, self.epoch, numbers)

    def take_back(self, sequence: int, base_offset: int) -> None:
        """Forgets everything from `sequence` on, which was not stored after all."""
        while self.run_sequence > sequence and self.runs:
            run = self.runs.pop()
            self.run_sequence, self.run_base = run.first_sequence, run.base_offset
            self.run_next = run.base_offset + run.records
        self.run_next = min(self.run_next, max(base_offset, self.run_base))
        self.next_sequence = min(self.next_sequence, sequence)


def forget_longest_idle(producers: dict[int, Producer], count: int) -> None:
    """Forgets the producers that published longest ago. Producers of transactions end by themselves
    when nothing of them can be stored again."""
    clients = [known for known in producers if known <= PRODUCER_ID_MAX]
    clients.sort(key=lambda known: producers[known].run_next)
    for known in clients[:count]:
        del producers[known]
