"""`fanlog health`: whether the broker runs and is healthy. Scripts use the exit code."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import typer
from rich.text import Text

from fanlog.cli.credentials import trusting
from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, out, print_json
from fanlog.client.aio import Client
from fanlog.errors import ConnectError, LinkError
from fanlog.format.messages import BrokerStatus

EXAMPLE = "Example: [bold]fanlog health --json[/]"
_READY_PATH = "/healthz/ready"
_HTTP_OK = 200
_HTTP_SECONDS = 5.0
_ANSWER_BYTES_MAX = 64 * 1024


def health(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Check whether the broker is healthy. An http:// address needs no login."""
    if url.startswith(("http://", "https://")):
        _ask_over_http(url, as_json=as_json)
        return
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


def _ask_over_http(url: str, *, as_json: bool) -> None:
    """The answer of `/healthz/ready`: for containers, whose health check has no key."""
    import urllib.error  # noqa: PLC0415 - only this needs it, and it takes a while
    import urllib.request  # noqa: PLC0415

    address = url.rstrip("/") + _READY_PATH
    try:
        context = trusting() if url.startswith("https://") else None
        with urllib.request.urlopen(address, timeout=_HTTP_SECONDS, context=context) as answer:
            status, body = answer.status, answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refused:
        status, body = refused.code, refused.read(_ANSWER_BYTES_MAX)
    except (OSError, ValueError) as fault:
        cause = getattr(fault, "reason", fault)
        shown = getattr(cause, "strerror", None) or cause
        raise ConnectError(
            f"No web listener answers at {url} ({shown}). Start a broker there, or give the "
            "address of a running broker."
        ) from fault
    try:
        said: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise ConnectError(
            f"The server at {url} is not a Fanlog broker (status {status})."
        ) from None
    if as_json:
        print_json(said)
    else:
        well = status == _HTTP_OK
        state = Text("ready" if well else "not ready", style="bold green" if well else "bold red")
        out().print(Text.assemble(state, f"  {url}"))
        for problem in said.get("problems", ()):
            out().print(Text(f"! {problem}", style="red"))
    if status != _HTTP_OK:
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
