"""The broker at a glance: health, rates, and what needs attention. It is computed at most once in
two seconds, for all callers. Each caller sees only what its permissions allow."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import FanlogError, ForbiddenError, NotSupportedError
from fanlog.format.dead_letters import TOPIC_PREFIX as DEAD_LETTER_PREFIX
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.telemetry.findings import Severity
from fanlog.telemetry.recent import Latencies, Rates, RecentHistory
from fanlog.telemetry.snapshot import (
    OTHERS,
    GroupMetrics,
    QueueMetrics,
    ReaderMetrics,
    TopicMetrics,
)

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.insight.overviews import Overview
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.listeners.web.listener_port import WebPort
    from fanlog.telemetry.findings import Finding

# Of each list in the overview.
_LISTED_MAX = 10
# Records of a dead-letter topic that are read to count its dead letters exactly.
_COUNTED_MAX = 20_000
# And of all of them: what is known about each record takes memory.
_COUNTED_IN_ALL_MAX = 1_000_000
# An overview waits so long for that; meanwhile they are counted on.
_COUNTING_SECONDS = 0.5
_QUEUES_MAX = 1000
# Findings for which the broker says that it is not well.
_REASONS = frozenset(
    [
        "draining",
        "disk_full",
        "damage",
        "certificate",
        "schedule_late",
        "log_failed",
        "log_damaged",
        "log_unreadable",
    ]
)


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that needs attention."""

    kind: Annotated[
        str,
        Meta(
            description="What it is: a stable word, such as lag_growing, no_member, no_worker, "
            "dead_letters, dead_letters_new, missed, log_failed, log_damaged, damage, disk_full, "
            "disk_filling, disk_low, files, loop_delay, slow_reader, readers_evicted, "
            "auth_failures, lockout, transaction_old, certificate, pipeline_failed or memory_only."
        ),
    ]
    severity: Severity
    text: Annotated[str, Meta(description="A sentence for people.")]
    link: Annotated[
        str,
        Meta(
            description="The kind of page where you can fix it: topic, group, queue, dead-"
            "letters, dead-letters-of (the dead letters of a queue), disk, clients,"
            " settings, metrics, transactions, schedules, pipelines, audit or "
            "cluster."
        ),
    ]
    about: Annotated[
        str, Meta(description="The name that the page shows, such as a topic; empty: none.")
    ] = ""
    target: Annotated[
        str, Meta(description="The dead-letter topic of the queue, for dead-letters-of.")
    ] = ""


class OverviewProcess(msgspec.Struct, frozen=True, kw_only=True):
    """What the process uses. 0 where the system does not say."""

    cpu: Annotated[float, Meta(description="In cores: 1.0 is one core.")]
    resident_bytes: int
    threads: int
    open_files: int
    open_files_max: int
    disk_free_bytes: int
    disk_total_bytes: int
    disk_full_seconds: Annotated[
        float | None,
        Meta(
            description="Seconds until the disk is full at the current rate. null: it is not "
            "filling, or was not watched for long enough."
        ),
    ]


class OverviewCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is. `dead_letters` is null if nobody has counted them yet."""

    topics: int
    partitions: int
    groups: int
    queues: int
    connections: int
    subscriptions: int
    readers_behind: int
    group_lag: int
    queue_lag: int
    delayed_messages: int
    schedules: int
    transactions: int
    dead_letters: int | None


class OverviewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The broker at a glance. It names only the most important topics, groups, queues and readers:
    the busiest `topics`, and the others that lag most."""

    time: Annotated[float, Meta(description="Seconds since 1970.")]
    state: Annotated[str, Meta(description="ok, degraded, failing or draining.")]
    reasons: Annotated[list[str], Meta(description="Why the state is not ok.")]
    ready: bool
    release: str
    uptime_seconds: float
    in_memory: Annotated[bool, Meta(description="True if nothing is stored on disk.")]
    rates: Rates
    latency: Latencies
    process: OverviewProcess
    counts: OverviewCounts
    history: RecentHistory
    topics: list[TopicMetrics]
    groups: list[GroupMetrics]
    queues: list[QueueMetrics]
    readers: Annotated[
        list[ReaderMetrics] | None, Meta(description="null if you may not see connections.")
    ]
    attention: Annotated[list[Attention], Meta(description="The most urgent first.")]


async def show_overview(call: Call[Nothing, None]) -> OverviewAnswer:
    overviews = call.broker.overviews
    if overviews.dead_letter_counts is None:
        overviews.dead_letter_counts = partial(_count_dead_letters, call.listener)
    return _seen_by(call.permit, await overviews.look())


