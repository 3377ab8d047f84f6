"""Backups of a running broker: points of its history, held for as long as somebody copies them.

The broker writes only below its own data folder, and hands out only files of a point that it has
taken itself. Where a backup goes is the client's business.

A point is taken in one turn of the loop. Threads pin its files and read them, so that nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import Protocol, TypeVar

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.ports import Runtime
from fanlog.broker.transactions.transactions import Transactions
from fanlog.errors import (
    BackupError,
    InvalidArgumentError,
    LimitError,
)
from fanlog.log.backup.pinning import PINS, StagedLink, pin, unpin
from fanlog.log.backup.point import BackupPoint, FileEntry, TopicMoment, encode_listing
from fanlog.log.faults import write_error
from fanlog.log.store import LogStore
from fanlog.model import MIB

logger = logging.getLogger("fanlog.broker")

T = TypeVar("T")

# Points that are held at the same time. Each holds disk space that retention can't free.
POINTS_MAX = 4
# What one request reads. It is in memory until the client has taken it.
READ_BYTES_MAX = 1 * MIB
LIST = -1


class HeldPoint:
    """A point whose files are pinned, and the list of them as bytes."""

    def __init__(self, ticket: str, folder: str, files: list[FileEntry], listing: bytes) -> None:
        self.ticket = ticket
        self.folder = folder
        self.listing = listing
        self._files = files
        # One read at a time: that bounds the memory, however many requests come.
        self._reading = asyncio.Lock()

    @property
    def file_count(self) -> int:
        return len(self._files)

    async def read(self, runtime: Runtime, file: int, at: int, size: int) -> bytes:
        size = max(0, min(size, READ_BYTES_MAX))
        if file == LIST:
            return self.listing[at : at + size]
        if not 0 <= file < len(self._files) or at < 0:
            raise InvalidArgumentError(
                f"The point has {len(self._files)} files, and none with the number {file}."
            )
        entry = self._files[file]
        size = min(size, entry.bytes - at)
        if size <= 0:
            return b""
        path = f"{self.folder}/{entry.path}"
        async with self._reading:
            return await in_background(runtime, lambda: _read(path, at, size))


class BackedUpBroker(Protocol):
    """What a backup holds beside the files of the log, and who made it."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def release(self) -> str: ...


class Backups:
    """The points of one broker."""

    def __init__(self, broker: BackedUpBroker, store: LogStore, runtime: Runtime) -> None:
        self._broker = broker
        self._store = store
        self._runtime = runtime
        self._points: dict[str, HeldPoint] = {}
        self._beginning = 0

    async def begin(self) -> HeldPoint:
        """Takes a point now, and pins its files."""
        folder = self._store.folder
        if folder is None:
            raise InvalidArgumentError(
                "This broker keeps everything in memory, and there is nothing to back up: start it "
                "with a data folder (fanlog serve --data DIR)."
            )
        if len(self._points) + self._beginning >= POINTS_MAX:
            raise LimitError(
                f"{POINTS_MAX} backups of this broker are being taken, which is the limit at a "
                "same time: wait for one of them."
            )
        self._store.reserve.check("a backup")
        ticket = secrets.token_hex(8)
        pins = f"{folder}/{PINS}/{ticket}"
        self._beginning += 1
        try:
            point = await self._pinned(pins, ticket)
        except OSError as fault:
            await in_background(self._runtime, lambda: unpin(pins))
            raise write_error(fault, pins) from fault
        finally:
            self._beginning -= 1
        self._points[ticket] = point
        logger.info("backup %s: a point of %d files", ticket, point.file_count)
        return point

    async def _pinned(self, pins: str, ticket: str) -> HeldPoint:
        os.makedirs(pins)
        in_memory = sum(
            topic.settings.durability == "memory" and not topic.name.startswith("_")
            for topic in self._broker.catalog
        )
        point, topics = self._store.begin_point(self._runtime.now_us(), self._broker.release)
        point.memory_topics = in_memory
        try:
            # In the same turn: a transaction that is stored removes its file at once.
            files = self._broker.transactions.staged_files()
            staged = [StagedLink(f.path, os.path.basename(f.path), pins) for f in files if f.path]
        except BaseException:
            self._store.end_point()
            self._store.resume_removals()
            raise

        def work() -> HeldPoint:
            try:
                return _hold(ticket, pins, point, topics, staged)
            finally:
                for link in staged:
                    link.close()
                self._store.end_point()

        try:
            return await in_background(self._runtime, work)
        finally:
            self._store.resume_removals()

    def get(self, ticket: str) -> HeldPoint:
        point = self._points.get(ticket)
        if point is None:
            raise BackupError(
                "The point of this backup is gone: the broker was restarted, or its disk became "
                "full. Take the backup again."
            )
        return point

    async def read(self, ticket: str, file: int, at: int, size: int) -> bytes:
        try:
            return await self.get(ticket).read(self._runtime, file, at, size)
        except OSError as fault:
            # It was ended meanwhile, or the disk has failed: the error says which.
            self.get(ticket)
            raise write_error(fault, ticket, "Reading") from fault

    def end(self, ticket: str) -> None:
        """Releases a point. It may be released already."""
        point = self._points.pop(ticket, None)
        if point is not None:
            self._runtime.in_background(lambda: unpin(point.folder), _ended)

    def give_up(self) -> None:
        """The disk is full: what points hold has to be free for retention and deletion."""
        for ticket in list(self._points):
            logger.warning("backup %s is ended: the disk is full", ticket)
            self.end(ticket)


def _hold(
    ticket: str, pins: str, point: BackupPoint, topics: list[TopicMoment], staged: list[StagedLink]
) -> HeldPoint:
    point = pin(point, topics, staged, pins)
    listing = b"".join(encode_listing(point))
    return HeldPoint(ticket, pins, point.files(), listing)


def _read(path: str, at: int, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, size, at)
    finally:
        os.close(fd)


async def in_background(runtime: Runtime, work: Callable[[], T]) -> T:
    """The result of work in a thread, or what it raised."""
    waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if waiting.done():
            return
        if isinstance(result, Exception):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)

    runtime.in_background(work, done)
    return await waiting


def _ended(result: object) -> None:
    if isinstance(result, Exception):
        logger.warning("the files of a backup's point are still there: %s", result)
