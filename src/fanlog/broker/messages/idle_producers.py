"""Forgets producers that have published nothing for a long time, a partition at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fanlog.broker.messages.topics import Partition
from fanlog.config import BrokerOptions

_SECOND_US = 1_000_000


class IdleProducers:
    """Forgets producers that published nothing to a partition for `producer_idle_seconds`.

    Nobody writes down when a producer published last. Where each log ended at the last look is
    enough: a producer whose last record is before that was idle ever since.
    """

    def __init__(self, options: BrokerOptions, monotonic_us: Callable[[], int]) -> None:
        self._idle_us = options.producer_idle_seconds * _SECOND_US
        self._monotonic_us = monotonic_us
        self._due_us = monotonic_us() + self._idle_us

    def forget(self, partitions: dict[int, Partition]) -> Iterator[None]:
        """Looks through all partitions if it is time to, one at a step."""
        now_us = self._monotonic_us()
        if now_us < self._due_us:
            return
        self._due_us = now_us + self._idle_us
        for partition in list(partitions.values()):
            producers = partition.producers
            if producers:
                mark = partition.idle_mark
                for idle in [i for i, known in producers.items() if known.run_next <= mark]:
                    del producers[idle]
            partition.idle_mark = partition.next_offset
            yield
