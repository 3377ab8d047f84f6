"""Small files in a partition's folder: where its log begins, and how far it is compacted.

| file             | holds                                                                        |
| ---------------- | ---------------------------------------------------------------------------- |
| `start.json`     | `start_offset`: the records before it were deleted. Durable                  |
| `compacted.json` | a `Compacted`. Without it, compaction looks at all of the log                |
| `priorities`     | nothing: that it is there says that some batches have a priority             |
"""

from __future__ import annotations

from typing import NamedTuple

from fanlog.errors import FormatError
from fanlog.log import small_files
from fanlog.log.files import remove_if_there, replace_file
from fanlog.log.small_files import ReportDamage

RANKED_FILE = "priorities"


class Compacted(NamedTuple):
    """Before offset `until` no key is there twice. `tombstone_us` is the append time of the
    oldest tombstone there, 0 for none; `ran_us` is when that was found out. Records may have gone
    because of others before `read_until`, which is noted before the first one goes. A copy got
    compacted batches before `thinned_until`: its tombstones may be gone, and its producers, though
    it has compacted nothing by itself."""

    until: int = 0
    tombstone_us: int = 0
    ran_us: int = 0
    read_until: int = 0
    thinned_until: int = 0


_ADDED = ("read_until", "thinned_until")


def peek_start(folder: str) -> int:
    """The same as `load_start` before the log's end is known: only what has a checksum counts, and
    nothing is reported."""
    try:
        found = small_files.load(f"{folder}/start.json")
        (start,) = _numbers(found, "start_offset")
    except (FileNotFoundError, FormatError):
        return 0
    return start if found.checked else 0


def load_start(folder: str, end_offset: int, report: ReportDamage) -> int:
    """The offset that the log begins with by a deletion; 0 if there was none.

    Past the log's end it is believed only with a checksum: then a crash has lost records that
    were deleted before.
    """
    path = f"{folder}/start.json"
    try:
        found = small_files.load(path)
        (start,) = _numbers(found, "start_offset")
        if start > end_offset and not found.checked:
            raise FormatError(f"start.json says {start}, but the log ends at {end_offset}")
    except FileNotFoundError:
        return 0
    except FormatError as fault:
        aside = small_files.set_aside(path)
        report(
            f"{fault}. Records that were deleted from {folder} can be read again, as far as their "
            f"files are there: delete them again. The file is now {aside}."
        )
        return 0
    return start


def save_start(folder: str, offset: int) -> None:
    small_files.save(f"{folder}/start.json", {"start_offset": offset}, durable=True)


def load_compacted(folder: str, active_base: int, report: ReportDamage) -> Compacted:
    """How far a log is compacted, as far as the file can be true: a crash may have taken what it
    is about, and then other records come to those offsets."""
    path = f"{folder}/compacted.json"
    try:
        found = small_files.load(path)
        # Releases before this one wrote three or four numbers.
        names = [name for name in Compacted._fields if name in found.fields or name not in _ADDED]
        compacted = Compacted(**dict(zip(names, _numbers(found, *names), strict=True)))
    except FileNotFoundError:
        return Compacted()
    except FormatError as fault:
        aside = small_files.set_aside(path)
        report(
            f"{fault}. Nothing is lost: the next compaction reads all of {folder}. The file is now "
            f"{aside}; remove it."
        )
        return Compacted()
    if compacted.until <= active_base:
        return compacted
    # A key may be there twice now. What has gone, tombstones among it, does not come back.
    kept = Compacted(thinned_until=max(compacted.until, compacted.thinned_until))
    if kept.thinned_until:
        save_compacted(folder, kept)
    else:
        remove_if_there(path)
    return kept


def save_compacted(folder: str, compacted: Compacted) -> None:
    small_files.save(f"{folder}/compacted.json", compacted._asdict(), durable=True)


def save_ranked(folder: str) -> None:
    replace_file(f"{folder}/{RANKED_FILE}", b"", durable=True)


def _numbers(found: small_files.SmallFile, *names: str) -> list[int]:
    values = [found.fields.get(name) for name in names]
    numbers = [value for value in values if type(value) is int and value >= 0]
    if len(numbers) < len(names):
        raise FormatError(f"a small file says {values} for {', '.join(names)}")
    return numbers
