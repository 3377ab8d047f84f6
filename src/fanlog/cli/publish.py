"""`fanlog publish`: one message with its receipt, or many with a summary."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fanlog.cli.exit_codes import CommandError, ExitCode, exit_code_of
from fanlog.cli.inputs import LineReader, parse_headers, read_whole, unreadable
from fanlog.cli.quantities import show_size
from fanlog.cli.schedule import duration, moment, show_time
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import err, print_json, say_done
from fanlog.client.aio import Client
from fanlog.client.publishing import PublishOptions
from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.model import Receipt, Scheduled

EXAMPLE = (
    "Examples: [bold]fanlog publish greetings hello[/], "
    "[bold]fanlog publish orders --key-separator : < orders.txt[/]"
)
_REPEATS_A_CHUNK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishArguments:
    """What to publish, and how."""

    topic: str
    message: str | None
    file: Path | None
    lines: bool
    key: str | None
    key_separator: str
    headers: dict[str, str]
    partition: int | None
    priority: int
    rate: float
    count: int
    delay_seconds: float | None = None
    at: dt.datetime | None = None
    schedule_id: str | None = None

    @property
    def later(self) -> bool:
        return self.delay_seconds is not None or self.at is not None

    @property
    def one_message(self) -> bool:
        """Whether it publishes one message (perhaps many times)."""
        return self.message is not None or (self.file is not None and not self.lines)

    def check(self) -> None:
        if self.message is not None and self.file is not None:
            raise InvalidArgumentError("MESSAGE and --file exclude each other: give one of them.")
        if self.lines and self.file is None:
            raise InvalidArgumentError("--lines needs --file; stdin is always read by lines.")
        if self.count > 1 and self.message is None and self.file is None:
            raise InvalidArgumentError(
                "--count repeats MESSAGE or --file; stdin can't be repeated."
            )
        if self.key_separator and self.key is not None:
            raise InvalidArgumentError("--key and --key-separator exclude each other.")
        if self.key_separator and self.one_message:
            raise InvalidArgumentError("--key-separator is for lines; give --key for one message.")
        if self.delay_seconds is not None and self.at is not None:
            raise InvalidArgumentError("--delay and --at exclude each other: give one of them.")
        if self.schedule_id is not None and not (
            self.later and self.one_message and self.count == 1
        ):
            raise InvalidArgumentError("--id is for one message with --delay or --at.")


class Summary(msgspec.Struct, kw_only=True):
    """The summary of many messages."""

    topic: str
    messages: int
    bytes: int
    seconds: float
    messages_per_second: float
    durability: str


def publish(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic. The broker creates it with the first message.", metavar="TOPIC"
        ),
    ],
    message: Annotated[
        str | None,
        typer.Argument(
            help="The message. Without it, each line of stdin is a message.", metavar="[MESSAGE]"
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Publish a file as one message.", metavar="FILE"),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Publish each line of --file as a message.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the messages.")] = None,
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", help="Text between key and value in each line.", metavar="TEXT"
        ),
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="A header. May be repeated.", metavar="NAME=VALUE"),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", help="Publish to this partition, and ignore the key.", min=0
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            "--priority", help="Priority in queues, from 0 to 9 (most urgent).", min=0, max=9
        ),
    ] = 0,
    rate: Annotated[
        float, typer.Option("--rate", help="Publish at most this many messages per second.", min=0)
    ] = 0,
    count: Annotated[
        int, typer.Option("--count", "-n", help="Publish the message this many times.", min=1)
    ] = 1,
    delay: Annotated[
        str,
        typer.Option(
            "--delay", help="Publish later, after 30s, 10m, 2h or 7d.", metavar="DURATION"
        ),
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            "--at", help="Publish at this time: 2027-01-31T12:00, local time.", metavar="TIME"
        ),
    ] = "",
    schedule_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="The id of a delayed message. It replaces a waiting message with the same id.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish a message, a file, or lines of stdin."""
    wanted = PublishArguments(
        topic=topic,
        message=message,
        file=file,
        lines=lines,
        key=key,
        key_separator=key_separator,
        headers=parse_headers(header or []),
        partition=partition,
        priority=priority,
        rate=rate,
        count=count,
        delay_seconds=duration(delay, "--delay") if delay else None,
        at=moment(at, "--at") if at else None,
        schedule_id=schedule_id,
    )
    wanted.check()
    if wanted.one_message and count == 1:
        _print_receipt(_publish_one(url, wanted), as_json=as_json)
        return

    async def work(client: Client) -> Summary:
        return await _publish_many(client, wanted)

    _print_summary(with_client(url, work, reconnect=True), as_json=as_json)


def _only_value(wanted: PublishArguments) -> bytes:
    if wanted.file is not None:
        return read_whole(wanted.file)
    # Arguments that are not UTF-8 arrive with surrogates. They are published as the original bytes.
    return os.fsencode(wanted.message or "")


def _publish_one(url: str, wanted: PublishArguments) -> Receipt | Scheduled:
    value = _only_value(wanted)

    async def work(client: Client) -> Receipt | Scheduled:
        options: PublishOptions = {
            "key": wanted.key,
            "headers": wanted.headers or None,
            "partition": wanted.partition,
            "priority": wanted.priority,
        }
        id = wanted.schedule_id
        if wanted.delay_seconds is not None:
            seconds = wanted.delay_seconds
            return await client.publish(
                wanted.topic, value, delay_seconds=seconds, schedule_id=id, **options
            )
        if wanted.at is not None:
            return await client.publish(
                wanted.topic, value, at=wanted.at, schedule_id=id, **options
            )
        return await client.publish(wanted.topic, value, **options)

    return with_client(url, work)


