"""`fanlog key ...`: API keys. A key is printed once, on stdout and alone, so that it can go into a
file; all else goes to stderr."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli.account_options import (
    BytesOption,
    CommentOption,
    ConnectionsOption,
    DescribeOption,
    ExpiresOption,
    GroupsOption,
    ManageOption,
    MessagesOption,
    PublishOption,
    QueuesOption,
    RoleOption,
    StoredOption,
    SubscribeOption,
    TopicsOption,
    maybe_allowance,
    maybe_rules,
    maybe_seconds,
    say,
    show_moment,
    show_rules,
)
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, on_terminal, out, print_json, printable, say_done
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.format.accounts import KeyInfo, KeyMade
from fanlog.security.keys import digest_of, make_key, maybe_parse

key_app = typer.Typer(
    help="API keys: create, list, rotate, revoke.", no_args_is_help=True, rich_markup_mode="rich"
)

KeyName = Annotated[str, typer.Argument(help="The key's name.", metavar="NAME")]
OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write the key to a new file that only its owner can read.", metavar="FILE"
    ),
]
_CREATE = (
    "Examples: [bold]fanlog key create shop --role producer --publish 'orders.>'[/], "
    "[bold]fanlog key create billing --role consumer --expires-in 90d --out billing.key[/]"
)


@key_app.command(epilog=_CREATE)
def create(
    name: KeyName,
    *,
    role: RoleOption = None,
    publish: PublishOption = None,
    subscribe: SubscribeOption = None,
    manage: ManageOption = None,
    groups: GroupsOption = None,
    queues: QueuesOption = None,
    describe: DescribeOption = None,
    expires_in: ExpiresOption = None,
    comment: CommentOption = None,
    messages_per_second: MessagesOption = None,
    bytes_per_second: BytesOption = None,
    connections: ConnectionsOption = None,
    topics: TopicsOption = None,
    stored_bytes: StoredOption = None,
    out_file: OutFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a key, and print it. Nothing shows it again."""
    rules = maybe_rules(
        role,
        publish=publish,
        subscribe=subscribe,
        manage=manage,
        groups=groups,
        queues=queues,
        describe=describe,
    )
    if rules is None:
        raise InvalidArgumentError(
            "Say what the key may do: --role, or lists such as --publish orders.>"
        )
    allowance = maybe_allowance(
        messages_per_second, bytes_per_second, connections, topics, stored_bytes
    )
    seconds = maybe_seconds(expires_in, "--expires-in") or 0.0
    _check_new(out_file)

    async def work(client: Client) -> KeyMade:
        return await client.accounts.create_key(
            name,
            rules=rules,
            allowance=allowance,
            comment=comment or "",
            expires_seconds=seconds,
        )

    _show_made(with_client(url, work), out_file, as_json=as_json)


