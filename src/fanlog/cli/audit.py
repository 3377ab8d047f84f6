"""`fanlog audit ...`: follow the audit log, check that nobody has changed it, and export it."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Self

import typer
from rich.text import Text

from fanlog.cli.audit_sources import (
    OnMissing,
    TakeRecord,
    maybe_kept_head,
    no_audit_log,
    read_broker,
    read_export,
    read_folder,
    read_head,
)
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.tail import parse_start
from fanlog.cli.terminal import (
    err,
    out,
    print_bytes,
    print_json,
    printable,
    say_done,
    say_error,
    say_warning,
)
from fanlog.client.aio import Client
from fanlog.errors import ClosedError, FormatError, InvalidArgumentError, TopicNotFoundError
from fanlog.model import Start
from fanlog.security.audit import AUDIT_TOPIC, AuditRecord, Head, decode_record, digest
from fanlog.security.audit_check import AuditCheckResult, ChainCheck

audit_app = typer.Typer(
    help="Follow, check and export the audit log: who did what.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

# Newest records in which `tail` looks for matches at first.
_WINDOW_RECORDS = 1_000
_STYLES = {"ok": "green", "denied": "bold red", "failed": "yellow"}

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Read this data folder, not a broker.",
        metavar="DIR",
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        help="Start at earliest, a record's number, a time (ISO 8601), or an age (10m, 2h, 1d).",
        metavar="START",
    ),
]


# What is shown


class _Filter:
    """Which records to show. Texts may contain *."""

    def __init__(self, user: str, action: str, name: str, result: str) -> None:
        self._wanted = {"user": user, "action": action, "name": name, "result": result}

    def __bool__(self) -> bool:
        return any(self._wanted.values())

    def fits(self, record: AuditRecord) -> bool:
        return all(
            fnmatch.fnmatchcase(getattr(record, field), pattern)
            for field, pattern in self._wanted.items()
            if pattern
        )


def _show(record: AuditRecord) -> None:
    who = record.user or "-"
    where = " ".join(filter(None, (record.listener, record.address)))
    line = Text()
    line.append(f"{record.seq:>6} {printable(record.time)} ", style="dim")
    line.append(f"{record.result:<6} ", style=_STYLES.get(record.result, ""))
    line.append(f"{printable(record.action)} ", style="bold")
    line.append(printable(record.name))
    line.append(f"  by {printable(who)}", style="cyan")
    if where:
        line.append(f" from {printable(where)}", style="dim")
    if record.detail:
        line.append(f"  ({printable(record.detail)})", style="dim")
    if record.count > 1:
        line.append(f"  {record.count} times until {printable(record.until)}", style="yellow")
    out().print(line)


@audit_app.command(epilog="Example: [bold]fanlog audit tail --result denied[/]")
def tail(
    *,
    count: Annotated[
        int,
        typer.Option(
            "--last", "-n", help="Show this many of the last matching records first.", min=0
        ),
    ] = 20,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Start here instead: as for `fanlog tail --from`.", metavar="START"
        ),
    ] = "",
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="Stop at the current end.")
    ] = False,
    user: Annotated[str, typer.Option("--user", help="Only records of this user.")] = "",
    action: Annotated[
        str, typer.Option("--action", help="Only this action, such as 'topic.*'.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="Only records about this name, such as a topic.")
    ] = "",
    result: Annotated[
        str, typer.Option("--result", help="Only this result.", metavar="ok|denied|failed")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the last records of the audit log, and new ones as they come."""
    wanted = _Filter(user, action, name, result)
    begin = parse_start(start) if start else Start("last", count) if count else Start()

    def take(seq: int, value: bytes) -> None:
        try:
            record = decode_record(value)
        except FormatError as fault:
            say_warning(f"Record {seq}: {fault}.")
            return
        if not wanted.fits(record):
            return
        if as_json:
            print_bytes(value + b"\n")
        else:
            _show(record)
            out().file.flush()

    async def work(client: Client) -> None:
        first = begin
        if wanted and begin.kind == "last":
            # Without a log there is nothing to find: following waits for it.
            with contextlib.suppress(CommandError):
                first = await _find_last(client, wanted, count)
        if no_follow:
            await read_broker(client, take, _say_missing, first)
        else:
            await _follow(client, take, first)

    with_client(url, work, reconnect=not no_follow)


async def _find_last(client: Client, wanted: _Filter, count: int) -> Start:
    """The start of the last `count` matching records. Looks at more and more of the newest ones."""
    window = max(_WINDOW_RECORDS, count)
    while True:
        seen, fitting = await _look(client, wanted, window)
        if len(fitting) >= count or seen < window:
            return Start("offset", fitting[-count:][0]) if fitting else Start("last", 1)
        window *= 10


async def _look(client: Client, wanted: _Filter, window: int) -> tuple[int, list[int]]:
    """How many of the last `window` records exist, and the numbers of the matching ones."""
    seen = 0
    fitting: list[int] = []

    def take(seq: int, value: bytes) -> None:
        nonlocal seen
        seen += 1
        with contextlib.suppress(FormatError):
            if wanted.fits(decode_record(value)):
                fitting.append(seq)

    await read_broker(client, take, lambda _first, _next, _why: None, Start("last", window))
    return seen, fitting


def _say_missing(first: int, next: int, why: str) -> None:
    say_warning(f"Records {first} to {next - 1} {why}.")


