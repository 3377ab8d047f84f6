"""The format `fanlog` as Spark sees it: a batch source, a stream source, and the sinks.

Spark makes these objects on the driver, pickles them, and uses them in other processes: they hold
options and plans, and open what they need where they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fanlog.errors import FanlogError
from fanlog.spark.filters import FilterBounds, narrow
from fanlog.spark.offsets import (
    Offsets,
    Range,
    epochs_from_json,
    from_json,
    limited,
    split,
    to_json,
)
from fanlog.spark.options import LATEST, ReadOptions, read_options, write_options
from fanlog.spark.planning import PlannedView, Planner
from fanlog.spark.pull import read_range
from fanlog.spark.rows import arrow_schema, check_sink_schema, check_source_schema, source_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from fanlog.spark.sink import BatchSink, StreamSink


class FanlogSource(DataSource):
    """`spark.read.format("fanlog")` and its like. The options are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "fanlog"

    def schema(self) -> StructType:
        return source_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> BatchReader:
        check_source_schema(schema)
        options = read_options(self.options, streaming=False)
        return (NarrowingReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            check_source_schema(schema)
            return FanlogStreamReader(read_options(self.options, streaming=True), schema)
        except FanlogError as fault:
            return RefusingReader(fault)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        options = write_options(self.options, streaming=False)
        check_sink_schema(schema, options)
        # What sinks need of Arrow is slow to load, and readers do without.
        from fanlog.spark.sink import BatchSink  # noqa: PLC0415

        return BatchSink(options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        options = write_options(self.options, streaming=True)
        check_sink_schema(schema, options)
        from fanlog.spark.sink import StreamSink  # noqa: PLC0415

        return StreamSink(options, overwrite=overwrite)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, range: Range) -> None:
        super().__init__(None)
        self.range = range


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema
        self.bounds = FilterBounds()

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self.options)
        try:
            ranges = planner.batch_ranges(self.bounds)
        finally:
            planner.close()
        return [RangePartition(some) for some in split(ranges, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark makes a partition of its own.
        if isinstance(partition, RangePartition):
            yield from read_range(self.options, partition.range, arrow_schema(self._schema))


class NarrowingReader(BatchReader):
    """A batch reader that takes filters, where the option `pushFilters` asks for it.

    Spark 4.3 keeps what was planned with one query's filters for every later use of the same
    DataFrame, filtered otherwise or not at all, which would then miss rows without a word. So the
    user has to say that a DataFrame is used for one query only.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.bounds, left = narrow(filters)
        return left


class FanlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One of these lives on the driver as long as the query; tasks have copies that only read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._target: Offsets | None = None
        # The new begin of logs that retention has cut past the query, and the offsets that the
        # group was moved to.
        self._lifted: Offsets = {}
        self._moved: Offsets = {}

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def _look(self) -> PlannedView:
        """The present topics. `latestOffset` checks whether one is missing."""
        return self._plan().look(may_lack=self.options.topics)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    # Where the query is

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner = self._plan()
        view = planner.look()
        return _as_json(planner.starts(view, LATEST), view)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Both may be given, and Spark carries only one: the other is added in `latestOffset`.
        if self.options.records_max:
            return ReadMaxRows(self.options.records_max)
        if self.options.bytes_max:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _ends(self._look())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        planner = self._plan()
        begin = from_json(start)
        view = planner.look(may_lack={tp.topic for tp in begin})
        ranges = planner.stream_ranges(begin, view, epochs_from_json(start))
        firsts = {some.tp: some.first for some in ranges}
        self._lifted = {tp: n for tp, n in firsts.items() if n > begin.get(tp, 0)}
        # What has gone, and may go, is not in the view; what is new and empty waits for a record.
        known = {tp: n for tp, n in firsts.items() if tp in begin or tp in self._lifted}
        # Where the next batch starts is where the last one that is done has ended. Spark says so
        # in `commit` too, but only when there is a next one.
        self._tell_group(known)
        if self._target is not None:
            ranges = [
                Range(some.tp, some.first, min(some.end, target), some.record_bytes)
                for some in ranges
                if (target := self._target.get(some.tp)) is not None
            ]
        return _as_json(known | limited(ranges, **self._limits(limit)), view)

    def _limits(self, limit: ReadLimit) -> dict[str, int]:
        options = self.options
        if isinstance(limit, ReadMaxRows):
            return {"records_max": limit.max_rows, "bytes_max": options.bytes_max}
        if isinstance(limit, ReadMaxBytes):
            return {"records_max": options.records_max, "bytes_max": limit.max_bytes}
        return {}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        view = self._look()
        return _as_json(_ends(view), view)

    # What tasks read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planner = self._plan()
        begin, epochs = from_json(start), epochs_from_json(start)
        view = self._look()
        wanted: list[Range] = []
        for tp, offset in from_json(end).items():
            # If `latestOffset` planned this batch, it has reported what is lost. In a log that was
            # cut short, the batch ends before it begins, unless new records have come since.
            first = max(begin.get(tp, 0), self._lifted.get(tp, 0))
            if tp in view and epochs.get(tp):
                first = min(first, view[tp].known_until(epochs[tp]))
            wanted.append(Range(tp, first, offset))
        ranges = planner.readable([some for some in wanted if some.size], view)
        return [RangePartition(some) for some in split(ranges, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            yield from read_range(self.options, partition.range, arrow_schema(self._schema))

    # Progress

    def commit(self, end: dict[str, Any]) -> None:
        done = from_json(end)
        if self.options.group and done.items() - self._moved.items():
            # As `latestOffset` has it: only logs that are there, and as far as they go.
            view = self._look()
            self._tell_group(
                {
                    tp: min(max(offset, view[tp].start), view[tp].end)
                    for tp, offset in done.items()
                    if tp in view
                }
            )

    def _tell_group(self, done: Offsets) -> None:
        """Commits offsets of logs that exist: those of a deleted log mean nothing in a new one."""
        if self.options.group:
            moved = dict(done.items() - self._moved.items())
            self._plan().commit_to_group(self.options.group, moved)
            self._moved = done

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


class RefusingReader(DataSourceStreamReader):
    """A stream that can't be read as asked. It says so when Spark first asks it something: what
    is raised before that, Spark 4.3 buries under an error of its own (UnboundLocalError)."""

    def __init__(self, fault: FanlogError) -> None:
        self._fault = fault

    def _refuse(self) -> NoReturn:
        raise type(self._fault)(str(self._fault))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


def _as_json(offsets: Offsets, view: PlannedView) -> dict[str, Any]:
    """Offsets with the epochs of what is before them."""
    epochs = {
        tp: epoch
        for tp, offset in offsets.items()
        if tp in view and (epoch := view[tp].epoch_before(offset))
    }
    return to_json(offsets, epochs)


def _ends(view: PlannedView) -> Offsets:
    return {tp: partition.end for tp, partition in view.items()}
