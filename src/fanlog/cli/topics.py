"""`fanlog topic ...`: create, list, describe, alter, grow, truncate, compact and delete topics. It
is long because the options of each command are its signature."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.options import Option, all_options
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.tail import parse_start
from fanlog.cli.terminal import err, new_table, on_terminal, out, print_json, printable, say_done
from fanlog.client.aio import Client
from fanlog.client.arguments import ExistOk
from fanlog.errors import InvalidArgumentError, no_partition
from fanlog.model import PartitionInfo, TopicInfo, TopicSettings

topic_app = typer.Typer(
    help="Create, list, describe, alter, grow, truncate, compact and delete topics.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(help="Name of the topic.", metavar="NAME")]


def _setting(flag: str, metavar: str, *others: str) -> Any:
    return typer.Option(
        flag, *others, help=_option(flag).reason, metavar=metavar, show_default=False
    )


# Flags that leave the unit out: their values have one.
_SHORT = {
    "retention": "retention_seconds",
    "tombstones": "tombstone_seconds",
    "expire": "expire_seconds",
}


def _option(flag: str) -> Option:
    name = flag.removeprefix("--").replace("-", "_")
    return all_options()["topic." + _SHORT.get(name, name)]


@topic_app.command(
    epilog="Example: [bold]fanlog topic create orders --partitions 4 --durability fsync[/]"
)
def create(
    name: Name,
    *,
    partitions: Annotated[str | None, _setting("--partitions", "N")] = None,
    durability: Annotated[str | None, _setting("--durability", "memory|os|fsync")] = None,
    retention: Annotated[str | None, _setting("--retention", "7d")] = None,
    retention_bytes: Annotated[str | None, _setting("--retention-bytes", "10GB")] = None,
    expire: Annotated[str | None, _setting("--expire", "1h")] = None,
    segment_bytes: Annotated[str | None, _setting("--segment-bytes", "128MiB")] = None,
    compression: Annotated[
        str | None, _setting("--compression", "producer|none|zlib|zstd|lz4")
    ] = None,
    message_bytes_max: Annotated[str | None, _setting("--message-bytes-max", "1MiB")] = None,
    tail_bytes: Annotated[str | None, _setting("--tail-bytes", "4MiB")] = None,
    cleanup: Annotated[str | None, _setting("--cleanup", "delete|compact")] = None,
    tombstones: Annotated[str | None, _setting("--tombstones", "1d")] = None,
    compact_after_bytes: Annotated[str | None, _setting("--compact-after-bytes", "1MiB")] = None,
    messages_per_second_max: Annotated[
        str | None, _setting("--messages-per-second-max", "N")
    ] = None,
    bytes_per_second_max: Annotated[str | None, _setting("--bytes-per-second-max", "N")] = None,
    owner: Annotated[str | None, _setting("--owner", "NAME")] = None,
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="No error if the topic exists with these settings."),
    ] = False,
    any_settings: Annotated[
        bool,
        typer.Option("--any-settings", help="With --if-not-exists: accept any settings."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    flags = {
        "--partitions": partitions,
        "--durability": durability,
        "--retention": retention,
        "--retention-bytes": retention_bytes,
        "--expire": expire,
        "--segment-bytes": segment_bytes,
        "--compression": compression,
        "--message-bytes-max": message_bytes_max,
        "--tail-bytes": tail_bytes,
        "--cleanup": cleanup,
        "--tombstones": tombstones,
        "--compact-after-bytes": compact_after_bytes,
        "--messages-per-second-max": messages_per_second_max,
        "--bytes-per-second-max": bytes_per_second_max,
        "--owner": owner,
    }
    settings = _read_settings(flags)
    if any_settings and not if_not_exists:
        raise InvalidArgumentError("--any-settings needs --if-not-exists: give both.")
    exist_ok: ExistOk = "any" if any_settings else if_not_exists

    async def work(client: Client) -> TopicInfo:
        return await client.create_topic(name, exist_ok=exist_ok, **settings)

    info = with_client(url, work)
    if as_json:
        print_json(as_document(info))
    else:
        count = info.settings.partitions
        say_done(
            f"Topic {info.name} exists, with {count} partition{'s' * (count != 1)} "
            f"and durability {info.settings.durability}."
        )


def _read_settings(flags: dict[str, str | None]) -> dict[str, Any]:
    """The settings that were given, by their names."""
    return {
        _option(flag).name: _option(flag).read_flag(given, flag)
        for flag, given in flags.items()
        if given is not None
    }


@topic_app.command(epilog="Example: [bold]fanlog topic alter orders --retention 1d[/]")
def alter(
    name: Name,
    *,
    durability: Annotated[str | None, _setting("--durability", "fsync")] = None,
    retention: Annotated[str | None, _setting("--retention", "7d", "--retention-seconds")] = None,
    retention_bytes: Annotated[str | None, _setting("--retention-bytes", "10GB")] = None,
    expire: Annotated[str | None, _setting("--expire", "1h")] = None,
    segment_bytes: Annotated[str | None, _setting("--segment-bytes", "128MiB")] = None,
    compression: Annotated[
        str | None, _setting("--compression", "producer|none|zlib|zstd|lz4")
    ] = None,
    message_bytes_max: Annotated[str | None, _setting("--message-bytes-max", "1MiB")] = None,
    tail_bytes: Annotated[str | None, _setting("--tail-bytes", "4MiB")] = None,
    cleanup: Annotated[str | None, _setting("--cleanup", "delete|compact")] = None,
    tombstones: Annotated[str | None, _setting("--tombstones", "1d")] = None,
    compact_after_bytes: Annotated[str | None, _setting("--compact-after-bytes", "1MiB")] = None,
    messages_per_second_max: Annotated[
        str | None, _setting("--messages-per-second-max", "N")
    ] = None,
    bytes_per_second_max: Annotated[str | None, _setting("--bytes-per-second-max", "N")] = None,
    owner: Annotated[str | None, _setting("--owner", "NAME")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic, while it is in use.

    Durability can rise from os to fsync: all messages are synced before the answer. With cleanup
    compact, new messages need a key, and old ones without a key stay. A shorter retention deletes
    older messages at once, in whole files. Connected clients use a new compression or message size
    after they connect again. To add partitions, use: fanlog topic grow
    """
    settings = _read_settings(
        {
            "--durability": durability,
            "--cleanup": cleanup,
            "--retention": retention,
            "--retention-bytes": retention_bytes,
            "--expire": expire,
            "--segment-bytes": segment_bytes,
            "--compression": compression,
            "--message-bytes-max": message_bytes_max,
            "--tail-bytes": tail_bytes,
            "--tombstones": tombstones,
            "--compact-after-bytes": compact_after_bytes,
            "--messages-per-second-max": messages_per_second_max,
            "--bytes-per-second-max": bytes_per_second_max,
            "--owner": owner,
        }
    )
    if not settings:
        raise InvalidArgumentError(
            "Give at least one setting to change, for example: --retention 1d."
        )

    async def work(client: Client) -> TopicInfo:
        return await client.alter_topic(name, **settings)

    info = with_client(url, work)
    if as_json:
        print_json(as_document(info))
        return
    now = msgspec.structs.asdict(info.settings)
    # A topic that becomes compacted may keep its messages for longer than before.
    also = {"retention_seconds"} - settings.keys() if cleanup else set[str]()
    shown = [*settings, *also]
    words = [f"{key} {all_options()[f'topic.{key}'].write(now[key])}" for key in shown]
    say_done(f"Topic {name} has {', '.join(words)} now, and {show_size(info.bytes)} of messages.")


