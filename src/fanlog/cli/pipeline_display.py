"""A pipeline's progress as a person or a log file sees it. Law: it comes from the run's state
folder and from the broker, never from the run itself, so that looking can't disturb it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.text import Text

from fanlog.cli.session import with_client
from fanlog.cli.terminal import err, new_table, printable
from fanlog.client.aio import Client
from fanlog.errors import FanlogError, TopicNotFoundError
from fanlog.model import TopicPartition
from fanlog.spark.pipelines.progress import Ends, StreamProgress, look

_BAR_COLUMNS = 20
_EVENT_CHARACTERS_MAX = 100

ShowLine = Callable[[str], None]


class PartitionBounds(NamedTuple):
    """Where the partitions of some topics begin and end."""

    starts: Ends
    ends: Ends


def find_bounds(
    url: str,
    streams: Iterable[StreamProgress],
    unknown: Callable[[FanlogError], None] = lambda _: None,
) -> PartitionBounds:
    """The bounds of the streams' topics. Without a broker nothing is known, and `unknown` hears
    why."""
    topics = sorted({topic for some in streams for topic in some.topics})

    async def work(client: Client) -> PartitionBounds:
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for topic in topics:
            try:
                info = await client.describe_topic(topic)
            except TopicNotFoundError:
                continue
            for some in info.partitions:
                starts[TopicPartition(topic, some.partition)] = some.start_offset
                ends[TopicPartition(topic, some.partition)] = some.visible_end
        return PartitionBounds(starts, ends)

    if not topics:
        return PartitionBounds({}, {})
    try:
        return with_client(url, work)
    except FanlogError as fault:
        unknown(fault)
        return PartitionBounds({}, {})


class Seen(NamedTuple):
    """One stream at one moment. Its source may have no countable records."""

    name: str
    batch: int
    records: int | None
    per_second: float
    lag: int | None

    @property
    def share(self) -> float | None:
        """The finished share of all records."""
        if self.records is None or self.lag is None:
            return None
        total = self.records + self.lag
        return self.records / total if total else 1.0


class Watching:
    """What a run's state folder and the broker say together, from one look to the next."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._begun = time.monotonic()
        self._before = {some.name: some for some in look(folder)}
        # When a stream had this number of records, and its rate before that.
        self._last: dict[str, tuple[float, int, float]] = {}
        self._taken: dict[TopicPartition, int] = {}
        self._written: dict[str, int] = {}

    @property
    def batches_before(self) -> dict[str, int]:
        """The last batch of each stream when the run began."""
        return {name: some.batch for name, some in self._before.items()}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def records(self) -> int:
        """What the run has taken so far. Two streams that read the same take it once."""
        return sum(self._taken.values()) + sum(self._written.values())

    def look(self) -> list[Seen]:
        streams = look(self._folder)
        bounds = find_bounds(self._url, streams)
        return [self._see(some, bounds) for some in streams]

    def _see(self, some: StreamProgress, bounds: PartitionBounds) -> Seen:
        before = self._before.get(some.name)
        if some.left is not None:
            records = some.rows - (before.rows if before else 0)
            self._written[some.name] = records
        else:
            known = before.offsets if before else {}
            taken = {
                partition: max(0, offset - known.get(partition, bounds.starts.get(partition, 0)))
                for partition, offset in some.offsets.items()
            }
            for partition, count in taken.items():
                self._taken[partition] = max(count, self._taken.get(partition, 0))
            records = sum(taken.values()) if taken else None
        rate = self._rate(some.name, records or 0)
        return Seen(some.name, some.batch, records, rate, some.lag(bounds.ends))

    def _rate(self, name: str, records: int) -> float:
        """Records in a second since the stream's batch before this one."""
        now = time.monotonic()
        at, last, rate = self._last.get(name, (self._begun, 0, 0.0))
        if records != last:
            rate = (records - last) / max(0.001, now - at)
            self._last[name] = (now, records, rate)
        return rate

    def summary(self) -> str:
        """The end of the sentence `NAME is done...`."""
        seen = self.look()
        seconds = self.seconds
        if not seen:  # it has no streams, and counts nothing
            return f" in {seconds:.0f} s"
        if not self.records:
            return f": there was nothing new ({seconds:.0f} s)"
        return f": {self.records:,} records in {seconds:.0f} s, with Spark's start"


def display(watching: Watching) -> AbstractContextManager[ShowLine]:
    """Shows the progress while the block runs. It gets the run's last event."""
    return LiveDisplay(watching, err()) if err().is_terminal else nullcontext(Lines(watching))


class Lines:
    """Progress without a terminal: a line for each batch."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._said = watching.batches_before

    def __call__(self, event: str) -> None:
        for some in self._watching.look():
            if self._said.get(some.name) == some.batch:
                continue
            self._said[some.name] = some.batch
            parts = [f"{some.name}: batch {some.batch}"]
            if some.records is not None:
                parts.append(f"{some.records:,} records, {some.per_second:,.0f} records/s")
            if some.lag is not None:
                parts.append(f"{some.lag:,} behind")
            err().print(", ".join(parts))


class LiveDisplay:
    """Progress as a table that updates in place, and disappears at the end."""

    def __init__(self, watching: Watching, console: Console) -> None:
        self._watching = watching
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> ShowLine:
        self._live.__enter__()
        self("Spark is starting")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, event: str) -> None:
        seen = self._watching.look()
        said = printable(event)[:_EVENT_CHARACTERS_MAX] or "Spark is working"
        minutes, seconds = divmod(int(self._watching.seconds), 60)
        self._spinner.update(text=Text(f"{minutes}:{seconds:02} {said}", style="dim"))
        if not seen:
            self._live.update(self._spinner)
            return
        table = new_table("STREAM", "", ">", ">RECORDS", ">RECORDS/S", ">LAG", ">BATCH")
        for some in seen:
            share = some.share
            table.add_row(
                Text(printable(some.name), style="bold cyan"),
                "" if share is None else ProgressBar(1.0, share, width=_BAR_COLUMNS),
                "" if share is None else f"{int(share * 100)} %",
                number(some.records),
                number(some.per_second if some.records is not None else None),
                number(some.lag),
                f"{some.batch:,}",
            )
        self._live.update(Group(table, Padding(self._spinner, (0, 0, 0, 1))))


def number(some: float | None) -> str:
    return "-" if some is None else f"{some:,.0f}"
