"""Brings a group to its target assignment, one step at a time.

A partition that moves is first taken from its owner: its cursor stops at once, and the broker asks
the owner to release it. Only after that does the next member start, at the committed position.
Other partitions are not touched, and their messages keep flowing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from fanlog.broker.clocks import Clocks
from fanlog.broker.groups.assignment import assigning
from fanlog.broker.groups.state import ConsumerGroup, ConsumerMember, MemberReader, Ownership
from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Cursor, Partition
from fanlog.errors import FanlogError, NoPositionError
from fanlog.format.messages import Joined, PartitionOffset, Position, Revoke
from fanlog.model import Gap, TopicPartition

if TYPE_CHECKING:
    from fanlog.broker.groups.ports import GroupPorts

logger = logging.getLogger("fanlog.broker")

# Members that have to leave, and why.
Failed = list[tuple[ConsumerMember, FanlogError]]
# A member's subscription, if it is connected, with new cursors and the gaps there.
_Begun = tuple[BrokerSubscription | None, list[tuple[Ownership, Cursor]], list[tuple[Gap, int]]]
# Work in steps; after each of them others may have their turn.
Steps = Generator[Failed, None, None]
# Partitions to grant or revoke in one step, and topics to check in one step.
_STEP = 64
_LOOK = 512


class GroupBalance:
    """Grants and revokes partitions. `revoke_us` is the time for an owner to release one.

    Moving many partitions takes a while, so it is done in steps. Each step checks again whether its
    action still makes sense.
    """

    def __init__(self, broker: GroupPorts, clocks: Clocks, revoke_us: int) -> None:
        self._broker = broker
        self._clocks = clocks
        self._revoke_us = revoke_us
        # Of all groups, since the start.
        self.rebalances = 0

    def resume(self, group: ConsumerGroup) -> Steps:
        """Starts cursors for the partitions of members that came back."""
        for member, since_us in list(group.returned.items()):
            # It may have left in a turn between two steps.
            if group.returned.pop(member, None) is None:
                continue
            waiting = deque(p for p, owned in member.owned.items() if owned.cursor is None)
            while waiting:
                if member.reader is None:
                    break
                if self._waits(member.reader, since_us):
                    group.returned[member] = since_us
                    break
                some = [waiting.popleft() for _ in range(min(_STEP, len(waiting)))]
                ready = self._still_waiting(member, some)
                late = [tp for tp in ready if self._awaits_commit(group, tp)]
                if late:
                    group.returned[member] = since_us
                    group.awaits_commits = True
                yield self._set_going(group, {member: [p for p in ready if p not in late]})

    def _awaits_commit(self, group: ConsumerGroup, tp: TopicPartition) -> bool:
        """Whether a partition begins at an offset commit that has not taken effect: one of another
        client that had the membership before."""
        begin = group.owned[tp].begin
        return begin is None and self._broker.durable.is_pending(group.offsets, *tp)

    def _still_waiting(
        self, member: ConsumerMember, tps: list[TopicPartition]
    ) -> list[TopicPartition]:
        return [
            tp
            for tp in tps
            if (owned := member.owned.get(tp)) is not None
            and owned.cursor is None
            and not owned.revoke_by_us
        ]

    def rebalance(self, group: ConsumerGroup) -> Steps:
        """Revokes partitions that others should have, and grants free ones. Ends early if the
        target has changed meanwhile; then the group is stale."""
        if group.stale:
            group.stale = False
            target = yield from self._find_target(group)
            if group.stale:
                return
            group.target = target
            now_us = self._clocks.monotonic_us()
            freed, moving = group.freed, group.moving
            group.freed = {p: freed.get(p, now_us) for p in target if p not in group.owned}
            group.moving = {
                tp: moving.get(tp, now_us)
                for tp, owned in group.owned.items()
                if owned.member.subscription is not None
                and not owned.revoke_by_us
                and target.get(tp) != owned.member.id
            }
            if group.moving or group.freed:
                group.rebalances += 1
                self.rebalances += 1
            yield []
        yield from self._take_back(group)
        yield from self._grant(group)

    def _find_target(
        self, group: ConsumerGroup
    ) -> Generator[Failed, None, dict[TopicPartition, str]]:
        """The target assignment. An absent member keeps its partitions. Partitions that are being
        revoked count as free; otherwise a new member would cause more moves."""
        topics, wants = self._wanted(group.present())
        tps: list[TopicPartition] = []
        current: dict[TopicPartition, str] = {}
        yield []
        for i, topic in enumerate(topics.values()):
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.index)
                owned = group.owned.get(tp)
                if owned is not None and not owned.revoke_by_us:
                    if owned.member.subscription is None:
                        continue
                    current[tp] = owned.member.id
                tps.append(tp)
            if not i % _LOOK:
                yield []
        steps = assigning(wants, tps, current)
        while not group.stale:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            yield []
        return {}

    def _wanted(
        self, present: dict[str, ConsumerMember]
    ) -> tuple[dict[str, BrokerTopic], dict[str, set[str]]]:
        """The topics that the members follow, and which of them each does."""
        catalog = self._broker.catalog
        topics: dict[str, BrokerTopic] = {}
        fitting: dict[tuple[str, bool], set[str]] = {}
        wants: dict[str, set[str]] = {}
        for member in present.values():
            target = (member.target, member.wildcard)
            if target not in fitting:
                topic = None if member.wildcard else catalog.find(member.target)
                found = [] if topic is None else [topic]
                if member.wildcard:
                    found = catalog.matching(member.target)
                topics.update((topic.name, topic) for topic in found)
                fitting[target] = {topic.name for topic in found}
            wants[member.id] = fitting[target]
        return topics, wants

    # Granting

    def _grant(self, group: ConsumerGroup) -> Steps:
        """Grants free partitions to their targets. A member that has not confirmed earlier
        notifications gets its partitions later."""
        later: dict[TopicPartition, int] = {}
        while group.freed and not group.stale:
            granted: dict[ConsumerMember, list[TopicPartition]] = {}
            for tp, since_us in list(islice(group.freed.items(), _STEP)):
                del group.freed[tp]
                member = group.members.get(group.target.get(tp, ""))
                if tp in group.owned or member is None or member.reader is None:
                    continue
                if self._broker.durable.is_pending(group.offsets, *tp):
                    # It starts at the last owner's offset commit, once that has taken effect.
                    later[tp] = since_us
                    group.awaits_commits = True
                elif self._waits(member.reader, since_us):
                    later[tp] = since_us
                elif self._exists(tp):
                    group.own(tp, member)
                    granted.setdefault(member, []).append(tp)
            yield self._set_going(group, granted)
        group.freed.update(later)

    def _waits(self, reader: MemberReader, since_us: int) -> bool:
        """Whether a member's notification waits, because it has not taken earlier ones. Not without
        end: a member that never takes them is notified anyway, and evicted."""
        return reader.busy() and self._clocks.monotonic_us() - since_us < self._revoke_us

    def _exists(self, tp: TopicPartition) -> bool:
        topic = self._broker.catalog.find(tp[0])
        return topic is not None and tp[1] < len(topic.partitions)

    def _set_going(
        self,
        group: ConsumerGroup,
        granted: dict[ConsumerMember, list[TopicPartition]],
        started: Callable[[], None] | None = None,
    ) -> Failed:
        """Starts cursors, and calls `started` when the members know where they begin."""
        failed: Failed = []
        pins: list[Position] = []
        begun: list[_Begun] = []
        for member, tps in granted.items():
            try:
                begun.append(self._begin(group, member, tps, pins))
            except FanlogError as fault:
                failed.append((member, fault))
        self._pin(group, pins)

        def start() -> None:
            self._start_all(begun)
            if started is not None:
                started()

        def confirm(_: object = None) -> None:
            self._broker.when_confirmed(start)

        if pins:
            # Nobody reads records that the group could skip after a power cut.
            self._broker.internal.when_durable(confirm)
        elif begun or started is not None:
            confirm()
        return failed

    def _start_all(self, begun: list[_Begun]) -> None:
        """Starts cursors. Members first get their start positions."""
        for subscription, granted, gaps in begun:
            standing: list[Cursor] = []
            for owned, cursor in granted:
                if owned.cursor is cursor:
                    owned.notified = True
                    standing.append(cursor)
            if subscription is None or subscription.closed or not standing:
                continue
            starts: dict[BrokerTopic, list[PartitionOffset]] = {}
            for cursor in standing:
                partition = cursor.partition
                begin = PartitionOffset(partition.index, cursor.begin)
                starts.setdefault(partition.topic, []).append(begin)
            for topic, begins in starts.items():
                joined = Joined(topic.number, topic.name, self._broker.epoch, tuple(begins))
                subscription.reader.joined(joined)
            subscription.opening_gaps = gaps
            self._broker.subscriptions.start_some(subscription, standing)

    def _begin(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        tps: list[TopicPartition],
        pins: list[Position],
    ) -> _Begun:
        """A member's cursors, at their start positions."""
        subscription, reader = member.subscription, member.reader
        granted: list[tuple[Ownership, Cursor]] = []
        if subscription is None or reader is None:
            return None, granted, []
        for tp in sorted(tps):
            owned = group.owned[tp]
            topic = self._broker.catalog.get(tp[0])
            partition = topic.partitions[tp[1]]
            offset, pinned = self._first_offset(group, owned, partition)
            if not pinned:
                pins.append(Position(*tp, offset, self._broker.epoch))
            owned.begin = None
            owned.cursor = self._broker.subscriptions.add_cursor(subscription, partition, offset)
            owned.notified = False
            granted.append((owned, owned.cursor))
        gaps, subscription.opening_gaps = subscription.opening_gaps, []
        return subscription, granted, gaps

    def _first_offset(
        self, group: ConsumerGroup, owned: Ownership, partition: Partition
    ) -> tuple[int, bool]:
        """Where a member begins, and whether that is known from before."""
        topic = partition.topic.name
        known = owned.begin
        if known is None:
            known = self._broker.durable.position(group.offsets, topic, partition.index)
        if known is None:
            known = group.unpinned.get(TopicPartition(topic, partition.index))
        if known is not None and owned.member.subscription is not None:
            again = self._broker.subscriptions.again(owned.member.subscription, partition, known)
            return again, True
        lost = self._broker.durable.may_have_lost(partition.topic.number)
        if topic in group.fresh or group.reset == "earliest" or lost:
            return partition.log.start_offset, False
        if group.reset == "none":
            raise NoPositionError(
                f"The group {group.name!r} has no committed position in partition "
                f"{partition.index} of {topic!r}, and its reset policy is 'none'. Set one with "
                f"`fanlog group reset`, or choose 'earliest' or 'latest'."
            )
        end = group.ends.pop(TopicPartition(topic, partition.index), partition.visible_end)
        return max(end, partition.log.start_offset), False

    def _pin(self, group: ConsumerGroup, pins: list[Position]) -> None:
        """Commits the group's start in new partitions. Otherwise the next owner would skip the
        records before the first offset commit."""
        if pins:
            group.unpinned.update((TopicPartition(pin.topic, pin.partition), pin) for pin in pins)
            try:
                self.pin_again(group)
            except FanlogError as fault:
                logger.warning("group %s could not store where it begins: %s", group.name, fault)

    def pin_again(self, group: ConsumerGroup) -> None:
        """Commits unpinned start positions, unless a member has committed there since."""
        durable = self._broker.durable
        for tp in list(group.unpinned):
            if durable.position(group.offsets, *tp) is not None:
                del group.unpinned[tp]
        pins = [
            pin for tp, pin in group.unpinned.items() if not durable.is_pending(group.offsets, *tp)
        ]
        checked = self._broker.check_positions(group.offsets, pins)

        def pinned(fault: FanlogError | None) -> None:
            for pin in pins if fault is None else ():
                tp = TopicPartition(pin.topic, pin.partition)
                if group.unpinned.get(tp) is pin:
                    del group.unpinned[tp]

        if checked:
            durable.commit_positions([(group.offsets, checked)], pinned)

    def move(
        self, group: ConsumerGroup, tps: dict[TopicPartition, int], started: Callable[[], None]
    ) -> None:
        """Puts the cursors of a member's own partitions elsewhere. Calls `started` when the member
        was notified of it: with replicas that may be later."""
        moved: dict[ConsumerMember, list[TopicPartition]] = {}
        self.stop([group.owned[tp] for tp in tps])
        for tp, offset in tps.items():
            owned = group.owned[tp]
            owned.begin = Position(*tp, offset, self._broker.epoch)
            moved.setdefault(owned.member, []).append(tp)
        self._set_going(group, moved, started)

    # Taking back

    def _take_back(self, group: ConsumerGroup) -> Steps:
        """Stops cursors, and asks their members to release the partitions. A member's time starts
        with its notification."""
        later: dict[TopicPartition, int] = {}
        while group.moving and not group.stale:
            notified: dict[tuple[ConsumerMember, str], list[int]] = {}
            stopped: list[Ownership] = []
            now_us = self._clocks.monotonic_us()
            for tp, since_us in list(islice(group.moving.items(), _STEP)):
                del group.moving[tp]
                owned = group.owned.get(tp)
                if owned is None or owned.revoke_by_us or owned.member.reader is None:
                    continue
                # A member that does not know of a partition yet can't release it.
                if not owned.notified or self._waits(owned.member.reader, since_us):
                    later[tp] = since_us
                    continue
                group.revoke(tp, now_us + self._revoke_us)
                stopped.append(owned)
                notified.setdefault((owned.member, tp[0]), []).append(tp[1])
            self.stop(stopped)
            for (member, topic), partitions in notified.items():
                self.tell(member, topic, partitions)
            yield []
        group.moving.update(later)

    def tell(
        self, member: ConsumerMember, topic: str, partitions: list[int], *, lost: bool = False
    ) -> None:
        """Asks a member to release partitions, or notifies it that they are `lost`. It has to
        confirm a loss: its offset commits until then are from before the loss."""
        if member.reader is not None:
            for partition in partitions if lost else ():
                tp = TopicPartition(topic, partition)
                member.losses[tp] = member.losses.get(tp, 0) + 1
            member.reader.revoke(Revoke(topic, tuple(sorted(partitions)), lost))

    def stop(self, some: Iterable[Ownership]) -> None:
        """Stops cursors; those of a member that is away have been stopped already."""
        stopped: dict[BrokerSubscription, list[Cursor]] = {}
        for owned in some:
            cursor, owned.cursor = owned.cursor, None
            if cursor is not None and not cursor.subscription.closed:
                stopped.setdefault(cursor.subscription, []).append(cursor)
        for subscription, cursors in stopped.items():
            self._broker.subscriptions.drop_cursors(subscription, cursors)
