"""How the broker is."""

from __future__ import annotations

from typing import Any

import msgspec

from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.model import Verb
from fanlog.release import VERSION


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself."""

    release: str
    process: str
    bus: str
    up: bool
    connections: int


async def describe(call: Call[Nothing, Any]) -> Status:
    bus = call.bus
    return Status(
        release=VERSION,
        process=bus.process,
        bus=bus.name,
        up=bus.up,
        connections=call.listener.connection_count(),
    )


ROUTES = [
    Route(
        "GET",
        "/v1/status",
        describe,
        "How the broker is",
        "status",
        answer=Status,
        verb=Verb.DESCRIBE,
    ),
]
