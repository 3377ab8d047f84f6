"""What one publisher may write to, kept by the key that its batches carry."""

from __future__ import annotations

from collections.abc import Mapping

from fanlog.broker.authority import KEPT_MAX, Permit
from fanlog.broker.messages.topics import Partition


class AllowedPartitions(dict[int, Partition]):
    """The partitions that one publisher may write to. The intake asks with every read from the
    publisher, so what was allowed once is found by one look, and without a call. `epoch` is the
    intake's: it empties this when permissions change, and when a topic is deleted."""

    __slots__ = ("_partitions", "_permit", "epoch")

    def __init__(self, permit: Permit, partitions: Mapping[int, Partition]) -> None:
        super().__init__()
        self._permit = permit
        self._partitions = partitions
        self.epoch = 0
        # Emptied, too, when the publisher logs in as somebody else.
        permit.kept_elsewhere = self

    def renew(self, epoch: int) -> None:
        self.clear()
        self.epoch = epoch

    def __missing__(self, key: int) -> Partition | None:
        """The partition of a key, if there is one and the publisher may write to it."""
        partition = self._partitions.get(key)
        if partition is None or self._permit.may_publish(partition.topic.name) is not None:
            return None
        if len(self) >= KEPT_MAX:
            self.clear()
        self[key] = partition
        return partition
