"""Runs seeds one after the other, with a bar that shows how far it is. The first that breaks a
promise ends it, with the command that replays it."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tests.simulation.cluster.simulation import ClusterSimulation
from tests.simulation.seeds import describe_commit
from tests.simulation.simulation import Plant, Result, Simulation
from tests.simulation.workload import Workload
from tests.simulation.workloads import ALL

_BAR_CELLS = 30
_BAR_SECONDS = 0.5
_LINE_SECONDS = 60.0
_SEEDS_A_PROCESS = 16


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts are in an order of their own in each process, unless it is fixed.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    # What is imported stays: the collector need not look at it after each seed.
    gc.freeze()
    begun, commit = time.monotonic(), describe_commit()
    code = f", commit {commit}" if commit else ""
    totals, bar = Totals(), Bar(options.seeds)
    plan = Plan(tuple(options.workload), options.cluster, options.trace or "")
    seeds = range(options.seed, options.seed + options.seeds)
    results = run_in_parallel(seeds, plan, options.jobs) if options.jobs > 1 else map(plan, seeds)
    for result in results:
        totals.add(result)
        if options.verbose:
            print(f"seed {result.seed}: {result.digest} {result}")
        if result.failure:
            bar.clear()
            print(f"Seed {result.seed} broke a promise:\n\n{result.failure}\n")
            print(f"Replay it: {plan.command(result.seed)}\n", flush=True)
            if not options.keep_going:
                return 1
        bar.show(totals.seeds, totals.failures)
    bar.clear()
    took = f"({time.monotonic() - begun:.0f} s{code})"
    if totals.failures:
        print(f"{totals.failures} of {totals.seeds} seeds broke a promise {took}.")
        return 1
    print(f"{totals.seeds} seeds kept every promise: {totals} {took}.")
    return 0


@dataclass(slots=True, frozen=True)
class Plan:
    """How each seed is run; in another process, too. `trace` is the file for all that happened."""

    workloads: tuple[str, ...]
    cluster: bool
    trace: str = ""

    # Whether to free what a seed leaves behind. A process that ends soon need not.
    collect: bool = True

    def __call__(self, seed: int) -> Result:
        kinds = tuple(kind for kind in ALL if kind.__name__ in self.workloads)
        result, simulation = run_seed(
            seed, kinds, keep_all=bool(self.trace), cluster=self.cluster, collect=self.collect
        )
        if self.trace:
            _write(self.trace, simulation)
        return result

    def command(self, seed: int) -> str:
        chosen = " --cluster" if self.cluster else ""
        chosen += "".join(f" --workload {name}" for name in self.workloads)
        return f"python -m tests.simulation --seed {seed} --seeds 1{chosen} --trace trace.txt"


def run_in_parallel(seeds: range, plan: Plan, jobs: int) -> Iterator[Result]:
    """The results of processes that share the seeds, in the order of the seeds. Each process is a
    fork of this one and runs few seeds: its end costs less than collecting their garbage."""
    plan = replace(plan, collect=False)
    forking = multiprocessing.get_context("fork")
    with forking.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(plan, seeds, _SEEDS_A_PROCESS)


class Totals:
    def __init__(self) -> None:
        self.seeds = 0
        self.failures = 0
        self._seconds = 0.0
        self._starts = 0
        self._acknowledged = 0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.failures += bool(result.failure)
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
    collect: bool = True,
) -> tuple[Result, Simulation]:
    """The garbage collector would free things at moments that no seed knows. What killed processes
    leave behind is freed at the end, and may complain of it: nobody listens."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.disable()
    try:
        kind = ClusterSimulation if cluster else Simulation
        simulation = kind(seed, kinds, plant=plant, keep_all=keep_all)
        result = simulation.run()
        simulation.world.processes.clear()
        if collect:
            gc.collect()
        return result, simulation
    finally:
        if collect:
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
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument(
        "--keep-going", action="store_true", help="do not end with the first that fails"
    )
    parser.add_argument("--trace", help="write all that happened to this file")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    return parser.parse_args(arguments)


def _write(path: str, simulation: Simulation) -> None:
    with open(path, "w") as file:
        file.writelines(f"{line}\n" for line in simulation.world.trace.lines)
        file.writelines(f"log {line}\n" for line in simulation.logged)


class Bar:
    """How far it is: a bar on a terminal, now and then a line in a file."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = self._shown_at = time.monotonic()
        self._on = sys.stderr.isatty()

    def show(self, done: int, failures: int) -> None:
        now = time.monotonic()
        if now - self._shown_at < (_BAR_SECONDS if self._on else _LINE_SECONDS):
            return
        self._shown_at = now
        left = (now - self._begun) / done * (self._total - done)
        text = f"{done}/{self._total}, {left:.0f} s left" + f", {failures} failed" * bool(failures)
        if self._on:
            cells = _BAR_CELLS * done // self._total
            text = f"\r{'█' * cells}{'░' * (_BAR_CELLS - cells)} {text} "
        print(text, end="" if self._on else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._on:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
