"""What is committed: the positions that every incarnation has that the primary waits for.

Pure functions and values. The primary counts itself like any other replica."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class ReignState(NamedTuple):
    """The numbers of a reign that go into each frame."""

    epoch: int
    position: int
    written: int
    synced: int
    beat: int


class ReplicaProgress(NamedTuple):
    """How far one replica is in this reign."""

    written: int
    synced: int


_NOTHING = ReplicaProgress(0, 0)


def committed(progress: Mapping[str, ReplicaProgress], needed: Collection[str]) -> ReplicaProgress:
    """The positions that all needed incarnations have. Of one that was not heard of nothing is
    known; without any nothing is committed."""
    if not needed:
        return _NOTHING
    found = [progress.get(incarnation, _NOTHING) for incarnation in needed]
    return ReplicaProgress(min(one.written for one in found), min(one.synced for one in found))
