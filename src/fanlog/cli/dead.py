"""`fanlog dead ...`: show, replay, delete and export dead letters. Law: a command that can't be
undone asks first, and nothing dangerous is the default."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Generator
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.messages import readable
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import (
    err,
    new_table,
    on_terminal,
    out,
    print_bytes,
    print_json,
    printable,
    say_done,
)
from fanlog.client.aio import Client
from fanlog.client.dead_letters import DeadLetter, DeadLetterTopic, LetterFilter
from fanlog.errors import InvalidArgumentError

dead_app = typer.Typer(
    help="List, show, replay, delete and export dead letters.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_VALUE_COLUMNS = 48

Topic = Annotated[
    str, typer.Argument(help="The dead-letter topic, such as dead.orders.", metavar="TOPIC")
]
Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids of dead letters, such as 0:12.", metavar="ID...")
]
Queue = Annotated[
    str, typer.Option("--queue", help="Only dead letters of this queue.", metavar="NAME")
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", help="Only dead letters whose reason contains this text.", metavar="TEXT"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the topic.")]


@dead_app.command("list", epilog="Examples: [bold]fanlog dead list[/], [bold]… list dead.orders[/]")
def list_letters(
    topic: Annotated[
        str,
        typer.Argument(
            help="A dead-letter topic. Without it, list the dead-letter topics.", metavar="TOPIC"
        ),
    ] = "",
    *,
    queue: Queue = "",
    reason: Reason = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="Show at most this many.", min=1)
    ] = 100,
    after: Annotated[str, typer.Option("--after", help="Start after this id.", metavar="ID")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List dead-letter topics, or the dead letters of one topic."""
    if not topic:
        _list_topics(url, as_json=as_json)
        return

    async def work(client: Client) -> list[DeadLetter]:
        where = _where(queue, reason)
        # One more than is shown, to know whether there are more.
        found = await client.dead_letters.list(topic, after=after, limit=limit + 1, where=where)
        if not found and (await client.describe_topic(topic)).settings.role != "dead-letter":
            raise InvalidArgumentError(
                f"{topic!r} is not a dead-letter topic, and has no dead letters. List the "
                "dead-letter topics with: fanlog dead list"
            )
        return found

    found = with_client(url, work)
    has_more = len(found) > limit
    found = found[:limit]
    if as_json:
        print_json([letter.document() for letter in found])
        return
    if not found and on_terminal():
        out().print("There are no dead letters.", style="dim")
        return
    table = new_table("ID", "DIED", "FROM", "QUEUE", ">TRIES", "REASON", "KEY", "VALUE")
    for letter in found:
        death = letter.death
        table.add_row(
            Text(letter.id, style="bold cyan"),
            _time(death.time),
            printable(f"{death.topic}/{death.partition}@{death.offset}"),
            printable(death.queue),
            str(death.deliveries),
            Text(printable(_short(death.reason)), style="yellow"),
            "" if death.key is None else _short(readable(death.key)),
            _short("(no value)" if letter.value is None else readable(letter.value)),
        )
    out().print(table)
    if has_more:
        err().print(f"There are more. Continue with: --after {found[-1].id}", style="dim")


def _list_topics(url: str, *, as_json: bool) -> None:
    async def work(client: Client) -> list[DeadLetterTopic]:
        return await client.dead_letters.topics()

    found = with_client(url, work)
    if as_json:
        print_json(found)
        return
    if not found and on_terminal():
        out().print("There are no dead-letter topics: no job has failed for good.", style="dim")
        return
    table = new_table("TOPIC", ">LETTERS", "OLDEST", "NEWEST", "FROM", ">BYTES")
    for info in found:
        table.add_row(
            Text(printable(info.name), style="bold red" if info.letters else "bold cyan"),
            f"{info.letters:,}",
            "" if info.oldest is None else _time(info.oldest),
            "" if info.newest is None else _time(info.newest),
            printable(", ".join(info.sources)),
            show_size(info.bytes),
        )
    out().print(table)


