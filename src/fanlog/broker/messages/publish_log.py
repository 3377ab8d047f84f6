"""What was published, in the log at level debug: a line for each topic and tick that brought any.

Law: publishing pays nothing for it. There is no call for a message or a batch. If the level is
debug and something was published, the ends of the partitions are compared with the last ones, ten
times a second.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanlog.broker.messages.catalog import Catalog
    from fanlog.broker.messages.topics import Partition
    from fanlog.broker.messages.turns import Turns

logger = logging.getLogger("fanlog.broker")


class PublishLog:
    """Looks where partitions end, and says what has come since the last look."""

    def __init__(self, catalog: Catalog, turns: Turns) -> None:
        self._catalog = catalog
        self._turns = turns
        self._records = -1
        self._ends: dict[Partition, int] = {}

    def tick(self) -> None:
        """The broker calls this every 100 ms."""
        if not logger.isEnabledFor(logging.DEBUG):
            self._records = -1
            self._ends = {}
            return
        records = self._turns.published_records
        if records == self._records:
            return
        known, before = self._records >= 0, self._ends
        self._records, self._ends = records, {}
        for topic in self._catalog:
            brought = 0
            for partition in topic.partitions:
                end = self._ends[partition] = partition.visible_end
                brought += end - before.get(partition, 0 if known else end)
            if brought > 0:
                ends = ", ".join(f"{p.index}:{p.visible_end}" for p in topic.partitions[:8])
                logger.debug("publish: %d messages to topic %s, ends %s", brought, topic.name, ends)
