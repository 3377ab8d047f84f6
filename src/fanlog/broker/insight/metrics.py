"""What the broker counts, as a snapshot. Nothing is counted for it twice: hot paths add to plain
ints, and this reads them when somebody asks.

A snapshot is kept for a second, and everybody who asks in it gets the same. The scan of topics,
groups and queues runs in slices. Where that takes long because there are very many it is done less
often, so that it never takes more than a fiftieth of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from typing import TYPE_CHECKING, Protocol

from fanlog.broker.insight.metric_scan import MetricScan, Scanner
from fanlog.broker.insight.metric_watch import watch_steps
from fanlog.broker.insight.ports import ObservedBroker
from fanlog.broker.messages.drop_notes import DropKind
from fanlog.config_security import TelemetryOptions
from fanlog.identity import Verb
from fanlog.model import GapReason
from fanlog.release import VERSION
from fanlog.telemetry.histograms import DELAY_US, SYNC_BYTES, SYNC_US, Histogram
from fanlog.telemetry.process import measure_process
from fanlog.telemetry.slow_operations import SlowLog
from fanlog.telemetry.snapshot import Levels, ListenerMetrics, Snapshot, Times, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fanlog.broker.insight.peers import Peer
    from fanlog.broker.messages.topics import Partition
    from fanlog.broker.ports import Runtime
    from fanlog.log.partition import PartitionLog
    from fanlog.telemetry.history_keeper import MetricHistory
    from fanlog.telemetry.history_series import SeriesOwner
    from fanlog.telemetry.snapshot import NamedMetrics

logger = logging.getLogger("fanlog.broker")

_KEPT_US = 1_000_000
# The pause after a scan, as a multiple of its duration.
_SCAN_REST = 50
# The same for background history: a five-hundredth of the loop.
_PATIENT_REST = 500
# Requested figures of topics are never older than this.
_SCAN_US_MAX = 30_000_000
# The reader policy behind each reason.
_POLICIES = {"skipped": "skip", "disconnected": "disconnect"}
# Zeros from the start: a rate would miss the step from nothing to 1.
_NONE_MISSED = {reason.value: 0 for reason in GapReason}
_NO_GAPS = _NONE_MISSED | {DropKind.DISCONNECTED.value: 0}
_NONE_DENIED = {verb.value: 0 for verb in Verb}
_NO_SYNCS = Histogram(SYNC_US), Histogram(SYNC_BYTES)


class Measured(Protocol):
    """What metrics need of a listener."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> bool: ...
    @property
    def accepted(self) -> int: ...
    @property
    def refused(self) -> int: ...
    def connection_count(self) -> int: ...
    def peers(self) -> Iterator[Peer]: ...


