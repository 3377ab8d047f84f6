"""Metrics and health: `/metrics` for Prometheus, the same as JSON, and the two health checks for
container platforms."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.broker.insight.metric_scan import topic_metrics
from fanlog.errors import ForbiddenError, TopicNotFoundError
from fanlog.identity import Verb
from fanlog.listeners.visible_snapshot import seen_by
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.model import TopicInfo
from fanlog.telemetry.prometheus import render
from fanlog.telemetry.snapshot import Snapshot

_RETRY_SECONDS = 5
_NOT_KEPT = {"Cache-Control": "no-store"}
_HEADERS = (Param("Cache-Control", "It is never kept."),)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs, and its event loop answers."""

    live: bool = True


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether clients should connect to this process, and if not, why."""

    ready: bool
    reasons: list[str] = []


class MetricsQuery(msgspec.Struct, frozen=True, kw_only=True):
    topic: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=255,
                description="Only this topic, with its partitions, even if the metrics leave it"
                " out.",
            ),
        ]
        | None
    ) = None


class MetricsAnswer(Snapshot, frozen=True, kw_only=True):
    """What can be seen of this process. `details` is the requested topic."""

    details: TopicInfo | None = None


async def scrape(call: Call[Nothing, Any]) -> web.StreamResponse:
    core = call.bus.core
    snapshot = seen_by(call.permit, await core.metrics.snapshot())
    accept = call.request.headers.get("Accept", "")
    # Some ms, for a thread.
    text, content_type = await core.threaded(lambda: render(snapshot, accept))
    return web.Response(body=text, headers={"Content-Type": content_type, **_NOT_KEPT})


async def show_metrics(call: Call[MetricsQuery, Any]) -> MetricsAnswer:
    core, permit = call.bus.core, call.permit
    name = call.query.topic
    if name is not None:
        permit.ask(Verb.DESCRIBE, name)
        core.catalog.get(name)
    snapshot = seen_by(permit, await core.metrics.snapshot())
    found = {field: getattr(snapshot, field) for field in snapshot.__struct_fields__}
    if name is not None:
        topic = core.catalog.get(name)
        found |= {"topics": (topic_metrics(topic),), "details": topic.info()}
    return MetricsAnswer(**found)


async def live(call: Call[Nothing, Any]) -> web.StreamResponse:
    return _answer(Live(), usable=True)


async def ready(call: Call[Nothing, Any]) -> web.StreamResponse:
    reasons = call.bus.core.unready()
    if not call.bus.up and not reasons:
        reasons = ["The upstream is away."]
    return _answer(Ready(ready=not reasons, reasons=reasons), usable=not reasons)


def _answer(found: Live | Ready, *, usable: bool) -> web.StreamResponse:
    headers = dict(_NOT_KEPT)
    if not usable:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return web.Response(
        status=200 if usable else 503,
        body=msgspec.json.encode(found),
        content_type="application/json",
        headers=headers,
    )


ROUTES = [
    Route(
        "GET",
        "/metrics",
        scrape,
        "Metrics for Prometheus",
        "status",
        verb=Verb.DESCRIBE,
        description="In Prometheus's text format, or as OpenMetrics if the request accepts it. "
        "docs/observability.md lists the names. Figures are at most a second old.",
        answer=str,
        answer_type="text/plain",
        texts=("application/openmetrics-text",),
        answer_headers=_HEADERS,
        errors=(ForbiddenError,),
    ),
    Route(
        "GET",
        "/v1/metrics",
        show_metrics,
        "Show the metrics as JSON, or one topic in detail",
        "status",
        query=MetricsQuery,
        verb=Verb.DESCRIBE,
        answer=MetricsAnswer,
        errors=(ForbiddenError, TopicNotFoundError),
    ),
    Route(
        "GET",
        "/healthz/live",
        live,
        "Check that the process answers",
        "status",
        description="For a liveness probe: 200 as long as the event loop runs. It needs no login.",
        answer=Live,
        answer_headers=_HEADERS,
        answer_example={"live": True},
    ),
    Route(
        "GET",
        "/healthz/ready",
        ready,
        "Check that the process is ready for clients",
        "status",
        description="For a readiness probe: 503 while the broker drains, its disk is full or a "
        "log has failed, and while an edge can't reach its upstream. It needs no "
        "login.",
        answer=Ready,
        answer_headers=_HEADERS,
        answer_example={"ready": True, "reasons": []},
        unavailable=Ready,
    ),
]
