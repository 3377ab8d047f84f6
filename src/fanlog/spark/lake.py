"""A lake of archived messages: plain Parquet files below `topic=.../date=.../`, each record once.

| file                                | holds                                                   |
| ----------------------------------- | ------------------------------------------------------- |
| `batch-<batch>-<part>.parquet`      | what one task of a stream's batch brought               |
| `merged-<first>-<last>.parquet`     | the batches `first` to `last` of this folder, in one    |
| `_archive/state.json`               | whose lake it is, and the last batch that is in it      |
| `_archive/staged/<batch>-<try>/`    | one try to write a batch                                |
| `_archive/whole/<batch>.json`       | the try that counts, and its files                      |

Law: what is named in `whole/` is on the disk, and is made once for a batch, by whoever comes first.
From there on a batch can only go forward: its files are moved, then `state.json` says that it is
done. A file's name says what it holds, so that one whose batches are in a wider merged file does
not count. So after a crash or a power cut at any point, the next run completes the batch. The lock
keeps writers apart. Some network disks have no locks. There, an old writer that should be dead can
store nothing twice; it can undo only what another one does in the moment in which it replaces
`state.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from fanlog.errors import ConfigError
from fanlog.log.files import replace_file
from fanlog.spark.lake_files import LakeFile, all_files, counting_files, small_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

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
# Files appear when all tasks are done. The other way, which some clusters prefer, lets a task that
# fails at its end leave files beside those of its next attempt.
_COMMIT_AT_ONCE = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
# A writer whose Spark was killed lives on for a moment.
LOCK_SECONDS_MAX = 60.0
_LOCK_POLL_SECONDS = 0.2
# A query may run into a merge now and then, but hardly into two in a row.
QUERY_TRIES_MAX = 5
# One more look shows what a merge has changed; a lake that is written all the time may take more.
LOOKS_MAX = 20
_LOOK_AGAIN_SECONDS = 0.05


class LakeState(msgspec.Struct, frozen=True):
    """The stream that writes this lake, and the last of its batches that is in it."""

    query: str
    done: int = -1


class Lake:
    """One folder. Reading needs nothing; writing needs `claim` first.

    >>> Lake(Path("lake")).read(spark).where("topic = 'orders'").count()  # doctest: +SKIP
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._own = self.root / "_archive"
        self._staged = self._own / "staged"
        self._whole = self._own / "whole"
        self._lock: IO[str] | None = None
        self._state = LakeState("")

    # Reading

    def files(self) -> list[Path]:
        """The files that count: those of batches that are whole, but not those that a merged one
        has replaced a moment ago."""
        # While files are merged, a listing may have neither the old files nor the new one, or a new
        # one with a later batch. Then it lists again.
        before: list[LakeFile] | None = None
        ahead: list[LakeFile] = []
        for _ in range(LOOKS_MAX):
            # First the finished batches, then the files: otherwise a batch could lack a file.
            done = self._done_on_disk()
            held = [some for folder in self._folders() for some in counting_files(folder)]
            found = [some for some in held if done is None or some.last <= done]
            ahead = [some for some in held if some.merged and some not in found]
            if found == before and not ahead:
                return [some.path for some in found]
            if before is not None:
                time.sleep(_LOOK_AGAIN_SECONDS)
            before = found
        if ahead:
            raise ConfigError(
                f"{ahead[0].path} holds batches that _archive/state.json does not list, as in a "
                "copy of a lake in use: copy the lake again while no archive writes to it."
            )
        raise ConfigError(f"The lake {self.root} changed while it was read: try again in a moment.")

    def read(self, spark: SparkSession) -> DataFrame:
        """Every record once. Files that are merged while a query runs can make it fail; `query`
        tries it again then."""
        return self._read(spark, self.files())

    def query(self, spark: SparkSession, ask: Callable[[DataFrame], T]) -> T:
        """What `ask` makes of the lake's records. It is asked again if files that it reads were
        merged in the midst, so it must do no harm by that.

        >>> Lake(Path("lake")).query(spark, lambda rows: rows.count())  # doctest: +SKIP
        """
        for _ in range(QUERY_TRIES_MAX - 1):
            files = self.files()
            try:
                return ask(self._read(spark, files))
            except Exception:
                if all(path.exists() for path in files):
                    raise
        return ask(self.read(spark))

    def check_filled(self) -> None:
        """Checks, without Spark, that there is something to read."""
        _check_some(self.root, self.files())

    def _read(self, spark: SparkSession, files: list[Path]) -> DataFrame:
        _check_some(self.root, files)
        reader = spark.read.schema(SCHEMA).option("basePath", str(self.root))
        return reader.parquet(*map(_literal, files))

    def _folders(self) -> Iterator[Path]:
        yield from sorted(self.root.glob("topic=*/date=*"))

    def _done_on_disk(self) -> int | None:
        """The last complete batch; None if that is unknown."""
        path = self._own / "state.json"
        if not path.exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=LakeState).done

    # Writing

    def claim(self, query: str) -> None:
        """Makes this process the lake's only writer, for the stream that it belongs to."""
        if self._lock is not None:
            return
        for folder in (self._staged, self._whole):
            folder.mkdir(parents=True, exist_ok=True)
        lock = (self._own / "lock").open("w")
        try:
            _wait_for(lock, self.root)
            self._save(self._load(query))
            sync(self.root)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        self._tidy()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _load(self, query: str) -> LakeState:
        path = self._own / "state.json"
        if not path.exists():
            return LakeState(query)
        state = msgspec.json.decode(path.read_bytes(), type=LakeState)
        if state.query != query:
            raise ConfigError(
                f"The lake {self.root} belongs to another stream: use the checkpoint that it "
                "was written with, or archive into another folder."
            )
        return state

    def _save(self, state: LakeState) -> None:
        # Another writer, where the lock keeps none away, may be further: what is done stays done.
        done = self._done_on_disk()
        if done is not None and done > state.done:
            state = msgspec.structs.replace(state, done=done)
        replace_file(str(self._own / "state.json"), msgspec.json.encode(state), durable=True)
        self._state = state

    def add(self, rows: DataFrame, batch: int) -> None:
        """Puts a batch into the lake: once, even if it is called again for this batch."""
        if batch <= self._state.done:
            return
        self._check_next(batch)
        if not self._listing(batch).exists():
            # A folder for each try: what an earlier one's tasks may still write is not in it.
            staged = self._staged / f"{batch:010}-{secrets.token_hex(4)}"
            writer = rows.write.partitionBy("topic", "date").options(**_COMMIT_AT_ONCE)
            writer.parquet(str(staged))
            self._declare_whole(batch, staged)
        self._finish(batch)

    def _check_next(self, batch: int) -> None:
        """Spark counts the batches of a checkpoint from 0 and hands over each, also one without
        rows: a gap is something that this lake has never got, or has no more."""
        if batch != self._state.done + 1:
            raise ConfigError(
                f"The lake {self.root} does not belong to this checkpoint: it lacks the batches "
                f"{self._state.done + 1} to {batch - 1}. Bring the lake back, or give another "
                "--state to archive from the start."
            )

    def _listing(self, batch: int) -> Path:
        return self._whole / f"{batch:010}.json"

    def _declare_whole(self, batch: int, staged: Path) -> None:
        """Makes this attempt the one that counts, unless another one is already."""
        files = sorted(staged.glob("topic=*/date=*/part-*.parquet"))
        folders = {folder for path in files for folder in path.parents[:2]}
        for path in (*files, *folders, staged, self._staged):
            sync(path)
        names = [str(path.relative_to(self._staged)) for path in files]
        # A link can't replace a file, so exactly one of several writers wins.
        made = self._whole / f"{staged.name}.new"
        replace_file(str(made), msgspec.json.encode(names), durable=True)
        with contextlib.suppress(FileExistsError):
            os.link(made, self._listing(batch))
        sync(self._whole)
        made.unlink()

    def _finish(self, batch: int) -> None:
        """Moves the files of a batch that is whole to where they belong."""
        # Somebody else may have done it, and then the listing was ours alone.
        done = self._done_on_disk()
        if done is not None and batch <= done:
            self._forget(batch)
            self._state = msgspec.structs.replace(self._state, done=done)
            return
        touched: set[Path] = set()
        for name in msgspec.json.decode(self._listing(batch).read_bytes(), type=list[str]):
            staged = self._staged / name
            folder = self.root.joinpath(*Path(name).parts[1:-1])
            folder.mkdir(parents=True, exist_ok=True)
            # Spark's own name stays in it: the same file has the same name, whichever process moves
            # it.
            target = folder / f"batch-{batch:010}-{staged.name}"
            if not target.exists():
                staged.rename(target)
            touched |= {folder, folder.parent}
        for folder in (*touched, self.root):
            sync(folder)
        self._save(msgspec.structs.replace(self._state, done=batch))
        self._forget(batch)

    def _forget(self, batch: int) -> None:
        _drop([self._listing(batch)])
        for staged in self._staged.glob(f"{batch:010}-*"):
            shutil.rmtree(staged, ignore_errors=True)

    def _tidy(self) -> None:
        """Finishes what a crash has left, and drops what is of no use any more."""
        for listing in sorted(self._whole.glob("??????????.json")):
            self._finish(int(listing.stem))
        for left in (*self._staged.iterdir(), *self._own.glob("merging-*")):
            shutil.rmtree(left, ignore_errors=True)
        _drop(self._whole.glob("*.new*"))
        for folder in self._folders():
            counting = {some.path for some in counting_files(folder)}
            _drop(some.path for some in all_files(folder) if some.path not in counting)

    # Small files

    def compact(self, spark: SparkSession, *, files_min: int, bytes_max: int) -> int:
        """Merges files of up to `bytes_max` where `files_min` or more lie beside each other.
        Returns how many were merged."""
        count = 0
        for folder in self._folders():
            for run in small_runs(counting_files(folder), bytes_max):
                if len(run) >= files_min:
                    self._merge(spark, folder, run)
                    count += len(run)
        return count

    def _merge(self, spark: SparkSession, folder: Path, run: list[LakeFile]) -> None:
        merging = self._own / f"merging-{secrets.token_hex(4)}"
        rows = spark.read.schema(_IN_A_FILE).parquet(*(_literal(some.path) for some in run))
        sorted_rows = rows.coalesce(1).sortWithinPartitions("partition", "offset")
        sorted_rows.write.parquet(str(merging))
        (made,) = merging.glob("part-*.parquet")
        sync(made)
        name = f"merged-{run[0].first:010}-{max(some.last for some in run):010}.parquet"
        if not all(some.path.exists() for some in run):
            raise ConfigError(
                f"Another process has merged files of the lake {self.root}: only one process at "
                "a time may write to it."
            )
        made.rename(folder / name)
        # The merged file must be there to stay before the others go.
        sync(folder)
        _drop(some.path for some in run if some.path.name != name)
        shutil.rmtree(merging, ignore_errors=True)


def _check_some(root: Path, files: list[Path]) -> None:
    if not files:
        raise ConfigError(f"There is nothing in the lake {root}: archive something first.")


def sync(path: Path) -> None:
    """Puts a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_plan(checkpoint: Path, batch: int) -> None:
    """Puts on the disk what Spark has planned for a batch, which Spark itself leaves to the kernel.

    The lake takes a batch by its number. Were the plan lost in a power cut, and the lake not, Spark
    would give the same number to other records, and the lake would not take them.
    """
    plans = checkpoint / "offsets"
    for path in (checkpoint / "metadata", plans / str(batch), plans, checkpoint, checkpoint.parent):
        sync(path)


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


def _literal(path: Path) -> str:
    """A path as Spark reads it, which takes some characters for a pattern."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(path))


def _drop(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
