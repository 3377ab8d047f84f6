"""Delayed messages: a million that wait, a broker that is killed, and thousands that fall due
within one second.

Law: messages that are due together lie far apart in the log, as they do in life. They are due while
the broker that has them is another process than the one that took them. For each message that
arrives it checks whether it is early, how late it is by the clock of its reader, and whether it
came before.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import fanlog
from fanlog.bench.results import ScheduleReport, ScheduleRow
from fanlog.bench.runner import BenchProgress, RunOptions, environment_of, load_process, silent
from fanlog.bench.startup import StartupCell, cell_in, check_room
from fanlog.bench.systems import BenchError, choose_cores, resident_bytes
from fanlog.client.aio import connect
from fanlog.config import ClientOptions
from fanlog.format.frames import FrameKind
from fanlog.format.messages import ListScheduled, ScheduledPage, decode
from fanlog.format.schedules import DUE

TOPIC = "delayed"
FAR_SECONDS = 7 * 24 * 3600
# Bytes of a message on disk besides its value: its record, and the entries of the log.
OVERHEAD_BYTES = 160
# The share of messages that the estimate of the rest is based on.
MEASURED_SHARE = 0.05
# Time for the kill, the start, and reading the waiting messages.
RESTART_SECONDS = 6.0
RESTART_SECONDS_A_MILLION = 24.0
# A message that has not come this long after the last due time counts as lost.
PATIENCE_SECONDS = 60.0
READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(RunOptions):
    """The number of waiting messages, and of those due within one second."""

    pending: int = 1_000_000
    due: int = 10_000
    payload_bytes: int = 128

    def __post_init__(self) -> None:
        if not 0 < self.due <= self.pending:
            raise BenchError("Of the messages that wait, 1 or more must be due.")


@dataclass(frozen=True, slots=True)
class ScheduledLoad:
    """What was scheduled: the rate, and the first due time."""

    per_s: float
    due_at_s: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """Delays of the received messages after their due time, in milliseconds, sorted."""

    late_ms: list[float]
    early: int
    twice: int


def schedule_all(port: int, options: ScheduleOptions, seed: int = 1) -> ScheduledLoad:
    return asyncio.run(_schedule_all(port, options, seed))


async def _schedule_all(port: int, options: ScheduleOptions, seed: int) -> ScheduledLoad:
    """Schedules all messages, with those due together at random positions."""
    dice = random.Random(seed)
    payload = bytes(options.payload_bytes)
    count = options.pending
    async with connect(f"fanlog://127.0.0.1:{port}") as client:
        await client.create_topic(TOPIC)
        measured = int(count * MEASURED_SHARE)
        soon = frozenset(dice.sample(range(measured, count), min(options.due, count - measured)))
        soon |= frozenset(range(options.due - len(soon)))
        began = time.monotonic()
        due_at_s = number = 0
        for i in range(count):
            if i == measured or (i == 0 and not measured):
                await client.flush()
                left_s = (time.monotonic() - began) * (count / max(1, measured))
                restart_s = RESTART_SECONDS + RESTART_SECONDS_A_MILLION * count / 1e6
                due_at_s = time.time() + 1.5 * left_s + restart_s
            if i in soon and due_at_s:
                at = due_at_s + number / options.due
                number += 1
                value = b"%d" % number + payload
            else:
                at, value = time.time() + FAR_SECONDS + dice.random() * FAR_SECONDS, payload
            await client.send(TOPIC, value, at=at)
            if i % 1000 == 999:
                # Sending alone never yields to the loop.
                await asyncio.sleep(0)
        await client.flush()
        return ScheduledLoad(count / (time.monotonic() - began), due_at_s)


def wait_until_known(port: int) -> int:
    """Waits until the broker knows all waiting messages. Returns their number."""
    return asyncio.run(_wait_until_known(port))


async def _wait_until_known(port: int) -> int:
    patient = ClientOptions(request_timeout_seconds=READY_SECONDS)
    async with connect(f"fanlog://127.0.0.1:{port}", patient) as client:
        wanted = ListScheduled(count=1)
        page = decode(ScheduledPage, await client.ask(FrameKind.LIST_SCHEDULED, wanted))
        return page.total


def read_due(port: int, due: int, until_s: float) -> Arrived:
    return asyncio.run(_read_due(port, due, until_s))


async def _read_due(port: int, due: int, until_s: float) -> Arrived:
    """Reads until all messages have come or the time is over, and a moment longer."""
    late_ms: list[float] = []
    values: Counter[bytes] = Counter()
    async with (
        connect(f"fanlog://127.0.0.1:{port}") as client,
        client.subscribe(TOPIC, start="earliest") as reader,
    ):
        while len(values) < due and time.time() < until_s:
            with contextlib.suppress(TimeoutError):
                batch = await reader.next_batch(1.0)
                _note(batch, late_ms, values)
        with contextlib.suppress(TimeoutError):
            while True:
                _note(await reader.next_batch(2.0), late_ms, values)
    early = sum(late < 0 for late in late_ms)
    return Arrived(sorted(late_ms), early, sum(n - 1 for n in values.values()))


def _note(batch: fanlog.MessageBatch, late_ms: list[float], values: Counter[bytes]) -> None:
    now = time.time()
    for message in batch.messages:
        due = _due_of(message)
        # Early by the broker's own clock is early, however long the way to the reader was.
        appended = message.timestamp.timestamp() - due
        late_ms.append(1000 * (appended if appended < 0 else now - due))
        values[message.value.rstrip(b"\0")] += 1


def _due_of(message: fanlog.Message) -> float:
    return dt.datetime.fromisoformat(message.headers[DUE].decode()).timestamp()


def run_schedule(options: ScheduleOptions, progress: BenchProgress = silent) -> ScheduleReport:
    """Schedule, kill, start, and read what falls due.

    >>> run_schedule(ScheduleOptions(pending=100_000, due=1_000))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    parent = options.directory or Path(tempfile.gettempdir())
    log_bytes = options.pending * (options.payload_bytes + OVERHEAD_BYTES)
    check_room(parent, log_bytes)
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(load_process(cores.load))
        cell = stack.enter_context(cell_in(parent, log_bytes, cores.system))
        cell.start()
        empty_bytes = _resident(cell)
        progress(0, 4, f"scheduling {options.pending:,} messages")
        scheduled = load.call(schedule_all, cell.port, options)
        cell.end(signal.SIGKILL)
        progress(1, 4, "starting again")
        began = time.perf_counter()
        port_s = cell.start()
        known = load.call(wait_until_known, cell.port)
        known_s = time.perf_counter() - began
        if known != options.pending:
            raise BenchError(f"{known:,} of {options.pending:,} messages wait after the start.")
        held_bytes = _resident(cell) - empty_bytes
        progress(2, 4, f"waiting for {options.due:,} messages to fall due")
        until_s = scheduled.due_at_s + 1 + PATIENCE_SECONDS
        arrived = load.call(read_due, cell.port, options.due, until_s)
        progress(3, 4, "counting what is left")
        left = load.call(wait_until_known, cell.port)
        progress(4, 4, "done")
    lost = options.due - (len(arrived.late_ms) - arrived.twice)
    lost += max(0, options.pending - options.due - left)
    row = ScheduleRow(
        pending=options.pending,
        due=options.due,
        payload=options.payload_bytes,
        scheduled_per_s=round(scheduled.per_s),
        bytes_per_message=round(held_bytes / options.pending, 1),
        port_ms=round(1000 * port_s, 1),
        known_ms=round(1000 * known_s, 1),
        late_p50_ms=_at(arrived.late_ms, 0.5),
        late_p99_ms=_at(arrived.late_ms, 0.99),
        late_max_ms=_at(arrived.late_ms, 1.0),
        lost=lost,
        early=arrived.early,
        twice=arrived.twice,
    )
    return ScheduleReport(rows=[row], left_out=[], environment=environment)


def _resident(cell: StartupCell) -> int:
    assert cell.process is not None
    return resident_bytes(cell.process.pid)


def _at(sorted_ms: list[float], fraction: float) -> float:
    if not sorted_ms:
        return 0.0
    return round(sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * fraction))], 1)
