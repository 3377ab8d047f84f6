"""Messages as `fanlog tail` shows them: for people, as JSON lines, or their values alone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.text import Text

from fanlog.cli.terminal import out, print_bytes, printable
from fanlog.client.documents import as_document, maybe_text
from fanlog.client.message import Message

Show = Callable[[list[Message]], None]

_encode = msgspec.json.Encoder().encode


def pick_show(*, as_json: bool, values_only: bool) -> Show:
    """The requested way to show messages."""
    if as_json:
        return show_json
    return show_values if values_only else show_readable


def show_values(messages: list[Message]) -> None:
    if messages:
        print_bytes(b"\n".join(message.value for message in messages) + b"\n")


def show_json(messages: list[Message]) -> None:
    if messages:
        print_bytes(b"\n".join(_encode(as_document(message)) for message in messages) + b"\n")


def show_readable(messages: list[Message]) -> None:
    """A line a message: when, where, key, value, headers."""
    console = out()
    for message in messages:
        line = Text()
        line.append(f"{message.timestamp.astimezone():%H:%M:%S.%f}"[:-3], style="dim")
        line.append(f" {printable(message.topic)}", style="cyan")
        line.append(f"/{message.partition}@{message.offset}", style="dim")
        if message.key is not None:
            line.append(f" {readable(message.key)}", style="yellow")
        if message.is_tombstone:
            line.append(" (no value)", style="dim italic")
        else:
            line.append(f" {readable(message.value)}")
        for name, value in message.headers.items():
            line.append(f" {printable(name)}={readable(value)}", style="magenta")
        console.print(line)
    console.file.flush()


def readable(value: bytes) -> str:
    text = maybe_text(value)
    return repr(value)[2:-1] if text is None else printable(text)
