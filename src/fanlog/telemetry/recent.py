"""The last minutes of a process, from its snapshots: rates, latencies, and the series that tell
whether something grows. Pure: the time is the snapshots' own.

Law: it is fed at most as often as snapshots are made, remembers a bounded number of names, and
forgets those that snapshots do not name any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from fanlog.telemetry.histograms import HistogramData
from fanlog.telemetry.snapshot import OTHERS, Snapshot, Totals
from fanlog.telemetry.trends import TrendSeries

# Rates and latencies are those of this time.
RATE_SECONDS = 10.0
LATENCY_SECONDS = 60.0
# What counts as recent, for counters.
RECENT_SECONDS = 900.0
# The whole process: five minutes.
_WHOLE_STEP_SECONDS = 5.0
_WHOLE_POINTS = 61
# A disk fills slowly: two hours.
_DISK_STEP_SECONDS = 60.0
_DISK_POINTS = 121
# Names, and counters of what goes wrong: a quarter of an hour.
_NAMED_STEP_SECONDS = 15.0
_NAMED_POINTS = 61
# Groups, queues and topics of each kind that are remembered.
NAMED_MAX = 100


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a snapshot."""

    time: float
    totals: Totals
    cpu_seconds: float
    lag: int
    connections: int
    turn_us: HistogramData
    loop_delay_us: HistogramData
    sync_us: HistogramData


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second, over the last ten or so. `cpu` is in cores: 1.0 is one core."""

    published_messages: float = 0.0
    published_bytes: float = 0.0
    delivered_messages: float = 0.0
    delivered_bytes: float = 0.0
    fetched_bytes: float = 0.0
    delivered_jobs: float = 0.0
    cpu: float = 0.0


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the last minute, in microseconds: half of them were at most `p50`, and 99 of 100
    at most `p99`."""

    p50_us: float = 0.0
    p99_us: float = 0.0


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """A turn takes in and hands out what came since the last one. The loop's delay is how late a
    timer is, and so how long a client waits for its turn. A sync brings bytes to the disk."""

    turn: Latency = Latency()
    loop_delay: Latency = Latency()
    sync: Latency = Latency()


class RecentHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The last five minutes, for a small chart of each: figures by time, the oldest first."""

    times: list[float] = []
    published_messages: list[float] = []
    delivered_messages: list[float] = []
    published_bytes: list[float] = []
    delivered_bytes: list[float] = []
    cpu: list[float] = []
    loop_delay_p99_us: list[float] = []
    lag: list[int] = []
    connections: list[int] = []


class NamedSeries:
    """A series for each of some names. Counters were 0 before they were first seen."""

    def __init__(self, *, counters: bool = False) -> None:
        self._series: dict[str, TrendSeries[int]] = {}
        self._counters = counters
        self._taken_at = 0.0

    def __len__(self) -> int:
        return len(self._series)

    def take(self, at: float, values: Iterable[tuple[str, int]]) -> None:
        """The values of now, the most important first. Names that are not there are forgotten."""
        known, self._series = self._series, {}
        before, self._taken_at = self._taken_at, at
        for name, value in values:
            if name == OTHERS:
                continue
            if len(self._series) >= NAMED_MAX:
                break
            series = known.get(name)
            if series is None:
                series = TrendSeries[int](_NAMED_STEP_SECONDS, _NAMED_POINTS)
                if self._counters and (before or at <= RECENT_SECONDS):
                    series.add(before, 0)
            series.add(at, value)
            self._series[name] = series

    def maybe(self, name: str) -> TrendSeries[int] | None:
        return self._series.get(name)


class Recent:
    """Feed it with `take`; then ask."""

    def __init__(self) -> None:
        self._whole = TrendSeries[Sample](_WHOLE_STEP_SECONDS, _WHOLE_POINTS)
        self.disk_free = TrendSeries[int](_DISK_STEP_SECONDS, _DISK_POINTS)
        self.group_lag = NamedSeries()
        self.queue_lag = NamedSeries()
        self.dead_lettered = NamedSeries(counters=True)
        self.missed = NamedSeries(counters=True)
        # Counters of the whole process: what goes wrong.
        self.counters: dict[str, TrendSeries[int]] = {}
        # When groups, and queues, with something to do were first seen without anybody to do it.
        self.deserted_groups: dict[str, float] = {}
        self.deserted_queues: dict[str, float] = {}

    def take(self, snapshot: Snapshot) -> None:
        at, totals = snapshot.uptime_seconds, snapshot.totals
        self._whole.add(at, _sample(snapshot))
        if snapshot.process.disk_total_bytes:
            self.disk_free.add(at, snapshot.process.disk_free_bytes)
        groups, queues = snapshot.groups, snapshot.queues
        self.group_lag.take(at, ((group.name, group.lag) for group in groups))
        self.queue_lag.take(at, ((queue.name, queue.lag) for queue in queues))
        self.dead_lettered.take(at, ((queue.name, queue.dead_lettered) for queue in queues))
        self.missed.take(at, ((one.name, one.missed_messages) for one in snapshot.topics))
        lonely = (group.name for group in groups if group.lag and not group.members)
        self.deserted_groups = _since(self.deserted_groups, lonely, at)
        lonely = (queue.name for queue in queues if queue.lag and not queue.workers)
        self.deserted_queues = _since(self.deserted_queues, lonely, at)
        self._count(at, totals, sum(one.auth_failures for one in snapshot.listeners))

    def count(self, at: float, counters: Mapping[str, int]) -> None:
        """Counters that a snapshot does not have."""
        for name, value in counters.items():
            series = self.counters.get(name)
            if series is None:
                series = self.counters[name] = TrendSeries[int](_NAMED_STEP_SECONDS, _NAMED_POINTS)
                if at <= RECENT_SECONDS:
                    series.add(0.0, 0)  # As it was at the start.
            series.add(at, value)

    def _count(self, at: float, totals: Totals, auth_failures: int) -> None:
        self.count(
            at,
            {
                "dead_letters": totals.dead_letters,
                "auth_failures": auth_failures,
                "denied": sum(totals.denied.values()),
                "limited": sum(totals.limited.values()),
                **{f"missed.{reason}": count for reason, count in totals.missed.items()},
                **{f"slow.{policy}": count for policy, count in totals.slow_readers.items()},
            },
        )

    # What it says

    def rates(self) -> Rates:
        last, then = self._whole.last, self._whole.before(RATE_SECONDS)
        if last is None or then is None or last.at <= then.at:
            return Rates()
        return _rates(then.value, last.value, last.at - then.at)

    def latencies(self) -> Latencies:
        last, then = self._whole.last, self._whole.before(LATENCY_SECONDS)
        if last is None or then is None:
            return Latencies()
        now, before, alone = last.value, then.value, len(self._whole) == 1

        def recent(name: str) -> Latency:
            found: HistogramData = getattr(now, name)
            if not alone:
                found = found.since(getattr(before, name))
            return Latency(p50_us=found.quantile(0.5), p99_us=found.quantile(0.99))

        return Latencies(
            turn=recent("turn_us"), loop_delay=recent("loop_delay_us"), sync=recent("sync_us")
        )

    def history(self) -> RecentHistory:
        pairs = list(pairwise(self._whole.points))
        rates = [_rates(a.value, b.value, b.at - a.at) for a, b in pairs]
        samples = [b.value for _, b in pairs]
        return RecentHistory(
            times=[sample.time for sample in samples],
            published_messages=[rate.published_messages for rate in rates],
            delivered_messages=[rate.delivered_messages for rate in rates],
            published_bytes=[rate.published_bytes for rate in rates],
            delivered_bytes=[rate.delivered_bytes for rate in rates],
            cpu=[rate.cpu for rate in rates],
            loop_delay_p99_us=[
                b.value.loop_delay_us.since(a.value.loop_delay_us).quantile(0.99) for a, b in pairs
            ],
            lag=[sample.lag for sample in samples],
            connections=[sample.connections for sample in samples],
        )


def _since(known: dict[str, float], names: Iterable[str], at: float) -> dict[str, float]:
    """Since when each of these names is among them; a bounded number."""
    found: dict[str, float] = {}
    for name in names:
        if name != OTHERS and len(found) < NAMED_MAX:
            found[name] = known.get(name, at)
    return found


def _sample(snapshot: Snapshot) -> Sample:
    levels, times = snapshot.levels, snapshot.times
    return Sample(
        time=snapshot.time,
        totals=snapshot.totals,
        cpu_seconds=snapshot.process.cpu_seconds,
        lag=levels.group_lag + levels.queue_lag,
        connections=levels.connections,
        turn_us=times.turn_us,
        loop_delay_us=times.loop_delay_us,
        sync_us=times.sync_us,
    )


def _rates(then: Sample, now: Sample, seconds: float) -> Rates:
    if seconds <= 0:
        return Rates()
    a, b = then.totals, now.totals

    def rate(name: str) -> float:
        return round(max(0, getattr(b, name) - getattr(a, name)) / seconds, 3)

    names = (name for name in Rates.__struct_fields__ if name != "cpu")
    cpu = max(0.0, now.cpu_seconds - then.cpu_seconds) / seconds
    return Rates(**{name: rate(name) for name in names}, cpu=round(cpu, 4))
