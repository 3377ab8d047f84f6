"""A backup: a folder, or a tar file, with points and the files that they share.

| path                    | holds                                                                  |
| ----------------------- | ---------------------------------------------------------------------- |
| `fanlog-backup.json`    | says that this is a backup; `restored_epoch`: the highest epoch that a |
|                         | restore from here has given away                                       |
| `points/<number>.json`  | a `BackupPoint`: each file with its length and its CRC-32C             |
| `files/<path>@<number>` | a file of a data folder, first kept by that point                      |
| `lock`                  | whoever takes a backup has it (`flock`)                                |

The JSON files are small files with a checksum (`small_files.py`). A file of the newest segment
only grows: a later point may have more of it, in the same file, and an earlier one has its begin.

Law: a manifest is written last, when all that it names is durable. So what is interrupted leaves
files that no point names, and nothing else.
"""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from fanlog.errors import BackupError, FanlogError
from fanlog.log import small_files
from fanlog.log.backup.point import BackupPoint

MARK = "fanlog-backup.json"
POINTS = "points"
FILES = "files"
FORMAT = 1
_NAME = re.compile(r"(\d{10})\.json")


def point_name(number: int) -> str:
    return f"{POINTS}/{number:010d}.json"


def number_of_point(name: str) -> int | None:
    match = _NAME.fullmatch(os.path.basename(name))
    return None if match is None else int(match[1])


def kept_name(path: str, number: int) -> str:
    """Where a point keeps a file of a data folder that no earlier point has."""
    return f"{FILES}/{path}@{number}"


def encode_point(point: BackupPoint) -> bytes:
    return small_files.encode({"backup": FORMAT, "point": msgspec.to_builtins(point)})


def encode_mark(restored_epoch: int = 0) -> bytes:
    return small_files.encode({"backup": FORMAT, "restored_epoch": restored_epoch})


def decode_point(data: bytes, name: str) -> BackupPoint:
    """Raises `BackupError` for a manifest that is damaged, or of a newer release."""
    try:
        fields = small_files.decode(data, name).fields
        _check_format(fields, name)
        point = msgspec.convert(fields["point"], BackupPoint)
    except (FanlogError, KeyError, msgspec.ValidationError) as fault:
        if isinstance(fault, BackupError):
            raise
        raise BackupError(f"The point {name} can't be used: {fault}. Use another one.") from fault
    check_paths(point, f"The point {name}")
    for file in point.files():
        _check_inside(file.kept_as, f"The point {name}")
    return point


def check_paths(point: BackupPoint, whose: str) -> None:
    """Raises `BackupError` if a point leads out of the folder that it is kept in, or restored to.
    The sender may be hostile."""
    for file in point.files():
        _check_inside(file.path, whose)
    for topic in point.topics:
        if "/" in topic.folder or topic.folder in ("", ".", ".."):
            raise BackupError(f"{whose} names the folder {topic.folder!r}.")


def _check_inside(path: str, whose: str) -> None:
    if not is_inside(path):
        raise BackupError(f"{whose} names the file {path!r}, which is not a Fanlog file.")


def decode_mark(data: bytes) -> int:
    """The highest epoch that a restore from here has given away."""
    fields = small_files.decode(data, MARK).fields
    _check_format(fields, MARK)
    epoch = fields.get("restored_epoch")
    return epoch if isinstance(epoch, int) else 0


def _check_format(fields: dict[str, Any], name: str) -> None:
    found = fields.get("backup")
    if not isinstance(found, int) or found > FORMAT:
        raise BackupError(
            f"{name} was written by a newer release (format {found}; this one reads {FORMAT}): use "
            "that release."
        )


def is_inside(path: str) -> bool:
    """Whether a path stays in the folder that it is relative to."""
    parts = path.split("/")
    return (
        bool(path)
        and "\0" not in path
        and not path.startswith("/")
        and not {"", ".", ".."} & set(parts)
    )
