"""A WebSocket and an SSE client, as far as tests of rendered pieces need them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from websockets.frames import Opcode
from websockets.protocol import CLIENT, OPEN, Protocol


def frames(data: bytes) -> Iterator[tuple[Opcode, bytes]]:
    """The frames of a server, taken apart by an implementation that is not ours."""
    peer = Protocol(CLIENT, state=OPEN, max_size=None)
    peer.receive_data(data)
    for event in peer.events_received():
        assert event.fin  # type: ignore[union-attr]
        yield event.opcode, bytes(event.data)  # type: ignore[union-attr]
    assert peer.parser_exc is None
    assert peer.reader.buffer == b""


def documents(data: bytes) -> list[dict[str, Any]]:
    """The JSON of text frames."""
    found = list(frames(data))
    assert all(opcode is Opcode.TEXT for opcode, _ in found)
    return [json.loads(payload.decode()) for _, payload in found]


def events(data: bytes) -> list[dict[str, str]]:
    """The events of a stream, as the HTML standard dispatches them; one without data is only an
    id."""
    text = data.decode()
    assert not text or text.endswith("\n\n")
    assert "\r" not in text
    found: list[dict[str, str]] = []
    for block in text.split("\n\n")[:-1]:
        event: dict[str, str] = {}
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            event[field] = f"{event[field]}\n{value}" if field in event else value
        found.append(event)
    return found
