"""The findings of `verify`: each fault with its file, its position and its meaning."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Meaning(StrEnum):
    """What a fault costs. All of them are faults: the exit code does not tell them apart.

    | value     | meaning                                                                    |
    | --------- | -------------------------------------------------------------------------- |
    | `lost`    | what the file held can't be read any more, and is nowhere else             |
    | `rebuilt` | the next start of a broker makes it again, from a copy or from the messages |
    | `torn`    | bytes behind the last whole batch: what a crash left of a write, or damage  |
    |           | to the newest messages. A start cuts them off                               |
    """

    LOST = "lost"
    REBUILT = "rebuilt"
    TORN = "torn"


class FileFinding(NamedTuple):
    """One fault. `file` is relative to the folder that was checked, `at` is a byte in it."""

    file: str
    at: int
    meaning: Meaning
    sentence: str


Advance = Callable[[int], None]


class CheckReport:
    """Collects what a check finds, and how much it has read. `advance` hears the bytes so far."""

    def __init__(self, root: str, advance: Advance | None = None) -> None:
        self._root = root
        self._advance = advance
        self.findings: list[FileFinding] = []
        # Faults of nothing: what a person may want to know.
        self.notes: list[str] = []
        self.files = 0
        self.bytes = 0

    def add(self, path: str, at: int, meaning: Meaning, sentence: str) -> None:
        self.findings.append(FileFinding(self.name(path), at, meaning, sentence))

    def name(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    def checked(self, size: int) -> None:
        """A file of that many bytes is done."""
        self.files += 1
        self.read(size)

    def read(self, size: int) -> None:
        self.bytes += size
        if self._advance is not None:
            self._advance(self.bytes)
