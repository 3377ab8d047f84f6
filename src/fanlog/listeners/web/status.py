"""The health of the broker, for operators and load balancers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.errors import LinkError
from fanlog.format.messages import BrokerStatus
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.release import VERSION

# A load balancer sends requests elsewhere for so long.
_RETRY_SECONDS = 5
_USABLE = ("ok", "degraded")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The health of this process, and of the broker behind it."""

    state: Annotated[
        str,
        Meta(
            description="ok. degraded: it works, and `problems` says what is wrong. failing: a "
            "disk or a log has failed. draining: it is about to stop. upstream_lost: this is an "
            "edge that can't reach its bus."
        ),
    ]
    release: str
    process: Annotated[str, Meta(description="An id of this process. It changes with each start.")]
    bus: Annotated[str, Meta(description="The kind of bus: fanlog, redis or nats.")]
    up: Annotated[bool, Meta(description="Whether the process reaches the bus.")]
    connections: Annotated[int, Meta(description="Open connections to this listener.")]
    problems: list[str] = []
    broker: Annotated[
        BrokerStatus | None, Meta(description="The same as `fanlog health --json`.")
    ] = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests should come here."""

    state: str


async def describe(call: Call[Nothing, Any]) -> web.StreamResponse:
    bus = call.bus
    broker = await _maybe_broker(call)
    return _answer(
        Status(
            state=_state(call, broker),
            release=VERSION,
            process=bus.process,
            bus=bus.name,
            up=bus.up,
            connections=call.listener.connection_count(),
            problems=list(bus.core.status().problems if broker is None else broker.problems),
            broker=broker,
        )
    )


async def check(call: Call[Nothing, Any]) -> web.StreamResponse:
    return _answer(Health(state=_state(call, None)))


async def _maybe_broker(call: Call[Nothing, Any]) -> BrokerStatus | None:
    if call.bus.client is None or not call.bus.up:
        return None
    try:
        return await call.bus.client.status()
    except LinkError:
        return None  # It was lost a moment ago.


def _state(call: Call[Nothing, Any], broker: BrokerStatus | None) -> str:
    """Of this process first: it is what a load balancer asks about."""
    here = call.bus.core.status().state
    if here not in _USABLE:
        return here
    if not call.bus.up:
        return "upstream_lost"
    return here if broker is None else broker.state


def _answer(found: Status | Health) -> web.StreamResponse:
    usable = found.state in _USABLE
    headers = {"Cache-Control": "no-store"}
    if not usable:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return web.Response(
        status=200 if usable else 503,
        body=msgspec.json.encode(found),
        content_type="application/json",
        headers=headers,
    )


_HEADERS = (Param("Cache-Control", "It is never kept."),)

ROUTES = [
    Route(
        "GET",
        "/v1/status",
        describe,
        "Show the health of the broker",
        "status",
        verb=Verb.DESCRIBE,
        description="The same as `fanlog health`. The status is 503, with the same body, if the"
        " broker is draining or failing, or if an edge has lost its bus.",
        answer=Status,
        answer_headers=_HEADERS,
        unavailable=Status,
    ),
    Route(
        "GET",
        "/v1/health",
        check,
        "Check whether to send requests here",
        "status",
        description="For load balancers: 200 or 503. It asks no other process.",
        answer=Health,
        answer_headers=_HEADERS,
        answer_example={"state": "ok"},
        unavailable=Health,
    ),
]
