"""A consumer group against its model: where the group has committed, who has which partition, and
what has been read. Its members come, go, are lost, come back, dawdle, seek and die."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from fanlog.errors import FencedError, GroupActiveError
from fanlog.format.batch import Batch
from fanlog.format.messages import ResetGroup, Seek
from fanlog.model import GROUP_PREFIX, Gap, GapReason, Start
from tests.broker.model.broker_machine import (
    GRACE_SECONDS,
    REVOKE_SECONDS,
    BrokerMachine,
    numbers,
    parts,
)
from tests.broker.model.consumer import GROUP, SESSION_SECONDS, Consumer
from tests.broker.model.world import SECOND_US, Place

NAMES = ("a", "b", "c")


class GroupRules(BrokerMachine):
    """`committed` is the group's, `committers` who has committed last, `read` all that any member
    was done with, `excused` what nobody has to read: it was deleted, or the group was moved past
    it."""

    def prepare(self) -> None:
        super().prepare()
        self.reset = "earliest" if self.choices[1] else "latest"
        self.consumers: list[Consumer] = []
        self.committed: dict[Place, int] = {}
        self.committers: dict[Place, tuple[str, int]] = {}
        self.done: dict[Place, set[int]] = {}
        self.excused: dict[Place, set[int]] = {}
        self.seeking: dict[Place, int] = {}
        self.names_given = 0

    # What the model says

    def group_places(self) -> list[Place]:
        return sorted(place for place in self.logs if place[0].startswith("t."))

    def grew(self, new: list[Place]) -> None:
        """A group that has been in the topic, or that has members, begins with the first record,
        whoever is there."""
        super().grew(new)
        if self.world.on.core.groups.find(GROUP) or any(p[0] == "t.a" for p in self.committed):
            self.committed |= dict.fromkeys(new, 0)

    def granted(self, who: Consumer, place: Place, offset: int) -> None:
        """A partition begins where the group has committed, or where whoever comes back was; and
        nobody else has it."""
        others = [c.name for c in self.consumers if c is not who and c.connected]
        holders = [c.name for c in self.consumers if c.name in others and place in c.holds]
        assert holders == [], f"{who.name} and {holders} have {place}"
        log = self.logs[place]
        if place in self.seeking:
            expected = self.seeking.pop(place)
        elif place in who.claims:
            expected = who.claims[place]
            # Without its membership it must not go back behind what others have committed since.
            kept = self.world.now_us < who.kept_until_us
            assert kept or expected >= self.committed.get(place, 0)
            own = self.committers.get(place) == (who.name, who.epoch)
            assert kept or own or who.known[place] == self.committed.get(place), place
        elif place in self.committed:
            expected = self.committed[place]
        else:
            expected = log.start if self.reset == "earliest" else log.visible
            self.excused.setdefault(place, set()).update(range(expected))
        assert offset == expected, place
        self.committed.setdefault(place, offset)

    def got(self, who: Consumer, place: Place, batch: Batch, offset: int) -> int:
        """Records come as they are stored, and none is left out."""
        log = self.logs[place]
        assert batch.base_offset <= offset
        assert batch.next_offset <= log.visible
        for at, value in zip(batch.offsets, batch.values, strict=True):
            assert value == log.records[at].value
        return max(offset, batch.next_offset)

    def missed(self, who: Consumer, gap: Gap) -> None:
        assert gap.reason is GapReason.RETENTION
        assert gap.next <= self.logs[gap.topic, gap.partition].start

    def has_committed(self, who: Consumer, positions: dict[Place, int]) -> None:
        self.committed |= positions
        self.committers |= dict.fromkeys(positions, (who.name, who.epoch))

    def consumer(self, number: int) -> Consumer:
        """One that is there; the first if need be."""
        some = [c for c in self.consumers if c.connected]
        if some:
            return some[number % len(some)]
        away = self.away()
        if away:
            away[0].join(self.world.on, self.reset)
        if not away or away[0].fenced is not None:
            self.join("", slow=bool(number % 2))
        return next(c for c in self.consumers if c.connected)

    def away(self) -> list[Consumer]:
        return [c for c in self.consumers if not c.connected and c.fenced is None]

    # Coming and going

    @rule(name=st.sampled_from(["", *NAMES]), slow=st.booleans())
    def join(self, name: str, slow: bool) -> None:
        """A new member, or a new process of a member that has a name."""
        if not name and len([c for c in self.consumers if c.connected]) > 4:
            return
        self.names_given += 1
        new = Consumer(name or f"~{self.names_given}", self, static=bool(name), slow=slow)
        for old in [c for c in self.consumers if c.name == new.name and not c.connected]:
            self.consumers.remove(old)
        self.consumers.append(new)
        was = [c for c in self.consumers if c.name == new.name and c.connected]
        new.join(self.world.on, self.reset)
        assert new.fenced is None
        assert all(isinstance(old.fenced, FencedError) for old in was)

    @rule(number=numbers, committing=st.booleans())
    def leave(self, number: int, committing: bool) -> None:
        who = self.consumer(number)
        if committing:
            self.commit_for(who)
        self.world.on.core.groups.leave(who.subscription)
        who.disconnect()
        self.consumers.remove(who)
        self.world.on.run()

    @rule(number=numbers)
    def lose(self, number: int) -> None:
        who = self.consumer(number)
        who.disconnect()
        who.kept_until_us = self.world.now_us + int(SESSION_SECONDS * SECOND_US)
        self.world.on.core.groups.lost(who.subscription)
        self.world.on.run()

    @rule(number=numbers, dead=st.sampled_from([False, False, True]))
    def come_back(self, number: int, dead: bool) -> None:
        """A member that was lost comes back, or never will."""
        away = self.away()
        if away and dead:
            self.consumers.remove(away[number % len(away)])
        elif away:
            away[number % len(away)].join(self.world.on, self.reset)

    # Reading

    @rule(number=numbers, how_many=st.integers(0, 20), committing=st.booleans())
    def work(self, number: int, how_many: int, committing: bool) -> None:
        """A member is done with some of what it has received, and may say so."""
        who = self.consumer(number)
        who.receive()
        for place, part in who.parts.items():
            next_offset = min(part.received, part.done + how_many)
            self.done.setdefault(place, set()).update(range(part.done, next_offset))
            who.parts[place] = part._replace(done=max(part.done, next_offset))
        if committing:
            self.commit_for(who)

    def commit_for(self, who: Consumer) -> None:
        who.receive()
        positions = {place: part.done for place, part in who.parts.items()} | who.asked
        if positions:
            who.commit(positions)
            self.world.on.run()

    @rule(number=numbers, where=numbers)
    def commit_what_others_have(self, number: int, where: int) -> None:
        """All of a commit counts, or nothing."""
        who, place = self.consumer(number), self.place(where)
        if place not in who.holds:
            try:
                who.commit({**dict.fromkeys(who.parts, 0), place: 0})
                raise AssertionError("who does not have a partition can't commit there")
            except FencedError:
                pass

    @rule(number=numbers)
    def let_go(self, number: int) -> None:
        """Whoever dawdled does what it was asked."""
        who = self.consumer(number)
        for place in list(who.asked):
            who.let_go(place)
        self.world.on.run()

    @rule(number=numbers, where=numbers, offset=parts)
    def seek(self, number: int, where: int, offset: float) -> None:
        who = self.consumer(number)
        if not who.parts:
            return
        who.receive()
        place = sorted(who.parts)[where % len(who.parts)]
        log = self.logs[place]
        to = log.start + int(offset * (log.visible - log.start + 0.99))
        self.excuse(place, to)
        self.seeking[place] = to
        wanted = Seek(start=Start("offset", to), topic=place[0], partitions=(place[1],))
        moved = self.world.ask(self.world.on.core.groups.seek(who.subscription, wanted))
        self.world.on.run()
        assert moved is not None
        assert [(p.topic, p.partition, p.offset) for p in moved] == [(*place, to)]
        assert self.seeking == {}

    def excuse(self, place: Place, before: int) -> None:
        """Nobody has to read what the group was moved past."""
        self.excused.setdefault(place, set()).update(range(before))

    # Operators

    @rule(offset=parts)
    def reset_group(self, offset: float) -> None:
        if not self.committed:
            return
        to = int(offset * 20)
        wanted = ResetGroup(group=GROUP, start=Start("offset", to))
        try:
            steps = self.world.ask(self.world.on.core.groups.reset(wanted))
            self.world.on.run()
        except GroupActiveError:
            assert self.world.on.core.groups.find(GROUP) is not None
            return
        assert steps is not None
        assert self.world.on.core.groups.find(GROUP) is None
        for step in steps:
            place = (step.topic, step.partition)
            assert step.before == self.committed[place]
            assert step.after == min(max(to, self.logs[place].start), self.logs[place].visible)
            self.committed[place] = step.after
            self.committers.pop(place, None)
            self.excuse(place, step.after)
        # Whoever is away and comes back finds that others have been there, or goes on.

    # Ends

    def started(self, *, power_lost: bool) -> None:
        for who in self.consumers:
            who.disconnect()
            who.kept_until_us = 0
        super().started(power_lost=power_lost)

    # What always holds

    @invariant()
    def commits_are_kept(self) -> None:
        found = self.world.on.core.durable.positions(GROUP_PREFIX + GROUP)
        assert {(p.topic, p.partition): p.offset for p in found} == self.committed

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        held: dict[Place, str] = {}
        for who in self.consumers:
            for place in who.holds if who.connected else ():
                assert held.setdefault(place, who.name) == who.name

    @rule()
    def settle_group(self) -> None:
        """Whoever is away stays away, everyone lets go: then all is shared out evenly, and
        everything that is visible has been received."""
        self.consumers = [c for c in self.consumers if c.connected]
        for number in range(len(self.consumers)):
            self.let_go(number)
        self.passes(max(SESSION_SECONDS, GRACE_SECONDS, REVOKE_SECONDS) + 1)
        for _ in range(3):
            for number in range(len(self.consumers)):
                self.let_go(number)
        if not self.consumers:
            return
        assert [c.asked for c in self.consumers if c.asked] == []
        shares = [len(c.parts) for c in self.consumers]
        assert max(shares) - min(shares) <= 1
        held = sorted(place for c in self.consumers for place in c.parts)
        assert held == self.group_places()
        for who in self.consumers:
            who.receive()
            for place, part in who.parts.items():
                assert part.received == self.logs[place].visible

    def last_check(self) -> None:
        super().last_check()
        self.nothing_was_left_out()

    def nothing_was_left_out(self) -> None:
        """One last member reads to the end: together they have read everything."""
        self.settle_group()
        if not self.consumers:
            self.join("", slow=False)
            self.settle_group()
        for number in range(len(self.consumers)):
            self.work(number, 1 << 30, committing=True)
        for place, log in self.logs.items():
            if place in self.committed:
                deleted = set(range(log.start))
                read = self.done.get(place, set()) | self.excused.get(place, set()) | deleted
                assert set(range(log.visible)) <= read, place
                assert self.committed[place] == log.visible
