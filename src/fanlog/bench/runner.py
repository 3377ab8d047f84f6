"""What all benchmarks share: choose cores, run the load in its own process, repeat, report
progress, and leave out what can't run.

Law: the load generator never shares a process with anything that draws on the terminal.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec, Protocol, TypeVar

from fanlog.bench.environment import Environment, describe_environment, raise_open_files_limit
from fanlog.bench.results import LeftOut
from fanlog.bench.systems import BenchError, SystemKind, SystemUnavailableError, find_program

# Counting connections send nothing, and to a broker a minute's silence is a dead peer.
CELL_SECONDS_MAX = 30.0

Pick = Literal["median", "best"]
P = ParamSpec("P")
T = TypeVar("T")


class BenchProgress(Protocol):
    """Called before each step with the steps done, all steps, and the name of the next."""

    def __call__(self, done: int, total: int, label: str) -> None: ...


def silent(done: int, total: int, label: str) -> None:
    """Shows no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of every benchmark. `directory` is for data files (a tmpfs makes fsync
    meaningless); None is the system's temporary directory. `pick` chooses the run of `repeat` that
    a row shows.
    """

    repeat: int = 1
    pick: Pick = "median"
    pin: bool = True
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOptions(RunOptions):
    """Further options of a benchmark that runs each cell for a while."""

    warmup_s: float = 0.5
    run_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.warmup_s + self.run_s <= CELL_SECONDS_MAX:
            raise BenchError(
                f"A cell may take at most {CELL_SECONDS_MAX:.0f} s, warm-up included: "
                "choose a smaller run_s."
            )


def pick_run(runs: Sequence[float], pick: Pick) -> int:
    """The index of the run that a row shows: the best, or the one nearest to the median."""
    if pick == "best":
        return max(range(len(runs)), key=runs.__getitem__)
    middle = statistics.median_low(runs)
    return list(runs).index(middle)


class LoadProcess:
    """A process that runs load generators, on the cores it was given."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a module's function in that process and returns its result."""
        return self._pool.submit(function, *args, **kwargs).result()


@contextlib.contextmanager
def load_process(cores: frozenset[int] | None) -> Generator[LoadProcess]:
    """A load process that ends with the body."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _settle, (cores,)) as pool:
        yield LoadProcess(pool)


def _settle(cores: frozenset[int] | None) -> None:
    raise_open_files_limit()
    if cores is not None:
        os.sched_setaffinity(0, cores)


def split_available(kinds: Iterable[SystemKind]) -> tuple[list[SystemKind], list[LeftOut]]:
    """The systems whose program is installed, and the reasons why others are left out."""
    available: list[SystemKind] = []
    left_out: list[LeftOut] = []
    for kind in dict.fromkeys(kinds):
        try:
            find_program(kind)
            available.append(kind)
        except SystemUnavailableError as error:
            left_out.append(LeftOut(kind, error.message))
    return available, left_out


def environment_of(
    options: RunOptions, kinds: Iterable[SystemKind], *, pinned: bool
) -> Environment:
    """The environment to put into a report of these systems."""
    programs = {kind: find_program(kind) for kind in kinds if kind != "fanlog"}
    directory = options.directory or Path(tempfile.gettempdir())
    return describe_environment(pinned=pinned, directory=directory, programs=dict(programs))
