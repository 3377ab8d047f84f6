"""Cuts logs of a data folder that no broker uses: a replica has records that nobody committed.

A `CutList` says where each log ends afterwards, or at which offset it begins anew, empty.
Everything in the folder that knows how far a log went follows:

| beside a log                     | after a cut                                                  |
| -------------------------------- | ------------------------------------------------------------ |
| segments                         | later ones go, the newest first; the last one is truncated   |
| `.idx` of the last segment       | goes: the segment is written to again                        |
| `.producers` of the last segment | made again, from the batches that stay and the file that goes |
| `start.json`                     | stays; a log that begins anew gets one                       |
| `compacted.json`, `damaged.json` | stay: the next start takes from them what is still true      |
| `journal/ends`                   | lowered to the cut                                           |
| `journal/*.journal`              | must be empty: a clean stop has emptied it                   |
| `journal/kept-*`                 | go, with the logs that they belong to                        |
| `clean`, `ledgers.json`, and     | go: they say that the logs were longer                       |
| `audit.json`                     |                                                              |

`cuts.json` has the list until the cut is done: `ends` and `starts`, each a list of topic, partition
and offset.

Law: to run it again, after a crash anywhere in it, is safe and leads to the same logs. A start
that finds the list finishes the cut before anything else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log import small_files
from fanlog.log.catalog import FolderLock, number_of
from fanlog.log.epochs import Epochs, with_batches
from fanlog.log.files import remove_if_there, replace_file, sync_file, sync_folder
from fanlog.log.journal_file import read_journal
from fanlog.log.kept_batches import remove_kept
from fanlog.log.partition_notes import save_start
from fanlog.log.producers import ProducerRuns, read_producers, write_producers
from fanlog.log.scan import BatchRun, Owner
from fanlog.log.segment import (
    Segment,
    list_folder,
    log_path,
    plain_path,
    producers_path,
    remove_index,
    scan_segment,
)
from fanlog.log.synced_ends import SyncedEnds, load_ends

logger = logging.getLogger("fanlog.log")

# Notes of a broker about its own logs. A replica does not have them.
_REIGN_NOTES = ("ledgers.json", "audit.json")
_INDEX_INTERVAL_BYTES = 1 << 30
CUTS_FILE = "cuts.json"


class CutList(NamedTuple):
    """`ends` says where logs end afterwards, `starts` where empty ones begin."""

    ends: Mapping[Owner, int] = {}
    starts: Mapping[Owner, int] = {}


def cut_folder(folder: str, cuts: CutList) -> None:
    """Cuts logs, durably. The folder was closed cleanly before, and nothing uses it. Blocks."""
    lock = FolderLock(folder)
    try:
        ends = check_closed(folder)
        _save_list(folder, cuts)
        _carry_out(folder, cuts, ends)
    finally:
        lock.release()


def finish_cut(folder: str) -> None:
    """Finishes a cut that was interrupted, if there was one. The caller has the folder's lock."""
    try:
        fields = small_files.load(f"{folder}/{CUTS_FILE}").fields
        cuts = CutList(_read_list(fields["ends"]), _read_list(fields["starts"]))
    except FileNotFoundError:
        return
    except (FormatError, KeyError, TypeError, ValueError) as fault:
        raise FolderUnusableError(
            f"{folder}/{CUTS_FILE} is damaged ({fault}), so the interrupted cut of the logs "
            "can't be completed. Empty the folder, and let this node copy everything again."
        ) from fault
    logger.warning("A cut of the logs in %s was interrupted. It is finished now.", folder)
    _carry_out(folder, cuts, check_closed(folder))


def _save_list(folder: str, cuts: CutList) -> None:
    lists = {
        "ends": [[*owner, offset] for owner, offset in cuts.ends.items()],
        "starts": [[*owner, offset] for owner, offset in cuts.starts.items()],
    }
    small_files.save(f"{folder}/{CUTS_FILE}", lists, durable=True)


def _read_list(rows: list[list[int]]) -> dict[Owner, int]:
    return {Owner(topic, partition): offset for topic, partition, offset in rows}


def _carry_out(folder: str, cuts: CutList, ends: SyncedEnds | None) -> None:
    remove_if_there(f"{folder}/clean")
    forget_reign(folder)
    sync_folder(folder)
    topics = f"{folder}/topics"
    names = {n: name for name in os.listdir(topics) if (n := number_of(name)) is not None}
    found = dict(cuts.starts)
    for owner, end_offset in cuts.ends.items():
        if owner.topic in names:
            path = f"{topics}/{names[owner.topic]}/{owner.partition}"
            found[owner] = _cut_log(path, owner, end_offset)
    for owner, start in cuts.starts.items():
        if owner.topic in names:
            _begin_anew(f"{topics}/{names[owner.topic]}/{owner.partition}", start)
    for owner in found:
        remove_kept(f"{folder}/journal", owner.topic)
    if ends is not None:
        for owner, end_offset in found.items():
            ends.lower(owner, end_offset)
        ends.save(f"{folder}/journal")
    remove_if_there(f"{folder}/{CUTS_FILE}")
    # Before anybody writes: the cut must not be done again then.
    sync_folder(folder)


