"""Subscriptions: the partitions that a reader follows, and its start in each.

Every subscription is registered under its name or pattern, so that it joins a topic that appears
later, or again, or that grows.

It is long because a subscription may meet a topic when it begins, or when the topic appears, grows
or comes back: all of these join in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Protocol

import msgspec

from fanlog.broker.authority import Permit
from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.drop_notes import DROPS_TOPIC, DropNotes
from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.last_messages import last_offsets
from fanlog.broker.messages.missing_topics import OpenForReader, check_awaited, maybe_topic
from fanlog.broker.messages.positions import continue_at, is_valid
from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.topics import (
    BrokerSubscription,
    BrokerTopic,
    Cursor,
    Outlet,
    Partition,
    TopicViews,
)
from fanlog.broker.names import NameTree, check_target, is_hidden
from fanlog.broker.ports import Reader
from fanlog.broker.slices import Slices
from fanlog.errors import (
    InvalidArgumentError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    no_partition,
)
from fanlog.format.messages import Joined, Notice, PartitionOffset, Position, Subscribe
from fanlog.format.patterns import fits
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.identity import Verb
from fanlog.model import HIDDEN_PREFIXES, INTERNAL_PREFIX, PARTITIONS_MAX, Gap, GapReason, Start

_EARLIEST = Start("earliest")


class CommittedPositions(Protocol):
    """Where readers with a durable name resume. `state/durable_names.py` has these positions."""

    def position(self, name: str, topic: str, partition: int) -> Position | None: ...

    def may_have_lost(self, topic: int) -> bool:
        """Whether positions in a topic, by its number, may be among those that a disk lost."""
        ...


class Subscriptions:
    def __init__(
        self,
        catalog: Catalog,
        fan_out: FanOut,
        reading: Reading,
        slices: Slices,
        notes: DropNotes,
        *,
        positions: CommittedPositions,
        open_for_reader: OpenForReader,
        epoch: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._fan_out = fan_out
        self._reading = reading
        self._slices = slices
        self._notes = notes
        self._committed = positions
        self._open_for_reader = open_for_reader
        self._epoch = epoch
        # By name. A dict, because 100,000 readers may wait for the same topic, and leave again.
        self._literal: dict[str, dict[BrokerSubscription, None]] = {}
        self._patterns: NameTree[BrokerSubscription] = NameTree()
        self._count = 0
        # Of subscriptions that are being made: the topics that came, grew or went meanwhile.
        self._adding: dict[BrokerSubscription, dict[BrokerTopic, None]] = {}
        # Of topics that have just appeared: the subscriptions that are still to join them.
        self._joining: dict[BrokerTopic, set[BrokerSubscription]] = {}
        # Subscriptions of listeners whose readers do not use our names or patterns: they follow
        # topic events themselves.
        self.viewed_count = 0
        self.changes = 0

    def __len__(self) -> int:
        return self._count + self.viewed_count

    def wanted(self, name: str) -> bool:
        """Whether a reader waits for a topic of this name."""
        return bool(self._admitted(name))

    def following(self, name: str) -> list[BrokerSubscription]:
        """The followers of a topic of this name, by name or by pattern. Some with a pattern may not
        be allowed to read it: they have no cursor there."""
        return self._wanting(name)

    def joining(self, topic: BrokerTopic) -> int:
        """How many read a topic that has just appeared, and do not count among its readers yet."""
        waiting = self._joining.get(topic)
        return 0 if waiting is None else len(waiting)

    async def add(
        self,
        key: int,
        wanted: Subscribe,
        outlet: Outlet,
        reader: Reader,
        client: str = "",
        *,
        permit: Permit | None = None,
        views: TopicViews | None = None,
    ) -> tuple[BrokerSubscription, list[Joined]]:
        """Creates a subscription with cursors; `start` starts them. With a permit, matching topics
        that the reader may not read are left out. With `views` it reads each topic in a view, also
        those that it joins later.

        Before `start`, the listener sends the reader its topics, so that no message comes before
        its topic is known. Changes of topics in that time wait for `start`.
        """
        subscription = BrokerSubscription(
            key,
            self,
            outlet,
            reader,
            wanted.target,
            wildcard=wanted.wildcard,
            policy=wanted.policy,
            window_bytes=wanted.window_bytes,
            durable=wanted.durable,
            partitions=wanted.partitions,
            client=client,
            views=views,
        )
        if wanted.wildcard and permit is not None and permit.guarded:
            subscription.permit = permit
        subscription.mirror = wanted.mirror
        joined: dict[BrokerTopic, Joined] = {}
        counts: dict[BrokerTopic, int] = {}
        changed = self._adding[subscription] = {}
        try:
            async for topic in self._slices.each(self._topics(wanted)):
                if not topic.deleted and _admits(subscription, topic.name):
                    counts[topic] = len(topic.partitions)
                    joined[topic] = await self._join(subscription, topic, wanted)
        except BaseException:
            for cursor in subscription.cursors:
                self._fan_out.remove(cursor)
            raise
        finally:
            del self._adding[subscription]
        # Events that came while the other start positions were looked up.
        subscription.absent = _absent(wanted, joined)
        for topic in changed:
            if topic.deleted:
                self._drop_topic(subscription, topic)
                joined.pop(topic, None)
                continue
            if not _admits(subscription, topic.name):
                continue
            more = topic.partitions[counts.get(topic, 0) :]
            if topic not in joined:
                joined[topic] = self._join_new(subscription, topic, more)
            elif more:
                starts = joined[topic].starts + self._join_new(subscription, topic, more).starts
                joined[topic] = msgspec.structs.replace(joined[topic], starts=starts)
        if changed and not (wanted.wildcard or joined):
            check_awaited(wanted.target, wanted.missing)
        subscription.held = []
        self._register(subscription)
        return subscription, list(joined.values())

    def start(self, subscription: BrokerSubscription, untold: Iterable[Joined] = ()) -> None:
        """Starts the cursors, very many of them in slices. The reader is notified of topics that it
        does not know yet, each before its first message."""
        self._tell_gaps(subscription)
        cursors = list(subscription.cursors)
        self._slices.in_slices(self._starting(subscription, cursors, untold))
        held, subscription.held = subscription.held, None
        for call in held or ():
            call()

    def _starting(
        self, subscription: BrokerSubscription, cursors: list[Cursor], untold: Iterable[Joined]
    ) -> Iterator[None]:
        by_number: dict[int, Joined] = {}
        for joined in untold:
            by_number[joined.number] = joined
            yield
        for cursor in cursors:
            if subscription.closed:
                return
            topic = cursor.partition.topic
            if not (cursor.started or cursor.dropped or topic.deleted):
                joined = by_number.pop(topic.number, None)
                if joined is not None:
                    subscription.reader.joined(joined)
                self._fan_out.start(cursor)
            yield

    def start_some(self, subscription: BrokerSubscription, cursors: Iterable[Cursor]) -> None:
        """Sets new cursors of a subscription going, few enough to do it at once."""
        self._tell_gaps(subscription)
        for cursor in cursors:
            self._fan_out.start(cursor)

    def _tell_gaps(self, subscription: BrokerSubscription) -> None:
        gaps, subscription.opening_gaps = subscription.opening_gaps, []
        for gap, number in gaps:
            subscription.reader.gap(gap, number)

    def remove(self, subscription: BrokerSubscription) -> None:
        if not subscription.closed:
            self._unregister(subscription)
            self.end(subscription)

    leave = remove

    def lost(self, subscription: BrokerSubscription) -> None:
        """The same for a subscription whose connection is ending: its cursors may be removed in
        slices."""
        if not subscription.closed:
            self._unregister(subscription)
            subscription.closed = True
            cursors, subscription.cursors = subscription.cursors, []
            self._slices.in_slices(self._removing(cursors))

    def _removing(self, cursors: list[Cursor]) -> Iterator[None]:
        for cursor in cursors:
            self._fan_out.remove(cursor)
            yield

    def _unregister(self, subscription: BrokerSubscription) -> None:
        self._count -= 1
        for waiting in self._joining.values():
            waiting.discard(subscription)
        if subscription.wildcard:
            self._patterns.remove(subscription.target, subscription)
            return
        same = self._literal[subscription.target]
        del same[subscription]
        if not same:
            del self._literal[subscription.target]

    def end(self, subscription: BrokerSubscription) -> None:
        """Takes a subscription's cursors out of whatever they are in."""
        subscription.closed = True
        for cursor in subscription.cursors:
            self._fan_out.remove(cursor)
        subscription.cursors = []

    def add_cursor(
        self, subscription: BrokerSubscription, partition: Partition, offset: int
    ) -> Cursor:
        """Adds a cursor to a subscription whose cursors a group controls; it waits for `start`."""
        return self._cursor(subscription, partition, offset)

    def drop_cursors(self, subscription: BrokerSubscription, cursors: Collection[Cursor]) -> None:
        """Takes cursors out of a subscription; they send nothing more."""
        for cursor in cursors:
            cursor.dropped = True
            self._fan_out.remove(cursor)
        subscription.cursors = [cursor for cursor in subscription.cursors if not cursor.dropped]

    def topic_appeared(self, topic: BrokerTopic) -> None:
        """All subscriptions that want a topic of this name read it from its first record. Very many
        join it in slices."""
        self._note(topic)
        wanting = self._admitted(topic.name)
        beside = [s for s in self._patterns.at(f"{topic.name}.>") if _admits(s, topic.name)]
        if wanting or beside:
            self._joining[topic] = set(wanting)
            self._slices.in_slices(self._join_all(topic, wanting, beside))

    def _join_all(
        self,
        topic: BrokerTopic,
        wanting: list[BrokerSubscription],
        beside: list[BrokerSubscription],
    ) -> Iterator[None]:
        waiting = self._joining[topic]
        for subscription in wanting:
            if topic.deleted:
                return
            waiting.discard(subscription)
            self._join_in_turn(subscription, topic, topic.partitions)
            yield
        self._joining.pop(topic, None)
        for subscription in beside:
            if not subscription.closed and not topic.deleted:
                notice = Notice("parent", topic.name)
                self._in_turn(subscription, partial(subscription.reader.notice, notice))
            yield

    def topic_grew(self, topic: BrokerTopic, new: list[Partition]) -> None:
        """All readers of the topic read its new partitions from their first record, unless they
        have chosen partitions."""
        self._note(topic)
        waiting = self._joining.get(topic, ())
        for subscription in self._admitted(topic.name):
            chosen = subscription.partitions
            if subscription in waiting:
                continue  # It will join all that there are.
            if chosen is None or any(partition.index in chosen for partition in new):
                self._join_in_turn(subscription, topic, new)

    @staticmethod
    def _in_turn(subscription: BrokerSubscription, call: Callable[[], None]) -> None:
        """Runs an action that a reader is notified of, once it knows of its subscription."""
        if subscription.held is None:
            call()
        else:
            subscription.held.append(call)

    def _leave_in_turn(self, subscription: BrokerSubscription, topic: BrokerTopic) -> None:
        left = subscription.reader.left
        if self._drop_topic(subscription, topic):
            self._in_turn(subscription, partial(left, topic.number, topic.name))

    def _join_in_turn(
        self, subscription: BrokerSubscription, topic: BrokerTopic, new: list[Partition]
    ) -> None:
        # For the current partitions: later ones get another call.
        self._in_turn(subscription, partial(self._join_later, subscription, topic, list(new)))

    def _join_later(
        self, subscription: BrokerSubscription, topic: BrokerTopic, new: list[Partition]
    ) -> None:
        # It may have been evicted just now, with another one of its connection that was notified
        # first.
        if not subscription.closed and not topic.deleted:
            known = len(subscription.cursors)
            subscription.reader.joined(self._join_new(subscription, topic, new))
            self._tell_gaps(subscription)
            new_ones = subscription.cursors[known:]
            self._slices.in_slices(self._starting(subscription, new_ones, ()))

    def topic_vanished(self, topic: BrokerTopic) -> None:
        self._note(topic)
        self._joining.pop(topic, None)
        for subscription in self._wanting(topic.name):
            self._leave_in_turn(subscription, topic)

    def topic_remade(self, old: BrokerTopic, new: BrokerTopic | None, epoch: int) -> None:
        """The log of a mirrored topic has changed since `epoch`. All its readers continue in the
        new one: at their position, if it still means the same, or after a gap. Without a new one,
        they wait for it."""
        self._note(old)
        self._joining.pop(old, None)
        if new is not None:
            self._note(new)
        for subscription in self._admitted(old.name):
            known = _positions(subscription, old, epoch)
            subscription.absent = {**(subscription.absent or {}), **known}
            self._leave_in_turn(subscription, old)
            if new is not None:
                self._join_in_turn(subscription, new, new.partitions)

    def _drop_topic(self, subscription: BrokerSubscription, topic: BrokerTopic) -> bool:
        """Takes a topic's cursors out of a subscription; whether there were any."""
        gone = [c for c in subscription.cursors if c.partition.topic is topic]
        for cursor in gone:
            self._fan_out.remove(cursor)
        if gone:
            subscription.cursors = [
                c for c in subscription.cursors if c.partition.topic is not topic
            ]
        return bool(gone)

    def _note(self, topic: BrokerTopic) -> None:
        """Remembers a change for the subscriptions that are being made."""
        for subscription, changed in self._adding.items():
            if _wants(subscription, topic.name):
                changed[topic] = None

    def _register(self, subscription: BrokerSubscription) -> None:
        self._count += 1
        self.reader_came()
        if subscription.wildcard:
            self._patterns.add(subscription.target, subscription)
        else:
            self._literal.setdefault(subscription.target, {})[subscription] = None

    def reader_came(self) -> None:
        """A topic that nobody read before may have a reader now."""
        self.changes += 1

    def _wanting(self, name: str) -> list[BrokerSubscription]:
        wanting = list(self._literal.get(name, ()))
        if name.startswith(HIDDEN_PREFIXES):
            fitting = self._patterns.fitting(name)
            wanting.extend(s for s in fitting if not is_hidden(name, s.target))
        elif not name.startswith(INTERNAL_PREFIX):
            wanting.extend(self._patterns.fitting(name))
        return wanting

    def _admitted(self, name: str) -> list[BrokerSubscription]:
        """Those of them that may read it."""
        return [subscription for subscription in self._wanting(name) if _admits(subscription, name)]

    def _topics(self, wanted: Subscribe) -> Iterator[BrokerTopic]:
        check_target(wanted.target, wildcard=wanted.wildcard)
        if not wanted.wildcard:
            if wanted.target in (DROPS_TOPIC, SIGNALS_TOPIC):
                self._open_for_reader(wanted.target)
            topic = maybe_topic(self._catalog, self._open_for_reader, wanted.target, wanted.missing)
            if topic is not None:
                yield topic
            else:
                _check_partitions(wanted)
            return
        if wanted.start.kind == "offset" or wanted.partitions is not None:
            raise InvalidArgumentError(
                "An offset or a partition means nothing for a pattern: each topic has its own. "
                "Subscribe to one topic, or start at earliest, latest or a time."
            )
        yield from self._catalog.each_matching(wanted.target)

    def _join_new(
        self, subscription: BrokerSubscription, topic: BrokerTopic, new: Iterable[Partition]
    ) -> Joined:
        chosen = subscription.partitions
        starts: list[PartitionOffset] = []
        for partition in new:
            if chosen is None or partition.index in chosen:
                known = self._maybe_known(subscription, partition)
                offset = partition.log.start_offset
                if known is not None:
                    offset = self.again(subscription, partition, known)
                self._cursor(subscription, partition, offset)
                starts.append(PartitionOffset(partition.index, offset))
        return self._joined(subscription, topic, starts)

    def _joined(
        self,
        subscription: BrokerSubscription,
        topic: BrokerTopic,
        starts: Iterable[PartitionOffset],
    ) -> Joined:
        info = topic.info() if subscription.mirror else None
        return Joined(topic.number, topic.name, self.epoch_of(topic), tuple(starts), info)

    def epoch_of(self, topic: BrokerTopic) -> int:
        """The epoch that a topic's log has now."""
        return self._epoch()

    def _maybe_known(
        self, subscription: BrokerSubscription, partition: Partition
    ) -> Position | None:
        """The position of a reader in a topic that did not exist for a while. After a start that is
        every memory topic, until it is created again: it is another log, and the reader must
        know."""
        name, index = partition.topic.name, partition.index
        if subscription.absent:
            known = subscription.absent.pop((name, index), None)
            if known is not None:
                return known
        if not subscription.durable:
            return None
        return self._committed.position(subscription.durable, name, index)

    async def _join(
        self, subscription: BrokerSubscription, topic: BrokerTopic, wanted: Subscribe
    ) -> Joined:
        partitions = topic.partitions
        if wanted.partitions is not None:
            outside = [i for i in wanted.partitions if not 0 <= i < len(partitions)]
            if outside:
                raise no_partition(topic.name, len(partitions), outside[0])
            partitions = [topic.partitions[i] for i in dict.fromkeys(wanted.partitions)]
        if wanted.start.kind == "last" and wanted.resume is None and not wanted.durable:
            offsets = await last_offsets(self._reading, partitions, wanted.start.value)
            for partition in partitions:
                self._cursor(subscription, partition, offsets[partition.index])
            found = tuple(PartitionOffset(p.index, offsets[p.index]) for p in partitions)
            return Joined(topic.number, topic.name, self._epoch(), found)
        resume = {(p.topic, p.partition): p for p in wanted.resume or ()}
        starts: list[PartitionOffset] = []
        for partition in partitions:
            offset = await self._begin(subscription, partition, wanted, resume)
            self._cursor(subscription, partition, offset)
            starts.append(PartitionOffset(partition.index, offset))
        return self._joined(subscription, topic, starts)

    def _cursor(
        self, subscription: BrokerSubscription, partition: Partition, offset: int
    ) -> Cursor:
        cursor = Cursor(subscription, partition, offset)
        cursor.behind = offset < partition.visible_end
        if subscription.views is not None:
            cursor.view = subscription.views(partition.topic)
        self._fan_out.add(cursor)
        return cursor

    async def _begin(
        self,
        subscription: BrokerSubscription,
        partition: Partition,
        wanted: Subscribe,
        resume: dict[tuple[str, int], Position],
    ) -> int:
        """The first offset to send: where the reader was, or where it asked to begin."""
        topic = partition.topic
        if wanted.resume is not None:
            known = resume.get((topic.name, partition.index))
            if known is None:
                return await self._reading.find_offset(partition, _EARLIEST)
            return self.again(subscription, partition, known)
        if wanted.durable:
            committed = self._committed.position(wanted.durable, topic.name, partition.index)
            if committed is not None:
                return self.again(subscription, partition, committed)
            if self._committed.may_have_lost(topic.number):
                return partition.log.start_offset
        offset = await self._reading.find_offset(partition, wanted.start)
        if offset > partition.visible_end:
            raise OffsetOutOfRangeError(
                f"Partition {partition.index} of {topic.name!r} ends at offset "
                f"{partition.visible_end}; {offset} is past it. Use a lower one, or 'latest'."
            )
        return offset

    def again(self, subscription: BrokerSubscription, partition: Partition, known: Position) -> int:
        """The offset at which a returning reader continues. If the log has changed, it is
        notified."""
        epoch = self.epoch_of(partition.topic)
        if is_valid(partition, known, epoch):
            return known.offset
        start = continue_at(partition, known, epoch)
        gap = Gap(partition.topic.name, partition.index, known.offset, start, GapReason.RESET)
        subscription.opening_gaps.append((gap, partition.topic.number))
        # The number of lost records is unknown: the old offsets have no meaning any more.
        self._notes.note(partition, known.offset, start, GapReason.RESET, subscription, records=0)
        return start


