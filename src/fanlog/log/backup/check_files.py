"""Checks of the files around the messages: small files, the journal, and what a stop leaves.

Law: nothing is written, renamed or removed here. A start repairs faults; a check only reports them.
"""

from __future__ import annotations

import os
from struct import Struct

import msgspec

from fanlog.errors import FanlogError, FormatError
from fanlog.log import small_files
from fanlog.log.backup.findings import CheckReport, Meaning
from fanlog.log.clean_stop import CleanStop, decode_clean
from fanlog.log.files import read_file
from fanlog.log.journal_file import HEADER_BYTES, JournalGroup, groups
from fanlog.log.synced_ends import SyncedEnds, decode_ends

# The first two fields of a group's header.
_HEAD = Struct("<8sQ")
_MAGIC = b"FANLJRN1"


def check_small_file(path: str, report: CheckReport, meaning: Meaning) -> bool:
    """Whether a file with a JSON object is there and byte by byte as it was written. One that is
    missing is no fault."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return False
    except OSError as fault:
        report.add(path, 0, meaning, f"it can't be read: {fault.strerror}")
        return False
    report.checked(len(data))
    try:
        found = small_files.load(path)
    except FanlogError as fault:
        report.add(path, 0, meaning, str(fault).rstrip("."))
        return False
    if not found.checked:
        report.notes.append(
            f"{report.name(path)} was written by an older release, and has no checksum."
        )
    elif small_files.encode(found.fields) != data:
        # The object is the same, and its text is not: `é` may be written in two ways.
        report.add(path, 0, meaning, "its text has changed since it was written")
        return False
    return True


def check_journal_file(path: str, report: CheckReport, generation_min: int | None) -> None:
    """Looks at every group of a journal file, or of a `kept-*.journal`."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return
    report.checked(len(data))
    end, generation = 0, None
    for item in groups(data, generation_min):
        if isinstance(item, JournalGroup):
            end = item.at + HEADER_BYTES + len(item.body)
            generation = item.generation
            if not item.body:
                # Emptied: what is behind it is of no more use.
                return
        else:
            report.add(path, item, Meaning.LOST, "a group of the journal is damaged")
            end = max(end, item + HEADER_BYTES)
    if _is_half_a_group(data, end, generation):
        report.add(path, end, Meaning.TORN, "the newest group of the journal is incomplete")


def _is_half_a_group(data: bytes, at: int, generation: int | None) -> bool:
    """Whether a group begins here whose header is not whole. What an earlier use of the file left
    here is a whole header, or the middle of a group."""
    rest = data[at:]
    if len(rest) < HEADER_BYTES or isinstance(next(groups(rest), None), JournalGroup):
        return False
    if not at:
        return any(rest[:HEADER_BYTES])
    magic, found = _HEAD.unpack_from(rest)
    alike = sum(a == b for a, b in zip(magic, _MAGIC, strict=True))
    return alike >= len(_MAGIC) - 2 or found == generation


def check_ends(folder: str, report: CheckReport) -> SyncedEnds | None:
    """The table of synced ends; None if there is none that can be believed."""
    path = f"{folder}/ends"
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    report.checked(len(data))
    try:
        return decode_ends(data)
    except FormatError as fault:
        report.add(path, 0, Meaning.REBUILT, str(fault).rstrip("."))
        return None


def check_clean(path: str, report: CheckReport) -> CleanStop | None:
    """The mark of a clean stop; None if there is none that can be believed."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        report.notes.append(f"{report.name(path)} is not a Fanlog file.")
        return None
    report.checked(len(data))
    try:
        return decode_clean(data)
    except (FormatError, msgspec.MsgspecError) as fault:
        report.add(path, 0, Meaning.REBUILT, str(fault).rstrip("."))
        return None


def list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
