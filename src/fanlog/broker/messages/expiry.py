"""Topics that go by themselves: those with `expire_seconds`, when nothing was published to them for
so long. Resumable streams are such topics, and there may be very many of them.

Law: what has records needs no state here: the time of its newest record is in its log, also after
a restart. It counts as in retention: a wall clock that jumps expires nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.model import MIB, STREAM_PREFIX

# In memory: an answer is of interest for minutes, and can be made again. The tail bounds how much
# of it is kept, and takes no more than what was written.
STREAM_SETTINGS: dict[str, int | str] = {
    "partitions": 1,
    "durability": "memory",
    "retention_seconds": 0,
    "retention_bytes": 0,
    "tail_bytes": 4 * MIB,
    "expire_seconds": 3600,
    "role": "stream",
}
_SECOND_US = 1_000_000


def is_stream(name: str) -> bool:
    return name.startswith(STREAM_PREFIX)


class Expiry:
    """Since when topics without a record are known: they have nothing else that tells their age."""

    def __init__(self) -> None:
        self._empty_since_us: dict[int, int] = {}

    def due(
        self, topics: Iterable[BrokerTopic], now_us: int, monotonic_us: int
    ) -> Iterator[BrokerTopic | None]:
        """The expired topics, one after the other; None in place of each topic that stays."""
        known, self._empty_since_us = self._empty_since_us, {}
        for topic in topics:
            last_us = max(partition.last_time_us for partition in topic.partitions)
            if last_us:
                idle_us = now_us - last_us
            else:
                since_us = known.get(topic.number, monotonic_us)
                self._empty_since_us[topic.number] = since_us
                idle_us = monotonic_us - since_us
            yield topic if idle_us >= topic.settings.expire_seconds * _SECOND_US else None
