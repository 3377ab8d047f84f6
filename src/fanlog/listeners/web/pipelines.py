"""Pipelines over REST: Spark queries that commit their progress to a group, and how the last runs
of pipelines went. This needs no Spark: the runs report their progress to the broker."""

from __future__ import annotations

import datetime as dt
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fanlog.broker.insight.metric_scan import lag_of
from fanlog.errors import ForbiddenError, InvalidArgumentError, NotSupportedError
from fanlog.format.pipelines import PipelineStream, RunState
from fanlog.identity import Verb
from fanlog.listeners.web.delayed import moment
from fanlog.listeners.web.routes import Call, Route
from fanlog.model import GROUP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Generator

    from fanlog.broker.broker_core import BrokerCore
    from fanlog.format.messages import Position
    from fanlog.format.pipelines import PipelineRun

# A group of this prefix belongs to a pipeline, whether its query has moved it since the start.
_PREFIX = "pipeline."
# How many such groups are searched for among the committed ones.
_GROUPS_MAX = 200
_TOPICS_MAX = 20
# Partitions whose lag one step computes.
_A_STEP = 64
# A run that reported itself as running, and has reported nothing for this time, may have been
# killed.
_SILENT_SECONDS = 120.0


class PipelinesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which queries and runs."""

    name: Annotated[
        str,
        Meta(max_length=255, description="Only queries and runs with this name."),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of runs in the answer.")
    ] = 50


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A query that commits how far it is, to a group. What it has done is counted since the broker
    started; `last_batch` is null until its first batch after that."""

    group: str
    topics: Annotated[list[str], Meta(description="At most 20 of the topics that you may see.")]
    partitions: int
    lag: Annotated[int, Meta(description="Messages that are stored but not read yet.")]
    state: Annotated[
        str,
        Meta(
            description="running: it stored offsets in the last ten minutes. idle: it did not, "
            "or its last run has ended."
        ),
    ]
    last_batch: dt.datetime | None
    last_batch_records: int
    batches: int
    records: int
    per_second: Annotated[float, Meta(description="Records per second, over the last minutes.")]
    user: Annotated[str, Meta(description="The user who runs it. Only admins see it.")] = ""


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a pipeline, as reported by the program that ran it. `records` is null if they were
    not counted."""

    name: str
    pipeline: str
    state: Annotated[
        RunState | str,
        Meta(description="running, done, stopped, failed, or silent: it may have been killed."),
    ]
    started: dt.datetime
    ended: dt.datetime | None
    seconds: float
    records: int | None
    streams: tuple[PipelineStream, ...]
    options: dict[str, str]
    summary: str
    why: str
    report: Annotated[str, Meta(description="The path of its report on the host that ran it.")]
    host: Annotated[str, Meta(description="Only admins see it.")] = ""
    exit_code: int | None = None


class PipelinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Queries, the one that moved last first, and runs, the last to begin first. `runs_total`
    counts all runs that you may see."""

    queries: list[QueryAnswer]
    runs: list[RunAnswer]
    runs_total: int


async def show_pipelines(call: Call[PipelinesQuery, None]) -> PipelinesAnswer:
    broker, permit, wanted = call.broker, call.permit, call.query.name
    admin = permit.may(Verb.ADMIN, "")
    queries: list[QueryAnswer] = []
    progress = {one.group: one for one in broker.pipelines.progress()}
    at_work = broker.pipelines.committers()
    # A run that is over says so at once.
    over = {run.name for run in broker.pipelines.last_runs().values() if run.state != "running"}
    names = [*progress, *(name for name in _groups(broker) if name not in progress)]
    async for name in broker.slices.each(names):
        if (wanted and name != wanted) or not permit.may_see(Verb.GROUP, name):
            continue
        committed = broker.durable.committed(GROUP_PREFIX + name)
        lag = await broker.slices.result(_lag(broker, committed))
        topics = [t for t in sorted({p.topic for p in committed}) if permit.may(Verb.DESCRIBE, t)]
        known = progress.get(name)
        idle = 0.0 if known is None else known.idle_seconds
        queries.append(
            QueryAnswer(
                group=name,
                topics=topics[:_TOPICS_MAX],
                partitions=len(committed),
                lag=lag,
                state="running" if name in at_work and name not in over else "idle",
                last_batch=None if known is None else moment(broker.now_us() - int(idle * 1e6)),
                last_batch_records=0 if known is None else known.last_batch_records,
                batches=0 if known is None else known.batches,
                records=0 if known is None else known.records,
                per_second=0.0 if known is None else round(known.per_second, 3),
                user=known.user if known is not None and admin else "",
            )
        )
    runs = [
        run
        for run in broker.pipelines.runs()
        if (not wanted or run.name == wanted) and permit.may_see(Verb.GROUP, run.name)
    ]
    now_us = broker.now_us()
    return PipelinesAnswer(
        queries=queries,
        runs=[
            _run(run, broker.pipelines.reported_seconds_ago(run), now_us, admin=admin)
            for run in runs[: call.query.limit]
        ],
        runs_total=len(runs),
    )


def _groups(broker: BrokerCore) -> list[str]:
    """Groups of pipelines that have committed, also before this start."""
    first = GROUP_PREFIX + _PREFIX
    found: list[str] = []
    for name in islice(broker.durable.names_since(first), _GROUPS_MAX):
        if not name.startswith(first):
            break
        found.append(name.removeprefix(GROUP_PREFIX))
    return found


def _lag(broker: BrokerCore, committed: list[Position]) -> Generator[None, None, int]:
    lag = 0
    for i, position in enumerate(committed):
        if i and not i % _A_STEP:
            yield
        lag += lag_of(broker, position.topic, position.partition, position)
    return lag


def _run(run: PipelineRun, silent_seconds: float, now_us: int, *, admin: bool) -> RunAnswer:
    over = run.state != "running"
    state = "silent" if not over and silent_seconds > _SILENT_SECONDS else run.state
    until_us = run.ended_us if over and run.ended_us else now_us - int(silent_seconds * 1e6)
    return RunAnswer(
        name=run.name,
        pipeline=run.pipeline,
        state=state,
        started=moment(run.started_us),
        ended=moment(run.ended_us) if run.ended_us else None,
        seconds=round(max(0, until_us - run.started_us) / 1e6, 3),
        records=run.records,
        streams=run.streams,
        options=run.options,
        summary=run.summary,
        why=run.why,
        report=run.report,
        host=run.host if admin else "",
        exit_code=run.exit_code,
    )


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/pipelines",
        show_pipelines,
        "Show Spark queries and the last runs of pipelines",
        "pipelines",
        description="The list has queries whose source sets the option `group`, as the ready-"
        "made pipelines do, and runs that were started with `fanlog pipeline run`. "
        "The broker keeps the last 20 runs of each pipeline. You see those whose "
        "group you may see.",
        query=PipelinesQuery,
        answer=PipelinesAnswer,
        errors=(InvalidArgumentError, ForbiddenError, NotSupportedError),
    ),
]
