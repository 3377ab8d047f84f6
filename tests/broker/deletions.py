"""Deletion of records for tests that hand out time and turns themselves: at once, on the loop. A
broker waits for the disk in threads (`fanlog.broker.lifecycle.truncation`)."""

from __future__ import annotations

from fanlog.broker.broker_core import BrokerCore
from fanlog.format.messages import PartitionOffset


def delete_records(core: BrokerCore, name: str, offsets: dict[int, int]) -> list[PartitionOffset]:
    """Deletes the records before these offsets, one for each partition; where each begins now."""
    starts: list[PartitionOffset] = []
    checked = core.check_deletion(name, offsets)
    core.stream.check()
    for partition, offset in checked:
        tail_bytes = partition.log.tail.bytes
        try:
            start = partition.log.delete_before(offset)
        finally:
            core.turns.resized(partition, tail_bytes)
        starts.append(PartitionOffset(partition.index, start))
    core.events.truncated(core.catalog.get(name))
    return starts
