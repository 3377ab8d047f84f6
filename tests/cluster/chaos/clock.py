"""A wall clock that jumps for one node: libfaketime reads by how much from a file. What measures
durations does not jump, as on a real machine. etcd is a program of Go, and does not notice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def find_library() -> str:
    """The library; empty if it is not installed (Debian's package libfaketime has it)."""
    places = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(places[0]) if places else ""


class NodeClock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def env(self) -> Mapping[str, str]:
        """Variables of the node's process; none without the library."""
        if not (library := find_library()):
            return {}
        return {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, seconds: int) -> None:
        """The clock is so many seconds ahead from now on."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}s\n")
        written.replace(self._file)
