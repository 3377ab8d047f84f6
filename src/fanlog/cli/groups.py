"""`fanlog group ...`: list, describe, reset and delete groups, and queues, which are groups too.
Law: a reset shows its changes before it makes them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.tail import parse_start
from fanlog.cli.terminal import err, new_table, on_terminal, out, print_json, printable, say_done
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.model import (
    GroupInfo,
    GroupMemberInfo,
    GroupPartitionInfo,
    GroupState,
    QueueSettings,
    ResetStep,
)

group_app = typer.Typer(
    help="List, describe, reset and delete consumer groups and queues.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(help="Name of the group or queue.", metavar="NAME")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_STYLES: dict[GroupState, str] = {"active": "green", "rebalancing": "yellow", "inactive": "dim"}


@group_app.command("list", epilog="Example: [bold]fanlog group list 'billing.>'[/]")
def list_groups(
    pattern: Annotated[
        str,
        typer.Argument(
            help="A pattern of names: * matches one part, > the rest.", metavar="PATTERN"
        ),
    ] = ">",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List groups and queues with their lag."""

    async def work(client: Client) -> list[GroupInfo]:
        return await client.groups.list(pattern)

    found = with_client(url, work)
    if as_json:
        print_json([as_document(info) for info in found])
        return
    if not found and on_terminal():
        none = "There are no groups yet. A consumer that joins a group creates it."
        if pattern != ">":
            none = f"No group matches {pattern!r}; in a pattern, * is one token, and > the rest."
        out().print(none, style="dim")
        return
    table = new_table("GROUP", "KIND", "STATE", ">MEMBERS", ">PARTITIONS", ">LAG", ">BEHIND")
    for info in found:
        table.add_row(
            Text(printable(info.name), style="bold cyan"),
            info.kind,
            Text(info.state, style=_STYLES[info.state]),
            f"{len(info.members):,}",
            f"{len(info.partitions):,}",
            f"{info.lag:,}",
            show_age(info.lag_seconds),
        )
    out().print(table)


