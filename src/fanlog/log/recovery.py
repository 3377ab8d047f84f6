"""Recovery of a log at start: whole batches stay, a torn tail is cut, damage is reported.

Only the newest segment is read. The one before it is read too if a crash interrupted its sealing,
which a missing index shows. All others cost one line of a folder listing, unless the file of
producers is missing: then they are read to find the producers.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from fanlog.errors import FormatError
from fanlog.log.clean_stop import CleanLog, restore
from fanlog.log.disk import DiskLog
from fanlog.log.epochs import with_batches
from fanlog.log.files import remove_if_there
from fanlog.log.index import SealedIndex
from fanlog.log.lookup import quarantine
from fanlog.log.partition_notes import RANKED_FILE, load_compacted, load_start, peek_start
from fanlog.log.producers import ProducerRuns, read_producers
from fanlog.log.replay import Journaled, Known, mend, replay
from fanlog.log.scan import NO_STOP, BatchRun, is_zero
from fanlog.log.segment import (
    Scanned,
    Segment,
    SegmentListing,
    index_path,
    list_folder,
    log_path,
    plain_path,
    producers_path,
    remove_index,
    scan_segment,
    write_index,
)

logger = logging.getLogger("fanlog.log")


class RecoveredLog(NamedTuple):
    """A recovered log: its end and its producers."""

    end_offset: int
    producers: ProducerRuns


def bring_back(disk: DiskLog, known: Known | None, clean: CleanLog | None) -> RecoveredLog:
    """Reads the log's folder into `disk`. `PartitionLog.open` describes the arguments."""
    listing = list_folder(disk.folder)
    if "damaged.json" in listing.others:
        disk.quarantine.load(disk.shared.report)
    disk.ranked = RANKED_FILE in listing.others
    if "start.json" in listing.others:
        # First: deleted records are not missing, whatever a crash has left of them.
        disk.deleted_before = peek_start(disk.folder)
    found = _as_it_was_left(disk, listing, known, clean)
    changed = False
    if found is None:
        # A clean stop recorded the end of the log: missing batches are lost, not torn.
        stopped = None if clean is None else Known(Journaled(), promised_end=clean.end_offset)
        found, changed = _scanned(disk, listing, known or stopped)
    end_offset = found.end_offset
    if "start.json" in listing.others:
        end_offset = skip_deleted(disk, end_offset)
    if disk.segments and "compacted.json" in listing.others:
        base = disk.segments[-1].base
        disk.compacted = load_compacted(disk.folder, base, disk.shared.report)
    disk.quarantine.forget(end_offset, NO_STOP)
    if disk.tracks_unsynced:
        synced_end = None if known is None else known.synced_end
        if known is not None and changed:
            synced_end = min(known.suspect_from, end_offset)
        disk.note_unsynced(synced_end, end_offset)
    disk.producers = None
    return RecoveredLog(end_offset, found.producers)


def _as_it_was_left(
    disk: DiskLog, listing: SegmentListing, known: Known | None, clean: CleanLog | None
) -> RecoveredLog | None:
    """The log as a clean stop left it; None if that is unknown."""
    if clean is None or not listing.segments:
        return None
    if known is not None and (known.synced_end != clean.end_offset or known.journaled.headers):
        return None
    producers = ProducerRuns()
    if not restore(disk, listing.segments, clean, producers):
        return None
    return RecoveredLog(clean.end_offset, producers)


def _scanned(
    disk: DiskLog, listing: SegmentListing, known: Known | None
) -> tuple[RecoveredLog, bool]:
    """The log as a scan finds it, mended; whether anything had to be changed for that."""
    segments = listing.segments
    # A crash can have left holes further back than where a scan looks, or the journal has more.
    looks_back = known is not None and bool(
        known.journaled.headers or known.suspect_index(segments) < len(segments) - 1
    )
    changed = False
    while True:
        if known is not None and looks_back and segments:
            changed = mend(disk, known, segments)
            if changed:
                segments = list_folder(disk.folder).segments
        producers = ProducerRuns()
        # Replayed batches may start new segments, long before there is a broker to ask.
        disk.producers = producers.histories
        holes_from = None if known is None or looks_back else known.promised_end
        end_offset = recover(disk, segments, producers, holes_from)
        if end_offset is not None:
            break
        looks_back = True
    if known is not None:
        end_offset = replay(disk, known, end_offset, producers)
    return RecoveredLog(end_offset, producers), changed


