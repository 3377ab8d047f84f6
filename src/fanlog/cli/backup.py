"""`fanlog backup` and `fanlog restore`. The command fetches a point over its connection and writes
it with the permissions of its own user, so a client can't make a broker write elsewhere. On the
broker's machine it takes the files themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.text import Text

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.quantities import show_size
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import err, new_table, out, print_json, say_done, say_warning
from fanlog.cli.verify import show_progress
from fanlog.client.aio import Client
from fanlog.errors import BackupError, FanlogError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.log.backup.archive import write_archive
from fanlog.log.backup.findings import Advance
from fanlog.log.backup.keeping import BackupFolder, Kept, load_points
from fanlog.log.backup.manifest import check_paths
from fanlog.log.backup.point import BackupPoint, FileEntry, decode_listing
from fanlog.log.backup.restoring import load_point, open_backup
from fanlog.log.backup.restoring import restore as restore_point
from fanlog.log.files import sync_folder
from fanlog.model import MIB

BACKUP_EXAMPLE = (
    "Examples: [bold]fanlog backup /backup/fanlog --keep 30[/], "
    "[bold]fanlog backup --url fanlog://host:7420 out.tar.gz[/]"
)
RESTORE_EXAMPLE = "Example: [bold]fanlog restore /backup/fanlog /var/lib/fanlog[/]"

_TAR = (".tar",)
_TAR_GZ = (".tar.gz", ".tgz")
_READ_BYTES = 1 * MIB


class RemoteSource:
    """The files of a point that a broker holds. It is used in a thread beside the client's loop."""

    def __init__(self, client: Client, begun: messages.BackupBegun, point: BackupPoint) -> None:
        self.point = point
        self._client = client
        self._begun = begun
        self._loop = asyncio.get_running_loop()
        # The first file shows whether the broker's files can be reached.
        self._local: bool | None = None

    def read(self, file: int, at: int, size: int) -> bytes:
        call = _read(self._client, self._begun.point, file, at, size)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def path_of(self, entry: FileEntry) -> str | None:
        """The file itself. Another machine may have a file of this name: it is not the same one."""
        if self._local is False:
            return None
        path = f"{self._begun.folder}/{entry.path}"
        try:
            found = os.stat(path)
            same = found.st_ino == entry.inode and found.st_size >= entry.bytes
            same = same and (not entry.sealed or found.st_mtime_ns == entry.mtime_ns)
            self._local = same and os.access(path, os.R_OK)
        except OSError:
            self._local = False
        return path if self._local else None


async def _read(client: Client, point: str, file: int, at: int, size: int) -> bytes:
    wanted = messages.BackupRequest("read", point, file, at, size)
    return decode(messages.BackupData, await client.ask(FrameKind.BACKUP, wanted)).data


async def _list(client: Client, begun: messages.BackupBegun) -> BackupPoint:
    parts: list[bytes] = []
    at = 0
    while at < begun.list_bytes:
        part = await _read(client, begun.point, -1, at, _READ_BYTES)
        if not part:
            raise BackupError(
                "The broker sent fewer bytes than its list of files says: run the backup again."
            )
        parts.append(part)
        at += len(part)
    point = await asyncio.to_thread(decode_listing, b"".join(parts))
    check_paths(point, "The broker's list of files")
    return point


async def pull(client: Client, keep: Callable[[RemoteSource, Advance | None], Kept]) -> Kept:
    """Has a broker take a point, and `keep` it, in a thread."""
    answer = await client.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
    begun = decode(messages.BackupBegun, answer)
    try:
        source = RemoteSource(client, begun, await _list(client, begun))
        total = sum(entry.bytes for entry in source.point.files())
        with show_progress("backing up", lambda: total) as advance:
            return await asyncio.to_thread(keep, source, advance)
    finally:
        # Where the connection is lost, the point went with it.
        with contextlib.suppress(FanlogError):
            await client.ask(FrameKind.BACKUP, messages.BackupRequest("end", begun.point))


# To pin the files of a point may take minutes where the file system has no hard links.
_POINT_SECONDS_MAX = 3600.0


def _pull(url: str, keep: Callable[[RemoteSource, Advance | None], Kept]) -> Kept:
    return with_client(
        url, lambda client: pull(client, keep), request_timeout_seconds=_POINT_SECONDS_MAX
    )