@key_app.command("list", epilog="Example: [bold]fanlog key list[/]")
def list_keys(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List keys, without their secrets."""

    async def work(client: Client) -> list[KeyInfo]:
        return await client.accounts.keys()

    found = with_client(url, work)
    if as_json:
        print_json(found)
        return
    if not found and on_terminal():
        out().print("There are no keys yet; see fanlog key create --help.", style="dim")
        return
    table = new_table("NAME", "ID", "MAY", "EXPIRES", "FROM", "COMMENT")
    for info in found:
        table.add_row(
            Text(printable(info.name), style="bold cyan"),
            info.id,
            Text(printable(show_rules(info.rules))),
            show_moment(info.expires_us),
            "file" if info.source == "file" else "command",
            Text(printable(info.comment)),
        )
    out().print(table)


@key_app.command(epilog="Example: [bold]fanlog key show shop[/]")
def show(name: KeyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a key, without its secret."""

    async def work(client: Client) -> KeyInfo:
        return await client.accounts.key(name)

    _show(with_client(url, work), as_json=as_json)


@key_app.command("set", epilog="Example: [bold]fanlog key set shop --publish 'orders.>'[/]")
def set_key(
    name: KeyName,
    *,
    role: RoleOption = None,
    publish: PublishOption = None,
    subscribe: SubscribeOption = None,
    manage: ManageOption = None,
    groups: GroupsOption = None,
    queues: QueuesOption = None,
    describe: DescribeOption = None,
    expires_in: ExpiresOption = None,
    comment: CommentOption = None,
    messages_per_second: MessagesOption = None,
    bytes_per_second: BytesOption = None,
    connections: ConnectionsOption = None,
    topics: TopicsOption = None,
    stored_bytes: StoredOption = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change a key, at once. New rules replace all old rules, and new limits all old limits."""
    changes: dict[str, object] = {
        "rules": maybe_rules(
            role,
            publish=publish,
            subscribe=subscribe,
            manage=manage,
            groups=groups,
            queues=queues,
            describe=describe,
        ),
        "allowance": maybe_allowance(
            messages_per_second, bytes_per_second, connections, topics, stored_bytes
        ),
        "comment": comment,
        "expires_seconds": maybe_seconds(expires_in, "--expires-in"),
    }

    async def work(client: Client) -> KeyInfo:
        return await client.accounts.set_key(name, **changes)

    _show(with_client(url, work), as_json=as_json)


@key_app.command(epilog="Example: [bold]fanlog key rotate shop --grace 1h --out shop.key[/]")
def rotate(
    name: KeyName,
    *,
    grace: Annotated[
        str,
        typer.Option("--grace", help="How long the old secret stays valid.", metavar="DURATION"),
    ] = "0",
    out_file: OutFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, and print it."""
    seconds = maybe_seconds(grace, "--grace") or 0.0
    _check_new(out_file)

    async def work(client: Client) -> KeyMade:
        return await client.accounts.rotate_key(name, grace_seconds=seconds)

    _show_made(with_client(url, work), out_file, as_json=as_json)


@key_app.command(epilog="Example: [bold]fanlog key revoke shop[/]")
def revoke(name: KeyName, url: Url = DEFAULT_URL) -> None:
    """Delete a key, and close its connections."""

    async def work(client: Client) -> None:
        await client.accounts.revoke_key(name)

    with_client(url, work)
    say_done(f"{name} is revoked, and its connections are closed")


@key_app.command(epilog="Example: [bold]fanlog key expire shop 7d[/]")
def expire(
    name: KeyName,
    after: Annotated[
        str, typer.Argument(help="7d, 12h; or never.", metavar="DURATION", show_default=False)
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let a key expire after a while, or never."""
    seconds = maybe_seconds(after, "DURATION")

    async def work(client: Client) -> KeyInfo:
        return await client.accounts.set_key(name, expires_seconds=seconds)

    _show(with_client(url, work), as_json=as_json)


@key_app.command(epilog="Example: [bold]fanlog key generate --out admin.key[/]")
def generate(out_file: OutFile = None, as_json: AsJson = False) -> None:
    """Generate a key for a config file, without a broker, and print its hash."""
    _check_new(out_file)
    text = make_key()
    parsed = maybe_parse(text)
    assert parsed is not None
    hashed = f"{parsed.id}:{digest_of(parsed.secret)}"
    if as_json:
        print_json({"key": text, "hash": hashed})
        return
    _print_key(text, out_file)
    file = out_file or "the path of the file with the key"
    say(
        f"In the broker's config file, either [security] admin_key_file = {str(file)!r}, or a "
        f"table [keys.NAME] with hash = {hashed!r} and a role."
    )


def _check_new(file: Path | None) -> None:
    """Checks the file before a key is made that could not be stored."""
    if file is not None and file.exists():
        raise CommandError(f"{file} exists already: choose another name.", ExitCode.EXISTS)


def _show_made(made: KeyMade, file: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    _print_key(made.key, file)
    say(f"{made.info.name} may: {show_rules(made.info.rules)}.")
    if made.info.old_until_us:
        say(f"The old secret is good until {show_moment(made.info.old_until_us)}.")


def _print_key(text: str, file: Path | None) -> None:
    if file is None:
        print(text, flush=True)
        say("This key is shown only once. Store it in a file, and set FANLOG_KEY_FILE to its path.")
        return
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(f"{text}\n")
    except OSError as fault:
        # It would be lost otherwise.
        print(text, flush=True)
        raise CommandError(
            f"{file} can't be written: {reason(fault)} The key is on stdout.", ExitCode.FAILED
        ) from fault
    say(f"The key is in {file}: FANLOG_KEY_FILE={file}")


def _show(info: KeyInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    table = new_table("", "")
    table.show_header = False
    rows = [
        ("name", info.name),
        ("id", info.id),
        ("may", show_rules(info.rules)),
        ("created", show_moment(info.created_us, "-")),
        ("expires", show_moment(info.expires_us)),
        ("rotated", show_moment(info.rotated_us)),
        ("old secret until", show_moment(info.old_until_us, "-")),
        ("from", "the config file" if info.source == "file" else "a command"),
        ("comment", info.comment or "-"),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(printable(value)))
    out().print(table)
