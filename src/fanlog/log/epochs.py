"""Which starts of the broker wrote which part of a log.

Every batch carries the epoch of the broker's start that stamped it, and epochs only rise. So the
history of a log is a short list: each epoch, and the offset of its first batch. A crash can take
the end of a log; what comes then gets the same offsets under a later epoch. A reader's position is
an offset and an epoch, and this list tells whether it still means what it meant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from fanlog.log.scan import FoundBatch


class EpochStart(NamedTuple):
    """The first batch of an epoch in a log has the offset `base`."""

    epoch: int
    base: int


# In order, each with a higher epoch and a higher base than the one before.
Epochs = tuple[EpochStart, ...]


def _epoch_of(start: EpochStart) -> int:
    return start.epoch


def _base_of(start: EpochStart) -> int:
    return start.base


def with_epoch(epochs: Epochs, epoch: int, base: int) -> Epochs:
    """The history with a batch at its end."""
    if epochs and epoch <= epochs[-1].epoch:
        return epochs
    return (*epochs, EpochStart(epoch, base))


def with_batches(epochs: Epochs, batches: Sequence[FoundBatch]) -> Epochs:
    """The history with these batches at its end."""
    if epochs and batches and batches[-1].leader_epoch <= epochs[-1].epoch:
        return epochs
    for batch in batches:
        epochs = with_epoch(epochs, batch.leader_epoch, batch.base_offset)
    return epochs


def before(epochs: Epochs, offset: int) -> Epochs:
    """The history of the batches before an offset."""
    return epochs[: bisect_left(epochs, offset, key=_base_of)]


def since(epochs: Epochs, offset: int) -> Epochs:
    """The history without what ended before an offset."""
    return epochs[max(0, bisect_right(epochs, offset, key=_base_of) - 1) :]


def parted_at(epochs: Epochs, epoch: int) -> int | None:
    """The first offset that was written after an epoch; None if nothing was. Up to there the log is
    what a reader of that epoch knew, and not further. Epoch 0 means that the epoch is not known:
    then there is no answer."""
    if not epoch:
        return None
    i = bisect_right(epochs, epoch, key=_epoch_of)
    return epochs[i].base if i < len(epochs) else None
