"""`fanlog export`: the messages of a topic as a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO, Annotated

import typer

from fanlog.cli.exchange import JsonLinesWriter, ParquetWriter, Writer, format_of
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, Url, with_client
from fanlog.cli.tail import TailArguments, parse_start, read_present
from fanlog.cli.terminal import err
from fanlog.cli.verify import show_progress
from fanlog.client.aio import Client
from fanlog.client.message import Message
from fanlog.errors import InvalidArgumentError

EXAMPLE = (
    "Examples: [bold]fanlog export orders orders.jsonl[/], "
    "[bold]fanlog export orders --format parquet - > orders.parquet[/]"
)


def export(
    topic: Annotated[str, typer.Argument(help="The topic.", metavar="TOPIC")],
    file: Annotated[
        Path, typer.Argument(help="A .jsonl or .parquet file. Default: stdout.", metavar="[FILE]")
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
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition. May be repeated.", min=0),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, an offset, a moment (ISO 8601), or an age (10m, 2h, 1d).",
            metavar="START",
        ),
    ] = "earliest",
    json_values: Annotated[
        bool, typer.Option("--json-values", help="Write JSON values as JSON, not as text.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write all current messages of a topic to a file.

    In JSON lines, text is text, and other bytes are base64. Parquet needs: pip install
    'fanlog[parquet]'. Import with: fanlog import
    """
    chosen = format_of(file.name, file_format)
    if json_values and chosen == "parquet":
        raise InvalidArgumentError("--json-values is for JSON lines: Parquet has bytes.")
    if str(file) == "-" and chosen == "parquet" and sys.stdout.isatty():
        raise InvalidArgumentError("Parquet can't go to a terminal: name a file, or use a pipe.")
    wanted = TailArguments(
        target=topic,
        partitions=tuple(partition) if partition else None,
        start=parse_start(start),
        policy="catch-up",
        count=0,
        follow=False,
        group="",
        missing="fail",
    )
    with _target(file) as stream:
        writer: Writer = (
            ParquetWriter(stream)
            if chosen == "parquet"
            else JsonLinesWriter(stream, json_values=json_values)
        )
        count = with_client(url, lambda client: _export(client, wanted, writer), reconnect=True)
        writer.close()
    if str(file) != "-":
        size = show_size(file.stat().st_size)
        err().print(f"{count:,} messages of {topic} are in {file}, {size}.")


async def _export(client: Client, wanted: TailArguments, writer: Writer) -> int:
    info = await client.describe_topic(wanted.target)
    count = 0
    with show_progress("exporting", lambda: info.records) as advance:

        def show(messages: list[Message]) -> None:
            nonlocal count
            writer.write(messages)
            count += len(messages)
            if advance is not None:
                advance(count)

        await read_present(client, wanted, show)
    return count


@contextlib.contextmanager
def _target(file: Path) -> Generator[IO[bytes]]:
    """Under the file's name there is a whole file or none."""
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = f"{file}.tmp"
    try:
        with open(temporary, "wb") as stream:
            yield stream
        os.replace(temporary, file)
    except OSError as fault:
        raise CommandError(f"{file} can't be written: {reason(fault)}", ExitCode.FAILED) from fault
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
