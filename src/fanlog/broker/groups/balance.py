"""Bringing a group to the assignment that is right now, one step at a time.

A partition that changes hands is taken from its owner first: its cursor stops at once, the owner
is asked to let go, and only when it has does the next one begin, at the committed position. What
need not move is not touched, and its messages go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fanlog.broker.clocks import Clocks
from fanlog.broker.groups.assignment import Place, assign
from fanlog.broker.groups.state import Group, Member, Ownership
from fanlog.broker.topics import Partition, Topic
from fanlog.errors import FanlogError, NoPositionError
from fanlog.format.messages import Joined, PartitionOffset, Position, Revoke

if TYPE_CHECKING:
    from fanlog.broker.core import Broker

logger = logging.getLogger("fanlog.broker")

# Members that can't go on, and why.
Failed = list[tuple[Member, FanlogError]]


class GroupBalance:
    """Grants and takes back partitions. `revoke_us` is how long an owner may take to let go."""

    def __init__(self, broker: Broker, clocks: Clocks, revoke_us: int) -> None:
        self._broker = broker
        self._clocks = clocks
        self._revoke_us = revoke_us

    def resume(self, group: Group) -> Failed:
        """Sets going what present members have and do not read: they came back to it."""
        waiting: dict[Member, list[Place]] = {}
        for place, owned in group.owned.items():
            if owned.cursor is None and not owned.revoke_by_us and owned.member.subscription:
                waiting.setdefault(owned.member, []).append(place)
        return self._set_going(group, waiting)

    def rebalance(self, group: Group) -> Failed:
        """Takes back what others should have, and grants what is free. What a member that is
        away has stays with it."""
        present = group.present()
        kept = {place for place, o in group.owned.items() if o.member.id not in present}
        topics, wants = self._wanted(present)
        places = [
            (topic.name, partition.index)
            for topic in topics.values()
            for partition in topic.partitions
            if (topic.name, partition.index) not in kept
        ]
        # What is being taken back counts as free already, or a newcomer would cause more moves.
        current = {
            place: owned.member.id
            for place, owned in group.owned.items()
            if place not in kept and not owned.revoke_by_us
        }
        target = assign(wants, places, current)
        moving = [place for place, owner in current.items() if target.get(place) != owner]
        granted: dict[Member, list[Place]] = {}
        for place, owner in target.items():
            if place not in group.owned:
                group.owned[place] = Ownership(present[owner])
                granted.setdefault(present[owner], []).append(place)
        self._take_back(group, moving)
        group.rebalances += bool(moving or granted)
        return self._set_going(group, granted)

    def _wanted(self, present: dict[str, Member]) -> tuple[dict[str, Topic], dict[str, set[str]]]:
        """The topics that the members follow, and which of them each does."""
        catalog = self._broker.catalog
        topics: dict[str, Topic] = {}
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

    def _set_going(self, group: Group, granted: dict[Member, list[Place]]) -> Failed:
        failed: Failed = []
        pins: list[Position] = []
        for member, places in granted.items():
            try:
                self._begin(group, member, places, pins)
            except FanlogError as fault:
                failed.append((member, fault))
        self._pin(group, pins)
        return failed

    def _begin(
        self, group: Group, member: Member, places: list[Place], pins: list[Position]
    ) -> None:
        """Sets a member's cursors going. It is told first where they begin."""
        subscription, reader = member.subscription, member.reader
        if subscription is None or reader is None:
            return
        starts: dict[Topic, list[PartitionOffset]] = {}
        for place in sorted(places):
            owned = group.owned[place]
            topic = self._broker.catalog.get(place[0])
            partition = topic.partitions[place[1]]
            offset, pinned = self._first_offset(group, owned, partition)
            if not pinned:
                pins.append(Position(*place, offset, self._broker.epoch))
            owned.begin = None
            owned.cursor = self._broker.subscriptions.add_cursor(subscription, partition, offset)
            starts.setdefault(topic, []).append(PartitionOffset(partition.index, offset))
        for topic, begins in starts.items():
            reader.joined(Joined(topic.number, topic.name, self._broker.epoch, tuple(begins)))
        self._broker.subscriptions.start(subscription)

    def _first_offset(
        self, group: Group, owned: Ownership, partition: Partition
    ) -> tuple[int, bool]:
        """Where a member begins, and whether that is known from before."""
        topic = partition.topic.name
        known = owned.begin
        if known is None:
            known = self._broker.durable.position(group.offsets, topic, partition.index)
        if known is None:
            known = group.unpinned.get((topic, partition.index))
        if known is not None and owned.member.subscription is not None:
            again = self._broker.subscriptions.again(owned.member.subscription, partition, known)
            return again, True
        if topic in group.fresh or group.reset == "earliest":
            return partition.log.start_offset, False
        if group.reset == "none":
            raise NoPositionError(
                f"The group {group.name!r} has no committed position in partition "
                f"{partition.index} of {topic!r}, and its reset policy is 'none'. Set one with "
                f"`fanlog group reset`, or choose 'earliest' or 'latest'."
            )
        return partition.visible_end, False

    def _pin(self, group: Group, pins: list[Position]) -> None:
        """Commits where the group begins in partitions that are new to it: or what comes before
        its first commit would be left out by who takes over."""
        if pins:
            group.unpinned.update(((pin.topic, pin.partition), pin) for pin in pins)
            try:
                self.pin_again(group)
            except FanlogError as fault:
                logger.warning("group %s has not committed its begin: %s", group.name, fault)

    def pin_again(self, group: Group) -> None:
        """Commits what is unpinned, where no member has committed since."""
        durable = self._broker.durable
        pins = [
            pin
            for place, pin in group.unpinned.items()
            if durable.position(group.offsets, *place) is None
        ]
        checked = self._broker.check_positions(group.offsets, pins)
        if checked:
            durable.commit([(group.offsets, checked)])
        group.unpinned.clear()

    def move(self, group: Group, places: dict[Place, int]) -> None:
        """Puts the cursors of a member's own partitions elsewhere."""
        moved: dict[Member, list[Place]] = {}
        for place, offset in places.items():
            owned = group.owned[place]
            self.stop(owned)
            owned.begin = Position(*place, offset, self._broker.epoch)
            moved.setdefault(owned.member, []).append(place)
        self._set_going(group, moved)

    # Taking back

    def _take_back(self, group: Group, places: list[Place]) -> None:
        told: dict[tuple[Member, str], list[int]] = {}
        revoke_by_us = self._clocks.monotonic_us() + self._revoke_us
        for place in places:
            owned = group.owned[place]
            self.stop(owned)
            owned.revoke_by_us = revoke_by_us
            told.setdefault((owned.member, place[0]), []).append(place[1])
        for (member, topic), partitions in told.items():
            self.tell(member, topic, partitions)

    def tell(
        self, member: Member, topic: str, partitions: list[int], *, lost: bool = False
    ) -> None:
        """Asks a member to let partitions go, or tells it that they are `lost` to it."""
        if member.reader is not None:
            member.reader.revoke(Revoke(topic, tuple(sorted(partitions)), lost))

    def stop(self, owned: Ownership) -> None:
        """Stops a cursor; one of a member that is away has been stopped already."""
        cursor, owned.cursor = owned.cursor, None
        if cursor is not None and not cursor.subscription.closed:
            self._broker.subscriptions.drop_cursor(cursor)
