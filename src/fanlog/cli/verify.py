"""`fanlog verify`: checks every checksum of a data folder, without a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from fanlog.broker.transactions.intents import decode_intent
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.quantities import show_size
from fanlog.cli.session import AsJson
from fanlog.cli.terminal import err, new_table, out, print_json, printable, say_done
from fanlog.log.backup.findings import CheckReport
from fanlog.log.backup.keeping import is_backup_folder
from fanlog.log.backup.verify import StagedFile, size_of, verify_data
from fanlog.log.backup.verify_backup import verify_backup
from fanlog.model import INTERNAL_PREFIX

EXAMPLE = "Examples: [bold]fanlog verify /var/lib/fanlog[/], [bold]fanlog verify --json data[/]"

LEDGER = INTERNAL_PREFIX + "transactions"


def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A data folder in which no broker runs, or a backup.", metavar="DATA|BACKUP"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check every checksum of a data folder or a backup, offline.

    The command changes nothing. It lists each fault with its file, its byte and its meaning: "lost"
    is damage, "rebuilt" files are created again by the next start, and "torn" is a write that a
    crash cut off, or damage to the newest messages. The exit code is 0 if there is no fault, and 1
    otherwise.
    """
    try:
        report = _check(os.path.abspath(folder))
    except OSError as fault:
        raise CommandError(
            f"{fault.filename or folder} can't be read: {reason(fault)}", ExitCode.BAD_DATA
        ) from fault
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    if report.findings:
        raise typer.Exit(ExitCode.FAILED)


def _check(folder: str) -> CheckReport:
    with show_progress("verifying", lambda: size_of(folder)) as advance:
        if os.path.isfile(folder) or is_backup_folder(folder):
            return verify_backup(folder, advance)
        return verify_data(folder, advance, ledger=LEDGER, staged_of=staged_of)


def staged_of(value: bytes) -> Iterable[StagedFile]:
    """The files that an entry of the ledger of transactions names."""
    try:
        intent = decode_intent(value)
    except msgspec.MsgspecError:
        return ()
    return [StagedFile(p.ticket, p.file_bytes, p.file_crc) for p in intent.parts if p.file_bytes]


@contextlib.contextmanager
def show_progress(title: str, total: Callable[[], int]) -> Generator[Callable[[int], None] | None]:
    """A bar where a person looks, and None elsewhere."""
    if not err().is_terminal:
        yield None
        return
    # Rich's bars take a while to import.
    from fanlog.cli.progress import input_progress  # noqa: PLC0415

    with input_progress(title, total()) as advance:
        yield advance


def _document(report: CheckReport) -> dict[str, object]:
    return {
        "files": report.files,
        "bytes": report.bytes,
        "findings": [finding._asdict() for finding in report.findings],
        "notes": report.notes,
    }


def _print(report: CheckReport) -> None:
    for note in report.notes:
        err().print(Text(printable(note), style="dim"))
    if not report.findings:
        say_done(f"{report.files:,} files are whole, {show_size(report.bytes)}.")
        return
    table = new_table("MEANS", ">BYTE", "FILE", "FAULT")
    for found in report.findings:
        style = "bold red" if found.meaning == "lost" else "yellow"
        table.add_row(
            Text(found.meaning, style=style),
            str(found.at),
            printable(found.file),
            printable(found.sentence),
        )
    out().print(table)
    count = len(report.findings)
    err().print(f"{count:,} fault{'s' * (count != 1)} in {report.files:,} files.")
