"""`fanlog traces`: the broker's last spans, on a terminal."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, on_terminal, out, print_json, printable
from fanlog.client.aio import Client
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.traces import ListTraces, SpanInfo, TracesPage

EXAMPLE = "Example: [bold]fanlog traces --topic orders[/]"


def traces(
    trace: Annotated[
        str,
        typer.Argument(help="Only this trace: 32 hexadecimal digits.", metavar="TRACE"),
    ] = "",
    *,
    topic: Annotated[str, typer.Option("--topic", help="Only spans about this topic.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", help="Show at most this many spans.", min=1, max=4096)
    ] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the last spans of the broker, for sampled messages."""

    async def work(client: Client) -> TracesPage:
        wanted = ListTraces(trace, topic, limit)
        return decode(TracesPage, memoryview(await client.ask(FrameKind.TRACES, wanted)))

    page = with_client(url, work)
    if as_json:
        print_json(page)
        return
    if not page.spans:
        if on_terminal():
            out().print("The broker has no such spans, or no message was sampled.", style="dim")
        return
    table = new_table("TIME", "SPAN", ">TOOK", "OFFSET", "TRACE", "PARENT")
    for span in page.spans:
        table.add_row(
            _time(span.start_us),
            Text(printable(span.name), style="red" if span.error else "bold cyan"),
            f"{(span.end_us - span.start_us) / 1000:,.3f} ms",
            _offset(span),
            span.trace_id,
            span.parent_id or "–",
        )
    out().print(table)


def _time(us: int) -> str:
    return f"{dt.datetime.fromtimestamp(us / 1e6, tz=dt.UTC):%H:%M:%S.%f}"


def _offset(span: SpanInfo) -> str:
    partition = span.attributes.get("messaging.destination.partition.id", "")
    offset = span.attributes.get("messaging.fanlog.offset", "")
    return f"{partition}@{offset}" if offset != "" else "–"
