"""The broker at a glance, computed at most once in two seconds for all callers: rates, latencies,
the largest lags, and what needs attention. Snapshots feed the history of the last minutes. Without
requests, one is made every ten seconds, so that the first caller finds a history.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fanlog.format.dead_letters import TOPIC_PREFIX as DEAD_LETTER_PREFIX
from fanlog.telemetry.attention import find, seconds_until_full
from fanlog.telemetry.findings import BrokerFacts, Finding, OpenTransaction, Trouble
from fanlog.telemetry.recent import Latencies, Rates, Recent, RecentHistory
from fanlog.telemetry.snapshot import Snapshot

if TYPE_CHECKING:
    from fanlog.broker.insight.metrics import MeasuredBroker
    from fanlog.broker.ports import Runtime

logger = logging.getLogger("fanlog.broker")

_KEPT_US = 2_000_000
_GOOD_ENOUGH_US = 10_000_000
_PATIENCE_SECONDS = 0.3
WATCH_SECONDS = 10.0
# The most partitions checked for problems.
_TROUBLES_MAX = 50

DeadLetterCounts = Callable[[], Awaitable[Sequence[tuple[str, int]]]]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one computation. Not every user may see all names in it."""

    snapshot: Snapshot
    rates: Rates
    latencies: Latencies
    history: RecentHistory
    disk_full_seconds: float | None
    transactions: int
    schedules: int
    dead_letters: int | None
    in_memory: bool
    findings: tuple[Finding, ...]


class Overviews:
    """`dead_letter_counts` gives the number of dead letters of each topic; None without a listener
    that counts."""

    dead_letter_counts: DeadLetterCounts | None = None

    def __init__(self, broker: MeasuredBroker, runtime: Runtime) -> None:
        self._broker = broker
        self._runtime = runtime
        self.recent = Recent()
        broker.metrics.on_snapshot.append(self._take)
        self._kept: Overview | None = None
        self._kept_until_us = 0
        self._making: asyncio.Task[Overview] | None = None
        self._fed_us = 0
        self.watched = False

    async def watch(self) -> None:
        """Feeds the history if no requests do, as long as the broker runs."""
        self.watched = True
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._runtime.work_us() - self._fed_us < WATCH_SECONDS * 1e6:
                continue
            try:
                await self._broker.metrics.snapshot()
            except Exception:
                logger.exception("looking at the broker failed")

    def _take(self, snapshot: Snapshot) -> None:
        self._fed_us = self._runtime.work_us()
        self.recent.take(snapshot)
        lockout = self._broker.metering.logins.lockout
        self.recent.count(snapshot.uptime_seconds, {"lockouts": lockout.refused})

    async def look(self) -> Overview:
        """The broker's state, at most two seconds old. With very many topics and groups, which take
        long to scan, it may be older."""
        if self._kept is not None and self._runtime.work_us() < self._kept_until_us:
            return self._kept
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(self._made)
        making, kept = self._making, self._kept
        if kept is not None and self._runtime.work_us() < self._kept_until_us + _GOOD_ENOUGH_US:
            done, _ = await asyncio.wait({making}, timeout=_PATIENCE_SECONDS)
            if not done:
                return kept
        return await asyncio.shield(making)

    def _made(self, task: asyncio.Task[Overview]) -> None:
        self._making = None
        if not task.cancelled() and task.exception() is None:
            self._kept = task.result()
            self._kept_until_us = self._runtime.work_us() + _KEPT_US

    async def _make(self) -> Overview:
        broker, recent = self._broker, self.recent
        snapshot = await broker.metrics.snapshot()
        letters = await self._dead_letters()
        facts = self._facts(snapshot, letters)
        return Overview(
            snapshot=snapshot,
            rates=recent.rates(),
            latencies=recent.latencies(),
            history=recent.history(),
            disk_full_seconds=seconds_until_full(recent),
            transactions=len(broker.transactions),
            schedules=len(broker.schedule.recurring),
            dead_letters=None if letters is None else sum(count for _, count in letters),
            in_memory=broker.in_memory,
            findings=tuple(find(snapshot, recent, facts)),
        )

    async def _dead_letters(self) -> tuple[tuple[str, int], ...] | None:
        """By topic, the largest first."""
        if self.dead_letter_counts is None:
            return None
        found = [one for one in await self.dead_letter_counts() if one[1]]
        return tuple(sorted(found, key=lambda one: (-one[1], one[0])))

    def _dead_letter_topics(self, snapshot: Snapshot) -> dict[str, str]:
        """Dead-letter topics of queues. Queues with several topics are left out."""
        found: dict[str, str] = {}
        for one in snapshot.queues:
            queue = self._broker.queues.find(one.name) if one.dead_lettered else None
            if queue is None:
                continue
            sources = {part.partition.topic.name for part in queue.partitions.values()}
            if queue.settings.dead_letter:
                found[one.name] = queue.settings.dead_letter
            elif len(sources) == 1:
                found[one.name] = DEAD_LETTER_PREFIX + sources.pop()
        return found

    def _facts(
        self, snapshot: Snapshot, letters: tuple[tuple[str, int], ...] | None
    ) -> BrokerFacts:
        broker = self._broker
        look_after = broker.look_after
        return BrokerFacts(
            in_memory=broker.in_memory,
            disk_full=broker.disk_full,
            troubles=tuple(self._troubles())[:_TROUBLES_MAX],
            problems=tuple(broker.own_problems()),
            certificate="" if look_after is None else look_after(),
            late=tuple(broker.schedule.problems()),
            dead_letters=letters,
            dead_letter_topics=self._dead_letter_topics(snapshot),
            transactions=tuple(
                OpenTransaction(id, age) for id, age in broker.transactions.oldest_seconds()
            ),
            committers=broker.pipelines.committers(),
            failed_pipelines=tuple(broker.pipelines.failed()),
        )

    def _troubles(self) -> Iterable[Trouble]:
        for partition in self._broker.troubled()[:_TROUBLES_MAX]:
            log, topic, name = partition.log, partition.topic.name, partition.name
            if log.failure is not None:
                said = f"The log {name} has failed and takes no messages: {log.failure}"
                yield Trouble("failed", topic, said)
            for lost in log.damaged:
                said = f"{name}: offsets {lost.first:,} to {lost.next - 1:,} are damaged on disk."
                yield Trouble("damaged", topic, said)
            for left in log.unreadable:
                said = (
                    f"{name}: offsets {left.first:,} to {left.next - 1:,} do not decode. Their "
                    "producer made them wrong; compaction leaves them as they are."
                )
                yield Trouble("unreadable", topic, said)
