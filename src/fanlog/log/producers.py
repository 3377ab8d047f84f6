"""Who wrote last: the producers' sequences that recovery finds on its way through a segment.

The broker rebuilds from it what makes a retry after a restart safe. Batches of one producer whose
sequence and offsets both go on are one run, so that the list stays short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from fanlog.log.scan import Found

# A producer's oldest runs are left out past this many: its retries concern the newest.
RUNS_PER_PRODUCER_MAX = 1024


class ProducerRun(NamedTuple):
    """Records of one producer that follow each other in sequence and in the log."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    record_count: int
    base_offset: int


class ProducerRuns:
    """Collects runs in the order of the log."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[int, deque[ProducerRun]] = {}

    def add(self, batches: Iterable[Found]) -> None:
        for _, epoch, base, _, producer, sequence, count in batches:
            if not producer:
                continue
            runs = self._runs.get(producer)
            if runs is None:
                runs = self._runs[producer] = deque(maxlen=RUNS_PER_PRODUCER_MAX)
            elif (
                (last := runs[-1]).producer_epoch == epoch
                and last.first_sequence + last.record_count == sequence
                and last.base_offset + last.record_count == base
            ):
                runs[-1] = last._replace(record_count=last.record_count + count)
                continue
            runs.append(ProducerRun(producer, epoch, sequence, count, base))

    def in_order(self) -> list[ProducerRun]:
        """All runs, by their place in the log."""
        everything = [run for runs in self._runs.values() for run in runs]
        everything.sort(key=lambda run: run.base_offset)
        return everything
