"""What keeps the history: samples, what it writes, whom it watches, and slow or full disks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fanlog.config_security import TelemetryOptions
from fanlog.telemetry.histograms import DELAY_US, SYNC_BYTES, SYNC_US, TURN_US, HistogramData
from fanlog.telemetry.history_keeper import MetricHistory
from fanlog.telemetry.history_reading import Grid
from fanlog.telemetry.history_series import BROKER, OWNED, Sampler, SeriesOwner, maybe_parse
from fanlog.telemetry.process import ProcessMetrics
from fanlog.telemetry.snapshot import (
    OTHERS,
    GroupMetrics,
    Levels,
    NamedMetrics,
    QueueMetrics,
    Snapshot,
    Times,
    TopicMetrics,
    Totals,
)

NOON = 1_790_000_000
GIB = 1 << 30


def histogram(bounds: tuple[int, ...], *counts: int) -> HistogramData:
    return HistogramData(bounds, (*counts, *(0 for _ in range(len(bounds) + 1 - len(counts)))), 0)


def snapshot(uptime: float, *, free: int = GIB, delays: int = 0, **more: Any) -> Snapshot:
    process = ProcessMetrics(
        started=0,
        cpu_seconds=uptime / 4,
        resident_bytes=1000,
        virtual_bytes=2000,
        threads=3,
        open_files=4,
        open_files_max=5,
        disk_free_bytes=free,
        disk_total_bytes=2 * GIB,
    )
    times = Times(
        turn_us=histogram(TURN_US),
        loop_delay_us=histogram(DELAY_US, 60 * delays, 40 * delays),
        sync_us=histogram(SYNC_US),
        sync_bytes=histogram(SYNC_BYTES),
    )
    given: dict[str, Any] = {
        "totals": Totals(published_messages=int(uptime * 10), missed={"a": 1, "b": int(uptime)}),
        "levels": Levels(connections=7, group_lag=9),
        "scan_age_seconds": 0.0,
    }
    return Snapshot(
        time=NOON + uptime,
        release="1",
        python="3",
        state="ok",
        role="broker",
        ready=True,
        uptime_seconds=uptime,
        times=times,
        process=process,
        **given | more,
    )


class Source:
    """Snapshots that a test makes."""

    def __init__(self) -> None:
        self.uptime = 100.0
        self.free = GIB
        self.asked: list[list[tuple[SeriesOwner, str]]] = []

    async def patient_snapshot(self) -> Snapshot:
        self.uptime += 5
        return snapshot(self.uptime, free=self.free)

    async def watched(self, wanted: Iterable[tuple[SeriesOwner, str]]) -> NamedMetrics:
        self.asked.append(list(wanted))
        return NamedMetrics(topics=(TopicMetrics(name="quiet", readers=2),))


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def now_us(self) -> int:
        return self.now * 1_000_000


def keeper(folder: Path | None = None) -> tuple[MetricHistory, Source, Clock]:
    source, clock = Source(), Clock()
    path = None if folder is None else str(folder)
    return MetricHistory(TelemetryOptions(), source, clock.now_us, path), source, clock


def values(history: MetricHistory, name: str, cells: int) -> list[float | None]:
    return history.capture([name]).read(Grid(NOON, 5, cells), NOON + 5 * cells)[name]


async def samples(history: MetricHistory, clock: Clock, count: int) -> None:
    for _ in range(count):
        await history.sample()
        clock.now += 5


def test_rates_are_counted_over_the_time_that_the_broker_measured() -> None:
    sampler = Sampler()
    first = sampler.values(snapshot(100, delays=1))
    assert "published_messages" not in first
    assert first["connections"] == 7
    # The wall clock may say anything.
    later = msgspec.structs.replace(snapshot(104, delays=2), time=0.0)
    found = sampler.values(later)
    assert found["published_messages"] == 10
    assert found["missed_messages"] == 1
    assert found["cpu"] == 0.25
    assert (found["loop_delay_p50"], found["loop_delay_p99"]) == (0.0005, 0.001)
    assert "turn_p99" not in found
    # A snapshot of the same moment says nothing of rates.
    assert "published_messages" not in sampler.values(later)


def test_every_value_has_a_known_name() -> None:
    sampler = Sampler()
    named = {
        "topics": (TopicMetrics(name="a.b"), TopicMetrics(name=OTHERS)),
        "groups": (GroupMetrics(name="g", lag=5), GroupMetrics(name=OTHERS)),
        "queues": (QueueMetrics(name="q", dead_lettered=1), QueueMetrics(name=OTHERS)),
    }
    sampler.values(snapshot(100, **named))
    found = sampler.values(snapshot(105, delays=1, **named))
    parsed = {name: maybe_parse(name) for name in found}
    assert None not in parsed.values()
    owned = {(one[0].owner, one[0].of, one[0].field) for one in parsed.values() if one is not None}
    for owner, name in (("topic", "a.b"), ("group", "g"), ("queue", "q")):
        assert owned >= {(owner, name, field) for field in OWNED[owner]}  # type: ignore[index]
    assert not any(OTHERS in name for name in found)
    missing = {"turn_p99", "sync_p99"}
    assert {name for name in found if name in BROKER} == set(BROKER) - missing


def test_rates_of_topics_are_counted_from_scan_to_scan() -> None:
    sampler = Sampler()

    def topic(messages: int) -> tuple[TopicMetrics, ...]:
        return (TopicMetrics(name="t", published_messages=messages, messages_per_second=99),)

    assert sampler.values(snapshot(100, topics=topic(1000)))["topic.t.messages"] == 99
    # The same scan again: the same value.
    again = snapshot(105, scan_age_seconds=5.0, topics=topic(1000))
    assert sampler.values(again)["topic.t.messages"] == 99
    assert sampler.values(snapshot(110, topics=topic(1050)))["topic.t.messages"] == 5
    # Deleted and created again: it counts from 0.
    assert sampler.values(snapshot(115, topics=topic(3)))["topic.t.messages"] == 99


async def test_samples_are_kept_and_written(tmp_path: Path) -> None:
    history, _, clock = keeper(tmp_path)
    await history.load()
    await samples(history, clock, 5)
    await history.close()
    again, _, _ = keeper(tmp_path)
    await again.load()
    for name in ("connections", "published_messages"):
        assert values(again, name, 5) == values(history, name, 5)
    assert values(again, "connections", 5) == [7] * 5
    await again.close()


async def test_a_disk_that_is_nearly_full_is_left_to_messages(tmp_path: Path) -> None:
    history, source, clock = keeper(tmp_path)
    await history.load()
    source.free = 1000
    await samples(history, clock, 3)
    source.free = GIB
    await samples(history, clock, 2)
    assert values(history, "connections", 5) == [7] * 5
    await history.close()
    again, _, _ = keeper(tmp_path)
    await again.load()
    assert values(again, "connections", 5) == [None, None, None, 7, 7]
    await again.close()


async def test_a_disk_that_hangs_costs_a_bounded_list(tmp_path: Path) -> None:
    history, _, clock = keeper(tmp_path)
    await history.load()
    hangs = threading.Event()
    history._threads.submit(hangs.wait)
    await samples(history, clock, 1100)
    assert len(history._waiting) <= 1000
    hangs.set()
    await history.close()


async def test_names_that_somebody_looks_at_are_sampled_for_a_while() -> None:
    history, source, clock = keeper()
    await samples(history, clock, 1)
    assert source.asked == []
    wanted = [maybe_parse(name) for name in ("topic.quiet.readers", "connections", "group.g.lag")]
    history.watch(one[0] for one in wanted if one is not None)
    await samples(history, clock, 1)
    assert source.asked == [[("topic", "quiet"), ("group", "g")]]
    assert values(history, "topic.quiet.readers", 2) == [None, 2]
    many = [maybe_parse(f"topic.{i}.messages") for i in range(200)]
    history.watch(one[0] for one in many if one is not None)
    await samples(history, clock, 1)
    assert len(source.asked[-1]) == 50
    for name in history._watched:
        history._watched[name] = 0.0
    await samples(history, clock, 1)
    assert len(source.asked) == 2


async def test_series_without_values_for_two_weeks_are_not_listed() -> None:
    history, _, clock = keeper()
    await samples(history, clock, 2)
    assert {one.text for one in history.series()} >= {"connections", "cpu"}
    clock.now += 15 * 86_400
    assert list(history.series()) == []


async def test_it_samples_by_itself_and_goes_on_after_a_fault() -> None:
    history, source, _ = keeper()
    taken = asyncio.Event()
    sample = history.sample

    async def faulty() -> None:
        if source.uptime < 120:
            source.uptime += 10
            raise RuntimeError("no")
        await sample()
        taken.set()

    history.sample = faulty  # type: ignore[method-assign]
    # Nearly a slot later, whenever it is asked: so it need not wait for long.
    history._now_us = lambda: int((NOON + 1.9) * 1e6)
    running = asyncio.create_task(history.run())
    await asyncio.wait_for(taken.wait(), 30)
    running.cancel()
    await history.close()
