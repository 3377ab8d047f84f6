"""Mirrors of a bus's topics: the newest batches of each, as the bus stamped them.

Law: numbers, offsets and epochs are the bus's, so that a position means the same on every edge.
Batches go in as they come, and become visible through the broker's own turn. A mirror may jump
ahead: the bus supplies the skipped batches to its readers (`MirrorReading`, `BlockSource`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.messages.turns import Turns
from fanlog.format.header import BatchHeader
from fanlog.format.messages import Joined, Position
from fanlog.log.epochs import Epochs, EpochStart, parted_at
from fanlog.log.mirror import MirrorLog
from fanlog.log.opening import StoredTopic
from fanlog.log.scan import Owner
from fanlog.model import Durability, PartitionInfo, TopicInfo


class MirrorPorts(Protocol):
    """The core of an edge, as far as its mirror needs it."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def fan_out(self) -> FanOut: ...
    @property
    def events(self) -> TopicEvents: ...
    def forget_tail(self, partition: Partition) -> None: ...
    def forget_partition(self, partition: Partition) -> None: ...


class Mirrored:
    """A topic, the bus's epoch of its log, and its feeder. `joined` is the bus's last description
    of it, `made_on` the connection on which its mirror was created, and `seen_on` the last
    connection that had it."""

    __slots__ = ("epoch", "feeders", "joined", "made_on", "seen_on", "topic")

    def __init__(self, topic: BrokerTopic, epoch: int, made_on: object) -> None:
        self.topic = topic
        self.epoch = epoch
        self.made_on = self.seen_on = made_on
        self.feeders: set[object] = set()
        self.joined: Joined | None = None


