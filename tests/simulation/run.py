"""Runs seeds one after the other, with a bar that shows how far it is. The first that breaks a
promise ends it, with the command that replays it."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from contextlib import nullcontext

from tests.simulation.cluster.simulation import ClusterSimulation
from tests.simulation.simulation import Plant, Result, Simulation
from tests.simulation.workload import Workload
from tests.simulation.workloads import ALL

_BAR_CELLS = 30
_BAR_SECONDS = 0.5


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts are in an order of their own in each process, unless it is fixed.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    kinds = tuple(kind for kind in ALL if kind.__name__ in options.workload)
    begun = time.monotonic()
    totals = Totals()
    bar = Bar(options.seeds)
    for number in range(options.seeds):
        seed = options.seed + number
        result, simulation = run_seed(
            seed, kinds, keep_all=bool(options.trace), cluster=options.cluster
        )
        totals.add(result)
        if options.trace:
            _write(options.trace, simulation)
        if options.verbose:
            print(f"seed {seed}: {result.digest} {result}")
        if result.failure:
            bar.clear()
            print(f"Seed {seed} broke a promise:\n\n{result.failure}\n")
            print(f"Replay it: {_command(seed, options.workload, cluster=options.cluster)}")
            return 1
        bar.show(number + 1)
    bar.clear()
    print(f"{options.seeds} seeds kept every promise: {totals} ({time.monotonic() - begun:.0f} s).")
    return 0


class Totals:
    def __init__(self) -> None:
        self._seconds = 0.0
        self._starts = 0
        self._acknowledged = 0

    def add(self, result: Result) -> None:
        self._seconds += result.seconds
        self._starts += result.starts
        self._acknowledged += sum(result.acknowledged.values())

    def __str__(self) -> str:
        return (
            f"{self._acknowledged} acknowledgements, {self._starts} starts of a broker, "
            f"{self._seconds / 3600:.1f} simulated hours"
        )


def run_seed(
    seed: int,
    kinds: tuple[type[Workload], ...] = (),
    *,
    plant: Plant = nullcontext,
    keep_all: bool = False,
    cluster: bool = False,
) -> tuple[Result, Simulation]:
    """The garbage collector would free things at moments that no seed knows. What killed processes
    leave behind is freed at the end, and may complain of it: nobody listens."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.collect()
    gc.disable()
    try:
        kind = ClusterSimulation if cluster else Simulation
        simulation = kind(seed, kinds, plant=plant, keep_all=keep_all)
        result = simulation.run()
        simulation.world.processes.clear()
        gc.collect()
        return result, simulation
    finally:
        gc.enable()
        sys.unraisablehook = hook


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument(
        "--workload",
        action="append",
        default=[],
        choices=[kind.__name__ for kind in ALL],
        help="only these; without it each seed chooses",
    )
    parser.add_argument("--cluster", action="store_true", help="three nodes and an etcd")
    parser.add_argument("--trace", help="write all that happened to this file")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    return parser.parse_args(arguments)


def _command(seed: int, workloads: list[str], *, cluster: bool) -> str:
    chosen = " --cluster" if cluster else ""
    chosen += "".join(f" --workload {name}" for name in workloads)
    return f"python -m tests.simulation --seed {seed} --seeds 1{chosen} --trace trace.txt"


def _write(path: str, simulation: Simulation) -> None:
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in simulation.world.trace.lines)
        file.writelines(f"log {line}\n" for line in simulation.logged)


class Bar:
    """How far it is, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = self._shown_at = time.monotonic()
        self._on = sys.stderr.isatty()

    def show(self, done: int) -> None:
        now = time.monotonic()
        if not self._on or now - self._shown_at < _BAR_SECONDS:
            return
        self._shown_at = now
        cells = _BAR_CELLS * done // self._total
        left = (now - self._begun) / done * (self._total - done)
        bar = "█" * cells + "░" * (_BAR_CELLS - cells)
        line = f"\r{bar} {done}/{self._total}, {left:.0f} s left "
        print(line, end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._on:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