async def _publish_many(client: Client, wanted: PublishArguments) -> Summary:
    sender = _Sender(client, wanted)
    began = time.monotonic()
    try:
        with _progress(wanted) as advance:
            async for values, read_bytes in _chunks(wanted):
                await sender.send(values)
                advance(sender.messages if wanted.one_message else read_bytes)
            await client.flush()
    except FanlogError as fault:
        with contextlib.suppress(FanlogError):
            await client.flush()
        if not sender.messages:
            raise
        sentence = f"{fault} Before it, {sender.messages:,} messages were sent."
        raise CommandError(sentence, exit_code_of(fault)) from fault
    seconds = time.monotonic() - began
    durability = ""
    if sender.messages:
        kept_in = SCHEDULED_TOPIC if wanted.later else wanted.topic
        durability = (await client.describe_topic(kept_in)).settings.durability
    return Summary(
        topic=wanted.topic,
        messages=sender.messages,
        bytes=sender.bytes,
        seconds=round(seconds, 6),
        messages_per_second=round(sender.messages / seconds, 1) if seconds else 0.0,
        durability=durability,
    )


class _Sender:
    """Sends values with the requested key, headers and rate."""

    def __init__(self, client: Client, wanted: PublishArguments) -> None:
        self._client = client
        self._wanted = wanted
        self._separator = os.fsencode(wanted.key_separator)
        self._key = None if wanted.key is None else os.fsencode(wanted.key)
        self._headers = wanted.headers or None
        self._began = time.monotonic()
        self.messages = 0
        self.bytes = 0

    async def send(self, values: list[bytes]) -> None:
        wanted, client = self._wanted, self._client
        for line in values:
            key, value = self._split(line) if self._separator else (self._key, line)
            if wanted.rate:
                await self._keep_pace()
            await client.send(
                wanted.topic,
                value,
                key=key,
                headers=self._headers,
                partition=wanted.partition,
                priority=wanted.priority,
                delay_seconds=wanted.delay_seconds,
                at=wanted.at,
            )
            self.messages += 1
            self.bytes += len(value)
        # Sending alone never gives the loop a turn, and the answers want one.
        await asyncio.sleep(0)

    def _split(self, line: bytes) -> tuple[bytes, bytes]:
        key, found, value = line.partition(self._separator)
        if not found:
            raise CommandError(
                f"Line {self.messages + 1} has no {self._wanted.key_separator!r} between a key "
                "and a value.",
                ExitCode.BAD_DATA,
            )
        return key, value

    async def _keep_pace(self) -> None:
        due = self._began + self.messages / self._wanted.rate
        ahead = due - time.monotonic()
        # Shorter sleeps than a timer can measure add up in the next message's.
        if ahead > 0.001:
            await asyncio.sleep(ahead)


async def _chunks(wanted: PublishArguments) -> AsyncIterator[tuple[list[bytes], int]]:
    """Values to publish, and how many bytes of the input have been read for them."""
    if wanted.one_message:
        value, left = _only_value(wanted), wanted.count
        while left:
            some = min(left, _REPEATS_A_CHUNK)
            yield [value] * some, 0
            left -= some
        return
    before = 0
    for _ in range(wanted.count):
        with _opened(wanted.file) as fd:
            reader = LineReader(fd)
            async for lines in reader.chunks():
                yield lines, before + reader.bytes_read
            before += reader.bytes_read


@contextlib.contextmanager
def _opened(file: Path | None) -> Generator[int]:
    if file is None:
        if sys.stdin.isatty():
            err().print("Each line is a message. Press Ctrl-D to end.", style="dim")
        yield sys.stdin.fileno()
        return
    try:
        stream = file.open("rb")
    except OSError as fault:
        raise unreadable(file, fault) from fault
    with stream:
        yield stream.fileno()


def _unseen(done: int) -> None:
    """A progress display that shows nothing."""


@contextlib.contextmanager
def _progress(wanted: PublishArguments) -> Generator[Callable[[int], None]]:
    typing = wanted.message is None and wanted.file is None and sys.stdin.isatty()
    if typing or not err().is_terminal:
        yield _unseen
        return
    # Rich's progress costs start-up time, and only this branch needs it.
    from fanlog.cli.progress import input_progress  # noqa: PLC0415

    total: int | None = wanted.count if wanted.one_message else None
    if wanted.file is not None and wanted.lines:
        with contextlib.suppress(OSError):
            total = wanted.file.stat().st_size * wanted.count
    with input_progress(f"publishing to {wanted.topic}", total) as advance:
        yield advance


def _print_receipt(receipt: Receipt | Scheduled, *, as_json: bool) -> None:
    if as_json:
        print_json(receipt)
        return
    if isinstance(receipt, Scheduled):
        say_done(f"{receipt.topic}, due at {show_time(receipt.due_us)}, id {receipt.id}")
        return
    say_done(
        f"{receipt.topic}, partition {receipt.partition}, offset {receipt.offset}, "
        f"durability {receipt.durability}"
    )


def _print_summary(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    durability = f", durability {summary.durability}" if summary.durability else ""
    say_done(
        f"{summary.messages:,} messages to {summary.topic} in {summary.seconds:.2f} s "
        f"({summary.messages_per_second:,.0f} a second, {show_size(summary.bytes)}){durability}"
    )
