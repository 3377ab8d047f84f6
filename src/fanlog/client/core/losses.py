"""Partitions that members of groups have lost on this client, and offset commits that are of them.

Law: an offset commit that is sent again after a lost connection must not be of a partition that
the member has lost since it was first asked for. Others may have been there meanwhile, and the
broker can't tell: the member may have the partition again.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from fanlog.errors import FencedError
from fanlog.format.messages import CommitOffsets, CommitTransaction, Position, Revoke

# Of all requests only these commit offsets.
_COMMITTING = frozenset({CommitOffsets, CommitTransaction})


class PartitionLosses:
    """How often each partition was lost."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def note(self, revoke: Revoke) -> None:
        if revoke.lost:
            self._counts.update((revoke.topic, partition) for partition in revoke.partitions)

    def before(self, message: msgspec.Struct) -> tuple[int, ...]:
        """The counts of the partitions that a request commits, to compare them later."""
        if type(message) not in _COMMITTING:
            return ()
        return tuple(self._counts[p.topic, p.partition] for p in _committed(message))

    def check(self, message: msgspec.Struct, before: tuple[int, ...]) -> None:
        """Raises if one of them was lost since."""
        for position, count in zip(_committed(message), before, strict=True):
            if self._counts[position.topic, position.partition] != count:
                raise FencedError(
                    f"Partition {position.partition} of {position.topic!r} was taken from this "
                    f"member before offset {position.offset} was committed. No offsets were "
                    "committed. Its new owner continues from the last offset commit."
                )


def _committed(message: msgspec.Struct) -> tuple[Position, ...]:
    """The positions that a request commits for members of groups."""
    if isinstance(message, CommitOffsets):
        return () if message.durable else message.positions
    if isinstance(message, CommitTransaction):
        return tuple(position for offsets in message.offsets for position in offsets.positions)
    return ()
