"""Whether somebody waits for messages of a partition, for tests that begin then."""

from __future__ import annotations

from fanlog.broker.messages.topics import Partition


def awaited(partition: Partition) -> bool:
    """Whether a fetch, a long poll or another wake waits for more."""
    audience = partition.audience
    return audience is not None and bool(audience.wakes)
