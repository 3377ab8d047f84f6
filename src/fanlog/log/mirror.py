"""The log of a partition that another broker keeps: its newest pieces, as they were stamped there.

Offsets, epochs and where the log begins are that broker's. Older pieces are not here: the edge asks
that broker for them.
"""

from __future__ import annotations

from fanlog.log.epochs import Epochs, with_epoch
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from fanlog.log.tail import Tail
from fanlog.model import Durability, TopicSettings


class MirrorLog(PartitionLog):
    """`begins_at` is where the other broker's log begins, as far as is known here."""

    __slots__ = ("_epochs", "begins_at")

    def __init__(
        self,
        settings: TopicSettings,
        owner: Owner,
        *,
        begins_at: int = 0,
        end_offset: int = 0,
        epochs: Epochs = (),
    ) -> None:
        super().__init__(settings, owner)
        # What comes here has been accepted there: nothing waits for a sync.
        if self.durability is Durability.FSYNC:
            self.durability = Durability.OS
        self.begins_at = begins_at
        self.tail = Tail(end_offset)
        self._epochs = epochs

    @property
    def start_offset(self) -> int:
        return min(self.begins_at, self.tail.end_offset)

    @property
    def epochs(self) -> Epochs:
        return self._epochs

    def learn_epochs(self, epochs: Epochs) -> None:
        """Takes over which starts of the other broker wrote what."""
        self._epochs = epochs

    def note_epoch(self, epoch: int, base_offset: int) -> None:
        """A batch of this epoch comes next. A log in memory knows but one."""
        if self.durability is not Durability.MEMORY:
            self._epochs = with_epoch(self._epochs, epoch, base_offset)

    def start_at(self, offset: int) -> None:
        """Continues at another offset; what the tail had is not here any more."""
        self.tail = Tail(offset)
