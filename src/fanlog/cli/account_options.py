"""Shared by the commands for keys and users: rules, limits and how they are shown."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from fanlog.cli.schedule import duration, show_time
from fanlog.cli.terminal import err, printable
from fanlog.client.accounts import rules_of
from fanlog.client.credentials import read_secret
from fanlog.errors import InvalidArgumentError
from fanlog.identity import Allowance, Role, Rules

RoleOption = Annotated[Role | None, typer.Option("--role", help="Its role.")]
PublishOption = Annotated[
    list[str] | None,
    typer.Option("--publish", help="Topics it may publish to. May be repeated.", metavar="PATTERN"),
]
SubscribeOption = Annotated[
    list[str] | None,
    typer.Option("--subscribe", help="Topics it may read. May be repeated.", metavar="PATTERN"),
]
ManageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--manage",
        help="Topics it may create, change and delete. May be repeated.",
        metavar="PATTERN",
    ),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--groups", help="Groups it may use. May be repeated.", metavar="PATTERN"),
]
QueuesOption = Annotated[
    list[str] | None,
    typer.Option("--queues", help="Queues it may work on. May be repeated.", metavar="PATTERN"),
]
DescribeOption = Annotated[
    list[str] | None,
    typer.Option("--describe", help="Topics it may describe. May be repeated.", metavar="PATTERN"),
]
CommentOption = Annotated[str | None, typer.Option("--comment", help="A free comment.")]
ExpiresOption = Annotated[
    str | None,
    typer.Option(
        "--expires-in", help="Time until it expires: 30d, 12h; 0 for never.", metavar="DURATION"
    ),
]
MessagesOption = Annotated[
    float | None,
    typer.Option("--messages-per-second", help="Messages per second that it may publish.", min=0),
]
BytesOption = Annotated[
    float | None,
    typer.Option("--bytes-per-second", help="Bytes per second that it may publish.", min=0),
]
ConnectionsOption = Annotated[
    int | None, typer.Option("--connections", help="Connections it may have.", min=0)
]

TopicsOption = Annotated[
    int | None, typer.Option("--topics", help="Topics it may create and keep.", min=0)
]
StoredOption = Annotated[
    int | None,
    typer.Option("--stored-bytes", help="Bytes that its topics may store in all.", min=0),
]


def maybe_rules(
    role: Role | None,
    *,
    publish: list[str] | None,
    subscribe: list[str] | None,
    manage: list[str] | None,
    groups: list[str] | None,
    queues: list[str] | None,
    describe: list[str] | None,
) -> Rules | None:
    """The rules of the flags; None if there are none."""
    given = rules_of(
        role,
        publish=publish,
        subscribe=subscribe,
        manage=manage,
        groups=groups,
        queues=queues,
        describe=describe,
    )
    return None if given == Rules() else given


def maybe_allowance(
    messages_per_second: float | None,
    bytes_per_second: float | None,
    connections: int | None,
    topics: int | None,
    stored_bytes: int | None,
) -> Allowance | None:
    """The limits from the flags; None if there are none. Limits without a flag come from the
    settings."""
    given = Allowance(
        messages_per_second=messages_per_second or 0.0,
        bytes_per_second=bytes_per_second or 0.0,
        connections=connections or 0,
        topics=topics or 0,
        stored_bytes=stored_bytes or 0,
    )
    flags = (messages_per_second, bytes_per_second, connections, topics, stored_bytes)
    return None if all(flag is None for flag in flags) else given


def maybe_seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    return 0.0 if text.strip() in ("0", "never") else duration(text, option)


def read_password(file: Path | None) -> str:
    """A password from a file, from a pipe, or typed twice. Never from a flag."""
    if file is not None:
        return read_secret(str(file), "--password-file")
    if not sys.stdin.isatty():
        text = sys.stdin.readline().rstrip("\r\n")
        if not text:
            raise InvalidArgumentError("Pass the password on stdin, or with --password-file.")
        return text
    first = getpass.getpass("Password: ", stream=sys.stderr)
    if getpass.getpass("Repeat the password: ", stream=sys.stderr) != first:
        raise InvalidArgumentError("The two passwords differ. Nothing was changed.")
    return first


def say(sentence: str) -> None:
    """A remark about an answer, on stderr."""
    err().print(printable(sentence))


def show_rules(rules: Rules) -> str:
    """One line: `producer; publish orders.>`."""
    parts = [rules.role.value] if rules.role is not None else []
    for name in ("publish", "subscribe", "manage", "groups", "queues", "describe"):
        patterns: tuple[str, ...] | None = getattr(rules, name)
        if patterns is not None:
            parts.append(f"{name} {', '.join(patterns) or 'nothing'}")
    return "; ".join(parts) or "nothing"


def show_moment(time_us: int, never: str = "never") -> str:
    return show_time(time_us) if time_us else never
