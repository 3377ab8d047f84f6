"""`fanlog schedule ...`: schedules, and delayed messages."""

from __future__ import annotations

import datetime as dt
import os
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.inputs import parse_headers
from fanlog.cli.quantities import parse_duration, show_size, write_duration
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import (
    err,
    new_table,
    on_terminal,
    out,
    print_json,
    printable,
    say_done,
    say_error,
)
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.model import PendingMessage, ScheduleInfo

schedule_app = typer.Typer(
    help="Schedules like those of cron, and delayed messages.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


class MissedPolicy(StrEnum):
    ONCE = "once"
    SKIP = "skip"


_ADD_EXAMPLE = (
    "Examples: [bold]fanlog schedule add report jobs nightly --cron '0 8 * * 1-5' "
    "--timezone Europe/Berlin[/], [bold]fanlog schedule add tick ticks now --every 10m[/]"
)


@schedule_app.command(epilog=_ADD_EXAMPLE)
def add(
    name: Annotated[str, typer.Argument(help="The schedule's name.", metavar="NAME")],
    topic: Annotated[
        str, typer.Argument(help="The topic. The broker creates it if it is new.", metavar="TOPIC")
    ],
    value: Annotated[str, typer.Argument(help="The message of each run.", metavar="VALUE")],
    *,
    cron: Annotated[
        str,
        typer.Option(
            "--cron", help="Minute, hour, day, month, weekday: '0 8 * * 1-5'.", metavar="EXPRESSION"
        ),
    ] = "",
    timezone: Annotated[
        str,
        typer.Option(
            "--timezone", help="Time zone of --cron, such as Europe/Berlin.", metavar="ZONE"
        ),
    ] = "UTC",
    every: Annotated[
        str,
        typer.Option(
            "--every", help="Interval, instead of --cron: 30s, 10m, 2h.", metavar="DURATION"
        ),
    ] = "",
    missed: Annotated[
        MissedPolicy,
        typer.Option(
            "--missed",
            help="Runs that were due while the broker was down: once publishes one for "
            "all of them, skip publishes none.",
        ),
    ] = MissedPolicy.ONCE,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of the messages.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="May be repeated.", metavar="NAME=VALUE"),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a schedule, or change the schedule with this name."""
    seconds = duration(every, "--every") if every else None

    async def work(client: Client) -> ScheduleInfo:
        return await client.add_schedule(
            name,
            topic,
            os.fsencode(value),
            cron=cron,
            timezone=timezone,
            every_seconds=seconds,
            missed="skip" if missed is MissedPolicy.SKIP else "once",
            key=key,
            headers=parse_headers(header or []) or None,
        )

    info = with_client(url, work)
    if as_json:
        print_json(info)
    else:
        say_done(f"{info.name} publishes to {info.topic}, next at {show_time(info.next_us)}")


@schedule_app.command("list", epilog="Example: [bold]fanlog schedule list[/]")
def list_schedules(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List schedules, with their next and last runs."""

    async def work(client: Client) -> list[ScheduleInfo]:
        return await client.schedules()

    found = with_client(url, work)
    if as_json:
        print_json(found)
        return
    if not found and on_terminal():
        out().print("There are no schedules yet; see fanlog schedule add --help.", style="dim")
        return
    table = new_table("NAME", "TOPIC", "RUNS", "NEXT RUN", "LAST RUN", "MISSED")
    for info in found:
        runs = f"{info.cron} {info.timezone}" if info.cron else f"every {_every(info)}"
        table.add_row(
            Text(printable(info.name), style="bold cyan"),
            Text(printable(info.topic)),
            Text(printable(runs)),
            show_time(info.next_us),
            show_time(info.last_us) if info.last_us else "-",
            info.missed,
        )
    out().print(table)


def _every(info: ScheduleInfo) -> str:
    return write_duration(info.every_seconds)


@schedule_app.command(epilog="Example: [bold]fanlog schedule remove report[/]")
def remove(
    name: Annotated[str, typer.Argument(help="The schedule's name.", metavar="NAME")],
    url: Url = DEFAULT_URL,
) -> None:
    """Remove a schedule. Messages of earlier runs stay."""

    async def work(client: Client) -> bool:
        return await client.remove_schedule(name)

    if not with_client(url, work):
        say_error(f"There is no schedule {name!r}. List them with: fanlog schedule list")
        raise typer.Exit(ExitCode.NOT_FOUND)
    say_done(f"{name} is removed")


@schedule_app.command(epilog="Example: [bold]fanlog schedule pending mails --limit 10[/]")
def pending(
    topic: Annotated[
        str, typer.Argument(help="Only messages for this topic.", metavar="[TOPIC]")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="Show at most this many.", min=1)
    ] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the delayed messages that wait, the next due first."""

    async def work(client: Client) -> list[PendingMessage]:
        found: list[PendingMessage] = []
        async for message in client.scheduled(topic):
            found.append(message)
            if len(found) > limit:
                break
        return found

    found = with_client(url, work)
    shown = list(islice(found, limit))
    if as_json:
        print_json(shown)
        return
    if not found and on_terminal():
        out().print("No messages wait. Publish one with: fanlog publish --delay", style="dim")
        return
    table = new_table("ID", "TOPIC", "DUE", "KEY", ">SIZE")
    for message in shown:
        key = "" if message.key is None else message.key.decode(errors="replace")
        table.add_row(
            Text(printable(message.id), style="bold cyan"),
            Text(printable(message.topic)),
            show_time(message.due_us),
            Text(printable(key)),
            show_size(message.value_bytes),
        )
    out().print(table)
    if len(found) > limit:
        err().print(f"These are the first {limit:,}. Show more with --limit.", style="dim")


@schedule_app.command(epilog="Example: [bold]fanlog schedule cancel reminder-42[/]")
def cancel(
    ids: Annotated[list[str], typer.Argument(help="Ids of delayed messages.", metavar="ID...")],
    url: Url = DEFAULT_URL,
) -> None:
    """Cancel delayed messages."""

    async def work(client: Client) -> list[bool]:
        return [await client.cancel_scheduled(id) for id in wanted]

    # An id that is given twice is cancelled once.
    wanted = list(dict.fromkeys(ids))
    answers = dict(zip(wanted, with_client(url, work), strict=True))
    for id, cancelled in answers.items():
        if cancelled:
            say_done(f"{id} is cancelled")
        else:
            say_error(f"{id!r} is not waiting: it was published, cancelled, or never existed.")
    if not all(answers.values()):
        raise typer.Exit(ExitCode.NOT_FOUND)


def duration(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as fault:
        raise InvalidArgumentError(f"{option}: {fault}.") from fault


def moment(text: str, option: str) -> dt.datetime:
    """A time in ISO 8601, local where it names no zone; or seconds since 1970."""
    try:
        if text.strip().replace(".", "", 1).isdigit():
            return dt.datetime.fromtimestamp(float(text), tz=dt.UTC)
        return dt.datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise InvalidArgumentError(
            f"{option}: {text!r} is not a time. Write it as 2027-01-31T12:00, with a zone as in "
            "2027-01-31T12:00+01:00, or as seconds since 1970."
        ) from None


def show_time(time_us: int) -> str:
    """Local time, with its zone."""
    local = dt.datetime.fromtimestamp(time_us / 1e6, tz=dt.UTC).astimezone()
    return local.isoformat(sep=" ", timespec="seconds")
