"""Data of the previous run for a start: the journal, the synced ends of logs, and kept batches.

All of it is about topics with durability fsync. Unknown values are None, and then a start removes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fanlog.errors import FormatError
from fanlog.log.journal_file import JournalFound, newest_generation, read_journal
from fanlog.log.kept_batches import load_kept
from fanlog.log.replay import Journaled, Known, by_partition
from fanlog.log.scan import Owner
from fanlog.log.small_files import ReportDamage, set_aside
from fanlog.log.synced_ends import SyncedEnds, load_ends


class PreviousRun:
    """The journal's batches by partition, and the acknowledged end of each."""

    def __init__(
        self,
        found: JournalFound,
        ends: SyncedEnds | None,
        kept: dict[int, list[memoryview]],
        generation: int,
    ) -> None:
        self._ends = ends
        # The upper half of the newest generation that the journal has had.
        self.generation_epoch = generation >> 32
        self._complete = found.complete
        self._journaled = by_partition(found)
        self.has_groups = bool(self._journaled)
        self.kept = kept.keys()
        # The journal's own data is newer, or the same.
        for number in kept.keys() - {owner.topic for owner in self._journaled}:
            batches = JournalFound(kept[number], [], [], complete=True, faults=[])
            self._journaled |= by_partition(batches)

    def known(self, owner: Owner) -> Known:
        journaled = self._journaled.get(owner) or Journaled()
        synced_end = None if self._ends is None else self._ends.end_of(owner)
        promised_end = None
        if synced_end is not None and self._complete:
            promised_end = max(synced_end, journaled.promised_end)
        return Known(journaled, synced_end, promised_end)

    def batches_of(self, topic: int) -> list[memoryview]:
        return [
            b for owner, j in self._journaled.items() if owner.topic == topic for b in j.batches
        ]

    def ends_of(self, topics: Collection[int]) -> Iterator[tuple[Owner, int]]:
        """How far the logs of topics were synced that this start can't open."""
        for owner, end_offset in () if self._ends is None else self._ends.items():
            if owner.topic in topics:
                yield owner, end_offset


def read_previous_run(folder: str, report: ReportDamage) -> PreviousRun:
    try:
        ends = load_ends(folder)
    except FormatError as fault:
        ends = None
        aside = set_aside(f"{folder}/ends")
        report(
            f"The table of synced ends in {folder} is damaged: {fault}. Nothing is lost, but "
            f"this start can't tell torn writes from damage. The file is now {aside}; remove it."
        )
    found = read_journal(folder, None if ends is None else ends.generation)
    for fault in found.faults:
        report(
            f"{fault}, and a group is lost. The messages are still in their logs. If a log has "
            "lost them too, its damage is also listed."
        )
    generation = newest_generation(folder) if ends is None else ends.generation
    return PreviousRun(found, ends, load_kept(folder), generation)