@group_app.command(epilog="Example: [bold]fanlog group describe billing[/]")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the members of a group, its partitions and their lag."""

    async def work(client: Client) -> GroupInfo:
        return await client.groups.describe(name)

    info = with_client(url, work)
    if as_json:
        print_json(as_document(info))
        return
    queue = info.kind == "queue"
    behind = f"{info.lag:,} behind" + (f" ({show_age(info.lag_seconds)})" if info.lag else "")
    out().print(
        Text.assemble(
            (printable(info.name), "bold cyan"),
            f"  {info.kind}, ",
            (info.state, _STYLES[info.state]),
            f", {behind}",
            "" if queue else f", {info.rebalances:,} rebalance{'s' * (info.rebalances != 1)}",
            "\n",
        )
    )
    if info.members:
        _print_members(info.members, queue=queue)
        if not on_terminal():
            # There a table has lines of its own around it.
            out().print()
    _print_partitions(info.partitions, queue=queue)
    if info.queue is not None:
        settings = msgspec.structs.asdict(info.queue)
        words = [
            f"{setting} {value}"
            for setting, value in settings.items()
            if value != "" and not setting.startswith("retry_")
        ]
        out().print(Text(f"Settings: {', '.join(words)}.", style="dim"))
        out().print(Text(_retry_rule(info.queue), style="dim"))
        _print_retries(info.partitions)
        _print_urgent(info.partitions)
        out().print(
            f"Since the start: {info.redelivered:,} delivered again, "
            f"{info.dead_lettered:,} dead letter{'s' * (info.dead_lettered != 1)}."
        )


def _retry_rule(settings: QueueSettings) -> str:
    """When a failed job is retried, in words."""
    if not settings.retry_delay_seconds:
        return "Retry: at once."
    grows = settings.retry_factor > 1
    return (
        f"Retry: after {settings.retry_delay_seconds:g} s"
        + (f", each time {settings.retry_factor:g} times as long" if grows else "")
        + (f", at most {settings.retry_max_seconds:g} s" if grows else "")
        + (f", less up to {settings.retry_jitter:.0%} by chance" if settings.retry_jitter else "")
        + "."
    )


def _print_retries(partitions: tuple[GroupPartitionInfo, ...]) -> None:
    retrying = sum(part.retrying for part in partitions)
    if retrying:
        waits = [p.next_retry_seconds for p in partitions if p.next_retry_seconds is not None]
        soonest = f"in {min(waits):.1f} s" if waits and min(waits) > 0 else "now"
        out().print(
            f"{retrying:,} failed job{'s' * (retrying != 1)} "
            f"wait{'s' * (retrying == 1)} for the next attempt; the first is due {soonest}."
        )


def _print_urgent(partitions: tuple[GroupPartitionInfo, ...]) -> None:
    counts: Counter[int] = Counter()
    for part in partitions:
        counts.update(part.urgent)
    if counts:
        words = [f"{counts[p]:,} of priority {p}" for p in sorted(counts, reverse=True)]
        out().print(f"Urgent: {', '.join(words)}.")


def _print_members(members: tuple[GroupMemberInfo, ...], *, queue: bool) -> None:
    table = new_table(
        *("MEMBER", "CLIENT", "FOLLOWS", "STATE", ">IN FLIGHT" if queue else ">PARTITIONS")
    )
    for member in members:
        named = " (static)" if member.static else ""
        table.add_row(
            Text(printable(member.id), style="bold") + Text(named, style="dim"),
            Text(printable(member.client)),
            Text(printable(member.target)),
            Text("here", "green") if member.present else Text("away", "yellow"),
            f"{member.in_flight if queue else member.partitions:,}",
        )
    out().print(table)


def _print_partitions(partitions: tuple[GroupPartitionInfo, ...], *, queue: bool) -> None:
    own = (">IN FLIGHT", ">WAITING") if queue else ("MEMBER",)
    table = new_table(
        *("TOPIC", ">PARTITION", ">COMMITTED", ">START", ">END", ">LAG", ">BEHIND", *own)
    )
    for part in partitions:
        ending = (
            (f"{part.in_flight:,}", f"{part.waiting:,}")
            if queue
            else (Text(printable(part.member)),)
        )
        table.add_row(
            Text(printable(part.topic)),
            str(part.partition),
            "-" if part.committed is None else f"{part.committed:,}",
            f"{part.start_offset:,}",
            f"{part.end_offset:,}",
            Text(f"{part.lag:,}", style="yellow" if part.lag else ""),
            show_age(part.lag_seconds),
            *ending,
        )
    out().print(table)


@group_app.command(epilog="Example: [bold]fanlog group reset billing --to 2h --topic orders[/]")
def reset(
    name: Name,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, an offset, a moment (ISO 8601), or an age (10m, 2h, 1d).",
            metavar="START",
        ),
    ],
    topic: Annotated[
        str,
        typer.Option("--topic", help="Only this topic. Default: every topic with stored offsets."),
    ] = "",
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition. May be repeated.", min=0),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes, but make none.")
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group without members. Shows the changes first, and asks."""
    start = parse_start(to, "--to")
    partitions = tuple(partition) if partition else None
    if not yes and not dry_run and not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"Resetting {name!r} changes what it reads next, so it needs a confirmation: "
            "give --yes, or --dry-run to see the changes."
        )

    async def look(client: Client) -> list[ResetStep]:
        return await client.groups.reset(name, start, topic, partitions, dry_run=True)

    async def work(client: Client) -> list[ResetStep]:
        return await client.groups.reset(name, start, topic, partitions)

    if not as_json:
        steps = with_client(url, look)
        _print_steps(steps)
        if not dry_run and not yes and not typer.confirm(f"Reset {name}?", err=True):
            err().print("Nothing was reset.")
            raise typer.Exit(ExitCode.FAILED)
    if as_json:
        print_json(with_client(url, look if dry_run else work))
    elif not dry_run:
        done = with_client(url, work)
        say_done(f"Group {name} is reset in {len(done)} partition{'s' * (len(done) != 1)}.")


def _print_steps(steps: list[ResetStep]) -> None:
    table = new_table("TOPIC", ">PARTITION", ">BEFORE", ">AFTER", ">CHANGE")
    for step in steps:
        change = 0 if step.before is None else step.after - step.before
        table.add_row(
            Text(printable(step.topic)),
            str(step.partition),
            "-" if step.before is None else f"{step.before:,}",
            f"{step.after:,}",
            f"{change:+,}" if change else "",
        )
    out().print(table)


@group_app.command(epilog="Example: [bold]fanlog group delete billing --yes[/]")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a group without members, and its committed offsets."""
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"Deleting {name!r} can't be undone, so it needs a confirmation: give --yes."
        )
    if not yes and not typer.confirm(f"Delete {name} and its offsets for good?", err=True):
        err().print("Nothing was deleted.")
        raise typer.Exit(ExitCode.FAILED)

    async def work(client: Client) -> None:
        await client.groups.delete(name)

    with_client(url, work)
    if as_json:
        print_json({"group": name, "deleted": True})
    else:
        say_done(f"Group {name} is deleted.")


def as_document(info: GroupInfo) -> dict[str, Any]:
    """A group as JSON has it, with the sums that a script would want."""
    return {**msgspec.to_builtins(info), "lag": info.lag, "lag_seconds": info.lag_seconds}


def show_age(seconds: float) -> str:
    """`3 m`: for people, rounded."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else ""
