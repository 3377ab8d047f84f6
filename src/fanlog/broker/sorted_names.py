"""Names in their order, for listings that are answered page by page.

They are kept in short runs, so that a name is added, removed and found in hundreds of thousands
without a look at all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

_RUN_NAMES = 512


def _first(run: list[str]) -> str:
    return run[0]


class SortedNames:
    """A sorted set of names."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        every = sorted(names)
        self._runs = [every[i : i + _RUN_NAMES] for i in range(0, len(every), _RUN_NAMES)]

    def add(self, name: str) -> None:
        """Puts in a name that is not there."""
        if not self._runs:
            self._runs.append([name])
            return
        i = self._run_of(name)
        run = self._runs[i]
        insort(run, name)
        if len(run) >= 2 * _RUN_NAMES:
            self._runs[i : i + 1] = [run[:_RUN_NAMES], run[_RUN_NAMES:]]

    def remove(self, name: str) -> None:
        """Takes out a name that is there."""
        i = self._run_of(name)
        run = self._runs[i]
        at = bisect_left(run, name)
        if at >= len(run) or run[at] != name:
            raise KeyError(name)
        del run[at]
        if not run:
            del self._runs[i]

    def since(self, name: str) -> Iterator[str]:
        """The names from this one on, itself included. They must not change meanwhile."""
        if not self._runs:
            return
        i = self._run_of(name)
        run = self._runs[i]
        yield from run[bisect_left(run, name) :]
        for run in self._runs[i + 1 :]:
            yield from run

    def _run_of(self, name: str) -> int:
        """The run that has, or would get, a name."""
        if not self._runs:
            raise KeyError(name)
        return max(0, bisect_right(self._runs, name, key=_first) - 1)
