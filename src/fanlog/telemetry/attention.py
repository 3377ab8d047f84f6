"""Findings that need attention, from a snapshot, the last minutes, and other facts of the broker.
Pure functions.

Each finding has a stable `kind`, a severity, one sentence, and the page to fix it: its kind, and
the name of the object. Findings about a topic, a group or a queue are shown only to users who may
see it; `admin` findings only to operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fanlog.telemetry.findings import (
    BrokerFacts,
    Finding,
    Severity,
    bytes_text,
    duration_text,
    rate_text,
)
from fanlog.telemetry.recent import RECENT_SECONDS, Recent
from fanlog.telemetry.snapshot import OTHERS, Snapshot
from fanlog.telemetry.trends import TrendSeries, growth, maybe_seconds_left, rise

# Lag that rises for this long is more than a busy moment.
GROWING_SECONDS = 60.0
_LAG_MIN = 10
# A group without members is reported after this: a restart of its consumer is shorter.
DESERTED_SECONDS = 10.0
_AUTH_FAILURES_MIN = 5
# After a start the loop is busy with the start itself.
_LOOP_WATCHED_SECONDS = 60.0
# The trend of a disk is known after this time; more than a week ahead is not reported.
_DISK_WATCHED_SECONDS = 300.0
_DISK_SOON_SECONDS = 7 * 86_400.0
_DISK_URGENT_SECONDS = 86_400.0
_DISK_SHARE_MIN = 0.1
_DISK_SHARE_URGENT = 0.03
_FILES_SHARE_MAX = 0.8
_FILES_SHARE_URGENT = 0.95
# An upper bound of a bucket: the value is at most that, and at least half of it.
_LOOP_DELAY_US = 250_000
_LOOP_DELAY_URGENT_US = 1_000_000
_CPU_MAX = 0.95
# A reader this far behind costs others nothing, but deserves attention.
_BEHIND_BYTES = 16 << 20
_TRANSACTION_SECONDS = 300.0
# Names shown for one kind.
_NAMED_MAX = 10
FINDINGS_MAX = 100

_MISSED = {
    "skipped": "were skipped for readers that were too slow (policy skip)",
    "retention": "were deleted by retention before their readers got them",
}

_ORDER = {Severity.BAD: 0, Severity.WARN: 1, Severity.INFO: 2}

Found = Iterator[Finding]


def find(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> list[Finding]:
    """All findings, the most urgent first."""
    found: list[Finding] = []
    for look in _LOOKS:
        found += list(look(snapshot, recent, facts))
    found.sort(key=lambda one: _ORDER[one.severity])
    return found[:FINDINGS_MAX]


def _state(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    if snapshot.state == "draining":
        text = "The broker is draining: it is about to stop, and takes no new clients."
        yield Finding(kind="draining", severity=Severity.WARN, text=text, link="cluster")
    for trouble in facts.troubles:
        severity = Severity.WARN if trouble.kind == "unreadable" else Severity.BAD
        yield Finding(
            kind=f"log_{trouble.kind}",
            severity=severity,
            text=trouble.text,
            link="topic",
            about=trouble.topic,
        )
    for problem in facts.problems:
        yield Finding(kind="damage", severity=Severity.BAD, text=problem, link="cluster")
    for problem in facts.late:
        yield Finding(kind="schedule_late", severity=Severity.WARN, text=problem, link="schedules")
    if facts.certificate:
        severity = Severity.BAD if "has expired" in facts.certificate else Severity.WARN
        yield Finding(
            kind="certificate", severity=severity, text=facts.certificate, link="settings"
        )
    if facts.in_memory and snapshot.levels.topics and snapshot.role == "broker":
        text = (
            "This broker keeps everything in memory: a restart loses all messages. To keep them, "
            "start it with a data folder: fanlog serve --data FOLDER."
        )
        yield Finding(kind="memory_only", severity=Severity.INFO, text=text, link="settings")


# Lag


def _lag(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    now = snapshot.uptime_seconds

    def deserted(name: str) -> bool:
        # A program that moves the group as it reads needs no member.
        since = recent.deserted_groups.get(name, now)
        return now - since >= DESERTED_SECONDS and name not in facts.committers

    def idle(name: str) -> bool:
        return now - recent.deserted_queues.get(name, now) >= DESERTED_SECONDS

    groups = ((group.name, group.lag, group.members) for group in snapshot.groups if group.lag)
    yield from _lagging("group", groups, recent.group_lag.maybe, deserted)
    queues = ((queue.name, queue.lag, queue.workers) for queue in snapshot.queues if queue.lag)
    yield from _lagging("queue", queues, recent.queue_lag.maybe, idle)


def _lagging(
    what: str,
    named: Iterable[tuple[str, int, int]],
    series_of: Callable[[str], TrendSeries[int] | None],
    deserted: Callable[[str], bool],
) -> Found:
    """Groups that fall behind or have no members, the furthest behind first."""
    count = 0
    for name, lag, members in named:
        if name == OTHERS or count >= _NAMED_MAX:
            continue
        series = series_of(name)
        rising = rise(series) if series is not None else None
        if not members and deserted(name):
            count += 1
            yield _deserted(what, name, lag, grows=rising is not None and rising.seconds > 0)
        elif rising is not None and rising.seconds >= GROWING_SECONDS and lag >= _LAG_MIN:
            count += 1
            unit = "messages" if what == "group" else "jobs"
            text = (
                f"The {what} {name} falls behind: {lag:,} {unit} wait, and the lag has grown for "
                f"{duration_text(rising.seconds)} by about {rate_text(rising.per_second)}. It "
                f"needs more {'members' if what == 'group' else 'workers'}, or faster ones."
            )
            yield Finding(
                kind="lag_growing", severity=Severity.WARN, text=text, link=what, about=name
            )


def _deserted(what: str, name: str, lag: int, *, grows: bool) -> Finding:
    who, unit = ("member", "messages") if what == "group" else ("worker", "jobs")
    more = ", and more arrive" if grows else ""
    text = f"The {what} {name} has no {who}, while {lag:,} {unit} wait{more}."
    severity = Severity.WARN if grows or what == "queue" else Severity.INFO
    return Finding(kind=f"no_{who}", severity=severity, text=text, link=what, about=name)


# Jobs and messages that are lost


def _dead(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    letters = dict(facts.dead_letters or ())
    named: set[str] = set()
    count, most = 0, _new(recent, "dead_letters")
    for queue in snapshot.queues:
        series = recent.dead_lettered.maybe(queue.name)
        new = 0 if series is None else min(most, growth(series, RECENT_SECONDS))
        target = facts.dead_letter_topics.get(queue.name, "")
        # Dead letters that were replayed or deleted since need no attention.
        over = bool(target) and facts.dead_letters is not None and not letters.get(target)
        if not new or over or count >= _NAMED_MAX:
            continue
        count += 1
        waiting = letters.get(target, 0)
        named.add(target)
        text = (
            f"{_jobs(new)} of the queue {queue.name} failed for good in the last 15 minutes. "
            "Look at why, fix it, and replay them."
        )
        waits = f" {_letters(waiting)} in {target}." if waiting else ""
        yield Finding(
            kind="dead_letters_new",
            severity=Severity.WARN,
            text=text + waits,
            link="dead-letters-of",
            about=queue.name,
            target=target,
            text_without_target=text,
        )
    for topic, waiting in list(letters.items())[:_NAMED_MAX]:
        if topic not in named:
            yield Finding(
                kind="dead_letters",
                severity=Severity.INFO,
                text=f"{_letters(waiting)} in {topic}: replay or delete them.",
                link="dead-letters",
                about=topic,
            )


def _letters(count: int) -> str:
    return "1 dead letter waits" if count == 1 else f"{count:,} dead letters wait"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _missed(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    # A topic that is listed again must not bring old misses.
    most = sum(_new(recent, name) for name in recent.counters if name.startswith("missed."))
    count = 0
    for topic in snapshot.topics:
        series = recent.missed.maybe(topic.name)
        new = 0 if series is None else min(most, growth(series, RECENT_SECONDS))
        if new and count < _NAMED_MAX:
            count += 1
            text = f"Readers of {topic.name} missed {new:,} messages in the last 15 minutes."
            yield Finding(
                kind="missed", severity=Severity.WARN, text=text, link="topic", about=topic.name
            )
    if count:
        return
    for name, series in recent.counters.items():
        reason = name.removeprefix("missed.")
        new = growth(series, RECENT_SECONDS) if reason != name else 0
        if new:
            what = _MISSED.get(reason, f"were missed by readers ({reason})")
            text = f"{new:,} messages {what} in the last 15 minutes."
            yield Finding(kind="missed", severity=Severity.WARN, text=text, link="metrics")


def _readers(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    evicted = _new(recent, "slow.disconnect")
    if evicted:
        text = (
            f"{evicted:,} slow readers were disconnected in the last 15 minutes, as they had "
            "chosen (policy disconnect)."
        )
        yield Finding(
            kind="readers_evicted", severity=Severity.WARN, text=text, link="clients", admin=True
        )
    far = [reader for reader in snapshot.readers if reader.bytes >= _BEHIND_BYTES]
    for reader in far[:3]:
        who = reader.user or reader.client or reader.connection
        text = (
            f"The reader {who} of {reader.target} is {bytes_text(reader.bytes)} behind "
            f"({reader.messages:,} messages)."
        )
        yield Finding(
            kind="slow_reader",
            severity=Severity.WARN,
            text=text,
            link="clients",
            about=reader.connection,
            admin=True,
        )


# The machine


def _disk(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    process = snapshot.process
    if facts.disk_full:
        text = (
            "The disk is full: the broker refuses to publish. Free space, add retention, or "
            "delete topics; publishing resumes by itself."
        )
        yield Finding(kind="disk_full", severity=Severity.BAD, text=text, link="disk")
        return
    if not process.disk_total_bytes:
        return
    share = process.disk_free_bytes / process.disk_total_bytes
    left = seconds_until_full(recent)
    if left is not None and left < _DISK_SOON_SECONDS:
        severity = Severity.BAD if left < _DISK_URGENT_SECONDS else Severity.WARN
        text = (
            f"At this rate the disk will be full in about {duration_text(left)}: "
            f"{bytes_text(process.disk_free_bytes)} are free. Shorten the retention of large "
            "topics, or give the broker a larger disk."
        )
        yield Finding(kind="disk_filling", severity=severity, text=text, link="disk")
    elif share < _DISK_SHARE_MIN:
        severity = Severity.BAD if share < _DISK_SHARE_URGENT else Severity.WARN
        text = (
            f"Only {share:.0%} of the disk is free ({bytes_text(process.disk_free_bytes)}). "
            "Shorten the retention of large topics, or give the broker a larger disk."
        )
        yield Finding(kind="disk_low", severity=severity, text=text, link="disk")


def seconds_until_full(recent: Recent) -> float | None:
    """When the disk will be full at this rate; None if it does not fill, or it is unknown."""
    return maybe_seconds_left(recent.disk_free, _DISK_WATCHED_SECONDS)


def _process(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    process = snapshot.process
    if process.open_files_max:
        share = process.open_files / process.open_files_max
        if share >= _FILES_SHARE_MAX:
            text = (
                f"{process.open_files:,} of {process.open_files_max:,} file descriptors are in "
                "use. Raise the limit (ulimit -n, or LimitNOFILE), or lower "
                "listener.connections_max."
            )
            severity = Severity.BAD if share >= _FILES_SHARE_URGENT else Severity.WARN
            yield Finding(kind="files", severity=severity, text=text, link="settings")
    delay_us = recent.latencies().loop_delay.p99_us
    if delay_us >= _LOOP_DELAY_US and snapshot.uptime_seconds >= _LOOP_WATCHED_SECONDS:
        severity = Severity.BAD if delay_us >= _LOOP_DELAY_URGENT_US else Severity.WARN
        text = (
            f"Clients wait: the event loop was up to {delay_us / 1000:,.0f} ms late in the last "
            "minute. The processor may be too busy, or the machine too small."
        )
        yield Finding(kind="loop_delay", severity=severity, text=text, link="metrics")
    cpu = recent.rates().cpu
    if cpu >= _CPU_MAX:
        text = f"The broker uses {cpu:.0%} of a core, and its event loop can use only one."
        yield Finding(kind="cpu", severity=Severity.INFO, text=text, link="metrics")


# People and programs


def _security(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    failures = _new(recent, "auth_failures")
    if failures >= _AUTH_FAILURES_MIN:
        text = f"{failures:,} logins failed in the last 15 minutes. The audit log says from where."
        yield Finding(
            kind="auth_failures", severity=Severity.WARN, text=text, link="audit", admin=True
        )
    locked = _new(recent, "lockouts")
    if locked:
        text = (
            f"{locked:,} logins were turned away in the last 15 minutes, because too many before "
            "them were wrong."
        )
        yield Finding(kind="lockout", severity=Severity.WARN, text=text, link="audit", admin=True)
    limited = _new(recent, "limited")
    if limited:
        text = f"Limits slowed or refused clients {limited:,} times in the last 15 minutes."
        yield Finding(
            kind="limited", severity=Severity.INFO, text=text, link="settings", admin=True
        )
    denied = _new(recent, "denied")
    if denied:
        text = (
            f"{denied:,} requests were refused in the last 15 minutes, because their user lacks "
            "the permission."
        )
        yield Finding(kind="denied", severity=Severity.INFO, text=text, link="audit", admin=True)


def _work(snapshot: Snapshot, recent: Recent, facts: BrokerFacts) -> Found:
    old = [one for one in facts.transactions if one.age_seconds >= _TRANSACTION_SECONDS]
    if old:
        word = "transaction has" if len(old) == 1 else "transactions have"
        text = (
            f"{len(old):,} {word} been open for more than 5 minutes, the oldest for "
            f"{duration_text(old[0].age_seconds)}."
        )
        yield Finding(
            kind="transaction_old",
            severity=Severity.WARN,
            text=text,
            link="transactions",
            admin=True,
        )
    for name, why in facts.failed_pipelines[:_NAMED_MAX]:
        short = name.removeprefix("pipeline.")
        text = f"The last run of the pipeline {short} failed" + (f": {why}" if why else ".")
        yield Finding(
            kind="pipeline_failed",
            severity=Severity.WARN,
            text=text,
            link="pipelines",
            about=name,
        )


def _new(recent: Recent, counter: str) -> int:
    series = recent.counters.get(counter)
    return 0 if series is None else growth(series, RECENT_SECONDS)


_LOOKS = (_state, _disk, _missed, _dead, _lag, _readers, _process, _security, _work)