@dead_app.command(epilog="Example: [bold]fanlog dead show dead.orders 0:12[/]")
def show(
    topic: Topic,
    id: Annotated[str, typer.Argument(help="Id of the dead letter, such as 0:12.", metavar="ID")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter."""

    async def work(client: Client) -> DeadLetter:
        return await client.dead_letters.show(topic, id)

    letter = with_client(url, work)
    if as_json:
        print_json(letter.document())
        return
    death = letter.death
    rows = {
        "id": letter.id,
        "from": f"{death.topic}/{death.partition}@{death.offset}",
        "queue": death.queue,
        "died": _time(death.time),
        "tries": str(death.deliveries),
        "reason": death.reason,
        "key": "" if death.key is None else readable(death.key),
        **{f"header {name}": readable(value) for name, value in letter.headers.items()},
    }
    table = new_table("FIELD", "VALUE")
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), printable(value))
    out().print(table)
    out().print("(no value)" if letter.value is None else readable(letter.value))


@dead_app.command(
    epilog="Examples: [bold]fanlog dead replay dead.orders 0:12 0:13[/], "
    "[bold]… replay dead.orders --all --to orders.retry[/]"
)
def replay(
    topic: Topic,
    ids: Ids = None,
    *,
    everything: All = False,
    queue: Queue = "",
    reason: Reason = "",
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Publish to this topic, not to the original one.", metavar="TOPIC"
        ),
    ] = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters to their topic again, and remove them from the dead-letter topic."""
    where = _chosen(ids, queue, reason, everything=everything)
    target = to or "their original topics"
    if not ids:
        _confirm(url, topic, where, f"Replay {{count:,}} dead letters to {target}?", yes=yes)

    async def work(client: Client) -> int:
        with _progress(f"replaying {topic}") as advance:
            return await client.dead_letters.replay(
                topic, ids or None, to=to, where=where, progress=advance
            )

    _report("replayed", topic, with_client(url, work), as_json=as_json)


@dead_app.command(epilog="Example: [bold]fanlog dead delete dead.orders 0:12[/]")
def delete(
    topic: Topic,
    ids: Ids = None,
    *,
    queue: Queue = "",
    reason: Reason = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters by id, queue or reason."""
    where = _chosen(ids, queue, reason, everything=False)
    _confirm(url, topic, where, "Delete {count:,} dead letters for good?", yes=yes, ids=ids)

    async def work(client: Client) -> int:
        with _progress(f"deleting from {topic}") as advance:
            return await client.dead_letters.delete(
                topic, ids or None, where=where, progress=advance
            )

    _report("deleted", topic, with_client(url, work), as_json=as_json)


@dead_app.command(epilog="Example: [bold]fanlog dead purge dead.orders --yes[/]")
def purge(topic: Topic, yes: Yes = False, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete all dead letters of a topic."""
    _confirm(url, topic, None, "Delete all {count:,} dead letters for good?", yes=yes)

    async def work(client: Client) -> int:
        return await client.dead_letters.purge(topic)

    _report("deleted", topic, with_client(url, work), as_json=as_json)


@dead_app.command(epilog="Example: [bold]fanlog dead export dead.orders > letters.jsonl[/]")
def export(topic: Topic, queue: Queue = "", reason: Reason = "", url: Url = DEFAULT_URL) -> None:
    """Print dead letters as JSON lines."""

    async def work(client: Client) -> None:
        async for line in client.dead_letters.export(topic, _where(queue, reason)):
            print_bytes(line)

    with_client(url, work)


def _where(queue: str, reason: str) -> LetterFilter | None:
    if not queue and not reason:
        return None
    return lambda letter: (
        (not queue or letter.death.queue == queue) and reason in letter.death.reason
    )


def _chosen(
    ids: list[str] | None, queue: str, reason: str, *, everything: bool
) -> LetterFilter | None:
    """The dead letters that the flags choose. Exactly one kind of flag must be given."""
    where = _where(queue, reason)
    if bool(ids) + (where is not None) + everything != 1:
        raise InvalidArgumentError(
            "Say which dead letters, in one of these ways: by their ids (such as 0:12), by "
            "--queue or --reason, or with --all."
        )
    return where


def _confirm(
    url: str,
    topic: str,
    where: LetterFilter | None,
    question: str,
    *,
    yes: bool,
    ids: list[str] | None = None,
) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgumentError("This can't be undone, so it needs a confirmation: give --yes.")

    async def count(client: Client) -> int:
        return len([letter async for letter in client.dead_letters.scan(topic, where)])

    number = len(ids) if ids else with_client(url, count)
    if not typer.confirm(question.format(count=number), err=True):
        err().print("Nothing was changed.")
        raise typer.Exit(ExitCode.FAILED)


def _report(what: str, topic: str, count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, what: count})
    else:
        say_done(f"{count:,} dead letter{'s' * (count != 1)} of {topic} {what}.")


@contextlib.contextmanager
def _progress(what: str) -> Generator[Callable[[int], None]]:
    if not err().is_terminal:
        yield lambda _: None
        return
    # Rich's progress costs start-up time, and only this branch needs it.
    from fanlog.cli.progress import input_progress  # noqa: PLC0415

    done = 0

    with input_progress(what, None) as advance:

        def more(count: int) -> None:
            nonlocal done
            done += count
            advance(done)

        yield more


def _time(moment: dt.datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _VALUE_COLUMNS else line[: _VALUE_COLUMNS - 1] + "…"
