"""Small files: one JSON object with a checksum, replaced whole.

`{"format": 2, …, "crc": 3735928559}`: `crc` is the CRC-32C of the object without it, written as
JSON with sorted keys and no spaces. Format 1 had no checksum; such a file still loads, and its
reader believes only what can be true. A file that matters most has a copy, `<name>.copy`.

Law: a damaged file is renamed to `<name>.damaged-<n>`, reported, and never makes a start fail. What
its reader believes instead is in the table "Small files" of `docs/log.md`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from fanlog.errors import ChecksumError, FolderUnusableError, FormatError
from fanlog.format.checksum import crc32c
from fanlog.log.faults import ANOTHER_FOLDER
from fanlog.log.files import read_file, replace_file

logger = logging.getLogger("fanlog.log")

# Gets a sentence on each file that is damaged, or not of this folder.
ReportDamage = Callable[[str], None]

FORMAT = 2
_FORMAT_WITHOUT_CRC = 1
COPY_SUFFIX = ".copy"
_ASIDE_MAX = 100


class SmallFile(NamedTuple):
    """What a small file says, and whether a checksum stands behind it."""

    fields: dict[str, Any]
    checked: bool


def save(path: str, fields: dict[str, Any], *, durable: bool, copy: bool = False) -> None:
    """Replaces a file. Its copy is only written, not synced: it need not be as new."""
    data = encode(fields)
    replace_file(path, data, durable=durable)
    if copy:
        try:
            replace_file(path + COPY_SUFFIX, data, durable=False)
        except OSError as fault:
            # The file itself is there. A copy that is older does little harm.
            logger.warning("The copy of %s could not be written: %s", path, fault)


def encode(fields: dict[str, Any]) -> bytes:
    whole = {"format": FORMAT, **fields}
    # ASCII with escapes: a topic's name may hold lone surrogates, which no encoding takes.
    return json.dumps({**whole, "crc": _crc(whole)}, indent=1).encode()


def load(path: str) -> SmallFile:
    """Raises `FileNotFoundError`, or `FormatError` for a file that is damaged."""
    try:
        data = read_file(path)
    except OSError as fault:
        if fault.errno != errno.EIO:
            raise
        name = os.path.basename(path)
        raise FormatError(f"{name} can't be read: the disk has lost it") from fault
    return decode(data, path)


def decode(data: bytes, path: str) -> SmallFile:
    """What the bytes of a file say. Raises `FormatError` for one that is damaged."""
    name = os.path.basename(path)
    try:
        fields: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise FormatError(f"{name} can't be read: {fault}") from fault
    if type(fields) is not dict:
        raise FormatError(f"{name} is not a JSON object")
    crc = fields.pop("crc", None)
    version = fields.get("format")
    if crc is None and version == _FORMAT_WITHOUT_CRC:
        return SmallFile(fields, checked=False)
    if crc != _crc(fields) or not isinstance(version, int):
        raise ChecksumError(f"{name} is damaged: its checksum does not fit")
    if version > FORMAT:
        raise FolderUnusableError(
            f"{path} was written by a newer release (format {version}; this one reads "
            f"{FORMAT}): start that release, or {ANOTHER_FOLDER}."
        )
    return SmallFile(fields, checked=True)


def set_aside(path: str) -> str:
    """Renames a damaged file, so that the next one can't overwrite it; its new name."""
    names = (f"{path}.damaged-{n}" for n in range(1, _ASIDE_MAX))
    # Past this number, the last one is overwritten.
    aside = next((a for a in names if not os.path.exists(a)), f"{path}.damaged-{_ASIDE_MAX}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return path
    except OSError as fault:
        logger.warning("The damaged file %s could not be renamed: %s", path, fault)
        return path
    return aside


def _crc(fields: dict[str, Any]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
