"""The series that the history of metrics has: their names, units and labels, and how a snapshot
becomes one value of each.

A name is that of a series of the whole broker (`published_messages`), or of one topic, group or
queue: `topic.NAME.messages`. Rates come from counters of two snapshots, over the time that the
broker itself has measured: a wall clock may jump.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from fanlog.telemetry.histograms import HistogramData
from fanlog.telemetry.snapshot import OTHERS, NamedMetrics, Snapshot

SeriesUnit = Literal[
    "messages/s", "jobs/s", "times/s", "bytes/s", "bytes", "seconds", "share", "count"
]
SeriesOwner = Literal["topic", "group", "queue"]


class SeriesKind(msgspec.Struct, frozen=True):
    """What a series is. Where several values become one it is their average, or with `highest`
    the highest of them."""

    unit: SeriesUnit
    label: str
    highest: bool = False


class Name(NamedTuple):
    """The parts of a series' name. Those of the broker have no `owner`."""

    owner: SeriesOwner | None
    of: str
    field: str


BROKER: dict[str, SeriesKind] = {
    "published_messages": SeriesKind("messages/s", "Published messages"),
    "published_bytes": SeriesKind("bytes/s", "Published bytes"),
    "delivered_messages": SeriesKind("messages/s", "Delivered messages"),
    "delivered_bytes": SeriesKind("bytes/s", "Delivered bytes"),
    "fetched_bytes": SeriesKind("bytes/s", "Fetched bytes"),
    "delivered_jobs": SeriesKind("jobs/s", "Delivered jobs"),
    "redelivered_jobs": SeriesKind("jobs/s", "Redelivered jobs"),
    "dead_letters": SeriesKind("jobs/s", "New dead letters"),
    "rebalances": SeriesKind("times/s", "Rebalances"),
    "missed_messages": SeriesKind("messages/s", "Missed messages"),
    "slow_readers": SeriesKind("times/s", "Readers that fell behind"),
    "denied": SeriesKind("times/s", "Denied requests"),
    "limited": SeriesKind("times/s", "Rate-limited"),
    "auth_failures": SeriesKind("times/s", "Failed logins"),
    "accepted_connections": SeriesKind("times/s", "New connections"),
    "refused_connections": SeriesKind("times/s", "Refused connections"),
    "cpu": SeriesKind("share", "CPU"),
    "connections": SeriesKind("count", "Connections"),
    "subscriptions": SeriesKind("count", "Subscriptions"),
    "topics": SeriesKind("count", "Topics"),
    "partitions": SeriesKind("count", "Partitions"),
    "groups": SeriesKind("count", "Groups"),
    "queues": SeriesKind("count", "Queues"),
    "group_lag": SeriesKind("count", "Lag of groups"),
    "queue_lag": SeriesKind("count", "Lag of queues"),
    "delayed_messages": SeriesKind("count", "Delayed messages"),
    "readers_behind": SeriesKind("count", "Readers behind"),
    "tail_bytes": SeriesKind("bytes", "Tails in memory"),
    "pending_bytes": SeriesKind("bytes", "Waiting for the disk"),
    "resident_bytes": SeriesKind("bytes", "Memory"),
    "disk_free_bytes": SeriesKind("bytes", "Free disk space"),
    "open_files": SeriesKind("count", "Open files"),
    "threads": SeriesKind("count", "Threads"),
    "loop_delay_p50": SeriesKind("seconds", "Loop delay, half of the time"),
    "loop_delay_p99": SeriesKind("seconds", "Loop delay, 99 %", highest=True),
    "turn_p99": SeriesKind("seconds", "Turn, 99 %", highest=True),
    "sync_p99": SeriesKind("seconds", "Disk sync, 99 %", highest=True),
}
OWNED: dict[SeriesOwner, dict[str, SeriesKind]] = {
    "topic": {
        "messages": SeriesKind("messages/s", "Messages"),
        "bytes": SeriesKind("bytes/s", "Bytes"),
        "readers": SeriesKind("count", "Readers"),
        "stored_bytes": SeriesKind("bytes", "Stored bytes"),
    },
    "group": {"lag": SeriesKind("count", "Lag"), "members": SeriesKind("count", "Members")},
    "queue": {
        "lag": SeriesKind("count", "Lag"),
        "in_flight": SeriesKind("count", "In flight"),
        "dead_letters": SeriesKind("jobs/s", "New dead letters"),
    },
}


def maybe_parse(name: str) -> tuple[Name, SeriesKind] | None:
    """The parts of a name, if it is one. Names of topics have dots too."""
    if (kind := BROKER.get(name)) is not None:
        return Name(None, "", name), kind
    owner, _, rest = name.partition(".")
    of, _, field = rest.rpartition(".")
    for known, kinds in OWNED.items():
        if owner == known and of and (kind := kinds.get(field)) is not None:
            return Name(known, of, field), kind
    return None


