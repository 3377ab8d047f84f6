"""What the driver asks the broker before tasks run: which topics there are, where their logs begin
and end, and where a query is to start. What a query can't get any more is `failOnDataLoss`'s to
decide; it is never passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

from fanlog.client.request_connection import RequestConnection
from fanlog.errors import InvalidArgumentError, MessagesLostError, TopicNotFoundError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.patterns import fits
from fanlog.model import Durability, EpochInfo, Start, TopicInfo
from fanlog.spark.connecting import open_broker
from fanlog.spark.filters import FilterBounds
from fanlog.spark.offsets import LogPartition, Offsets, PartitionEpochs, Range
from fanlog.spark.options import EARLIEST, LATEST, ReadOptions, ScanPositions

logger = logging.getLogger("fanlog.spark")

_CONTINUE_WITHOUT = "Set the option failOnDataLoss to false to continue without them."


class PlannedPartition:
    """One partition as the broker describes it."""

    __slots__ = ("end", "epochs", "record_bytes", "start", "tp")

    def __init__(
        self,
        tp: LogPartition,
        start: int,
        end: int,
        size: int,
        epochs: tuple[EpochInfo, ...] = (),
    ) -> None:
        self.tp = tp
        self.start = start
        self.end = end
        self.epochs = epochs
        self.record_bytes = size / (end - start) if end > start else 0.0

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before an offset; 0 if there is none."""
        return max((some.epoch for some in self.epochs if some.first < offset), default=0)

    def known_until(self, epoch: int) -> int:
        """Up to which offset the log is what it was in an epoch; 0 is not known."""
        later = [some.first for some in self.epochs if epoch and some.epoch > epoch]
        return min([*later, self.end])

    def range(self, first: int, end: int) -> Range:
        return Range(self.tp, first, end, self.record_bytes)


PlannedView = dict[LogPartition, PlannedPartition]


def lose(options: ReadOptions, sentence: str, then: str = "") -> None:
    """Records that a query needs are gone: an error, or a warning if the query wants that. `then`
    says what happens next."""
    if options.fail_on_data_loss:
        raise MessagesLostError(f"{sentence} {_CONTINUE_WITHOUT}")
    logger.warning("%s", f"{sentence} {then}".rstrip())


def log_of(topic: TopicInfo | messages.TopicOpened, epoch: int) -> str:
    """The identity of a topic's log, which another topic of the same name does not have; see
    `offsets.py`."""
    in_memory = topic.settings.level is Durability.MEMORY
    return f"{topic.number}@{epoch}" if in_memory else str(topic.number)


