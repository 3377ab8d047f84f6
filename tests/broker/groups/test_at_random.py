"""A group whose members come, go, are lost, come back, dawdle and die at random: no message is
left out, and as long as nobody dies none is read twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.config import BrokerOptions
from fanlog.format.messages import Claim, Position, Release, Revoke
from tests.broker.groups.members import Member, Place, later
from tests.broker.stage import Stage, stage

PARTITIONS = 5
NAMES = "abcd"
PATIENCE_SECONDS = 30.0
SESSION_SECONDS = 10.0


class Worker(Member):
    """A member that reads what it is sent, and lets go when it comes to it: commit, then release.
    Its connection may be gone while it goes on reading what it has got."""

    def __init__(self, on: Stage, name: str, read: Counter[tuple[int, int]]) -> None:
        super().__init__(on, name, slow=True)
        self.read = read
        self.queue: list[tuple[int, int]] = []
        self.done: dict[Place, int] = {}
        # The group's offsets, as it knows them.
        self.committed: dict[Place, int] = {}
        self.letting_go: set[Place] = set()
        self.here = False

    def joined(self, joined: Any) -> None:
        super().joined(joined)
        for start in joined.starts:
            place = (joined.name, start.partition)
            self.done.setdefault(place, start.offset)
            self.committed[place] = start.offset

    def revoke(self, revoke: Revoke) -> None:
        super().revoke(revoke)
        for partition in revoke.partitions:
            place = (revoke.topic, partition)
            self.queue = [item for item in self.queue if item[0] != partition]
            self.letting_go.discard(place)
            if revoke.lost:
                self.done.pop(place, None)
            else:
                self.letting_go.add(place)

    def receive(self) -> None:
        """Takes in what was sent, each record once, as a client does."""
        for batch in self.batches:
            place = ("t", batch.header.partition)
            for offset in range(
                max(batch.base_offset, self.has.get(place, 1 << 60)), batch.next_offset
            ):
                self.queue.append((place[1], offset))
                self.has[place] = offset + 1
        self.taken = b""

    def work(self, count: int) -> None:
        self.receive()
        for partition, offset in self.queue[:count]:
            self.read[partition, offset] += 1
            self.done["t", partition] = offset + 1
        del self.queue[:count]
        self.let_go()

    def let_go(self) -> None:
        if self.here and self.letting_go:
            places = sorted(self.letting_go)
            self.commit({p: self.done.pop(p) for p in places})
            self.on.core.groups.release(
                self.subscription, Release("t", tuple(p for _, p in places))
            )
            self.letting_go.clear()
            self.on.run()

    def commit_all(self) -> None:
        if self.here and self.done:
            self.commit(self.done)

    def commit(self, offsets: dict[Place, int]) -> None:
        self.committed |= offsets
        positions = tuple(Position(*p, at, self.on.core.epoch) for p, at in offsets.items())
        self.on.core.groups.commit_offsets(self.subscription, positions)

    def enter(self) -> None:
        self.here = True
        self.join(session_seconds=SESSION_SECONDS)

    def vanish(self) -> None:
        self.receive()
        self.here = False
        self.lose()

    def return_(self) -> None:
        """The same client again: it claims what it has, and what it was to let go."""
        self.here = True
        claimed = {**self.has, **{place: self.done[place] for place in self.letting_go}}
        epoch = self.on.core.epoch
        claims = tuple(
            Claim(*p, at, epoch, committed=self.committed[p]) for p, at in claimed.items()
        )
        self.join(session_seconds=SESSION_SECONDS, claims=claims)

    def go(self) -> None:
        self.work(1 << 30)
        self.commit_all()
        self.here = False
        self.leave()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(NAMES)),
        st.tuples(st.just("go"), st.sampled_from(NAMES)),
        st.tuples(st.just("vanish"), st.sampled_from(NAMES)),
        st.tuples(st.just("return"), st.sampled_from(NAMES)),
        st.tuples(st.just("die"), st.sampled_from(NAMES)),
        st.tuples(st.just("commit"), st.sampled_from(NAMES)),
        st.tuples(st.just("work"), st.sampled_from(NAMES), st.integers(1, 6)),
        st.tuples(st.just("publish"), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.floats(0.1, 5.0)),
    ),
    max_size=60,
)


def act(on: Stage, members: dict[str, Worker], read: Counter[tuple[int, int]], step: Any) -> bool:
    """Does a step where it makes sense. True if messages may come again because of it."""
    kind, who, *more = step
    if kind == "publish":
        on.publish("t", [b"x"] * more[0], partition=who)
        on.run()
        return False
    if kind == "wait":
        later(on, who)
        return False
    member = members.get(who)
    if kind == "enter" and member is None:
        members[who] = Worker(on, who, read)
        members[who].enter()
    elif member is None:
        return False
    elif kind == "return" and not member.here:
        member.return_()
    elif not member.here:
        return False
    elif kind == "go":
        del members[who]
        member.go()
        return bool(member.lost_places)
    elif kind == "vanish":
        member.vanish()
    elif kind == "die":
        del members[who]
        member.vanish()
        return True
    elif kind == "commit":
        member.commit_all()
    elif kind == "work":
        member.work(more[0])
    return False


def settle(on: Stage, members: dict[str, Worker]) -> None:
    """Everybody comes back and lets go, until nothing moves any more."""
    for member in members.values():
        if not member.here:
            member.return_()
    for _ in range(2 * PARTITIONS + 4):
        for member in members.values():
            member.work(1 << 30)
    later(on, 2 * PATIENCE_SECONDS)
    for _ in range(2 * PARTITIONS + 4):
        for member in members.values():
            member.work(1 << 30)


def memberships(on: Stage) -> int:
    group = on.core.groups.find("g")
    return 0 if group is None else len(group.members)


@settings(max_examples=150)
@given(ACTIONS)
def test_whatever_members_do_nothing_is_left_out(steps: list[Any]) -> None:
    with stage(options=BrokerOptions(revoke_seconds=PATIENCE_SECONDS)) as on:
        on.core.create_topic("t", {"partitions": PARTITIONS})
        read: Counter[tuple[int, int]] = Counter()
        members: dict[str, Worker] = {}
        repeats = False
        for step in [("enter", "a"), *steps]:
            before = memberships(on)
            repeats |= act(on, members, read, step)
            # Past its session a member that is lost is as good as dead.
            repeats |= step[0] == "wait" and memberships(on) != before
        if "a" not in members:
            act(on, members, read, ("enter", "a"))
        settle(on, members)
        owned = [place for member in members.values() for place in member.has]
        assert sorted(owned) == [("t", i) for i in range(PARTITIONS)]
        loads = [len(member.has) for member in members.values()]
        assert max(loads) - min(loads) <= 1
        ends = [p.visible_end for p in on.core.describe("t").partitions]
        published = {(p, offset) for p, end in enumerate(ends) for offset in range(end)}
        assert read.keys() == published
        # What was lost to a member, late or away, others may have read again.
        if not repeats and not any(member.lost_places for member in members.values()):
            assert set(read.values()) <= {1}