@topic_app.command("list", epilog="Example: [bold]fanlog topic list 'orders.>'[/]")
def list_topics(
    pattern: Annotated[
        str,
        typer.Argument(
            help="A pattern of names: * matches one part, > the rest.", metavar="PATTERN"
        ),
    ] = ">",
    internal: Annotated[
        bool, typer.Option("--internal", help="Also list the broker's internal topics.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List topics."""

    async def work(client: Client) -> list[TopicInfo]:
        return await client.topics(pattern, internal=internal)

    found = sorted(with_client(url, work), key=lambda info: info.name)
    if as_json:
        print_json([as_document(info) for info in found])
        return
    if not found and on_terminal():
        out().print("There are no topics yet. Publishing to a topic creates it.", style="dim")
        return
    table = new_table("TOPIC", ">PARTITIONS", "DURABILITY", ">RECORDS", ">BYTES", ">READERS")
    for info in found:
        well = all(p.state == "ok" and not p.damaged for p in info.partitions)
        table.add_row(
            Text(printable(info.name), style="bold cyan" if well else "bold red"),
            str(len(info.partitions)),
            info.settings.durability,
            _count(info),
            show_size(info.bytes),
            f"{sum(p.readers for p in info.partitions):,}",
        )
    out().print(table)


@topic_app.command(epilog="Example: [bold]fanlog topic describe orders[/]")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a topic's partitions, settings and slow readers."""

    async def work(client: Client) -> TopicInfo:
        return await client.describe_topic(name)

    info = with_client(url, work)
    if as_json:
        print_json(as_document(info))
        return
    out().print(
        Text.assemble(
            (printable(info.name), "bold cyan"),
            f"  {_count(info)} records, {show_size(info.bytes)}\n",
        )
    )
    _print_partitions(info.partitions)
    _print_settings(info.settings)
    counted = msgspec.structs.asdict(info.counters)
    words = [f"{value:,} {name.replace('_', ' ')}" for name, value in counted.items()]
    style = "yellow" if any(counted.values()) else "dim"
    out().print(Text(f"Slow readers since the start: {', '.join(words)}.", style=style))
    _print_damage(info.partitions)


def _print_partitions(partitions: tuple[PartitionInfo, ...]) -> None:
    table = new_table(
        ">PARTITION", ">START", ">END", ">RECORDS", ">BYTES", ">SEGMENTS", ">READERS", "STATE"
    )
    for part in partitions:
        damaged = "damaged" if part.state == "ok" and part.damaged else part.state
        table.add_row(
            str(part.partition),
            f"{part.start_offset:,}",
            f"{part.visible_end:,}",
            f"{part.visible_end - part.start_offset:,}",
            show_size(part.bytes),
            str(part.segments),
            f"{part.readers:,}",
            Text(damaged, style="green" if damaged == "ok" else "bold red"),
        )
    out().print(table)


def _print_settings(settings: TopicSettings) -> None:
    table = new_table("SETTING", "VALUE", "MEANING")
    for name, value in msgspec.structs.asdict(settings).items():
        option = all_options()[f"topic.{name}"]
        changed = "bold" if value != option.default else ""
        table.add_row(name, Text(option.write(value), style=changed), Text(option.reason, "dim"))
    out().print(table)


def _print_damage(partitions: tuple[PartitionInfo, ...]) -> None:
    for part in partitions:
        for damaged in part.damaged:
            where = f" in {damaged.file}" if damaged.file else ""
            because = f": {damaged.reason}" if damaged.reason else ""
            sentence = (
                f"! Offsets {damaged.first} to {damaged.next - 1} of partition {part.partition} "
                f"are damaged{where}{because}"
            )
            out().print(Text(sentence, style="bold red"))


@topic_app.command(epilog="Example: [bold]fanlog topic grow orders 8[/]")
def grow(
    name: Name,
    partitions: Annotated[
        int, typer.Argument(help="New number of partitions.", metavar="PARTITIONS")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a topic more partitions, while it is in use.

    Readers, groups and queues use the new partitions by themselves. Keys may move to other
    partitions: messages of a key stay in order among those published before, and among those
    published after. This can't be undone.
    """

    async def work(client: Client) -> tuple[TopicInfo, TopicInfo]:
        return await client.describe_topic(name), await client.grow_topic(name, partitions)

    before, info = with_client(url, work)
    count, more = len(info.partitions), len(info.partitions) - len(before.partitions)
    if as_json:
        print_json(as_document(info))
    elif more <= 0:
        say_done(f"Topic {name} has {count} partition{'s' * (count != 1)} already.")
    else:
        say_done(
            f"Topic {name} has {count} partitions, {more} more than before. Keys go to other "
            "partitions from now on."
        )


@topic_app.command(epilog="Example: [bold]fanlog topic truncate orders --before 1000 --yes[/]")
def truncate(
    name: Name,
    *,
    before: Annotated[
        str, typer.Option("--before", help="An offset, a time, or latest.", metavar="OFFSET")
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Only this partition. Default: all of them."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a topic's messages before an offset."""
    start = parse_start(before, "--before")
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"Deleting messages of {name!r} can't be undone, so it needs a confirmation: "
            "give --yes."
        )

    async def look(client: Client) -> dict[int, int]:
        found = await client.find_offsets(name, start)
        if partition is None:
            return found
        if partition not in found:
            raise no_partition(name, len(found), partition)
        return {partition: found[partition]}

    offsets = with_client(url, look)
    if not yes:
        offsets_shown = ", ".join(f"{o:,} in partition {p}" for p, o in offsets.items())
        if not typer.confirm(
            f"Delete the messages before offset {offsets_shown} for good?", err=True
        ):
            err().print("Nothing was deleted.")
            raise typer.Exit(ExitCode.FAILED)

    async def work(client: Client) -> dict[int, int]:
        return await client.delete_records(name, offsets)

    starts = with_client(url, work)
    if as_json:
        print_json({"topic": name, "starts": {str(p): offset for p, offset in starts.items()}})
        return
    for index, offset in sorted(starts.items()):
        say_done(f"Partition {index} of {name} begins at offset {offset}.")


@topic_app.command(epilog="Example: [bold]fanlog topic compact prices[/]")
def compact(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Compact a topic now: keep the last message of each key."""

    async def work(client: Client) -> tuple[TopicInfo, TopicInfo]:
        return await client.describe_topic(name), await client.compact_topic(name)

    before, info = with_client(url, work)
    if as_json:
        print_json(as_document(info))
    else:
        say_done(
            f"Topic {name} is compacted: {show_size(info.bytes)} of {show_size(before.bytes)} "
            "are left."
        )


@topic_app.command(epilog="Example: [bold]fanlog topic delete orders --yes[/]")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and its messages."""
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError(
            f"Deleting {name!r} can't be undone, so it needs a confirmation: give --yes."
        )
    if not yes:

        async def look(client: Client) -> TopicInfo:
            return await client.describe_topic(name)

        info = with_client(url, look)
        question = f"Delete {name} with {_count(info)} records ({show_size(info.bytes)}) for good?"
        if not typer.confirm(question, err=True):
            err().print("Nothing was deleted.")
            raise typer.Exit(ExitCode.FAILED)

    async def work(client: Client) -> None:
        await client.delete_topic(name)

    with_client(url, work)
    if as_json:
        print_json({"topic": name, "deleted": True})
    else:
        say_done(f"Topic {name} is deleted.")


def _count(info: TopicInfo) -> str:
    """How many records a topic has. Those that compaction left are not counted one by one."""
    return f"{'<=' if info.has_holes and info.records else ''}{info.records:,}"


def as_document(info: TopicInfo) -> dict[str, Any]:
    """A topic as JSON has it, with the sums that a script would want."""
    return {**msgspec.to_builtins(info), "records": info.records, "bytes": info.bytes}
