"""Changing options in a TOML file that people have written: comments, order and whatever else
stands there stay as they are. Law: what comes out is parsed again, and must say what was wanted and
nothing else; or nothing is written.

A new option goes behind its line in a file of `fanlog config init`, where it is commented out, or
else to the end of its section.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanlog.cli.file_faults import reason
from fanlog.errors import ConfigError
from fanlog.log.files import sync_folder

TomlValue = bool | int | float | str

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
# A value on one line, and what stands behind it.
_VALUE = re.compile(
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^#"'\[{]*?)(?P<rest>\s*(?:\#.*)?)$""", re.VERBOSE
)


def edited(text: str, changes: Mapping[tuple[str, str], TomlValue | None]) -> str:
    """The file with these options set, by section and name; None takes one out."""
    wanted = tomllib.loads(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    for (section, name), value in changes.items():
        _want(wanted, section, name, value)
        _change(lines, section, name, value)
    made = newline.join(lines) + newline if lines else ""
    try:
        is_right = tomllib.loads(made) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        names = ", ".join(f"{section}.{name}".lstrip(".") for section, name in changes)
        raise ConfigError(
            f"The layout of the file does not allow a change of {names}. Change it by hand."
        )
    return made


def parsed(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def _want(document: dict[str, Any], section: str, name: str, value: TomlValue | None) -> None:
    table = document.setdefault(section, {}) if section else document
    if value is None:
        table.pop(name, None)
    else:
        table[name] = copy.copy(value)


def _change(lines: list[str], section: str, name: str, value: TomlValue | None) -> None:
    begin, end = _section(lines, section)
    if begin < 0:
        if lines and lines[-1].strip():
            lines.append("")
        lines.append(f"[{section}]")
        begin = end = len(lines)
    given = re.compile(rf"""(\s*(?:{name}|"{name}"|'{name}')\s*=\s*)(.*)$""")
    for at in range(begin, end):
        found = given.match(lines[at])
        if found is None:
            continue
        parts = _VALUE.match(found[2])
        if value is None:
            del lines[at]
        elif parts is not None:
            lines[at] = f"{found[1]}{write_value(value)}{parts['rest']}"
        return
    if value is not None:
        lines.insert(_line_for(lines, begin, end, name), f"{name} = {write_value(value)}")


def _section(lines: list[str], section: str) -> tuple[int, int]:
    """The lines of a section, without its header; (-1, -1) if it is not there."""
    begin = -1 if section else 0
    for at, line in enumerate(lines):
        found = _HEADER.match(line)
        if found is None and not line.lstrip().startswith("[["):
            continue
        if begin >= 0:
            return begin, at
        if found is not None and found[1].strip("\"'") == section:
            begin = at + 1
    return (begin, len(lines)) if begin >= 0 else (-1, -1)


def _line_for(lines: list[str], begin: int, end: int, name: str) -> int:
    """Where a new option goes: behind its line that is commented out, or behind the last option."""
    commented = re.compile(rf"\s*#\s*{name}\s*=")
    for at in range(begin, end):
        if commented.match(lines[at]):
            return at + 1
    for at in range(end - 1, begin - 1, -1):
        if lines[at].strip() and not lines[at].lstrip().startswith("#"):
            return at + 1
    return begin


def write_value(value: TomlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A text in JSON is one in TOML, but for characters past the first plane and DEL.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def replace(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replaces a file: after a power cut there is the old one or the new one. It
    keeps who may read it. Raises ConfigError, and then nothing has changed."""
    # A link stays a link.
    target = os.path.realpath(path)
    temporary = f"{target}.tmp-{os.getpid()}"
    try:
        kept = _mode_of(target) if mode is None else mode
        # One that a power cut has left: in a container the number of the process is the same again.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, kept)
        try:
            with os.fdopen(fd, "w", encoding="utf-8", newline="") as stream:
                os.fchmod(fd, kept)
                _keep_owner(target, fd)
                stream.write(text)
                stream.flush()
                os.fsync(fd)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(os.path.dirname(target))
    except OSError as fault:
        raise ConfigError(f"{path} can't be written: {reason(fault)}") from fault


def _mode_of(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return 0o644


def _keep_owner(path: str, fd: int) -> None:
    with contextlib.suppress(OSError):
        there = os.stat(path)
        os.fchown(fd, there.st_uid, there.st_gid)