async def _count_dead_letters(listener: WebPort) -> list[tuple[str, int]]:
    """Dead letters by topic. Those of large topics are not read for this: the number of their
    records is never too small."""
    broker, indexes = listener.bus.core, listener.dead_letters
    found: list[tuple[str, int]] = []
    until = asyncio.get_running_loop().time() + _COUNTING_SECONDS
    room = _COUNTED_IN_ALL_MAX
    for topic in _dead_letter_topics(broker):
        if 0 < (about := indexes.about(topic)) <= min(room, _COUNTED_MAX):
            room -= about
            left = max(0.0, until - asyncio.get_running_loop().time())
            # One that is deleted meanwhile has none.
            with suppress(FanlogError):
                await indexes.of(topic).ready(left)
        if not topic.deleted:
            found.append((topic.name, indexes.about(topic)))
    return found


def _dead_letter_topics(broker: BrokerCore) -> list[BrokerTopic]:
    """The dead-letter topics that the broker made, and those that queues use."""
    page, _ = broker.catalog.page(f"{DEAD_LETTER_PREFIX}>", "", internal=False)
    found = {topic.name: topic for topic in page if topic.settings.role == "dead-letter"}
    for queue in islice(broker.queues.every(), _QUEUES_MAX):
        name = queue.settings.dead_letter
        topic = broker.catalog.find(name) if name else None
        if topic is not None:
            found[name] = topic
    return list(found.values())


def _seen_by(permit: Permit, found: Overview) -> OverviewAnswer:
    """What somebody may see of it."""
    snapshot, admin = found.snapshot, permit.may(Verb.ADMIN, "")
    findings = [one for one in found.findings if _may_see(permit, one, admin=admin)]
    return OverviewAnswer(
        time=snapshot.time,
        state=snapshot.state,
        reasons=[one.text for one in findings if one.kind in _REASONS],
        ready=snapshot.ready,
        release=snapshot.release,
        uptime_seconds=snapshot.uptime_seconds,
        in_memory=found.in_memory,
        rates=found.rates,
        latency=found.latencies,
        process=_process(found),
        counts=_counts(found),
        history=found.history,
        topics=[
            one
            for one in snapshot.topics
            if one.name != OTHERS and permit.may(Verb.DESCRIBE, one.name)
        ][:_LISTED_MAX],
        groups=[
            one
            for one in snapshot.groups
            if one.name != OTHERS and permit.may_see(Verb.GROUP, one.name)
        ][:_LISTED_MAX],
        queues=[
            one
            for one in snapshot.queues
            if one.name != OTHERS and permit.may_see(Verb.QUEUE, one.name)
        ][:_LISTED_MAX],
        readers=list(snapshot.readers[:_LISTED_MAX]) if admin else None,
        attention=[_attention(permit, one) for one in findings],
    )


def _attention(permit: Permit, one: Finding) -> Attention:
    named = not one.target or permit.may(Verb.DESCRIBE, one.target)
    return Attention(
        kind=one.kind,
        severity=one.severity,
        text=one.text if named else one.text_without_target,
        link=one.link,
        about=one.about,
        target=one.target if named else "",
    )


def _may_see(permit: Permit, finding: Finding, *, admin: bool) -> bool:
    if finding.admin:
        return admin
    match finding.link:
        case "topic" | "dead-letters":
            return permit.may(Verb.DESCRIBE, finding.about)
        case "group" | "pipelines":
            return permit.may_see(Verb.GROUP, finding.about)
        case "queue" | "dead-letters-of":
            return permit.may_see(Verb.QUEUE, finding.about)
        case _:
            return True


def _process(found: Overview) -> OverviewProcess:
    process = found.snapshot.process
    return OverviewProcess(
        cpu=found.rates.cpu,
        resident_bytes=process.resident_bytes,
        threads=process.threads,
        open_files=process.open_files,
        open_files_max=process.open_files_max,
        disk_free_bytes=process.disk_free_bytes,
        disk_total_bytes=process.disk_total_bytes,
        disk_full_seconds=found.disk_full_seconds,
    )


def _counts(found: Overview) -> OverviewCounts:
    levels = found.snapshot.levels
    return OverviewCounts(
        topics=levels.topics,
        partitions=levels.partitions,
        groups=levels.groups,
        queues=levels.queues,
        connections=levels.connections,
        subscriptions=levels.subscriptions,
        readers_behind=levels.readers_behind,
        group_lag=levels.group_lag,
        queue_lag=levels.queue_lag,
        delayed_messages=levels.delayed_messages,
        schedules=found.schedules,
        transactions=found.transactions,
        dead_letters=found.dead_letters,
    )


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/overview",
        show_overview,
        "Show the broker at a glance, and what needs attention",
        "status",
        verb=Verb.DESCRIBE,
        description="Health with its reasons, rates of the last ten seconds, latencies of the "
        "last minute, use of the process, the busiest topics, the groups and queues"
        " that lag most, and what needs attention. It is at most two seconds old. "
        "With very many topics and groups, their figures may be older. Names that "
        "you may not see are left out.",
        answer=OverviewAnswer,
        errors=(ForbiddenError, NotSupportedError),
    ),
]
