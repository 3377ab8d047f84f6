"""What the broker knows of programs that read it in batches, such as Spark queries: which groups
they move as they go, and how the last runs of pipelines went.

Law: both are bounded. Progress lives in memory, and comes back with a query's next batch. Runs are
a ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.state.ledger import Entry, Ledger, LedgerHost
from fanlog.errors import FanlogError, InvalidArgumentError, LimitError
from fanlog.format.pipelines import REPORT_BYTES_MAX, PipelineRun
from fanlog.telemetry.trends import TrendSeries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanlog.broker.ports import Runtime
    from fanlog.model import ResetStep

# What Spark's side calls itself.
SPARK_CLIENT = "fanlog.spark"
_SECOND_US = 1_000_000
# Groups whose progress is remembered; the one that moved longest ago goes first.
_QUERIES_MAX = 1000
# A query is at work if it moved within this time.
_AT_WORK_SECONDS = 600.0
# Its rate is that of the last minutes.
_RATE_STEP_SECONDS = 10.0
_RATE_POINTS = 31
# Runs that are kept: of each name, and of all.
_RUNS_OF_NAME = 20
_RUNS_MAX = 500
_LOSS = "some last runs of pipelines are not listed any more"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PipelineRun).decode


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A group that a query moves as it reads."""

    group: str
    user: str
    client: str
    idle_seconds: float
    batches: int
    records: int
    last_batch_records: int
    per_second: float


class _Query:
    __slots__ = ("batch", "batches", "client", "last_us", "moved", "records", "series", "user")

    def __init__(self) -> None:
        self.user = ""
        self.client = ""
        self.last_us = 0
        self.batches = 0
        self.records = 0
        # The partitions and records of the batch that is being reported.
        self.batch: set[tuple[str, int]] = set()
        self.moved = 0
        self.series = TrendSeries[int](_RATE_STEP_SECONDS, _RATE_POINTS)


class Pipelines:
    def __init__(self, host: LedgerHost, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        self._ledger = Ledger(host, "pipelines", self._everything, _LOSS)
        # By ledger key, the oldest report first.
        self._runs: dict[str, PipelineRun] = {}
        # When each was last reported, since this start.
        self._reported_us: dict[str, int] = {}
        self._started_us = runtime.monotonic_us()

    # Queries

    def moved(self, group: str, steps: Sequence[ResetStep], *, user: str, client: str) -> None:
        """A query has done a batch, or a partition of it, and moved its group so far."""
        query = self._queries.pop(group, None) or _Query()
        self._queries[group] = query
        if len(self._queries) > _QUERIES_MAX:
            self._queries.popitem(last=False)
        now_us = self._runtime.monotonic_us()
        query.user, query.client, query.last_us = user, client, now_us
        for step in steps:
            tp = (step.topic, step.partition)
            if tp in query.batch:
                query.batch.clear()
                query.moved = 0
            query.batch.add(tp)
            # A new group has no position yet: what lies before its first one was not read.
            more = 0 if step.before is None else max(0, step.after - step.before)
            # The first position of a query is no batch yet.
            query.batches += more > 0 and not query.moved
            query.moved += more
            query.records += more
        query.series.add(now_us / _SECOND_US, query.records)

    def progress(self) -> list[QueryProgress]:
        """All queries that are remembered, the one that moved last first."""
        now_us = self._runtime.monotonic_us()
        return [
            QueryProgress(
                group=group,
                user=query.user,
                client=query.client,
                idle_seconds=(now_us - query.last_us) / _SECOND_US,
                batches=query.batches,
                records=query.records,
                last_batch_records=query.moved,
                per_second=_per_second(query.series, now_us / _SECOND_US),
            )
            for group, query in reversed(self._queries.items())
        ]

    def committers(self) -> dict[str, float]:
        """The groups that queries move now, and how many seconds ago each did."""
        now_us = self._runtime.monotonic_us()
        ages = {
            group: (now_us - query.last_us) / _SECOND_US for group, query in self._queries.items()
        }
        return {group: age for group, age in ages.items() if age <= _AT_WORK_SECONDS}

    # Runs

    def load(self) -> None:
        self._ledger.load(self._take)

    def report(self, run: PipelineRun) -> None:
        """Keeps a run; a later report of it replaces the one before. Raises what is wrong."""
        if any(ord(c) < 32 for c in run.name):
            raise InvalidArgumentError("A pipeline's name has no control characters.")
        value = _encode(run)
        if len(value) > REPORT_BYTES_MAX:
            raise LimitError(f"The report of a run has {REPORT_BYTES_MAX} bytes at most.")
        key = _key(run)
        gone = self._too_many(run.name, key)

        def durable(fault: FanlogError | None) -> None:
            if fault is not None:
                return
            for old in gone:
                self._runs.pop(old, None)
                self._reported_us.pop(old, None)
            self._runs.pop(key, None)
            self._runs[key] = run
            self._reported_us[key] = self._runtime.monotonic_us()

        entries: list[Entry] = [(key.encode(), value), *((old.encode(), None) for old in gone)]
        self._ledger.write(entries, durable)

    def reported_seconds_ago(self, run: PipelineRun) -> float:
        """When a run was last reported; one of before this start, when the broker started."""
        reported_us = self._reported_us.get(_key(run), self._started_us)
        return (self._runtime.monotonic_us() - reported_us) / _SECOND_US

    def _too_many(self, name: str, key: str) -> list[str]:
        """Runs that go when one more is kept."""
        mine = [old for old, run in self._runs.items() if run.name == name and old != key]
        gone = mine[: max(0, len(mine) + 1 - _RUNS_OF_NAME)]
        left = len(self._runs) - len(gone) + (key not in self._runs)
        others = (old for old in self._runs if old != key and old not in gone)
        return [*gone, *islice(others, max(0, left - _RUNS_MAX))]

    def runs(self) -> list[PipelineRun]:
        """All that are kept, the last to begin first."""
        return sorted(self._runs.values(), key=lambda run: (run.started_us, run.name), reverse=True)

    def last_runs(self) -> dict[str, PipelineRun]:
        """The last run of each name."""
        last: dict[str, PipelineRun] = {}
        for run in self.runs():
            last.setdefault(run.name, run)
        return last

    def failed(self) -> Iterable[tuple[str, str]]:
        """The names whose last run failed, and why."""
        return [(run.name, run.why) for run in self.last_runs().values() if run.state == "failed"]

    def _take(self, key: bytes, value: bytes | None) -> None:
        self._runs.pop(key.decode(), None)
        if value is not None:
            self._runs[key.decode()] = _decode(value)

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        for key in list(self._runs):
            run = self._runs.get(key)
            if run is not None:
                yield key.encode(), _encode(run)


def _key(run: PipelineRun) -> str:
    return f"{run.name}\n{run.started_us}"


def _per_second(series: TrendSeries[int], now: float) -> float:
    """The rate since the oldest point that is remembered, which is some minutes old."""
    first, last = series.points[0], series.points[-1]
    seconds = max(now, last.at) - first.at
    return (last.value - first.value) / seconds if seconds > 0 else 0.0