class Metrics:
    """Snapshots of one process. `node.py` says which `listeners` there are."""

    def __init__(self, broker: ObservedBroker, runtime: Runtime, options: TelemetryOptions) -> None:
        self._broker = broker
        self._runtime = runtime
        self.options = options
        self.listeners: Sequence[Measured] = ()
        self.role = "broker"
        self.upstream = ""
        self.loop_delay = Histogram(DELAY_US)
        self.slow = SlowLog(options)
        broker.turns.slow = self._slow_turn
        broker.turns.slow_ns = self.slow.turn_ns
        # Failed logins since the start, by listener.
        self.auth_failures: dict[str, int] = {}
        self._scanner = Scanner(broker, options.topics_max, lambda: self.listeners)
        self._scan = MetricScan()
        self._scanned_us = 0
        self._scan_again_us = 0
        self._patient_us = 0
        self._looking = asyncio.Lock()
        # The history, if this process keeps one.
        self.history: MetricHistory | None = None
        self._kept: Snapshot | None = None
        self._kept_until_us = 0
        self._making: asyncio.Task[Snapshot] | None = None
        # Receivers of every snapshot.
        self.on_snapshot: list[Callable[[Snapshot], None]] = []

    def _slow_turn(self, took_ns: int, append_ns: int, shown: Iterable[Partition]) -> None:
        partitions = list(shown)
        names = list(dict.fromkeys(partition.topic.name for partition in partitions))
        readers = sum(partition.readers for partition in partitions)
        self.slow.turn(took_ns, append_ns, names, readers)

    def slow_sync(self, took_ns: int, size: int, logs: Iterable[PartitionLog]) -> None:
        """Names the topics of a slow sync."""
        find = self._broker.catalog.find_partition
        found = (find(*log.owner) for log in logs)
        names = dict.fromkeys(one.topic.name for one in found if one is not None)
        self.slow.sync(took_ns, size, list(names))

    async def snapshot(self) -> Snapshot:
        """The process as it is now, or was at most a second ago."""
        if self._kept is not None and self._runtime.work_us() < self._kept_until_us:
            return self._kept
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(self._made)
        # If one caller goes away, the others still get the result.
        return await asyncio.shield(self._making)

    async def patient_snapshot(self) -> Snapshot:
        """The same for the history. It scans all topics less often if that takes long. Requests for
        a snapshot do not get older data because of it."""
        if self._kept is not None and self._runtime.work_us() < self._kept_until_us:
            return self._kept
        if self._making is not None:
            return await asyncio.shield(self._making)
        if self._runtime.work_us() >= self._patient_us:
            await self._look_if_due(rest_us=0)
        return await self._assemble()

    async def watched(self, wanted: Iterable[tuple[SeriesOwner, str]]) -> NamedMetrics:
        """Some topics, groups and queues as they are now, by their names."""
        return await self._broker.slices.result(watch_steps(self._broker, wanted))

    def _made(self, task: asyncio.Task[Snapshot]) -> None:
        self._making = None
        if not task.cancelled() and task.exception() is None:
            self._kept = task.result()
            self._kept_until_us = self._runtime.work_us() + _KEPT_US
            for hear in self.on_snapshot:
                hear(self._kept)

    async def _make(self) -> Snapshot:
        # A little less than a snapshot's lifetime, or every second one would be old.
        await self._look_if_due(rest_us=_KEPT_US * 9 // 10)
        return await self._assemble()

    async def _assemble(self) -> Snapshot:
        broker = self._broker
        process = await broker.threaded(lambda: measure_process(broker.folder))
        status = broker.status()
        return Snapshot(
            time=self._runtime.now_us() / 1e6,
            # This process's release. An edge has its upstream's in `broker.release`.
            release=VERSION,
            python=platform.python_version(),
            state=status.state,
            role=self.role,
            upstream=self.upstream,
            ready=not broker.unready(),
            uptime_seconds=status.uptime_seconds,
            scan_age_seconds=max(0, self._runtime.work_us() - self._scanned_us) / 1e6,
            totals=self._totals(),
            levels=self._levels(),
            times=self._times(),
            process=process,
            listeners=self._listeners(),
            topics=self._scan.topics,
            groups=self._scan.groups,
            queues=self._scan.queues,
            readers=self._scan.readers,
            workers=() if broker.workers is None else broker.workers.metrics(),
            problems=status.problems,
            cluster=None if broker.cluster is None else broker.cluster.status(),
        )

    async def _look_if_due(self, *, rest_us: int) -> None:
        """Scans everything, if it is time. `rest_us` is the minimum time to the next scan."""
        async with self._looking:
            if self._runtime.work_us() >= self._scan_again_us:
                await self._look_at_all(rest_us)

    async def _look_at_all(self, rest_us: int) -> None:
        scan, spent_ns = MetricScan(), 0

        def timed(steps: Iterator[None]) -> Iterator[None]:
            nonlocal spent_ns
            # In CPU time, since a busy machine only makes a scan longer.
            begun_ns = time.thread_time_ns()
            for _ in steps:
                spent_ns += time.thread_time_ns() - begun_ns
                yield
                begun_ns = time.thread_time_ns()

        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        steps = timed(self._scanner.steps(scan, self._runtime.monotonic_us()))
        self._broker.slices.in_slices(
            steps, lambda: None if ended.done() else ended.set_result(None)
        )
        await ended
        self._scan = scan
        self._scanned_us = self._runtime.work_us()
        rest_us = max(rest_us, _SCAN_REST * spent_ns // 1000)
        self._scan_again_us = self._scanned_us + min(_SCAN_US_MAX, rest_us)
        patient_us = _PATIENT_REST * spent_ns // 1000
        self._patient_us = self._scanned_us + min(_SCAN_US_MAX, patient_us)

    def _totals(self) -> Totals:
        broker, workers = self._broker, self._broker.workers
        messages, size = broker.fan_out.delivered_records, broker.fan_out.delivered_bytes
        if workers is not None:
            # Deliveries to clients. The fan-out of this process goes to workers.
            messages, size = workers.delivered_messages, workers.delivered_bytes
        delivered, redelivered, dead_lettered = broker.queues.counted()
        notes = broker.drop_notes
        slow = {"catch-up": broker.fan_out.catch_ups}
        for reason, policy in _POLICIES.items():
            slow[policy] = notes.times.get(reason, 0)
        return Totals(
            published_messages=broker.turns.published_records,
            published_bytes=broker.turns.published_bytes,
            delivered_messages=messages,
            delivered_bytes=size,
            fetched_bytes=broker.fetched_bytes,
            delivered_jobs=delivered,
            redelivered_jobs=redelivered,
            dead_letters=dead_lettered,
            rebalances=broker.groups.rebalances,
            missed=_NONE_MISSED | {k: notes.records[k] for k in _NONE_MISSED if k in notes.records},
            gaps=_NO_GAPS | notes.times,
            slow_readers=slow,
            denied=_NONE_DENIED | broker.denied,
            limited=broker.metering.counters(),
        )

    def _levels(self) -> Levels:
        broker, scan, workers = self._broker, self._scan, self._broker.workers
        return Levels(
            topics=broker.catalog.public_count,
            partitions=scan.partition_count,
            groups=scan.group_count,
            queues=len(broker.queues.every()),
            connections=broker.connections if workers is None else workers.connections,
            subscriptions=(len(broker.subscriptions) if workers is None else workers.subscriptions),
            tail_bytes=broker.turns.tail_bytes,
            pending_bytes=broker.turns.pending_bytes(),
            group_lag=scan.group_lag,
            queue_lag=scan.queue_lag,
            delayed_messages=len(broker.schedule),
            readers_behind=scan.readers_behind,
        )

    def _times(self) -> Times:
        turns = self._broker.turns
        syncs, sizes = _NO_SYNCS if turns.group is None else turns.group.histograms()
        return Times(
            turn_us=turns.durations.read(),
            loop_delay_us=self.loop_delay.read(),
            sync_us=syncs.read(),
            sync_bytes=sizes.read(),
        )

    def _listeners(self) -> tuple[ListenerMetrics, ...]:
        workers = self._broker.workers
        if workers is not None:
            return tuple(workers.listener(listener.name) for listener in self.listeners)
        return tuple(
            ListenerMetrics(
                name=listener.name,
                connections=listener.connection_count(),
                accepted=listener.accepted,
                refused=listener.refused,
                auth_failures=self.auth_failures.get(listener.name, 0),
            )
            for listener in self.listeners
        )


class MeasuredBroker(ObservedBroker, Protocol):
    """A broker with metrics, also for the overview."""

    @property
    def metrics(self) -> Metrics: ...
