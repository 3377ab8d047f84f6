"""Messages as JSON documents, for the command line, exports and displays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from fanlog.client.message import Message


def as_document(message: Message) -> dict[str, Any]:
    """One message as JSON. Bytes that are not text are base64, with an `encoding`."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
    }
    if message.event_time != message.timestamp:
        document["event_time"] = message.event_time
    if message.priority:
        document["priority"] = message.priority
    put_bytes(document, "key", "key_encoding", message.key)
    put_bytes(document, "value", "encoding", None if message.is_tombstone else message.value)
    document["headers"] = header_document(message.headers)
    return document


def put_bytes(document: dict[str, Any], name: str, encoding: str, value: bytes | None) -> None:
    text = None if value is None else maybe_text(value)
    if value is not None and text is None:
        document[name] = base64.b64encode(value).decode()
        document[encoding] = "base64"
    else:
        document[name] = text


def header_document(headers: Mapping[str, bytes]) -> dict[str, str | dict[str, str]]:
    return {name: _header(value) for name, value in headers.items()}


def _header(value: bytes) -> str | dict[str, str]:
    text = maybe_text(value)
    return {"base64": base64.b64encode(value).decode()} if text is None else text


def maybe_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
