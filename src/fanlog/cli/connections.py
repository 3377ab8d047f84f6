"""`fanlog connections ...`: list, show and close the connections of one process, on all its
listeners."""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, on_terminal, out, print_json, printable, say_done
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.model import ConnectionInfo

connections_app = typer.Typer(
    help="List, show and close connections.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Id = Annotated[
    str, typer.Argument(help="Id of the connection, or its address with the port.", metavar="ID")
]
User = Annotated[
    str | None, typer.Option("--user", help="Only connections of this user.", metavar="NAME")
]
Address = Annotated[
    str,
    typer.Option(
        "--address", help="Only connections from this host, or host:port.", metavar="HOST"
    ),
]
Listener = Annotated[
    str,
    typer.Option("--listener", help="Only this listener: native, redis or web.", metavar="NAME"),
]

_LISTENERS = ("", "native", "redis", "web")


@connections_app.command("list", epilog="Example: [bold]fanlog connections list --user ann[/]")
def list_connections(
    user: User = None,
    address: Address = "",
    listener: Listener = "",
    *,
    requests: Annotated[
        bool, typer.Option("--requests", help="Include HTTP connections that only send requests.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the connected clients, and how far each is behind."""
    _check(listener)

    async def work(client: Client) -> list[ConnectionInfo]:
        found = client.connections.list(
            user=user, address=address, listener=listener, requests=requests
        )
        return [one async for one in found]

    found = with_client(url, work)
    if as_json:
        print_json([as_document(one) for one in found])
        return
    if not found and on_terminal():
        out().print("No connection matches.", style="dim")
        return
    table = new_table("ID", "USER", "CLIENT", "SINCE", ">BEHIND", ">BYTES", "SUBSCRIPTIONS")
    for one in found:
        table.add_row(
            Text(printable(one.id), style="bold cyan"),
            printable(one.user) or "-",
            printable(one.client) or one.transport,
            _age(one.since_us),
            f"{one.behind_messages:,}" if one.behind_messages else "-",
            show_size(one.behind_bytes) if one.behind_bytes else "-",
            printable(", ".join(one.subscriptions)) or "-",
        )
    out().print(table)


@connections_app.command(epilog="Example: [bold]fanlog connections show native@127.0.0.1:50312[/]")
def show(id: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one connection."""

    async def work(client: Client) -> list[ConnectionInfo]:
        every = client.connections.list(requests=True)
        return [one async for one in every if id in (one.id, one.address)]

    found = with_client(url, work)
    if not found:
        raise InvalidArgumentError(
            f"There is no connection {id!r} (any more). List them with: fanlog connections list"
        )
    if as_json:
        print_json([as_document(one) for one in found] if len(found) > 1 else as_document(found[0]))
        return
    for one in found:
        table = new_table("", "")
        table.show_header = False
        for name, value in as_document(one).items():
            shown = ", ".join(one.subscriptions) if name == "subscriptions" else str(value)
            table.add_row(name.replace("_", " "), printable(shown) or "-")
        out().print(table)


@connections_app.command(
    epilog='Example: [bold]fanlog connections close --user mallory --reason "banned"[/]'
)
def close(
    id: Annotated[
        str | None,
        typer.Argument(help="Id of the connection, or its address with the port.", metavar="ID"),
    ] = None,
    *,
    user: User = None,
    address: Address = "",
    listener: Listener = "",
    reason: Annotated[str, typer.Option("--reason", help="The reason. The client gets it.")] = "",
    reconnect: Annotated[
        bool,
        typer.Option("--reconnect", help="Let browsers reconnect. Other clients always may."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Close one connection, or all that match. The client can connect again: to prevent that,
    revoke its key."""
    _check(listener)
    if id is None and user is None and not address and not listener:
        raise InvalidArgumentError(
            "Say which connections to close: give an id, --user, --address or --listener."
        )

    async def work(client: Client) -> tuple[ConnectionInfo, ...]:
        return await client.connections.close(
            id or "",
            user=user,
            address=address,
            listener=listener,
            reason=reason,
            reconnect=reconnect,
        )

    closed = with_client(url, work)
    if as_json:
        print_json([as_document(one) for one in closed])
    elif not closed:
        raise InvalidArgumentError("No connection matches. List them with: fanlog connections list")
    else:
        for one in closed:
            say_done(f"Closed {one.id}" + (f" of user {one.user}." if one.user else "."))


def as_document(one: ConnectionInfo) -> dict[str, Any]:
    """A connection as JSON shows it."""
    document = msgspec.structs.asdict(one)
    document["since"] = one.since.isoformat().replace("+00:00", "Z")
    del document["since_us"]
    if not one.process:
        del document["process"]
    return document


def _check(listener: str) -> None:
    if listener not in _LISTENERS:
        raise InvalidArgumentError(f"--listener is {listener!r}, but must be native, redis or web.")


def _age(since_us: int) -> str:
    return str(dt.timedelta(seconds=max(0, int(time.time() - since_us / 1e6))))
