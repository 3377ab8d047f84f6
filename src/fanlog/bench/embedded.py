"""The embedded broker: publisher, broker and subscribers in one process and one event loop.

Law: the clock runs from the first publish until every subscriber has every message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

import fanlog
from fanlog.bench.group_roles import Iteration
from fanlog.bench.results import EmbeddedReport, EmbeddedRow
from fanlog.bench.runner import (
    BenchProgress,
    RunOptions,
    environment_of,
    load_process,
    pick_run,
    silent,
)
from fanlog.bench.systems import choose_cores
from fanlog.bench.wires import make_payload

ITERATIONS: tuple[Iteration, ...] = ("messages", "batches")
TOPIC = "bench"
RUN_TIMEOUT_S = 120.0
# Room for a slow reader: a gap would end the run.
TAIL_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions(RunOptions):
    """What to measure."""

    messages: int = 500_000
    subscribers: int = 10
    payload_bytes: int = 128
    iterations: tuple[Iteration, ...] = ITERATIONS


def run_embedded(options: EmbeddedOptions, progress: BenchProgress = silent) -> EmbeddedReport:
    """Measure both ways to iterate over a subscription."""
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    turns = list(options.iterations) * options.repeat
    took_s: dict[Iteration, list[float]] = {iteration: [] for iteration in options.iterations}
    with load_process(cores.load) as load:
        for done, iteration in enumerate(turns):
            progress(done, len(turns), f"embedded, {iteration}")
            took_s[iteration].append(load.call(generate, iteration, options))
    progress(len(turns), len(turns), "done")
    rows = [_row(iteration, took_s[iteration], options) for iteration in options.iterations]
    return EmbeddedReport(rows=rows, left_out=[], environment=environment)


def generate(iteration: Iteration, options: EmbeddedOptions) -> float:
    """Runs in the load process. Returns the seconds of one run."""
    return uvloop.run(asyncio.wait_for(_publish_to_all(iteration, options), RUN_TIMEOUT_S))


async def _publish_to_all(iteration: Iteration, options: EmbeddedOptions) -> float:
    payload = make_payload(options.payload_bytes)
    reader = READERS[iteration]
    async with fanlog.Broker() as broker:
        await broker.create_topic(TOPIC, durability="memory", tail_bytes=TAIL_BYTES)
        ready = [asyncio.Event() for _ in range(options.subscribers)]
        async with asyncio.TaskGroup() as group:
            for event in ready:
                group.create_task(reader(broker, options.messages, event.set))
            for event in ready:
                await event.wait()
            began = time.perf_counter()
            for _ in range(options.messages):
                await broker.send(TOPIC, payload)
            await broker.flush()
        return time.perf_counter() - began


async def _read_messages(broker: fanlog.Broker, messages: int, ready: Callable[[], None]) -> None:
    received = 0
    async with broker.subscribe(TOPIC, start="earliest") as subscription:
        ready()
        async for _ in subscription:
            received += 1
            if received == messages:
                return


async def _read_batches(broker: fanlog.Broker, messages: int, ready: Callable[[], None]) -> None:
    received = 0
    async with broker.subscribe(TOPIC, start="earliest") as subscription:
        ready()
        async for batch in subscription.batches():
            received += len(batch)
            if received >= messages:
                return


READERS: dict[
    Iteration, Callable[[fanlog.Broker, int, Callable[[], None]], Coroutine[Any, Any, None]]
] = {
    "messages": _read_messages,
    "batches": _read_batches,
}


def _row(iteration: Iteration, took_s: list[float], options: EmbeddedOptions) -> EmbeddedRow:
    runs = [options.messages / took for took in took_s]
    published_per_s = round(runs[pick_run(runs, options.pick)], 1)
    return EmbeddedRow(
        iteration=iteration,
        subscribers=options.subscribers,
        messages=options.messages,
        payload=options.payload_bytes,
        published_per_s=published_per_s,
        delivered_per_s=round(published_per_s * options.subscribers, 1),
        runs=[round(run, 1) for run in runs],
    )
