"""A lake of archived messages: plain Parquet files below `topic=.../date=.../`, each record once.

| file                                | holds                                                   |
| ----------------------------------- | ------------------------------------------------------- |
| `batch-<batch>-<part>.parquet`      | what one task of a stream's batch brought               |
| `merged-<first>-<last>.parquet`     | the batches `first` to `last` of this folder, in one    |
| `_archive/state.json`               | whose lake it is, and the last batch that is in it      |
| `_archive/staged/<batch>/`          | a batch on its way: complete if it has a `_SUCCESS`     |

Law: a batch is staged whole before its first file is moved, and a file's name says what it holds.
So a crash at any point is mended by going on: what is staged whole is moved on, what is not is
written again, and a file whose batches are in a wider merged file is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import msgspec

from fanlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Timestamps as other readers of Parquet know them, and dates that are UTC's.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_IN_A_FILE = (
    "key binary, value binary, partition int, offset long, timestamp timestamp, "
    "event_time timestamp, headers array<struct<key: string, value: binary>>"
)
SCHEMA = f"{_IN_A_FILE}, topic string, date date"
# A writer whose Spark was killed lives on for a moment.
LOCK_SECONDS_MAX = 60.0
_LOCK_POLL_SECONDS = 0.2
_NAME = re.compile(r"(batch|merged)-(\d{10})-(\d{10})?.*\.parquet")


class State(msgspec.Struct, frozen=True):
    """The stream that writes this lake, and the last of its batches that is in it."""

    query: str
    done: int = -1


class Held(NamedTuple):
    """A file, and the batches that it holds."""

    first: int
    last: int
    merged: bool
    path: Path

    def within(self, other: Held) -> bool:
        """Whether everything in here is in the other one, too."""
        if not other.merged or self.path == other.path:
            return False
        inside = other.first <= self.first and self.last <= other.last
        return inside and (not self.merged or (self.first, self.last) != (other.first, other.last))


class Lake:
    """One folder. Reading needs nothing; writing needs `claim` first.

    >>> Lake(Path("lake")).read(spark).where("topic = 'orders'").count()  # doctest: +SKIP
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._own = self.root / "_archive"
        self._lock: IO[str] | None = None
        self._state = State("")

    # Reading

    def files(self) -> list[Path]:
        """The files that count: all but those that a merged one has replaced a moment ago."""
        found: list[Path] = []
        for folder in self._folders():
            held = _held(folder)
            found += [some.path for some in held if not _replaced(some, held)]
        return found

    def read(self, spark: SparkSession) -> DataFrame:
        """Every record once, also while files are merged."""
        files = [str(path) for path in self.files()]
        if not files:
            raise ConfigError(f"There is nothing in the lake {self.root}: archive something first.")
        reader = spark.read.schema(SCHEMA).option("basePath", str(self.root))
        return reader.parquet(*files)

    def _folders(self) -> Iterator[Path]:
        yield from sorted(self.root.glob("topic=*/date=*"))

    # Writing

    def claim(self, query: str) -> None:
        """Makes this process the lake's only writer, for the stream that it belongs to."""
        if self._lock is not None:
            return
        self._own.mkdir(parents=True, exist_ok=True)
        lock = (self._own / "lock").open("w")
        try:
            _wait_for(lock, self.root)
            self._state = self._load(query)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        self._tidy()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _load(self, query: str) -> State:
        path = self._own / "state.json"
        if not path.exists():
            return State(query)
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if state.query != query:
            raise ConfigError(
                f"The lake {self.root} is another stream's: go on with the checkpoint that "
                "it was written with, or archive into another folder."
            )
        return state

    def _save(self, state: State) -> None:
        write_whole(self._own / "state.json", msgspec.json.encode(state))
        self._state = state

    def add(self, rows: DataFrame, batch: int) -> None:
        """Puts a batch into the lake; once, however often it is said."""
        if batch <= self._state.done:
            return
        staged = self._own / "staged" / f"{batch:010}"
        if not (staged / "_SUCCESS").exists():
            shutil.rmtree(staged, ignore_errors=True)
            rows.write.partitionBy("topic", "date").parquet(str(staged))
        for path in sorted(staged.glob("topic=*/date=*/part-*.parquet")):
            folder = self.root / path.relative_to(staged).parent
            folder.mkdir(parents=True, exist_ok=True)
            # Spark's own name stays in it: the same file has the same name whoever moves it.
            path.rename(folder / f"batch-{batch:010}-{path.name}")
        self._save(msgspec.structs.replace(self._state, done=batch))
        shutil.rmtree(staged, ignore_errors=True)

    def _tidy(self) -> None:
        """Drops what a crash has left: batches that are done, half a merge, replaced files."""
        for staged in self._own.glob("staged/*"):
            if int(staged.name) <= self._state.done:
                shutil.rmtree(staged)
        shutil.rmtree(self._own / "merging", ignore_errors=True)
        for folder in self._folders():
            held = _held(folder)
            _drop(some.path for some in held if _replaced(some, held))

    # Small files

    def compact(self, spark: SparkSession, *, files_min: int, bytes_max: int) -> int:
        """Merges files of up to `bytes_max` where `files_min` or more lie beside each other.
        Returns how many were merged."""
        count = 0
        for folder in self._folders():
            for run in _runs(_held(folder), bytes_max):
                if len(run) >= files_min:
                    self._merge(spark, folder, run)
                    count += len(run)
        return count

    def _merge(self, spark: SparkSession, folder: Path, run: list[Held]) -> None:
        merging = self._own / "merging"
        shutil.rmtree(merging, ignore_errors=True)
        rows = spark.read.schema(_IN_A_FILE).parquet(*(str(some.path) for some in run))
        sorted_rows = rows.coalesce(1).sortWithinPartitions("partition", "offset")
        sorted_rows.write.parquet(str(merging))
        (made,) = merging.glob("part-*.parquet")
        name = f"merged-{run[0].first:010}-{max(some.last for some in run):010}.parquet"
        made.rename(folder / name)
        _drop(some.path for some in run if some.path.name != name)
        shutil.rmtree(merging, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """A file with this content or with what it had before, whenever the process ends."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def query_id(checkpoint: Path) -> str:
    """The id that Spark gave to the stream of a checkpoint. It stays the same over restarts."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def _wait_for(lock: IO[str], root: Path) -> None:
    give_up_at = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise ConfigError(
                    f"Another process is writing to the lake {root}: stop it first."
                ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            return


def _held(folder: Path) -> list[Held]:
    """The files of a folder in the order of their batches."""
    found: list[Held] = []
    for path in folder.glob("*.parquet"):
        match = _NAME.fullmatch(path.name)
        if match:
            first = int(match[2])
            merged = match[1] == "merged"
            found.append(Held(first, int(match[3]) if merged else first, merged, path))
    return sorted(found)


def _replaced(some: Held, held: Iterable[Held]) -> bool:
    return any(some.within(other) for other in held)


def _runs(held: list[Held], bytes_max: int) -> Iterator[list[Held]]:
    """Neighbours that are small enough to be one file. Files of one batch stay together, since a
    merged file's name stands for whole batches."""
    run: list[Held] = []
    size = 0
    for batch in _by_batch(held):
        bytes = sum(some.path.stat().st_size for some in batch)
        if run and size + bytes > bytes_max:
            yield run
            run, size = [], 0
        run = run + batch
        size += bytes
    yield run


def _by_batch(held: list[Held]) -> Iterator[list[Held]]:
    """Files whose batches overlap, together."""
    together: list[Held] = []
    for some in held:
        if together and some.first > max(other.last for other in together):
            yield together
            together = []
        together.append(some)
    if together:
        yield together


def _drop(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
