"""Consumer groups: members that share partitions, so that each message goes to one of them.

The broker chooses the assignment (`assignment.py`) and moves as few partitions as possible
(`balance.py`). A member is a subscription with the group's cursors: there is no work per message. A
member that loses its connection keeps its partitions until its session ends.

It is long because a join, a leave, a lost connection and a topic that grows all end in the same
moves of partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from fanlog.broker.groups.balance import GroupBalance, Steps
from fanlog.broker.groups.description import describe_group, plan_reset
from fanlog.broker.groups.initial_positions import note_ends
from fanlog.broker.groups.rules import (
    check_group_name,
    check_inactive,
    check_join,
    check_owned,
    seekable,
    taken_over_error,
)
from fanlog.broker.groups.state import (
    SECOND_US,
    ConsumerGroup,
    ConsumerMember,
    MemberReader,
    Ownership,
)
from fanlog.broker.messages.missing_topics import maybe_topic
from fanlog.broker.messages.positions import continue_at
from fanlog.broker.messages.topics import BrokerSubscription, BrokerTopic, Outlet, Partition
from fanlog.broker.names import NameTree, check_not_internal, check_target
from fanlog.broker.ports import Runtime
from fanlog.broker.state.durable_names import MemberPosition, of_member
from fanlog.broker.state.ledger import Done
from fanlog.broker.threads import begun
from fanlog.config import BrokerOptions
from fanlog.errors import (
    FanlogError,
    FencedError,
    GroupActiveError,
    GroupNotFoundError,
    LimitError,
    OffsetOutOfRangeError,
    allow_more,
)
from fanlog.format.messages import (
    Claim,
    GroupOffsets,
    JoinGroup,
    Notice,
    Position,
    Release,
    ResetGroup,
    Seek,
)
from fanlog.model import (
    GROUP_PREFIX,
    GroupInfo,
    GroupState,
    ResetStep,
    TopicPartition,
)

if TYPE_CHECKING:
    from fanlog.broker.groups.ports import GroupPorts

logger = logging.getLogger("fanlog.broker")

# Steps that groups are settled by before others get their turn: each is a few milliseconds at most.
_STEPS_A_TURN = 2
# A group that took longer than this rests as long as it took, before all of it is settled again.
# So members that come one by one, or many new topics, are settled together.
_SHORT_US = 20_000
_REST_US_MAX = 500_000
# Positions that a reset checks in one step.
_RESET_A_STEP = 64


class GroupCoordinator:
    """All groups, with members or with only committed positions. Runs on the loop; after a change,
    groups are balanced at the end of the turn."""

    def __init__(self, broker: GroupPorts, runtime: Runtime, options: BrokerOptions) -> None:
        self._broker = broker
        self._runtime = runtime
        self._options = options
        self._balance = GroupBalance(broker, runtime, int(options.revoke_seconds * SECOND_US))
        self._groups: dict[str, ConsumerGroup] = {}
        self._memberships: dict[BrokerSubscription, tuple[ConsumerGroup, ConsumerMember]] = {}
        self._followers: NameTree[ConsumerGroup] = NameTree()
        # Groups that are being settled, and how far that is.
        self._unsettled: dict[ConsumerGroup, Steps | None] = {}
        self._settling = False
        self._watched: dict[ConsumerGroup, None] = {}
        # Groups from before the start. Until this time their members may come back with claims.
        self._remembered: frozenset[str] = frozenset()
        self._grace_end_us = 0
        self._last_epoch = 0

    def load(self, newest_us: int) -> None:
        """`newest_us` is the time of the newest record that is stored."""
        self._last_epoch = newest_us
        self._remembered = frozenset(self.names())
        grace_us = int(self._options.group_grace_seconds * SECOND_US)
        self._grace_end_us = self._runtime.monotonic_us() + grace_us

    # Coming and going

    def join(
        self, key: int, wanted: JoinGroup, outlet: Outlet, reader: MemberReader, client: str = ""
    ) -> tuple[BrokerSubscription, int]:
        """Joins a member, or joins it again. Returns its subscription and its epoch. It gets its
        partitions after this turn."""
        group, member = self.check_membership(wanted)
        subscription = BrokerSubscription(
            key,
            self,
            outlet,
            reader,
            wanted.target,
            wildcard=wanted.wildcard,
            window_bytes=wanted.window_bytes,
            client=client,
            group=wanted.group,
        )
        epoch = wanted.epoch or self._next_epoch(group)
        stayed = member is not None and member.epoch == epoch
        if member is None:
            member = ConsumerMember(wanted.member)
        else:
            self._give_up_membership(group, member, taken_over=not stayed)
            self._followers.remove(member.target, group)
        self._groups[group.name] = group
        group.epoch = max(group.epoch, epoch)
        group.reset = wanted.reset
        group.members[member.id] = member
        member.sit_down(wanted, epoch, subscription, reader)
        member.client = client
        group.returned[member] = self._runtime.monotonic_us()
        self._followers.add(member.target, group)
        self._broker.subscriptions.reader_came()
        self._memberships[subscription] = (group, member)
        self._claim(group, member, wanted.claims, stayed=stayed)
        note_ends(self._broker, group, wanted)
        logger.debug(
            "group %s: member %s joined, epoch %d; it has %d members",
            group.name,
            member.id,
            epoch,
            len(group.members),
        )
        self._settle_soon(group)
        return subscription, epoch

    def _next_epoch(self, group: ConsumerGroup) -> int:
        """A membership's epoch: a time, so that it also rises over restarts of the broker. If the
        wall clock was set back, it continues from the last epoch."""
        self._last_epoch = max(self._last_epoch + 1, self._runtime.now_us())
        return max(group.epoch + 1, self._last_epoch)

    def check_membership(self, wanted: JoinGroup) -> tuple[ConsumerGroup, ConsumerMember | None]:
        """The group, and the member if the group knows it; raises if it may not join."""
        options = self._options
        check_join(wanted, options)
        if self._broker.queues.find(wanted.group) is not None:
            raise GroupActiveError(
                f"{wanted.group!r} is a queue, whose messages go to any free worker; it can't be a "
                "group that shares partitions too. Choose another name, or delete the queue."
            )
        target = check_target(wanted.target, wildcard=wanted.wildcard)
        if not wanted.wildcard:
            maybe_topic(
                self._broker.catalog,
                self._broker.open_for_reader,
                check_not_internal(target),
                wanted.missing,
            )
        group = self._groups.get(wanted.group)
        if group is None:
            if len(self._groups) >= options.groups_max:
                raise LimitError(
                    f"This broker has {len(self._groups)} groups with members, which is the limit. "
                    + allow_more("broker.groups_max")
                )
            return ConsumerGroup(wanted.group, wanted.reset), None
        member = group.members.get(wanted.member)
        if member is None and len(group.members) >= options.group_members_max:
            raise LimitError(
                f"The group {group.name!r} has {len(group.members)} members, which is the limit. "
                + allow_more("broker.group_members_max")
            )
        if member is not None and 0 < wanted.epoch < member.epoch:
            raise taken_over_error(group, member)
        return group, member

    def _give_up_membership(
        self, group: ConsumerGroup, member: ConsumerMember, *, taken_over: bool
    ) -> None:
        """Ends the member's old subscription, if it has one. A client that takes the membership
        over gets its partitions, from the committed positions, and releases none."""
        subscription, reader = member.subscription, member.reader
        if subscription is not None:
            self._stand_up(group, member, subscription)
            if taken_over and reader is not None:
                reader.ended(taken_over_error(group, member))
        if taken_over:
            for tp in [tp for tp, owned in member.owned.items() if owned.revoke_by_us]:
                group.disown(tp)

    def _stand_up(
        self, group: ConsumerGroup, member: ConsumerMember, subscription: BrokerSubscription
    ) -> None:
        del self._memberships[subscription]
        self._broker.subscriptions.end(subscription)
        member.subscription = member.reader = None
        group.returned.pop(member, None)
        for owned in member.owned.values():
            owned.cursor = owned.begin = None

    def _claim(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        claims: Iterable[Claim],
        *,
        stayed: bool,
    ) -> None:
        """The claims of a member that comes back: it resumes there, unless others own the
        partitions now or have committed there since. `stayed`: its membership did not end."""
        lost: dict[str, list[int]] = {}
        asked: dict[str, list[int]] = {}
        for claim in claims:
            tp = TopicPartition(claim.topic, claim.partition)
            owned = group.owned.get(tp)
            kept = owned is not None and owned.member is member and stayed
            if not kept and (owned is None or owned.member is member):
                kept = self._is_untouched(group, member, claim)
                if kept and owned is None:
                    owned = group.own(tp, member)
            if owned is None or not kept:
                lost.setdefault(claim.topic, []).append(claim.partition)
            elif owned.revoke_by_us:
                asked.setdefault(claim.topic, []).append(claim.partition)
            else:
                owned.begin = claim
        for topic, partitions in lost.items():
            self._balance.tell(member, topic, partitions, lost=True)
        for topic, partitions in asked.items():
            self._balance.tell(member, topic, partitions)

    def _is_untouched(self, group: ConsumerGroup, member: ConsumerMember, claim: Claim) -> bool:
        """Whether nobody else has committed in a partition since this member had it. What it has
        received says nothing about that: another member may have read less, and committed it."""
        topic = self._broker.catalog.find(claim.topic)
        if topic is None or not 0 <= claim.partition < len(topic.partitions):
            return False
        tp = claim.topic, claim.partition
        if self._broker.durable.is_pending(group.offsets, *tp):
            return False
        committed = self._broker.durable.position(group.offsets, *tp)
        if committed is None:
            return True
        own = isinstance(committed, MemberPosition) and committed.membership == member.epoch
        if not own and committed.offset != claim.committed:
            return False
        partition, epoch = topic.partitions[claim.partition], self._broker.epoch
        at = continue_at(partition, claim, epoch)
        return continue_at(partition, committed, epoch) <= at

    def lost(self, subscription: BrokerSubscription) -> None:
        """The member's connection is gone; it has until its session ends to come back."""
        membership = self._memberships.get(subscription)
        if membership is not None:
            group, member = membership
            self._stand_up(group, member, subscription)
            member.away_until_us = self._runtime.monotonic_us() + member.session_us
            logger.debug(
                "group %s: member %s lost its connection; its session lasts %d ms more",
                group.name,
                member.id,
                member.session_us // 1000,
            )
            self._watched[group] = None

    def leave(self, subscription: BrokerSubscription) -> None:
        """The member leaves; its partitions are free at once."""
        membership = self._memberships.get(subscription)
        if membership is not None:
            self._remove(*membership)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.subscription is not None:
            self._stand_up(group, member, member.subscription)
        for tp in list(member.owned):
            group.disown(tp)
        del group.members[member.id]
        logger.debug(
            "group %s: member %s left; it has %d members", group.name, member.id, len(group.members)
        )
        self._followers.remove(member.target, group)
        if group.members:
            self._settle_soon(group)
        else:
            del self._groups[group.name]
            self._unsettled.pop(group, None)
            self._watched.pop(group, None)

    def tick(self) -> None:
        """Expires sessions and revocations."""
        now_us = self._runtime.monotonic_us()
        if self._grace_end_us and now_us >= self._grace_end_us:
            self._grace_end_us = 0
            for group in self._groups.values():
                self._settle_soon(group)
        for group in list(self._watched):
            gone = [
                member
                for member in group.members.values()
                if member.subscription is None and now_us >= member.away_until_us
            ]
            for member in gone:
                logger.info("member %s of group %s is gone", member.id, group.name)
                self._remove(group, member)
            self._take_overdue(group, now_us)
            if group.unpinned:
                with contextlib.suppress(FanlogError):
                    self._balance.pin_again(group)
            if group.unsettled:
                self._settle_later(group)
            elif not group.revoking and not group.anyone_away and not group.unpinned:
                self._watched.pop(group, None)

    def _take_overdue(self, group: ConsumerGroup, now_us: int) -> None:
        overdue = [tp for tp, o in group.revoking.items() if o.revoke_by_us <= now_us]
        lost: dict[tuple[ConsumerMember, str], list[int]] = {}
        for tp in overdue:
            owned = group.disown(tp)
            if owned is not None:
                lost.setdefault((owned.member, tp[0]), []).append(tp[1])
                group.freed[tp] = now_us
        for (member, topic), partitions in lost.items():
            logger.warning(
                "member %s of group %s did not release partitions %s of %s in time",
                *(member.id, group.name, partitions, topic),
            )
            self._balance.tell(member, topic, partitions, lost=True)

    # Who reads what

    def wanted(self, name: str) -> bool:
        """Whether a member waits for a topic of this name."""
        return any(True for _ in self._followers.fitting(name))

    def topic_appeared(self, topic: BrokerTopic) -> None:
        for group in dict.fromkeys(self._followers.fitting(topic.name)):
            group.fresh.add(topic.name)
            self._settle_soon(group)
        below = f"{topic.name}.>"
        for group in set(self._followers.at(below)):
            for member in group.members.values():
                if member.target == below and member.reader is not None:
                    member.reader.notice(Notice("parent", topic.name))

    def following(self, topic: BrokerTopic) -> set[str]:
        """The durable names of the groups whose members follow a topic."""
        return {group.offsets for group in self._followers.fitting(topic.name)}

    def topic_grew(self, topic: BrokerTopic, new: list[Partition]) -> None:
        """Its new partitions are shared out; where each group begins in them is committed."""
        del new
        for group in dict.fromkeys(self._followers.fitting(topic.name)):
            self._settle_soon(group)

    def topic_vanished(self, topic: BrokerTopic) -> None:
        if not self._groups:
            return
        everything = dict.fromkeys(TopicPartition(topic.name, p.index) for p in topic.partitions)
        for group in self._groups.values():
            group.fresh.discard(topic.name)
            notified: dict[ConsumerMember, None] = {}
            gone: list[Ownership] = []
            for tp in _in_both(everything, group.unpinned):
                del group.unpinned[tp]
            for tp in _in_both(everything, group.ends):
                del group.ends[tp]
            for tp in _in_both(everything, group.owned):
                owned = group.disown(tp)
                if owned is not None:
                    gone.append(owned)
                    notified[owned.member] = None
            self._balance.stop(gone)
            for member in notified:
                if member.reader is not None:
                    member.reader.left(topic.number, topic.name)
            if notified:
                self._settle_soon(group)

    def _settle_soon(self, group: ConsumerGroup) -> None:
        """Membership or topics have changed: the group needs a new assignment."""
        group.stale = True
        self._settle_later(group)

    def _settle_later(self, group: ConsumerGroup) -> None:
        self._unsettled.setdefault(group, None)
        if not self._settling:
            self._settling = True
            self._runtime.soon(self._settle_some)

    def _settle_some(self) -> None:
        """Balances groups for a while, and gives others their turn before it resumes."""
        self._settling = False
        for _ in range(_STEPS_A_TURN):
            if not self._unsettled:
                return
            group, steps = next(iter(self._unsettled.items()))
            if steps is None:
                steps = self._unsettled[group] = self._settle(group)
            try:
                failed = next(steps, None)
                for member, error in failed or ():
                    self._evict(group, member, error)
            except Exception:
                # One group must not stop the others. The next tick looks at it again.
                logger.exception("Rebalancing group %s failed.", group.name)
                self._unsettled.pop(group, None)
                self._watched[group] = None
                continue
            if failed is None:
                self._unsettled.pop(group, None)
                self._settled(group)
        if self._unsettled:
            self._settling = True
            self._runtime.soon(self._settle_some)

    def _settle(self, group: ConsumerGroup) -> Steps:
        yield from self._balance.resume(group)
        began_us = self._runtime.monotonic_us()
        wholly = group.stale
        if self._in_grace(group) or (wholly and began_us < group.rests_until_us):
            return
        yield from self._balance.rebalance(group)
        now_us = self._runtime.monotonic_us()
        if wholly and now_us - began_us > _SHORT_US:
            group.rests_until_us = now_us + min(now_us - began_us, _REST_US_MAX)

    def _settled(self, group: ConsumerGroup) -> None:
        """The rest is done with the next tick, or at once if possible."""
        if self._groups.get(group.name) is not group:
            return
        if logger.isEnabledFor(logging.DEBUG):
            shares = ", ".join(f"{m.id} {len(m.owned)}" for m in islice(group.members.values(), 20))
            logger.debug("group %s: rebalanced, partitions by member: %s", group.name, shares)
        if group.unsettled or group.revoking or group.unpinned:
            self._watched[group] = None
        if group.awaits_commits:
            group.awaits_commits = False
            self._broker.internal.when_durable(lambda _: self._settle_later(group))
        resting = self._runtime.monotonic_us() < group.rests_until_us
        if group.stale and not resting and not self._in_grace(group):
            self._settle_later(group)

    def _in_grace(self, group: ConsumerGroup) -> bool:
        """Whether members of before the broker's start may still come back."""
        return group.name in self._remembered and self._runtime.monotonic_us() < self._grace_end_us

    def _evict(self, group: ConsumerGroup, member: ConsumerMember, error: FanlogError) -> None:
        reader = member.reader
        logger.debug("group %s: member %s is evicted: %s", group.name, member.id, error)
        if group.members.get(member.id) is member:
            self._remove(group, member)
        if reader is not None:
            reader.ended(error)

    # What members say

    def release(self, subscription: BrokerSubscription, released: Release) -> None:
        """The member has let partitions go, or knows that they were taken from it. Others may have
        them already, or it may have them again."""
        group, member = self._membership(subscription)
        stopped: list[Ownership] = []
        for partition in released.partitions:
            tp = TopicPartition(released.topic, partition)
            if released.lost:
                member.acknowledge_loss(tp)
            elif tp in member.owned and tp not in member.losses:
                # A release that was not requested may be about any partition.
                group.stale = group.stale or tp not in group.revoking
                stopped.append(member.owned[tp])
                group.disown(tp)
                group.freed[tp] = self._runtime.monotonic_us()
        self._balance.stop(stopped)
        if stopped:
            self._settle_later(group)

    def commit_offsets(
        self, subscription: BrokerSubscription, positions: tuple[Position, ...]
    ) -> None:
        """Commits for a member, all of it or nothing."""
        group, member = self._membership(subscription)
        check_owned(group, member, positions)
        positions = self._broker.check_positions(group.offsets, positions)
        if positions:
            mine = of_member(positions, member.epoch)
            self._broker.durable.commit_positions([(group.offsets, mine)])

    def check_owner(self, offsets: GroupOffsets) -> tuple[Ownership, ...]:
        """The member's ownership of these partitions. Raises FencedError unless it owns all of
        them, and has its membership."""
        group = self._groups.get(offsets.group)
        member = None if group is None else group.members.get(offsets.member)
        if group is None or member is None:
            raise FencedError(
                f"There is no member {offsets.member!r} in the group {offsets.group!r} any more; "
                "nothing was committed. Join it again."
            )
        if member.epoch != offsets.epoch:
            raise taken_over_error(group, member)
        check_owned(group, member, offsets.positions)
        return tuple(member.owned[TopicPartition(p.topic, p.partition)] for p in offsets.positions)

    async def seek(self, subscription: BrokerSubscription, wanted: Seek) -> tuple[Position, ...]:
        """Moves cursors of a member's own partitions: all or none of them."""
        group, member = self._membership(subscription)
        found: dict[TopicPartition, int] = {}
        for tp in seekable(member, wanted):
            partition = self._broker.catalog.get(tp[0]).partitions[tp[1]]
            found[tp] = await self._broker.reading.find_offset(partition, wanted.start)
            if found[tp] > partition.visible_end:
                raise OffsetOutOfRangeError(
                    f"Partition {tp[1]} of {tp[0]!r} ends at offset "
                    f"{partition.visible_end}; {found[tp]} is past it. Use a lower one, or "
                    "'latest'."
                )
        # The offsets were looked up in threads, and much may have happened meanwhile.
        self._membership(subscription)
        still = {
            tp: offset
            for tp, offset in found.items()
            if (owned := group.owned.get(tp)) is not None
            and owned.member is member
            and not owned.revoke_by_us
        }
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def notified() -> None:
            if not started.done():
                started.set_result(None)

        self._balance.move(group, still, notified)
        # The answer comes after the new positions: what the member reads from then on is of them.
        await started
        epoch = self._broker.epoch
        return tuple(Position(*tp, offset, epoch) for tp, offset in still.items())

    def _membership(self, subscription: BrokerSubscription) -> tuple[ConsumerGroup, ConsumerMember]:
        membership = self._memberships.get(subscription)
        if membership is None:
            raise FencedError(
                "This member is not in the group any more: its session ended, or it left. Join "
                "again."
            )
        return membership

    # For operators

    def find(self, name: str) -> ConsumerGroup | None:
        """The group, if it has members."""
        return self._groups.get(name)

    @property
    def rebalances(self) -> int:
        """Of all groups, since the start."""
        return self._balance.rebalances

    def active_names(self) -> list[str]:
        """Groups that have members."""
        return list(self._groups)

    def names(self) -> list[str]:
        """Every group, with members or with nothing but commits."""
        committed = {
            name.removeprefix(GROUP_PREFIX)
            for name in self._broker.durable.names()
            if name.startswith(GROUP_PREFIX)
        }
        return sorted(committed | self._groups.keys())

    def names_after(self, name: str) -> Iterator[str]:
        """Groups after this name, in order, some twice. They must not change meanwhile."""
        committed = takewhile(
            lambda known: known.startswith(GROUP_PREFIX),
            self._broker.durable.names_since(GROUP_PREFIX + name),
        )
        active = sorted(known for known in self._groups if known > name)
        for known in heapq.merge((known.removeprefix(GROUP_PREFIX) for known in committed), active):
            if known != name:
                yield known

    def state(self, name: str) -> GroupState:
        group = self._groups.get(name)
        if group is None:
            return "inactive"
        return "rebalancing" if self._in_grace(group) or group.revoking else "active"

    def is_known(self, name: str) -> bool:
        """Whether there is such a group: it has members, or has committed."""
        return name in self._groups or self._broker.durable.has(GROUP_PREFIX + name)

    async def describe(self, name: str) -> GroupInfo:
        self._check_known(name)
        group = self._groups.get(name)
        waits = group is not None and self._in_grace(group)
        return await describe_group(self._broker, name, group, waits=waits)

    async def reset(self, wanted: ResetGroup) -> list[ResetStep]:
        """Resets a group without members; a dry run only returns the steps. A group that does not
        exist yet may get its first positions, if the topic is named."""
        check_group_name(wanted.group)
        if not wanted.topic:
            self._check_known(wanted.group)
        check_inactive(self._groups.get(wanted.group), "reset")
        steps = await plan_reset(self._broker, wanted)
        if steps and not wanted.dry_run:
            name = GROUP_PREFIX + wanted.group
            positions = await self._broker.slices.result(self._reset_positions(name, steps))
            check_inactive(self._groups.get(wanted.group), "reset")
            await begun(lambda done: self._broker.durable.commit_in_slices(name, positions, done))
        return steps

    def _reset_positions(
        self, name: str, steps: list[ResetStep]
    ) -> Generator[None, None, dict[tuple[str, int], Position]]:
        """What a reset commits, all or none of it. A group may have tens of thousands of
        partitions: others have their turns meanwhile."""
        epoch = self._broker.epoch
        positions: dict[tuple[str, int], Position] = {}
        new = 0
        for first in range(0, len(steps), _RESET_A_STEP):
            some = [
                Position(step.topic, step.partition, step.after, epoch)
                for step in steps[first : first + _RESET_A_STEP]
            ]
            for position in self._broker.check_positions(name, some):
                at = position.topic, position.partition
                new += self._broker.durable.position(name, *at) is None
                positions[at] = position
            yield
        self._broker.check_room_for_positions(new)
        return positions

    def delete(self, name: str, done: Done) -> None:
        """Deletes a group without members. `done` is called when that has taken effect; an error
        now is raised."""
        self._check_known(name)
        check_inactive(self._groups.get(name), "deleted")
        self._broker.durable.forget_in_slices(GROUP_PREFIX + name, done)

    def _check_known(self, name: str) -> None:
        durable, name_there = self._broker.durable, GROUP_PREFIX + name
        known = name in self._groups or durable.has(name_there) or durable.positions(name_there)
        if not known:
            raise GroupNotFoundError(
                f"There is no group {name!r}. List them with: fanlog group list"
            )


def _in_both(
    some: Mapping[TopicPartition, object], others: Mapping[TopicPartition, object]
) -> list[TopicPartition]:
    """Most groups have nothing in a topic, and a topic may have thousands of partitions."""
    few, many = (some, others) if len(some) < len(others) else (others, some)
    return [tp for tp in few if tp in many]