class Planner:
    """The driver's side of a source, over one connection that is made when it is first used."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection: RequestConnection | None = None

    @property
    def broker(self) -> RequestConnection:
        if self._connection is None:
            self._connection = open_broker(self._options)
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # What there is

    def look(self, may_lack: Collection[str] = ()) -> PlannedView:
        """The partitions of all topics to read, as they are now. A topic that is not there is an
        error, but for those in `may_lack`: what was read once may be deleted."""
        broker = self.broker
        options = self._options
        if options.pattern:
            topics = list(self._matching(options.pattern))
        else:
            found = (self._describe(name, name in may_lack) for name in options.topics)
            topics = [topic for topic in found if topic is not None]
        view: PlannedView = {}
        for topic in topics:
            log = log_of(topic, broker.welcome.epoch)
            for found in topic.partitions:
                tp = LogPartition(topic.name, log, found.partition)
                view[tp] = PlannedPartition(
                    tp, found.start_offset, found.visible_end, found.bytes, found.epochs
                )
        return view

    def _matching(self, pattern: str) -> Iterator[TopicInfo]:
        """All topics that fit a pattern, asked for page by page."""
        after = ""
        while True:
            wanted = messages.ListTopics(pattern, after=after)
            page = self.broker.ask(FrameKind.LIST_TOPICS, wanted, messages.TopicPage)
            yield from page.topics
            after = page.next
            if not after:
                return

    def _describe(self, name: str, may_lack: bool) -> TopicInfo | None:
        wanted = messages.NamedTopic(name)
        try:
            return self.broker.ask(FrameKind.DESCRIBE_TOPIC, wanted, TopicInfo)
        except TopicNotFoundError:
            if may_lack:
                return None
            raise

    # Where to begin and to end

    def starts(self, view: PlannedView, default: Start) -> Offsets:
        """Where a new query begins in each partition."""
        return self._positions(view, self._options.starting or ScanPositions(default))

    def _positions(self, view: PlannedView, tps: ScanPositions) -> Offsets:
        self._check_named(view, tps)
        found: Offsets = {}
        times: dict[tuple[str, int], dict[int, int]] = {}
        for tp, partition in view.items():
            start = tps.of(tp.topic, tp.partition)
            if start == EARLIEST:
                found[tp] = partition.start
            elif start == LATEST:
                found[tp] = partition.end
            elif start.kind == "offset":
                found[tp] = self._within(partition, start.value)
            else:
                key = (tp.topic, start.value)
                if key not in times:
                    times[key] = self.find_time(tp.topic, start.value)
                found[tp] = times[key].get(tp.partition, partition.end)
        return found

    @staticmethod
    def _check_named(view: PlannedView, tps: ScanPositions) -> None:
        """Checks that offsets are given for existing partitions: a typing error would read from
        another offset."""
        known = {(tp.topic, tp.partition) for tp in view}
        for topic, chosen in tps.topics.items():
            wanted = (0,) if isinstance(chosen, Start) else chosen
            for partition in wanted:
                if (topic, partition) not in known:
                    raise InvalidArgumentError(
                        f"The query does not read partition {partition} of {topic!r}, but there "
                        "is an offset for it: correct startingOffsets or endingOffsets."
                    )

    def _within(self, partition: PlannedPartition, offset: int) -> int:
        tp = partition.tp
        if offset > partition.end:
            raise InvalidArgumentError(
                f"Offset {offset} of partition {tp.partition} of {tp.topic!r} does not "
                f"exist yet: the log ends at {partition.end}."
            )
        if offset < partition.start:
            lose(self._options, gone(tp, offset, partition.start, partition.start))
            return partition.start
        return offset

    def find_time(self, topic: str, time_us: int) -> dict[int, int]:
        """The first offset of each partition that was appended at or after a time."""
        wanted = messages.FindOffsets(topic, Start("time", time_us))
        found = self.broker.ask(FrameKind.FIND_OFFSETS, wanted, messages.Positions)
        return {position.partition: position.offset for position in found.positions}

    # Batch reads

    def batch_ranges(self, bounds: FilterBounds) -> list[Range]:
        """What a batch reads, as far as filters leave it over."""
        view = self.look()
        if not view:
            raise TopicNotFoundError(
                f"No topic matches the pattern {self._options.pattern!r}. List the topics with: "
                "fanlog topic list"
            )
        begins = self.starts(view, EARLIEST)
        ends = self._positions(view, self._options.ending or ScanPositions(LATEST))
        view = {
            tp: partition
            for tp, partition in view.items()
            if bounds.has_topic(tp.topic) and bounds.has_partition(tp.partition)
        }
        first, end = bounds.offsets
        ranges: list[Range] = []
        for tp, partition in view.items():
            low, high = begins[tp], ends[tp]
            low = low if first is None else max(low, first)
            high = high if end is None else min(high, end)
            ranges.append(partition.range(low, high))
        return self._within_times(ranges, bounds.times_us)

    def _within_times(
        self, ranges: list[Range], times_us: tuple[int | None, int | None]
    ) -> list[Range]:
        first_us, end_us = times_us
        topics = {some.tp.topic for some in ranges if some.size}
        from_time = {t: self.find_time(t, first_us) for t in topics} if first_us is not None else {}
        to_time = {t: self.find_time(t, end_us) for t in topics} if end_us is not None else {}
        narrowed: list[Range] = []
        for some in ranges:
            topic, _, partition = some.tp
            low = max(some.first, from_time.get(topic, {}).get(partition, some.first))
            high = min(some.end, to_time.get(topic, {}).get(partition, some.end))
            narrowed.append(Range(some.tp, low, high, some.record_bytes))
        return [some for some in narrowed if some.size]

    # Streams

    def stream_ranges(
        self, start: Offsets, view: PlannedView, epochs: PartitionEpochs
    ) -> list[Range]:
        """What there is to read from `start` on, of every partition in the view. Topics and
        partitions that have appeared since are read from their first record. `epochs` are those
        of what was read before `start`."""
        for sentence in {self._absence(tp, view): None for tp in start if tp not in view}:
            lose(self._options, sentence)
        ranges: list[Range] = []
        for tp, partition in view.items():
            first = start.get(tp, 0)
            until = max(partition.known_until(epochs.get(tp, 0)), partition.start)
            if first < partition.start:
                lose(self._options, gone(tp, first, partition.start, partition.start))
                first = partition.start
            elif first > until:
                # All below was delivered, and what comes gets these offsets again.
                lose(
                    self._options,
                    rewound(tp, first, until),
                    f"The query continues at offset {until}; nothing is read again.",
                )
                first = until
            ranges.append(partition.range(first, partition.end))
        return ranges

    def _absence(self, tp: LogPartition, view: PlannedView) -> str:
        """Why a partition that the query has read is not among what is read now."""
        topic, options = tp.topic, self._options
        if any(some.topic == topic and some.log != tp.log for some in view):
            return begun_anew(topic)
        if topic in options.topics or (options.pattern and fits(topic, options.pattern)):
            return f"The topic {topic!r} was deleted; its unread messages are lost."
        return (
            f"The checkpoint belongs to a query that read {topic!r}, which the options `topics` "
            "and `pattern` don't include any more: use another checkpoint folder for another "
            "query."
        )

    def readable(self, ranges: Iterable[Range], view: PlannedView) -> list[Range]:
        """The ranges without what retention has removed."""
        kept: list[Range] = []
        for some in ranges:
            partition = view.get(some.tp)
            if partition is None:
                lose(
                    self._options,
                    f"Offsets {some.first} to {some.end - 1} of partition {some.tp.partition} "
                    f"of {some.tp.topic!r} can't be read. {self._absence(some.tp, view)}",
                )
                continue
            first = some.first
            if first < partition.start:
                next = min(partition.start, some.end)
                lose(self._options, gone(some.tp, first, next, partition.start))
                first = next
            if first < some.end:
                kept.append(partition.range(first, some.end))
        return kept

    # Progress

    def commit_to_group(self, group: str, offsets: Mapping[LogPartition, int]) -> None:
        """Moves a group without members to these offsets."""
        broker = self.broker
        for tp, offset in offsets.items():
            wanted = messages.ResetGroup(
                group=group,
                start=Start("offset", offset),
                topic=tp.topic,
                partitions=(tp.partition,),
            )
            try:
                broker.ask(FrameKind.RESET_GROUP, wanted, list[object])
            except TopicNotFoundError:
                # Deleted since the query looked: it finds that out when it looks again.
                logger.info(
                    "The topic %r was deleted, and the query forgets its progress in it.",
                    tp.topic,
                )


def gone(tp: LogPartition, first: int, next: int, start: int) -> str:
    """`first` up to, not including, `next` lie before the log's `start`."""
    return (
        f"Offsets {first} to {next - 1} of partition {tp.partition} of {tp.topic!r} are not "
        f"kept any more: retention overtook the query, and the log begins at {start}."
    )


def rewound(tp: LogPartition, offset: int, end: int) -> str:
    return (
        f"The query is at offset {offset} of partition {tp.partition} of {tp.topic!r}, "
        f"but the log has lost records that it read from offset {end} on."
    )


def begun_anew(topic: str) -> str:
    return (
        f"The topic {topic!r} is not the one that the query knows: it was created again, or "
        "lives in memory and the broker was restarted. Unread messages of the old one are lost."
    )
