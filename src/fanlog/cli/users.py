"""`fanlog user ...` and `fanlog may`: users with passwords, and what somebody may do."""

from __future__ import annotations

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
    read_password,
    say,
    show_moment,
    show_rules,
)
from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import new_table, on_terminal, out, print_json, printable, say_done
from fanlog.client.aio import Client
from fanlog.client.credentials import read_secret
from fanlog.errors import InvalidArgumentError
from fanlog.format.accounts import Allowed, UserInfo
from fanlog.identity import Verb
from fanlog.security.passwords import check_password, hash_password

user_app = typer.Typer(
    help="Users with passwords: create, list, change, delete.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
MAY_EXAMPLE = "Example: [bold]fanlog may publish orders --key shop[/]"

UserName = Annotated[str, typer.Argument(help="The user's name.", metavar="NAME")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", help="File with the password. Default: ask, or stdin.", metavar="FILE"
    ),
]
CertificateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--certificate", help="Name in a client certificate. May be repeated.", metavar="NAME"
    ),
]


@user_app.command(epilog="Example: [bold]fanlog user create ann --role viewer[/]")
def create(
    name: UserName,
    *,
    role: RoleOption = None,
    publish: PublishOption = None,
    subscribe: SubscribeOption = None,
    manage: ManageOption = None,
    groups: GroupsOption = None,
    queues: QueuesOption = None,
    describe: DescribeOption = None,
    certificate: CertificateOption = None,
    no_password: Annotated[
        bool,
        typer.Option("--no-password", help="No password: log in with a certificate or a token."),
    ] = False,
    password_file: PasswordFile = None,
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
    """Create a user, for the dashboard and for people."""
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
            "Say what the user may do: --role, or lists such as --subscribe orders.>"
        )
    allowance = maybe_allowance(
        messages_per_second, bytes_per_second, connections, topics, stored_bytes
    )
    seconds = maybe_seconds(expires_in, "--expires-in") or 0.0
    password = "" if no_password else check_password(read_password(password_file))

    async def work(client: Client) -> UserInfo:
        return await client.accounts.create_user(
            name,
            password,
            rules=rules,
            certificates=certificate or (),
            allowance=allowance,
            comment=comment or "",
            expires_seconds=seconds,
        )

    info = with_client(url, work)
    if as_json:
        print_json(info)
    else:
        say_done(f"{info.name} may: {show_rules(info.rules)}")


@user_app.command("list", epilog="Example: [bold]fanlog user list[/]")
def list_users(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List users."""

    async def work(client: Client) -> list[UserInfo]:
        return await client.accounts.users()

    found = with_client(url, work)
    if as_json:
        print_json(found)
        return
    if not found and on_terminal():
        out().print("There are no users yet; see fanlog user create --help.", style="dim")
        return
    table = new_table("NAME", "MAY", "LOGIN", "EXPIRES", "FROM", "COMMENT")
    for info in found:
        table.add_row(
            Text(printable(info.name), style="bold cyan"),
            Text(printable(show_rules(info.rules))),
            Text(printable(_login_of(info))),
            show_moment(info.expires_us),
            "file" if info.source == "file" else "command",
            Text(printable(info.comment)),
        )
    out().print(table)


def _login_of(info: UserInfo) -> str:
    if info.disabled:
        return "disabled"
    ways = ["password"] if info.has_password else []
    return ", ".join([*ways, *(f"certificate {name}" for name in info.certificates)]) or "none"


@user_app.command(epilog="Example: [bold]fanlog user show ann[/]")
def show(name: UserName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a user."""

    async def work(client: Client) -> UserInfo:
        return await client.accounts.user(name)

    _show(with_client(url, work), as_json=as_json)


@user_app.command("set", epilog="Example: [bold]fanlog user set ann --role consumer[/]")
def set_user(
    name: UserName,
    *,
    role: RoleOption = None,
    publish: PublishOption = None,
    subscribe: SubscribeOption = None,
    manage: ManageOption = None,
    groups: GroupsOption = None,
    queues: QueuesOption = None,
    describe: DescribeOption = None,
    certificate: CertificateOption = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Disable the user, or enable it again."),
    ] = None,
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
    """Change a user, at once. New rules replace all old rules, and new limits all old limits."""
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
        "certificates": None if certificate is None else tuple(certificate),
        "allowance": maybe_allowance(
            messages_per_second, bytes_per_second, connections, topics, stored_bytes
        ),
        "comment": comment,
        "expires_seconds": maybe_seconds(expires_in, "--expires-in"),
        "disabled": disabled,
    }

    async def work(client: Client) -> UserInfo:
        return await client.accounts.set_user(name, **changes)

    _show(with_client(url, work), as_json=as_json)


@user_app.command(epilog="Example: [bold]fanlog user passwd ann[/]")
def passwd(
    name: UserName,
    *,
    password_file: PasswordFile = None,
    old_password_file: Annotated[
        Path | None,
        typer.Option(
            "--old-password-file", help="File with the old one, to set your own.", metavar="FILE"
        ),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Set a password. Sessions with the old password end."""
    old = (
        "" if old_password_file is None else read_secret(str(old_password_file), "the old password")
    )
    password = check_password(read_password(password_file))

    async def work(client: Client) -> UserInfo:
        return await client.accounts.set_password(name, password, old_password=old)

    with_client(url, work)
    say_done(f"{name} has a new password")


@user_app.command(epilog="Example: [bold]fanlog user delete ann[/]")
def delete(name: UserName, url: Url = DEFAULT_URL) -> None:
    """Delete a user, and close its connections."""

    async def work(client: Client) -> None:
        await client.accounts.delete_user(name)

    with_client(url, work)
    say_done(f"{name} is deleted, and their connections are closed")


@user_app.command("hash", epilog="Example: [bold]fanlog user hash --password-file ann.txt[/]")
def hash_one(password_file: PasswordFile = None) -> None:
    """Print the hash of a password, for a config file, without a broker."""
    print(hash_password(check_password(read_password(password_file))))
    say("In the broker's config file: a table [users.NAME] with password_hash and a role.")


def _show(info: UserInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    table = new_table("", "")
    table.show_header = False
    rows = [
        ("name", info.name),
        ("may", show_rules(info.rules)),
        ("logs in with", _login_of(info)),
        ("created", show_moment(info.created_us, "-")),
        ("expires", show_moment(info.expires_us)),
        ("from", "the config file" if info.source == "file" else "a command"),
        ("comment", info.comment or "-"),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(printable(value)))
    out().print(table)


def may(
    verb: Annotated[Verb, typer.Argument(help="What to do.", metavar="VERB")],
    topic: Annotated[
        str, typer.Argument(help="A topic or pattern, a group, or a queue.", metavar="NAME")
    ],
    *,
    key: Annotated[str, typer.Option("--key", help="Name of a key.", metavar="NAME")] = "",
    user: Annotated[str, typer.Option("--user", help="Name of a user.", metavar="NAME")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Check whether a key or user may do something. Without --key and --user: whether you may."""

    async def work(client: Client) -> Allowed:
        return await client.accounts.may(verb.value, topic, key=key, user=user)

    answer = with_client(url, work)
    if as_json:
        print_json(answer)
    else:
        out().print("yes" if answer.allowed else f"no: {printable(answer.reason)}")
    if not answer.allowed:
        raise typer.Exit(ExitCode.DENIED)
