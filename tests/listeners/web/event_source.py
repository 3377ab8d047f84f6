"""A reader of server-sent events that does what a browser's `EventSource` does with ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass
class Event:
    kind: str
    data: Any
    id: str


class EventSource:
    """`id` is that of the last event, also of one without data."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.id = ""
        self.retry_ms = 0

    async def next(self, kind: str | None = None) -> Event:
        """The next event, of a kind if one is given."""
        while True:
            event = await self._next()
            if kind is None or event.kind == kind:
                return event

    async def text(self) -> str:
        """The text of the next message."""
        return (await self.next("message")).data["text"]

    async def _next(self) -> Event:
        kind, lines = "message", []
        while True:
            raw = await self.answer.content.readline()
            if not raw:
                raise EOFError
            line = raw.decode().rstrip("\n")
            if not line:
                if lines:
                    return Event(kind, json.loads("\n".join(lines)), self.id)
                kind, lines = "message", []
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self.id = value
            elif name == "event":
                kind = value
            elif name == "retry":
                self.retry_ms = int(value)
            elif name == "data":
                lines.append(value)


@asynccontextmanager
async def following(
    http: aiohttp.ClientSession, path: str, last_event_id: str = ""
) -> AsyncIterator[EventSource]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with http.get(path, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield EventSource(answer)
