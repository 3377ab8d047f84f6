"""`fanlog import`: the messages of a file into a topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Protocol

import typer

from fanlog.cli.exchange import ROWS_AT_ONCE, FileRow, ParquetFile, format_of, read_line
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.inputs import LineReader, unreadable
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import print_json, say_done
from fanlog.cli.verify import show_progress
from fanlog.client.aio import Client
from fanlog.client.transactions.transaction import Transaction
from fanlog.errors import InvalidArgumentError, TopicNotFoundError
from fanlog.model import MIB

EXAMPLE = (
    "Examples: [bold]fanlog import orders orders.jsonl[/], "
    "[bold]fanlog import orders orders.parquet --once nightly-2026-11-16[/]"
)
_CHUNK_BYTES = 4 * MIB


class _Target(Protocol):
    """A client, or a transaction."""

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: dict[str, bytes],
        event_time: int | None,
        partition: int | None,
        priority: int,
    ) -> object: ...


def import_(
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic. The broker creates it with the first message.", metavar="TOPIC"
        ),
    ],
    file: Annotated[
        Path, typer.Argument(help="A .jsonl or .parquet file. Default: stdin.", metavar="[FILE]")
    ] = Path("-"),
    *,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="Default: from the end of FILE, otherwise jsonl.",
            metavar="jsonl|parquet",
        ),
    ] = "",
    once: Annotated[
        str,
        typer.Option(
            "--once",
            help="A name for this import. If you repeat it with the same name and file, it "
            "stores only missing messages.",
            metavar="NAME",
        ),
    ] = "",
    spread: Annotated[
        bool,
        typer.Option("--spread", help="Choose partitions by key, not those from the file."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Publish the messages of a file that fanlog export has written.

    The import keeps keys, values, headers, priorities, partitions and event times. A message
    without an event time gets its old append time. Offsets are new. With --once you can safely
    repeat an interrupted import: each block of messages is stored once.
    """
    if str(file) == "-" and format_of("", file_format) == "parquet":
        raise InvalidArgumentError("Parquet can't be read from stdin: name a file.")
    chosen = format_of(file.name, file_format)
    parquet: ParquetFile | None = None
    try:
        if chosen == "parquet":
            parquet = ParquetFile(file)
        elif str(file) != "-":
            file.open("rb").close()
    except OSError as fault:
        raise unreadable(file, fault) from fault

    async def work(client: Client) -> tuple[int, int]:
        return await _Import(client, topic, once, spread=spread).run(file, parquet)

    stored, known = with_client(url, work, reconnect=True)
    if as_json:
        print_json({"topic": topic, "stored": stored, "known": known})
        return
    more = f", and {known:,} were there already" if known else ""
    say_done(f"{stored:,} messages are in {topic}{more}.")


class _Import:
    def __init__(self, client: Client, topic: str, once: str, *, spread: bool) -> None:
        self._client = client
        self._topic = topic
        self._once = once
        self._spread = spread
        self._partitions = 0
        self._first = 0
        self._stored = 0
        self._known = 0

    async def run(self, file: Path, parquet: ParquetFile | None) -> tuple[int, int]:
        if parquet is not None:
            with show_progress("importing", lambda: parquet.rows) as advance:
                for rows in parquet.read():
                    await self._take(rows)
                    if advance is not None:
                        advance(self._first)
            return self._stored, self._known
        if str(file) == "-":
            async for rows in _lines(sys.stdin.fileno()):
                await self._take(rows)
            return self._stored, self._known
        with (
            file.open("rb") as stream,
            show_progress("importing", lambda: file.stat().st_size) as advance,
        ):
            async for rows in _lines(stream.fileno()):
                await self._take(rows)
                if advance is not None:
                    advance(stream.tell())
        return self._stored, self._known

    async def _take(self, rows: list[FileRow]) -> None:
        """Stores some rows, in blocks that do not depend on how they came."""
        block: list[FileRow] = []
        size = 0
        for row in rows:
            block.append(row)
            size += row.bytes
            if size >= _CHUNK_BYTES:
                await self._store(block)
                block, size = [], 0
        if block:
            await self._store(block)

    async def _store(self, rows: list[FileRow]) -> None:
        await self._check_partitions(rows)
        if self._once:
            result = await self._client.run_transaction(
                lambda transaction: self._stage(transaction, rows), id=self._id(rows)
            )
            if result.already:
                self._known += len(rows)
            else:
                self._stored += len(rows)
        else:
            await self._publish(self._client, rows)
            self._stored += len(rows)
        self._first += len(rows)

    async def _stage(self, transaction: Transaction, rows: list[FileRow]) -> None:
        for row in rows:
            await self._put(transaction, row)

    async def _publish(self, client: Client, rows: list[FileRow]) -> None:
        await asyncio.gather(*(self._put(client, row) for row in rows))

    async def _put(self, target: _Target, row: FileRow) -> None:
        await target.publish(
            self._topic,
            row.value,
            key=row.key,
            headers=row.headers,
            event_time=row.time_us,
            partition=None if self._spread else row.partition,
            priority=row.priority,
        )

    def _id(self, rows: list[FileRow]) -> str:
        """Names a block by its position and its content: another file under the same name is
        new."""
        digest = blake2b(digest_size=8, person=b"fanlog-import")
        for row in rows:
            digest.update(repr(row).encode())
        whose = blake2b(f"{self._topic}/{self._once}".encode(), digest_size=8).hexdigest()
        return f"import/{whose}/{self._first}/{digest.hexdigest()}"

    async def _check_partitions(self, rows: list[FileRow]) -> None:
        last = max((row.partition or 0 for row in rows), default=0)
        if self._spread or last < max(self._partitions, 1):
            return
        try:
            self._partitions = len((await self._client.describe_topic(self._topic)).partitions)
        except TopicNotFoundError:
            self._partitions = 0
        if last >= self._partitions:
            raise CommandError(
                f"The file has messages of partition {last}, and {self._topic} has "
                f"{self._partitions} partitions. Create it with {last + 1} (fanlog topic create "
                f"{self._topic} --partitions {last + 1}), let it grow, or choose partitions by key "
                "with --spread.",
                ExitCode.BAD_DATA,
            )


async def _lines(fd: int) -> AsyncIterator[list[FileRow]]:
    """The rows of a file of lines, always the same number at once."""
    rows: list[FileRow] = []
    number = 0
    async for lines in LineReader(fd).chunks():
        for line in lines:
            number += 1
            if line.strip():
                rows.append(read_line(line, number))
            if len(rows) == ROWS_AT_ONCE:
                yield rows
                rows = []
    if rows:
        yield rows