class Mirror:
    """All mirrored topics of an edge."""

    def __init__(self, core: MirrorPorts) -> None:
        self._core = core
        self._by_name: dict[str, Mirrored] = {}
        self._by_number: dict[int, Mirrored] = {}
        # The current connection to the bus: any unique object.
        self.connection: object = None
        # Names of the topics that each feeder brings.
        self._fed: dict[object, dict[str, None]] = {}

    def find(self, name: str) -> Mirrored | None:
        return self._by_name.get(name)

    def by_number(self, number: int) -> str | None:
        """The name of the topic that has this number."""
        known = self._by_number.get(number)
        return None if known is None else known.topic.name

    def positions(self, feeder: object) -> tuple[Position, ...]:
        """The positions of a feeder's topics, from which it continues."""
        self._core.turns.end()
        return tuple(
            Position(known.topic.name, p.index, p.next_offset, known.epoch, known.topic.number)
            for known in self._brought_by(feeder)
            for p in known.topic.partitions
        )

    def _brought_by(self, feeder: object) -> list[Mirrored]:
        names = self._fed.get(feeder, ())
        return [known for name in names if (known := self._by_name.get(name)) is not None]

    # Topics

    def joined(self, joined: Joined, feeder: object) -> None:
        """The bus has a topic for a feeder, which brings it from these offsets on."""
        info = joined.info
        if info is None:
            return
        known = self._by_name.get(joined.name)
        starts = {start.partition: start.offset for start in joined.starts}
        if known is None:
            known = self._add(info, joined.epoch, starts)
            self._core.events.created(known.topic)
        elif known.topic.number != joined.number or not _is_continued(known, joined.epoch, info):
            known = self._remake(known, info, joined.epoch, starts)
        else:
            self._refresh(known, info, joined.epoch, starts)
        known.joined = joined
        known.seen_on = self.connection
        known.feeders.add(feeder)
        self._fed.setdefault(feeder, {})[joined.name] = None

    def _add(self, info: TopicInfo, epoch: int, starts: dict[int, int]) -> Mirrored:
        self._displace(info.number)
        stored = StoredTopic(info.name, info.number, info.settings)
        stored.logs += [_log(info, partition, starts) for partition in info.partitions]
        known = Mirrored(self._core.catalog.adopt(stored), epoch, self.connection)
        self._by_name[info.name] = self._by_number[info.number] = known
        return known

    def _displace(self, number: int) -> None:
        """A restarted bus gives the numbers of memory topics to others. The old topic with this
        number is gone, or has another number, which the bus is about to send."""
        known = self._by_number.get(number)
        if known is not None:
            self._give_up(known)

    def _give_up(self, known: Mirrored) -> None:
        """Readers wait, and get a gap when there is a topic of that name again."""
        self._core.turns.end()
        self._take_out(known)
        self._core.events.remade(known.topic, None, known.epoch)

    def _refresh(
        self, known: Mirrored, info: TopicInfo, epoch: int, starts: dict[int, int]
    ) -> None:
        """Applies changes: settings, start, epochs, and more partitions."""
        topic, stored = known.topic, known.topic.stored
        known.epoch = epoch
        topic.settings = stored.settings = info.settings
        for partition, reported in zip(topic.partitions, info.partitions, strict=False):
            log = mirror_log(partition)
            log.settings = info.settings
            log.begins_at = max(log.begins_at, reported.start_offset)
            log.learn_epochs(_epochs(reported))
        more = info.partitions[len(topic.partitions) :]
        if more:
            # Earlier messages come first.
            self._core.turns.end()
            stored.logs += [_log(info, partition, starts) for partition in more]
            new = self._core.catalog.adopt_growth(topic)
            self._core.events.grown(topic, new)

    def _remake(
        self, known: Mirrored, info: TopicInfo, epoch: int, starts: dict[int, int]
    ) -> Mirrored:
        """Another log has the name, or this one has lost its end: readers get one gap, or none if
        they were not that far."""
        self._core.turns.end()
        self._take_out(known)
        made = self._add(info, epoch, starts)
        for feeder in known.feeders:
            made.feeders.add(feeder)
            self._fed.setdefault(feeder, {})[info.name] = None
        self._core.events.remade(known.topic, made.topic, known.epoch)
        return made

    def reset(self, number: int) -> None:
        """The bus reports that a log has changed, possibly with the same epoch: for example after a
        restored backup."""
        known = self._by_number.get(number)
        if known is None or known.made_on is self.connection or known.joined is None:
            return
        joined = known.joined
        if joined.info is not None:
            starts = {start.partition: start.offset for start in joined.starts}
            self._remake(known, joined.info, joined.epoch, starts).joined = joined

    def left(self, number: int) -> None:
        """The bus has deleted a topic."""
        known = self._by_number.get(number)
        if known is not None:
            self._core.turns.end()
            self._take_out(known)
            self._core.events.deleted(known.topic)

    def missing(self, feeder: object, there: Iterable[str]) -> None:
        """After an outage the bus has only these of a feeder's topics, and those reported since."""
        names = set(there)
        for known in self._brought_by(feeder):
            if known.topic.name not in names and known.seen_on is not self.connection:
                self._give_up(known)

    def let_go(self, feeder: object) -> None:
        """A feeder has ended. Topics without another feeder have no readers here."""
        brought = self._brought_by(feeder)
        self._fed.pop(feeder, None)
        for known in brought:
            known.feeders.discard(feeder)
            if not known.feeders:
                self._core.turns.end()
                self._take_out(known)
                self._core.events.deleted(known.topic)

    def _take_out(self, known: Mirrored) -> None:
        topic = known.topic
        for feeder in known.feeders:
            self._fed.get(feeder, {}).pop(topic.name, None)
        del self._by_name[topic.name], self._by_number[topic.number]
        self._core.catalog.remove(topic)
        self._core.events.removed(topic)
        for log in topic.stored.logs:
            log.abandon()
        for partition in topic.partitions:
            self._core.forget_partition(partition)

    # Batches

    def take(self, data: bytes, header: BatchHeader) -> None:
        """A batch of the bus, in its order, perhaps from several feeders."""
        known = self._by_number.get(header.topic)
        if known is None or header.partition >= len(known.topic.partitions):
            return
        partition = known.topic.partitions[header.partition]
        ahead = header.base_offset - partition.next_offset
        if header.next_offset <= partition.next_offset:
            return  # Another feeder has brought it.
        mirror_log(partition).note_epoch(header.leader_epoch, header.base_offset)
        if ahead < 0:
            self._take_overlapping(partition, data, header)
            return
        if ahead > 0:
            self.skip(partition, header.base_offset)
        self._core.turns.take_stamped(partition, data, header)

    def skip(self, partition: Partition, offset: int) -> None:
        """The mirror continues at `offset`. Readers ask the bus for earlier batches: it has them,
        or knows why not."""
        core = self._core
        core.turns.end()
        before = partition.visible_end
        core.forget_tail(partition)
        mirror_log(partition).start_at(offset)
        partition.next_offset = partition.visible_end = offset
        core.fan_out.show(partition, before)

    def gap(self, number: int, index: int, next_offset: int) -> None:
        """The bus does not have the next batches, or this edge may not read them."""
        known = self._by_number.get(number)
        if known is not None and index < len(known.topic.partitions):
            partition = known.topic.partitions[index]
            if next_offset > partition.next_offset:
                self.skip(partition, next_offset)

    def _take_overlapping(self, partition: Partition, data: bytes, header: BatchHeader) -> None:
        """A batch whose first records are already here: readers continue in its middle."""
        core = self._core
        core.turns.end()
        before = partition.visible_end
        core.forget_tail(partition)
        log = mirror_log(partition)
        log.start_at(header.base_offset)
        log.append(data, header.next_offset, header.append_time_us, header.append_time_us)
        core.turns.count_tail(partition, len(data))
        partition.next_offset = partition.visible_end = header.next_offset
        core.fan_out.show(partition, before)


def mirror_log(partition: Partition) -> MirrorLog:
    log = partition.log
    assert isinstance(log, MirrorLog)
    return log


def _is_continued(known: Mirrored, epoch: int, info: TopicInfo) -> bool:
    """Whether the log continues the one here. Within one epoch of the bus it always does; in the
    next epoch its end may be lost, or, in memory, all of it."""
    partitions = known.topic.partitions
    if known.epoch == epoch:
        return True
    if len(info.partitions) < len(partitions):
        return False
    if info.settings.level is Durability.MEMORY:
        return not any(p.next_offset for p in partitions)
    return all(
        partition.next_offset <= _known_until(reported, known.epoch)
        for partition, reported in zip(partitions, info.partitions, strict=False)
    )


def _known_until(reported: PartitionInfo, epoch: int) -> int:
    parted = parted_at(_epochs(reported), epoch)
    return reported.visible_end if parted is None else min(parted, reported.visible_end)


def _log(info: TopicInfo, partition: PartitionInfo, starts: dict[int, int]) -> MirrorLog:
    return MirrorLog(
        msgspec.structs.replace(info.settings, partitions=len(info.partitions)),
        Owner(info.number, partition.partition),
        begins_at=partition.start_offset,
        end_offset=starts.get(partition.partition, partition.visible_end),
        epochs=_epochs(partition),
    )


def _epochs(partition: PartitionInfo) -> Epochs:
    return tuple(EpochStart(known.epoch, known.first) for known in partition.epochs)