async def _follow(client: Client, take: TakeRecord, start: Start) -> None:
    if err().is_terminal:
        err().print("Following the audit log. Press Ctrl-C to end.", style="dim")
    begin: Start = start
    if start.kind == "last":
        with contextlib.suppress(TopicNotFoundError):
            begin = Start("offset", (await client.find_offsets(AUDIT_TOPIC, start))[0])
        begin = Start("earliest") if begin is start else begin
    async with client.subscribe(AUDIT_TOPIC, start=begin) as records:
        with contextlib.suppress(ClosedError):
            while True:
                for message in (await records.next_batch()).messages:
                    take(message.offset, message.value)


# Checking


@audit_app.command(
    epilog="Examples: [bold]fanlog audit verify --head 41:9f86…[/], "
    "[bold]fanlog audit verify --data /var/lib/fanlog[/]"
)
def verify(
    *,
    data: DataFolder = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Check a file that `export` has written.", metavar="FILE"),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="A head that you stored elsewhere, or a file that contains it. The check then "
            "finds a log that was rewritten or cut off. May be repeated.",
            metavar="HEAD",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Check that nobody has changed the audit log, and list the bad records."""
    # Only the broker's own head shows that the newest records are damaged or cut off. A head stored
    # elsewhere has precedence: an attacker who changes the log can change the broker's file too.
    kept = None if data is None else maybe_kept_head(data)
    heads = [] if kept is None else [kept]
    check = ChainCheck([*heads, *(read_head(given) for given in head or [])])
    _read_all(data, file, url, check.take, check.missing)
    result = check.result()
    if as_json:
        print_json(_document(result))
    else:
        _say(result)
    if not result.ok:
        raise typer.Exit(ExitCode.FAILED)


def _read_all(
    data: Path | None, file: Path | None, url: str, take: TakeRecord, missing: OnMissing
) -> None:
    if data is not None and file is not None:
        raise InvalidArgumentError("--data and --file exclude each other: give one of them.")
    if data is not None:
        read_folder(data, take, missing)
    elif file is not None:
        read_export(file, take)
    else:
        with_client(url, lambda client: read_broker(client, take, missing, Start("earliest")))


def _document(result: AuditCheckResult) -> dict[str, object]:
    return {
        "ok": result.ok,
        "records": result.records,
        "first": result.first,
        "head": str(result.head),
        "faults": result.faults,
        "faults_count": result.faults_count,
        "remarks": result.remarks,
    }


def _say(result: AuditCheckResult) -> None:
    for remark in result.remarks:
        say_warning(remark)
    for fault in result.faults:
        say_error(fault.sentence)
    if result.faults_count > len(result.faults):
        say_error(f"And {result.faults_count - len(result.faults)} more faults.")
    if result.ok and result.records:
        say_done(
            f"The chain is whole: {result.records} records, {result.first} to "
            f"{result.head.seq}. Its head is {result.head}"
        )
    elif result.ok:
        say_done("The audit log has no records.")


@audit_app.command(epilog="Example: [bold]fanlog audit head >> /mnt/elsewhere/audit-heads[/]")
def head(*, data: DataFolder = None, url: Url = DEFAULT_URL) -> None:
    """Print the number and hash of the newest record. Store it elsewhere, for `verify --head`."""
    newest = Head()

    def take(seq: int, value: bytes) -> None:
        nonlocal newest
        newest = Head(seq, digest(value))

    if data is not None:
        read_folder(data, take, _say_missing)
    else:
        with_client(url, lambda client: read_broker(client, take, _say_missing, Start("last", 1)))
    if newest.seq < 0:
        raise no_audit_log()
    print(newest)


# Taking it along


@audit_app.command(epilog="Example: [bold]fanlog audit export audit.jsonl --from 30d[/]")
def export(
    file: Annotated[
        Path, typer.Argument(help="File to write. - prints it.", metavar="FILE")
    ] = Path("-"),
    *,
    start: From = "earliest",
    data: DataFolder = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Write the audit log as JSON lines, unchanged, so that `verify` can check them."""
    if data is not None and start != "earliest":
        raise InvalidArgumentError("--from needs a broker: leave it out with --data.")
    begin = parse_start(start)
    with _Export(file, force=force) as written:
        if data is not None:
            read_folder(data, written.take, _say_missing)
        else:
            with_client(url, lambda client: read_broker(client, written.take, _say_missing, begin))
    if str(file) != "-":
        say_done(f"{file} has {written.records} records. The head is {written.head}")


class _Export:
    """Writes records, and knows the newest. The file is made when there is something to write."""

    def __init__(self, file: Path, *, force: bool) -> None:
        self._file = file
        self._force = force
        self._stream: BinaryIO | None = sys.stdout.buffer if str(file) == "-" else None
        if file.exists() and not force and self._stream is None:
            raise _exists(file)
        self.records = 0
        self.head = Head()

    def take(self, seq: int, value: bytes) -> None:
        try:
            if self._stream is None:
                self._stream = self._file.open("wb" if self._force else "xb")
            self._stream.write(value + b"\n")
        except FileExistsError:
            raise _exists(self._file) from None
        except OSError as fault:
            raise self._unwritten(fault) from None
        self.records += 1
        self.head = Head(seq, digest(value))

    def _unwritten(self, fault: OSError) -> CommandError:
        return CommandError(f"{self._file} can't be written: {reason(fault)}", ExitCode.FAILED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.flush()
            if stream is not sys.stdout.buffer:
                stream.close()
        except OSError as fault:
            raise self._unwritten(fault) from None


def _exists(file: Path) -> CommandError:
    return CommandError(f"{file} exists already: give --force to overwrite it.", ExitCode.EXISTS)