def _check_partitions(wanted: Subscribe) -> None:
    """Refuses partitions that no topic can have, before there is one."""
    for index in wanted.partitions or ():
        if not 0 <= index < PARTITIONS_MAX:
            raise PartitionNotFoundError(
                f"A topic has the partitions 0 to {PARTITIONS_MAX - 1} at most, not {index}."
            )


def _positions(
    subscription: BrokerSubscription, topic: BrokerTopic, epoch: int
) -> dict[tuple[str, int], Position]:
    """A subscription's positions in a topic, whose log is that of `epoch`."""
    return {
        (topic.name, cursor.partition.index): Position(
            topic.name,
            cursor.partition.index,
            cursor.partition.visible_end if cursor.live else cursor.offset,
            epoch,
            topic.number,
        )
        for cursor in subscription.cursors
        if cursor.partition.topic is topic
    }


def _absent(
    wanted: Subscribe, joined: Iterable[BrokerTopic]
) -> dict[tuple[str, int], Position] | None:
    """Where a reader was in topics that are not there."""
    there = {topic.name for topic in joined} if wanted.resume else ()
    absent = {(p.topic, p.partition): p for p in wanted.resume or () if p.topic not in there}
    return absent or None


def _wants(subscription: BrokerSubscription, name: str) -> bool:
    """Whether a subscription is about a topic of this name."""
    target = subscription.target
    if not subscription.wildcard:
        return name == target
    if is_hidden(name, target):
        return False
    return not name.startswith(INTERNAL_PREFIX) and fits(name, target)


def _admits(subscription: BrokerSubscription, name: str) -> bool:
    """Whether the reader may read a topic that its pattern matches."""
    permit = subscription.permit
    return permit is None or permit.may(Verb.SUBSCRIBE, name)
