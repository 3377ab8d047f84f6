"""A broker on a stage whose process can die and whose machine can lose power, at any moment.

A process that dies leaves its files as they are. A power failure also takes what was never synced
from the topics that promise to be: which bytes of which file were is noted here as it happens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fanlog.broker.state import ledger
from fanlog.config import BrokerOptions, LogOptions
from fanlog.format.batch import split_batches
from fanlog.model import KIB, MIB, TopicSettings
from tests.broker.stage import BEGIN_US, QUICK_LEDGERS, Stage
from tests.quick_folders import quick_folder

T = TypeVar("T")
Place = tuple[str, int]
SECOND_US = 1_000_000
LOG_OPTIONS = LogOptions(
    segment_first_bytes=4 * KIB,
    index_interval_bytes=1 * KIB,
    read_block_bytes=64 * KIB,
    journal_bytes=8 * MIB,
)
# Large values are this long, so that a few of them fill a segment.
SEGMENT_BYTES = 64 * KIB
LARGE_BYTES = 20 * KIB


class Durable(NamedTuple):
    """What a sync has made durable: all records of a partition below an offset."""

    topic: int
    partition: int
    next_offset: int


class World:
    """`on` is the broker of now; after a crash it is another one."""

    def __init__(
        self, options: BrokerOptions, defaults: TopicSettings, ledger_records: int
    ) -> None:
        self._options = options
        self._defaults = defaults
        self._held = ExitStack()
        self._root = self._held.enter_context(quick_folder())
        self._lives = 0
        # By inode: the bytes of a file that a power failure would leave.
        self._synced: dict[int, bytes] = {}
        self._note_syncs()
        self._snapshot_ledgers_after(ledger_records)
        self.on = self._open(self._root / "0", BEGIN_US)

    def _note_syncs(self) -> None:
        def note(fd: int) -> None:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.endswith(".log") or ".log." in path:
                self._synced[os.fstat(fd).st_ino] = Path(path).read_bytes()

        for name in ("fsync", "fdatasync"):
            self._held.callback(setattr, os, name, getattr(os, name))
            setattr(os, name, note)

    def _snapshot_ledgers_after(self, records: int) -> None:
        """Ledgers are written anew after a few entries, not after thousands."""
        self._held.callback(setattr, ledger, "_SNAPSHOT_AFTER_RECORDS", 20_000)
        ledger._SNAPSHOT_AFTER_RECORDS = records

    def _open(self, folder: Path, time_us: int) -> Stage:
        self.folder = folder
        on = Stage(folder, self._options, LOG_OPTIONS, self._defaults, time_us)
        # Everyone waits for its answer, which comes quickly: what was not answered when
        # the power failed is left to the rules that go step by step.
        on.quick_ledgers = (*QUICK_LEDGERS, "_fanlog.transactions", "_fanlog.transaction-ids")
        on.keep_journal()
        return on

    # Time and turns

    @property
    def now_us(self) -> int:
        return self.on.runtime.time_us

    def later(self, seconds: float) -> None:
        """Time passes, and the broker looks at its clock."""
        self.on.runtime.time_us += round(seconds * SECOND_US)
        self.on.core.tick()
        self.on.run()

    def step(self, count: int) -> None:
        """So many of the calls that are due, and no more; then what waits for the disk."""
        due = self.on.runtime.due
        for _ in range(count):
            if due:
                due.popleft()()
            elif self.on.sync_group.waiting:
                self.sync()

    def sync(self, count: int | None = None) -> list[Durable]:
        """Makes the first `count` pieces that wait durable, or all; which ones those were."""
        group = self.on.sync_group
        some, group.waiting = group.waiting[:count], group.waiting[len(group.waiting[:count]) :]
        group.finish(some)
        return [
            Durable(log.owner.topic, log.owner.partition, header.next_offset)
            for log, piece, _ in some
            for _, header in split_batches(piece)
        ]

    def ask(self, question: Coroutine[Any, Any, T], steps: int | None = None) -> T | None:
        """Awaits what needs turns and threads. After `steps` of them, if that is given, nobody
        waits for it any more."""

        async def drive() -> T | None:
            task = asyncio.ensure_future(question)
            await asyncio.sleep(0)
            left = 1 << 30 if steps is None else steps
            while not task.done() and left:
                if self.on.runtime.due:
                    self.on.runtime.due.popleft()()
                    left -= 1
                elif self.on.sync_ledgers():
                    left -= 1
                elif self.on.sync_group.waiting:
                    self.sync()
                    left -= 1
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            task.cancel()
            return None

        return asyncio.run(drive())

    # Ends and beginnings

    def restart(self) -> None:
        """A clean stop and a start. What waits for the disk has got there."""
        time_us = self.now_us
        self._close()
        self.on = self._open(self.folder, time_us)

    def crash(self) -> None:
        """The process dies: its files are as they are, and another one opens them."""
        self._reopen_copy(lambda old, new: None)

    def power_loss(self, *, sidecars: bool) -> None:
        """Topics with durability fsync have only what was synced, with or without the files that
        can be made again."""

        def lose(old: Path, new: Path) -> None:
            if old.suffix == ".log":
                content = self._synced_of(old)
                if content is None:
                    new.unlink()
                else:
                    new.write_bytes(content)
            elif not sidecars and old.suffix in (".producers", ".index"):
                new.unlink()

        self._reopen_copy(lose)

    def _reopen_copy(self, change: Callable[[Path, Path], None]) -> None:
        self._lives += 1
        copy = self._root / str(self._lives)
        shutil.copytree(self.folder, copy)
        synced: dict[int, bytes] = {}
        for old in self._files_of_synced_topics():
            new = copy / old.relative_to(self.folder)
            change(old, new)
            if new.exists() and (content := self._synced_of(old)) is not None:
                synced[new.stat().st_ino] = content
        time_us, before = self.now_us, self.folder
        self._close()
        shutil.rmtree(before)
        self._synced = synced
        self.on = self._open(copy, time_us)

    def _synced_of(self, path: Path) -> bytes | None:
        """What is durable of a file. Its inode may have been another file's before."""
        content = self._synced.get(path.stat().st_ino)
        if content is None or not path.read_bytes().startswith(content.rstrip(b"\0")):
            return None
        return content

    def _files_of_synced_topics(self) -> list[Path]:
        return [
            path
            for topic in self.folder.glob("topics/*/topic.json")
            if msgspec.json.decode(topic.read_bytes())["settings"].get("durability") == "fsync"
            for path in topic.parent.glob("*/*")
        ]

    def _close(self) -> None:
        self.on.runtime.due.clear()
        self.on.core.transactions.close()
        self.on.store.close()

    def close(self) -> None:
        self._close()
        self._held.close()