def forget_reign(folder: str) -> None:
    """Removes, durably, what a broker has noted about logs that another one writes from now on."""
    found = [name for name in _REIGN_NOTES if os.path.exists(f"{folder}/{name}")]
    for name in found:
        remove_if_there(f"{folder}/{name}")
    if found:
        sync_folder(folder)


def check_closed(folder: str) -> SyncedEnds | None:
    """Raises unless the journal is empty: what is in it would bring cut records back. Returns the
    synced ends of logs, if there are any."""
    journal = f"{folder}/journal"
    try:
        ends = load_ends(journal)
    except FormatError as fault:
        raise FolderUnusableError(
            f"The logs can't be cut: {journal}/ends is damaged ({fault}). Start a broker on the "
            "folder and stop it, then cut the logs."
        ) from fault
    found = read_journal(journal, None if ends is None else ends.generation)
    if found.batches or found.spare or found.marks or not found.complete:
        raise FolderUnusableError(
            f"The logs can't be cut: {journal} has records that are not in the logs yet. Start "
            "a broker on the folder and stop it, then cut the logs."
        )
    return ends


def _cut_log(folder: str, owner: Owner, end_offset: int) -> int:
    """Cuts a log behind the last batch that ends by an offset; where it ends now."""
    segments = list_folder(folder).segments
    stay = [segment for segment in segments if segment.base < end_offset]
    if not segments:
        return end_offset
    if not stay:
        _begin_anew(folder, end_offset)
        return end_offset
    if len(stay) < len(segments):
        _write_producers(folder, owner, segments, len(stay))
        _remove(folder, segments[len(stay) :])
    last = stay[-1]
    remove_index(folder, last)
    path = plain_path(folder, last.base)
    if last.name:
        # Its name claims offsets that are not there any more.
        os.rename(log_path(folder, last), path)
        last.name = ""
    position, found = _end_in(folder, owner, last, end_offset)
    os.truncate(path, position)
    sync_file(path)
    sync_folder(folder)
    return found


def _remove(folder: str, segments: list[Segment]) -> None:
    """The newest first: a crash in between leaves a log that ends earlier, and no hole."""
    for segment in reversed(segments):
        remove_if_there(log_path(folder, segment))
        remove_index(folder, segment)
        remove_if_there(producers_path(folder, segment.base))


def _end_in(folder: str, owner: Owner, segment: Segment, end_offset: int) -> tuple[int, int]:
    """Where the last batch that ends by `end_offset` ends: its position in the segment's file, and
    its offset."""
    found = (0, segment.base)

    def visit(run: BatchRun) -> None:
        nonlocal found
        at = run.at
        for batch in run.batches:
            at += batch.length
            if batch.base_offset + batch.span <= end_offset:
                found = (at, batch.base_offset + batch.span)

    scan_segment(folder, segment, owner, _INDEX_INTERVAL_BYTES, visit)
    return found


def _write_producers(folder: str, owner: Owner, segments: list[Segment], stay: int) -> None:
    """Writes the producers and epochs before the segment that becomes the last one.

    They are in the batches before it. Only the newest segment has a file of them, which also knows
    producers whose batches are gone.
    """
    base = segments[stay - 1].base
    if stay == 1 and base == 0:
        return
    known = ProducerRuns()
    epochs: Epochs = ()
    for segment in reversed(segments[stay - 1 :]):
        if segment.has_producers:
            try:
                before = read_producers(producers_path(folder, segment.base), segment.base)
            except (FormatError, FileNotFoundError):
                continue
            known.add_runs(before.runs)
            epochs = before.epochs
            break
    found = ProducerRuns()
    written: Epochs = ()

    def visit(run: BatchRun) -> None:
        nonlocal written
        found.add(run.batches)
        written = with_batches(written, run.batches)

    for segment in segments[: stay - 1]:
        scan_segment(folder, segment, owner, _INDEX_INTERVAL_BYTES, visit)
    found.add_missing(known, base)
    path = producers_path(folder, base)
    write_producers(path, base, found.histories(), epochs or written)


def _begin_anew(folder: str, start: int) -> None:
    """Leaves an empty log that begins with `start`."""
    if not start and not os.path.isdir(folder):
        return
    os.makedirs(folder, exist_ok=True)
    # First: whatever a crash leaves is hidden by it.
    save_start(folder, start)
    _remove(folder, list_folder(folder).segments)
    for note in ("compacted.json", "damaged.json"):
        remove_if_there(f"{folder}/{note}")
    replace_file(plain_path(folder, start), b"", durable=True)
    topic = os.path.dirname(folder)
    sync_folder(topic)
    sync_folder(os.path.dirname(topic))
