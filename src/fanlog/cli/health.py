"""`fanlog health`: is the broker there, and is it well? The exit code says it to scripts."""

from __future__ import annotations

import datetime as dt

import msgspec
import typer
from rich.text import Text

from fanlog.cli.exits import ExitCode
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, out, print_json
from fanlog.client.aio import Client
from fanlog.errors import LinkError
from fanlog.format.messages import BrokerStatus

EXAMPLE = "Example: [bold]fanlog health --json[/]"


def health(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Check whether the broker is healthy."""
    try:
        status = with_client(url, Client.status)
    except LinkError as fault:
        if as_json:
            print_json({"state": "unreachable", "problems": [str(fault)]})
        raise
    if as_json:
        print_json(msgspec.structs.asdict(status))
    else:
        _print_status(url, status)
    if status.state != "ok":
        raise typer.Exit(ExitCode.FAILED)


def _print_status(url: str, status: BrokerStatus) -> None:
    style = "bold green" if status.state == "ok" else "bold red"
    out().print(Text.assemble((status.state, style), f"  {url}  Fanlog {status.release}"))
    table = new_table("", ">")
    table.show_header = False
    table.add_row("up for", str(dt.timedelta(seconds=int(status.uptime_seconds))))
    table.add_row("topics", f"{status.topics:,}")
    table.add_row("connections", f"{status.connections:,}")
    table.add_row("subscriptions", f"{status.subscriptions:,}")
    table.add_row("published records", f"{status.published_records:,}")
    table.add_row("delivered", show_size(status.delivered_bytes))
    table.add_row("tails in memory", show_size(status.tail_bytes))
    table.add_row("waiting for the disk", show_size(status.pending_bytes))
    out().print(table)
    for problem in status.problems:
        out().print(Text(f"! {problem}", style="red"))
