"""Groups that follow thousands of topics: settled in small steps, together, and as the members can
take it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fanlog.broker.groups import balance
from fanlog.broker.groups.assignment import assign
from fanlog.model import TopicPartition
from tests.broker.groups.members import Member, later
from tests.broker.stage import Stage, stage

TOPICS = 300
STEP = 16


def many_topics(on: Stage, count: int = TOPICS) -> None:
    for i in range(count):
        on.core.create_topic(f"many.{i}", {})


def balanced(*members: Member) -> bool:
    loads = [len(member.has) for member in members]
    return sum(loads) == TOPICS and max(loads) - min(loads) <= 1


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are small."""
    monkeypatch.setattr(balance, "_STEP", STEP)


def turns(on: Stage, between: Callable[[], None] = lambda: None) -> int:
    """Runs one call after the other, as a loop does; how many there were."""
    count = 0
    while on.runtime.due:
        on.runtime.due.popleft()()
        between()
        count += 1
    return count


@contextmanager
def held(on: Stage) -> Iterator[None]:
    """Nothing that is due runs meanwhile."""
    run, on.runtime.run = on.runtime.run, lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        on.runtime.run = run  # type: ignore[method-assign]


def settle(on: Stage) -> None:
    """Until nothing is left to do, however long groups rest."""
    for _ in range(200):
        on.core.tick()
        turns(on)


@pytest.mark.usefixtures("slices")
def test_a_large_group_is_settled_in_slices() -> None:
    with stage() as on:
        many_topics(on)
        a = Member(on, "a").join("many.>")
        settle(on)
        assert balanced(a)
        b = Member(on, "b")
        with held(on):
            b.join("many.>")
        seen: list[tuple[int, int]] = [(0, 0)]

        def looked() -> None:
            asked, has = seen[-1]
            assert len(a.asked) - asked <= 2 * STEP
            assert len(b.has) - has <= 2 * STEP
            seen.append((len(a.asked), len(b.has)))

        for _ in range(200):
            on.core.tick()
            turns(on, looked)
        assert balanced(a, b)
        assert len(set(seen)) > TOPICS // 2 // (2 * STEP)


@pytest.mark.usefixtures("slices")
def test_members_may_come_and_go_while_their_group_is_being_settled() -> None:
    chance = random.Random(5)
    with stage() as on:
        many_topics(on)
        members = [Member(on, f"m{i}") for i in range(6)]
        here: list[Member] = []
        for step in range(60):
            if here and chance.random() < 0.4:
                gone = here.pop(chance.randrange(len(here)))
                on.core.groups.leave(gone.subscription)
                gone.has = {}
            elif absent := [m for m in members if m not in here]:
                here.append(chance.choice(absent))
                here[-1].epoch = 0
                here[-1].join("many.>")
            for _ in range(chance.randrange(20)):
                if on.runtime.due:
                    on.runtime.due.popleft()()
            if not step % 5:
                on.core.tick()
        if not here:
            here.append(members[0].join("many.>"))
        settle(on)
        assert balanced(*here)
        owners = on.core.groups.find("g").owned  # type: ignore[union-attr]
        held = Counter(place for member in here for place in member.has)
        assert set(held.values()) == {1}
        assert {place: o.member.id for place, o in owners.items()} == {
            place: member.name for member in here for place in member.has
        }


def test_what_is_released_goes_to_its_next_owner_without_a_new_assignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stage() as on:
        many_topics(on)
        a = Member(on, "a", slow=True).join("many.>")
        b = Member(on, "b").join("many.>")
        monkeypatch.setattr(balance, "assigning", None)
        for topic, partition in a.asked:
            a.release(partition, topic=topic)
        assert balanced(a, b)


def test_members_that_come_in_one_turn_are_settled_at_once() -> None:
    with stage() as on:
        many_topics(on)
        members = [Member(on, f"m{i}") for i in range(10)]
        with held(on):
            for member in members:
                member.join("many.>")
        on.run()
        assert balanced(*members)
        assert on.core.groups.find("g").rebalances == 1  # type: ignore[union-attr]
        assert not any(member.asked for member in members)


def test_a_member_that_has_not_taken_what_it_was_told_is_told_more_later() -> None:
    with stage() as on:
        many_topics(on)
        a = Member(on, "a")
        a.busy = True
        a.join("many.>")
        assert a.has == {}
        a.busy = False
        later(on, 0.1)
        assert balanced(a)
        a.busy = True
        b = Member(on, "b").join("many.>")
        later(on, 20)
        assert a.asked == []
        assert b.has == {}
        a.busy = False
        later(on, 0.1)
        assert balanced(a, b)
        assert a.lost_places == []


def test_the_time_to_let_go_begins_when_a_member_is_told() -> None:
    with stage() as on:
        many_topics(on, 2)
        a = Member(on, "a", slow=True).join("many.>")
        a.busy = True
        Member(on, "b").join("many.>")
        later(on, 29)
        a.busy = False
        later(on, 0.1)
        assert len(a.asked) == 1
        later(on, 29.5)
        assert a.lost_places == []
        later(on, 0.6)
        assert a.lost_places == a.asked


def test_64_members_share_10000_topics_fairly_whatever_they_follow() -> None:
    """The time that it takes is measured by `fanlog bench rebalance`."""
    names = [f"area.{i % 100}.device.{i}" for i in range(10_000)]
    places = [TopicPartition(name, 0) for name in names]
    everything = frozenset(names)
    parts = [frozenset(n for n in names if int(n.split(".")[1]) % 10 == i) for i in range(10)]
    wants = {f"m{i}": everything if i % 2 else parts[i % 10] for i in range(64)}
    owners = assign(wants, places, {})
    assert len(owners) == len(places)
    loads = Counter(owners.values())
    for (topic, _), owner in owners.items():
        assert topic in wants[owner]
    for one, theirs in wants.items():
        for other, those in wants.items():
            if theirs is those:
                assert loads[one] - loads[other] <= 1
    del wants["m7"]
    after = assign(wants, places, owners)
    moved = [place for place in places if owners[place] not in ("m7", after[place])]
    assert len(moved) < loads["m7"]


@pytest.mark.usefixtures("slices")
def test_a_member_that_leaves_between_two_steps_stops_no_group() -> None:
    with stage() as on:
        many_topics(on)
        members = [Member(on, name).join("many.>") for name in "abc"]
        settle(on)
        left = False

        def leave_once() -> None:
            nonlocal left
            if not left:
                left = True
                with held(on):
                    members[1].leave()

        with held(on):
            for member in members:
                # On another connection: each joins again as itself.
                member.come_back(target="many.>")
            other = Member(on, "d", group="other").join("many.>")
        turns(on, leave_once)
        settle(on)
        assert balanced(members[0], members[2])
        assert len(other.has) == TOPICS
