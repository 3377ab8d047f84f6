"""What commands write with. Law: answers go to stdout, everything about them to stderr; colours
and progress bars appear only where a person looks, so never in a pipe or with NO_COLOR; and no
terminal obeys what came from elsewhere."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 10_000


@cache
def out() -> Console:
    """The console of answers. In a pipe nothing is folded: a line of a table stays a line."""
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return _console(width=width)


@cache
def err() -> Console:
    """The console of errors, progress and remarks."""
    return _console(stderr=True)


def _console(*, stderr: bool = False, width: int | None = None) -> Console:
    # Rich keeps bold and dim where NO_COLOR is set, but users who set it want plain text.
    return Console(
        stderr=stderr,
        width=width,
        highlight=False,
        # Names, keys and values may hold brackets: text is text, and styles are given beside it.
        markup=False,
        soft_wrap=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def on_terminal() -> bool:
    """Whether a person sees the answers."""
    return out().is_terminal


def say_error(sentence: str) -> None:
    """One sentence on stderr that says what went wrong."""
    err().print(Text.assemble(("error: ", "bold red"), printable(sentence)))


def say_warning(sentence: str) -> None:
    err().print(Text.assemble(("warning: ", "bold yellow"), printable(sentence)))


def say_done(sentence: str) -> None:
    """One sentence on stdout that says what was done."""
    mark = ("✓ ", "bold green") if on_terminal() else ""
    out().print(Text.assemble(mark, printable(sentence)))


def new_table(*columns: str) -> Table:
    """A table for people; columns whose title begins with `>` hold numbers."""
    table = Table(
        box=box.SIMPLE_HEAD if on_terminal() else None, header_style="bold", pad_edge=False
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left")
    return table


def printable(text: str) -> str:
    """Text without what a terminal would obey: messages come from anywhere."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def print_json(answer: Any) -> None:
    """One JSON document: indented for people, on one line for programs."""
    encoded = msgspec.json.encode(answer)
    if on_terminal():
        encoded = msgspec.json.format(encoded, indent=2)
    print_bytes(encoded + b"\n")


def print_bytes(some: bytes) -> None:
    """Bytes as they are, at once."""
    sys.stdout.buffer.write(some)
    sys.stdout.buffer.flush()