def backup(
    target: Annotated[
        str,
        typer.Argument(
            help="A folder, a .tar or .tar.gz file, or - for a tar stream on stdout.",
            metavar="DIR|TAR",
        ),
    ],
    *,
    keep: Annotated[
        int,
        typer.Option("--keep", help="Keep only this many points of DIR. Default: all.", min=0),
    ] = 0,
    list_points: Annotated[
        bool, typer.Option("--list", help="List the points of DIR, without a new backup.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Back up a broker while it runs.

    A backup is one point in time, the same for all topics, groups, queues and transactions. A
    second backup to the same folder copies only new data, and adds a point. On the broker's machine
    and file system, files that no longer change are hard links and take no space. Topics in memory
    are not in the backup. Restore with: fanlog restore
    """
    with _file_faults(target):
        if list_points:
            _print_points(_folder(target), as_json)
            return
        kept, gone = _take(target, keep, url)
    point = kept.point
    if target == "-":
        return
    if as_json:
        print_json(_document(target, kept, gone))
        return
    _say_what_is_missing(point)
    say_done(
        f"Point {kept.number} is in {target}: {point.topic_count:,} topics, {kept.files:,} files, "
        f"{show_size(kept.copied)} copied, {show_size(kept.linked)} linked, "
        f"{show_size(kept.known)} there before."
    )


def _take(target: str, keep: int, url: str) -> tuple[Kept, list[int]]:
    if target == "-" or target.endswith(_TAR + _TAR_GZ):
        if keep:
            raise InvalidArgumentError("--keep needs a folder: a tar file has only one point.")
        return _to_archive(target, url), []
    with BackupFolder(_folder(target)) as folder:
        kept = _pull(url, folder.add)
        gone = folder.keep_only(keep) if keep else []
    return kept, gone


def _folder(target: str) -> str:
    if os.path.isfile(target):
        raise InvalidArgumentError(
            f"{target} is a file: name a folder, or a file that ends with .tar or .tar.gz."
        )
    return os.path.abspath(target)


def _to_archive(target: str, url: str) -> Kept:
    compress = target.endswith(_TAR_GZ)

    def to(stream: IO[bytes]) -> Kept:
        return _pull(
            url,
            lambda source, advance: write_archive(
                source, stream, compress=compress, advance=advance
            ),
        )

    if target == "-":
        if sys.stdout.isatty():
            raise InvalidArgumentError("A tar stream can't go to a terminal: use a pipe or a file.")
        return to(sys.stdout.buffer)
    # Under its name there is a whole file or none.
    temporary = f"{target}.tmp"
    try:
        with open(temporary, "wb") as stream:
            kept = to(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(os.path.abspath(target)))
    return kept


def _say_what_is_missing(point: BackupPoint) -> None:
    if point.memory_topics:
        say_warning(
            f"{point.memory_topics:,} topics are only in memory, so they are not in the backup."
        )
    if point.left_aside:
        say_warning(
            f"{point.left_aside:,} topics that the broker could not open are not in the backup: "
            "fanlog health"
        )


def _document(target: str, kept: Kept, gone: list[int]) -> dict[str, object]:
    point = kept.point
    return {
        "backup": target,
        "point": kept.number,
        "taken_us": point.taken_us,
        "topics": point.topic_count,
        "memory_topics": point.memory_topics,
        "files": kept.files,
        "copied_bytes": kept.copied,
        "linked_bytes": kept.linked,
        "known_bytes": kept.known,
        "removed_points": gone,
    }


def _print_points(folder: str, as_json: bool) -> None:
    open_backup(folder).close()
    rows = [
        {
            "point": number,
            "taken": _moment(point),
            "topics": point.topic_count,
            "files": len(point.files()),
            "bytes": sum(file.bytes for file in point.files()),
            "release": point.release,
        }
        for number, point in load_points(folder)
    ]
    if as_json:
        print_json(rows)
        return
    table = new_table(">POINT", "TAKEN", ">TOPICS", ">FILES", ">BYTES", "RELEASE")
    for row in rows:
        size = show_size(int(str(row["bytes"])))
        shown = [str(row[name]) for name in ("point", "taken", "topics", "files")]
        table.add_row(*shown, size, str(row["release"]))
    out().print(table)


def _moment(point: BackupPoint) -> str:
    return dt.datetime.fromtimestamp(point.taken_us / 1e6, dt.UTC).isoformat(timespec="seconds")


def restore(
    source: Annotated[
        Path, typer.Argument(help="A backup: a folder, or a tar file.", metavar="BACKUP")
    ],
    data: Annotated[
        Path, typer.Argument(help="The new data folder. It must be empty.", metavar="DATA")
    ],
    point: Annotated[
        int | None,
        typer.Option("--point", help="The point. Default: the newest.", min=1, metavar="NUMBER"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a data folder from a backup.

    The command checks every checksum. Then start a broker with the folder. A reader that was past
    the point gets one gap (reset), and continues with new messages.
    """
    backup_path, folder = os.path.abspath(source), os.path.abspath(data)
    if not os.path.exists(backup_path):
        raise CommandError(f"There is no backup {source}: check the path.", ExitCode.BAD_DATA)
    with (
        _file_faults(str(data)),
        show_progress("restoring", lambda: _total(backup_path, point)) as advance,
    ):
        found = restore_point(backup_path, folder, int(time.time()), point, advance)
    if as_json:
        print_json(
            {
                "data": str(data),
                "point": found.number,
                "taken_us": found.point.taken_us,
                "topics": found.point.topic_count,
                "files": found.files,
                "bytes": found.bytes,
            }
        )
        return
    say_done(
        f"Point {found.number} of {_moment(found.point)} is in {data}: "
        f"{found.point.topic_count:,} topics, {show_size(found.bytes)}."
    )
    err().print(Text(f"Start a broker with it: fanlog serve --data {data}", style="dim"))


def _total(path: str, number: int | None) -> int:
    found = open_backup(path)
    try:
        return sum(file.bytes for file in load_point(found, number)[1].files())
    finally:
        found.close()


class _file_faults(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a function
    """Turns an error of the operating system about a file into a sentence."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, OSError):
            raise CommandError(
                f"{fault.filename or self._name}: {reason(fault)}", ExitCode.FAILED
            ) from fault