def recover(
    disk: DiskLog,
    segments: list[Segment],
    producers: ProducerRuns,
    holes_from: int | None = None,
) -> int | None:
    """Reads a log's segments into `disk`; its end offset. None if there is a hole that ends past
    the offset `holes_from`: it has to be cut first."""
    if not segments:
        return 0
    if len(segments) > 1:
        _finish_sealing(disk, segments[-2])
    active = segments[-1]
    # It is written to again: an index from an earlier sealing would be wrong.
    remove_index(disk.folder, active)
    _take_plain_name(disk, active)
    _remember_producers(disk, segments, producers)
    scanned = _scan(disk, active, producers)
    holes = [damage for damage in scanned.damages if damage.next is not None]
    if holes_from is not None and any((hole.next or 0) > holes_from for hole in holes):
        disk.epochs = ()
        disk.producers_base = -1
        return None
    for hole in holes:
        quarantine(disk, active, hole, NO_STOP)
    active.index = scanned.entries
    disk.segments = tuple(segments)
    disk.save_producers()
    disk.sealed_bytes = sum(segment.bytes for segment in segments[:-1])
    disk.position = scanned.end_at
    disk.allocated = _cut_tail(disk, active, scanned)
    disk.index_at = _next_index_at(disk, scanned)
    disk.last_time_us = scanned.last_time_us
    if not scanned.end_at and len(segments) > 1:
        disk.last_time_us = disk.last_time_of(segments[-2])
    return scanned.end_offset


def _take_plain_name(disk: DiskLog, active: Segment) -> None:
    """A compacted segment that has become the last one is written to as any other is: its old
    name claims offsets that it may not get to."""
    if active.name:
        os.rename(log_path(disk.folder, active), plain_path(disk.folder, active.base))
        active.name = ""


def skip_deleted(disk: DiskLog, end_offset: int) -> int:
    """The end of the log after the journal's batches were replayed. Offsets of deleted records are
    not used again, even if a crash has lost the records.

    Records before the start offset are hidden, and their files stay: no file is deleted because a
    small file says so.
    """
    disk.deleted_before = start = load_start(disk.folder, end_offset, disk.shared.report)
    # The list of damage may be older than the deletion.
    disk.quarantine.drop_before(start)
    if start <= end_offset:
        return end_offset
    disk.roll(start)
    return start


def _remember_producers(disk: DiskLog, segments: list[Segment], producers: ProducerRuns) -> None:
    """The producers before the active segment: from the newest whole file of producers, and from
    the batches after it."""
    first = len(segments) - 1
    while not _load_producers(disk, segments[first], producers) and first:
        first -= 1
    for segment in segments:
        if segment.has_producers and segment.base != disk.producers_base:
            remove_if_there(producers_path(disk.folder, segment.base))
    if first == len(segments) - 1:
        return
    logger.warning(
        "%s has no complete file of producers for offset %d: the log is scanned for them from "
        "offset %d on.",
        disk.folder,
        segments[-1].base,
        segments[first].base,
    )
    for segment in segments[first:-1]:
        _scan(disk, segment, producers)


def _load_producers(disk: DiskLog, segment: Segment, producers: ProducerRuns) -> bool:
    if not segment.has_producers:
        return False
    path = producers_path(disk.folder, segment.base)
    try:
        saved = read_producers(path, segment.base)
    except (FormatError, OSError) as fault:
        logger.warning("%s can't be used: %s", path, fault)
        return False
    producers.add_runs(saved.runs)
    disk.epochs = saved.epochs
    disk.producers_base = segment.base
    return True


def _scan(disk: DiskLog, segment: Segment, producers: ProducerRuns) -> Scanned:
    def visit(run: BatchRun) -> None:
        producers.add(run.batches)
        disk.epochs = with_batches(disk.epochs, run.batches)

    interval_bytes = disk.shared.options.index_interval_bytes
    return scan_segment(disk.folder, segment, disk.owner, interval_bytes, visit)


def _next_index_at(disk: DiskLog, scanned: Scanned) -> int:
    positions = scanned.entries.positions
    return positions[-1] + disk.shared.options.index_interval_bytes if positions else 0


def _cut_tail(disk: DiskLog, active: Segment, scanned: Scanned) -> int:
    """Cuts the file after the last whole batch. Returns the new size.

    Zeros are space that was allocated ahead, and stay.
    """
    path = log_path(disk.folder, active)
    fd = os.open(path, os.O_RDWR)
    try:
        if is_zero(fd, scanned.end_at, scanned.size):
            return scanned.size
        logger.warning(
            "%s is cut at byte %d: the %d bytes after the last complete batch, which ends at "
            "offset %d, are an unfinished write of a crash.",
            path,
            scanned.end_at,
            scanned.size - scanned.end_at,
            scanned.end_offset,
        )
        os.ftruncate(fd, scanned.end_at)
        return scanned.end_at
    finally:
        os.close(fd)


def _finish_sealing(disk: DiskLog, segment: Segment) -> None:
    if os.path.exists(index_path(disk.folder, segment)):
        return
    interval_bytes = disk.shared.options.index_interval_bytes
    scanned = scan_segment(disk.folder, segment, disk.owner, interval_bytes)
    segment.last_time_us = scanned.last_time_us
    try:
        if scanned.end_offset == segment.next_offset and scanned.size > scanned.end_at:
            os.truncate(log_path(disk.folder, segment), scanned.end_at)
            segment.bytes = scanned.end_at
        facts = SealedIndex(
            scanned.entries, segment.base, scanned.end_offset, scanned.last_time_us, segment.bytes
        )
        write_index(disk.folder, segment, facts)
    except OSError as fault:
        # A full disk must not keep the broker from starting; the next start tries again.
        logger.warning("The segment %d in %s is not sealed: %s", segment.base, disk.folder, fault)