class Sampler:
    """Makes values out of snapshots. It keeps the last one, to count what came since."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self._counters: dict[str, float] = {}
        self._scanned = _OfNames()
        self._watched = _OfNames()

    def values(self, snapshot: Snapshot, watched: NamedMetrics | None = None) -> dict[str, float]:
        """One value of each series. What can't be known yet is left out. `watched` are topics,
        groups and queues that the snapshot may not name, as they are now."""
        found = self._rates(snapshot) | _levels(snapshot) | self._quantiles(snapshot)
        self._before = snapshot
        scanned = snapshot.uptime_seconds - snapshot.scan_age_seconds
        named = NamedMetrics(topics=snapshot.topics, groups=snapshot.groups, queues=snapshot.queues)
        of_names = self._scanned.values(named, scanned)
        if watched is not None:
            of_names = self._watched.values(watched, snapshot.uptime_seconds) | of_names
        return found | of_names

    def _rates(self, snapshot: Snapshot) -> dict[str, float]:
        before, then = self._counters, self._before
        now = self._counters = _counters(snapshot)
        elapsed = 0.0 if then is None else snapshot.uptime_seconds - then.uptime_seconds
        if elapsed <= 0:
            return {}
        return {name: max(0.0, value - before[name]) / elapsed for name, value in now.items()}

    def _quantiles(self, snapshot: Snapshot) -> dict[str, float]:
        if (before := self._before) is None:
            return {}
        now, then = snapshot.times, before.times
        found: dict[str, float] = {}
        for name, newer, older, shares in (
            ("loop_delay", now.loop_delay_us, then.loop_delay_us, (50, 99)),
            ("turn", now.turn_us, then.turn_us, (99,)),
            ("sync", now.sync_us, then.sync_us, (99,)),
        ):
            since: HistogramData = newer.since(older)
            if since.count:
                found |= {f"{name}_p{share}": since.quantile(share / 100) / 1e6 for share in shares}
        return found


class _OfNames:
    """The values of topics, groups and queues."""

    def __init__(self) -> None:
        self._when = -1.0
        self._counted: dict[str, tuple[int, ...]] = {}
        self._values: dict[str, float] = {}

    def values(self, named: NamedMetrics, when: float) -> dict[str, float]:
        """`when` they were read, by a clock that does not jump."""
        # Between two scans they are the same.
        if abs(when - self._when) < 1e-3:
            return self._values
        elapsed = when - self._when if 0 <= self._when < when else 0.0
        self._when = when
        before, now = self._counted, dict[str, tuple[int, ...]]()
        found: dict[str, float] = {}
        for topic in named.topics:
            if topic.name != OTHERS:
                key = f"topic.{topic.name}"
                counts = now[key] = topic.published_messages, topic.published_bytes
                counted = _growth(before.get(key), counts, elapsed)
                known = topic.messages_per_second, topic.bytes_per_second
                found[f"{key}.messages"], found[f"{key}.bytes"] = counted or known
                found[f"{key}.readers"] = topic.readers
                found[f"{key}.stored_bytes"] = topic.stored_bytes
        for group in named.groups:
            if group.name != OTHERS:
                found[f"group.{group.name}.lag"] = group.lag
                found[f"group.{group.name}.members"] = group.members
        for queue in named.queues:
            if queue.name != OTHERS:
                key = f"queue.{queue.name}"
                counts = now[key] = (queue.dead_lettered,)
                found[f"{key}.lag"] = queue.lag
                found[f"{key}.in_flight"] = queue.in_flight
                if (dead := _growth(before.get(key), counts, elapsed)) is not None:
                    found[f"{key}.dead_letters"] = dead[0]
        self._counted, self._values = now, found
        return found


def _growth(
    before: tuple[int, ...] | None, now: tuple[int, ...], elapsed: float
) -> tuple[float, ...] | None:
    """What was counted per second, if the same was there before."""
    if before is None or not elapsed or now[0] < before[0]:
        return None
    return tuple(max(0, b - a) / elapsed for a, b in zip(before, now, strict=True))


def _counters(snapshot: Snapshot) -> dict[str, float]:
    totals, listeners = snapshot.totals, snapshot.listeners
    return {
        "published_messages": totals.published_messages,
        "published_bytes": totals.published_bytes,
        "delivered_messages": totals.delivered_messages,
        "delivered_bytes": totals.delivered_bytes,
        "fetched_bytes": totals.fetched_bytes,
        "delivered_jobs": totals.delivered_jobs,
        "redelivered_jobs": totals.redelivered_jobs,
        "dead_letters": totals.dead_letters,
        "rebalances": totals.rebalances,
        "missed_messages": sum(totals.missed.values()),
        "slow_readers": sum(totals.slow_readers.values()),
        "denied": sum(totals.denied.values()),
        "limited": sum(totals.limited.values()),
        "auth_failures": sum(one.auth_failures for one in listeners),
        "accepted_connections": sum(one.accepted for one in listeners),
        "refused_connections": sum(one.refused for one in listeners),
        "cpu": snapshot.process.cpu_seconds,
    }


def _levels(snapshot: Snapshot) -> dict[str, float]:
    levels, process = snapshot.levels, snapshot.process
    found = {
        "connections": levels.connections,
        "subscriptions": levels.subscriptions,
        "topics": levels.topics,
        "partitions": levels.partitions,
        "groups": levels.groups,
        "queues": levels.queues,
        "group_lag": levels.group_lag,
        "queue_lag": levels.queue_lag,
        "delayed_messages": levels.delayed_messages,
        "readers_behind": levels.readers_behind,
        "tail_bytes": levels.tail_bytes,
        "pending_bytes": levels.pending_bytes,
        "resident_bytes": process.resident_bytes,
        "open_files": process.open_files,
        "threads": process.threads,
    }
    if process.disk_total_bytes:
        found["disk_free_bytes"] = process.disk_free_bytes
    return dict[str, float](found)
