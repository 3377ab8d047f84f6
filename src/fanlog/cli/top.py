"""`fanlog top`: what a broker, or an edge, does right now. Live in a terminal; in a pipe one frame
after the other, or one document for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.live import Live

from fanlog.cli.session import DEFAULT_URL, Url, with_client
from fanlog.cli.terminal import on_terminal, out, print_json
from fanlog.cli.top_view import figures, view
from fanlog.client.aio import Client
from fanlog.telemetry.snapshot import Snapshot

EXAMPLE = "Example: [bold]fanlog top --once --json[/]"
# A snapshot is kept for a second: more often there is nothing new.
_INTERVAL_SECONDS_MIN = 1.0
# In a pipe there is no width to keep to.
_PIPE_COLUMNS = 120


def top(
    url: Url = DEFAULT_URL,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            help="Seconds between two updates.",
            min=_INTERVAL_SECONDS_MIN,
            metavar="S",
        ),
    ] = 2.0,
    rows: Annotated[
        int, typer.Option("--rows", help="The number of rows of a table.", min=1, metavar="N")
    ] = 10,
    once: Annotated[
        bool, typer.Option("--once", help="Show the changes of one interval, then exit.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each update as a JSON document.")
    ] = False,
) -> None:
    """Watch rates, busy topics, slow readers, lag and delays."""

    async def work(client: Client) -> None:
        if on_terminal() and not once and not as_json:
            await _live(client, url, interval, rows)
            return
        async for now, before in _looks(client, interval):
            if as_json:
                print_json({"rates": figures(now, before), "snapshot": now})
            else:
                _print(now, before, url, rows)
            if once:
                return

    with_client(url, work, reconnect=not once)


async def _looks(client: Client, interval: float) -> AsyncIterator[tuple[Snapshot, Snapshot]]:
    """A snapshot and the one before it, again and again."""
    before = await client.metrics()
    while True:
        await asyncio.sleep(interval)
        now = await client.metrics()
        if now.time > before.time:
            yield now, before
            before = now


async def _live(client: Client, url: str, interval: float, rows: int) -> None:
    first = await client.metrics()
    begin = view(first, first, url, rows)
    with Live(begin, console=out(), screen=True, auto_refresh=False) as live:
        before = first
        async for now, _ in _looks(client, interval):
            live.update(view(now, before, url, rows), refresh=True)
            before = now


def _print(now: Snapshot, before: Snapshot, url: str, rows: int) -> None:
    console = out()
    width = None if console.is_terminal else _PIPE_COLUMNS
    console.print(view(now, before, url, rows), width=width)
