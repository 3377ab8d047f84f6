"""Messages as `fanlog tail` shows them: for people, as JSON lines, or their values alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
from rich.text import Text

from fanlog.cli.terminal import out, print_bytes, printable
from fanlog.client.message import Message

Show = Callable[[list[Message]], None]

_encode = msgspec.json.Encoder().encode


def pick_show(*, as_json: bool, values_only: bool) -> Show:
    """The way to show messages that was asked for."""
    if as_json:
        return show_json
    return show_values if values_only else show_readable


def show_values(messages: list[Message]) -> None:
    if messages:
        print_bytes(b"\n".join(message.value for message in messages) + b"\n")


def show_json(messages: list[Message]) -> None:
    if messages:
        print_bytes(b"\n".join(_encode(as_document(message)) for message in messages) + b"\n")


def as_document(message: Message) -> dict[str, Any]:
    """One message as JSON has it. What is no text is base64, and an `encoding` says so."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
    }
    if message.event_time != message.timestamp:
        document["event_time"] = message.event_time
    _put(document, "key", "key_encoding", message.key)
    _put(document, "value", "encoding", None if message.is_tombstone else message.value)
    document["headers"] = {name: _header(value) for name, value in message.headers.items()}
    return document


def _put(document: dict[str, Any], name: str, encoding: str, value: bytes | None) -> None:
    text = None if value is None else _maybe_text(value)
    if value is not None and text is None:
        document[name] = base64.b64encode(value).decode()
        document[encoding] = "base64"
    else:
        document[name] = text


def _header(value: bytes) -> str | dict[str, str]:
    text = _maybe_text(value)
    return {"base64": base64.b64encode(value).decode()} if text is None else text


def _maybe_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def show_readable(messages: list[Message]) -> None:
    """A line a message: when, where, key, value, headers."""
    console = out()
    for message in messages:
        line = Text()
        line.append(f"{message.timestamp.astimezone():%H:%M:%S.%f}"[:-3], style="dim")
        line.append(f" {printable(message.topic)}", style="cyan")
        line.append(f"/{message.partition}@{message.offset}", style="dim")
        if message.key is not None:
            line.append(f" {_readable(message.key)}", style="yellow")
        if message.is_tombstone:
            line.append(" (no value)", style="dim italic")
        else:
            line.append(f" {_readable(message.value)}")
        for name, value in message.headers.items():
            line.append(f" {printable(name)}={_readable(value)}", style="magenta")
        console.print(line)
    console.file.flush()


def _readable(value: bytes) -> str:
    text = _maybe_text(value)
    return repr(value)[2:-1] if text is None else printable(text)
