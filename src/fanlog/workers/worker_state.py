"""One worker as its supervisor knows it: its process, and what it has reported. Counters continue
when a worker is started again."""

from __future__ import annotations

from asyncio.subprocess import Process

import msgspec

from fanlog.telemetry.snapshot import WorkerMetrics
from fanlog.workers.channel import ListenerCounts, WorkerChannel, WorkerReport


class WorkerState:
    """One of the workers: its process, and what it has reported. `number` counts from 1."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.channel: WorkerChannel | None = None
        self.is_open = False
        # When it last said something, or was started.
        self.answered_us = 0
        self.restarts = 0
        self.report = WorkerReport()
        # Of its processes before this one.
        self._before: dict[str, ListenerCounts] = {}
        self._delivered_messages = 0
        self._delivered_bytes = 0

    def ended(self) -> None:
        """Its process is gone: counters continue, levels are 0."""
        report, self.report = self.report, WorkerReport()
        self.process = self.channel = None
        self.is_open = False
        self._delivered_messages += report.delivered_messages
        self._delivered_bytes += report.delivered_bytes
        for name in report.listeners:
            self._before[name] = msgspec.structs.replace(
                sum_counts(self._before.get(name), report.listeners[name]), connections=0
            )

    def listener(self, name: str) -> ListenerCounts:
        return sum_counts(self._before.get(name), self.report.listeners.get(name))

    @property
    def delivered_messages(self) -> int:
        return self._delivered_messages + self.report.delivered_messages

    @property
    def delivered_bytes(self) -> int:
        return self._delivered_bytes + self.report.delivered_bytes

    @property
    def connections(self) -> int:
        return sum(counts.connections for counts in self.report.listeners.values())

    def metrics(self, *, up: bool) -> WorkerMetrics:
        return WorkerMetrics(
            number=self.number,
            pid=0 if self.process is None else self.process.pid,
            up=up,
            restarts=self.restarts,
            connections=self.connections,
            subscriptions=self.report.subscriptions,
            delivered_messages=self.delivered_messages,
            delivered_bytes=self.delivered_bytes,
            cpu_seconds=self.report.cpu_seconds,
            resident_bytes=self.report.resident_bytes,
        )


def sum_counts(one: ListenerCounts | None, other: ListenerCounts | None) -> ListenerCounts:
    """The counts of both. None counts nothing."""
    if one is None or other is None:
        return one or other or ListenerCounts()
    return ListenerCounts(
        one.connections + other.connections,
        one.accepted + other.accepted,
        one.refused + other.refused,
        one.auth_failures + other.auth_failures,
    )
