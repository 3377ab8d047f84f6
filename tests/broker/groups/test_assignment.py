"""Who reads what: balanced, sticky, and nobody's partition is nobody's."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.groups.assignment import assign
from fanlog.model import TopicPartition

TOPIC = "t"

members = st.sets(st.sampled_from([f"m{i}" for i in range(12)]), min_size=1)
counts = st.integers(1, 40)


def places(count: int, topic: str = TOPIC) -> list[TopicPartition]:
    return [TopicPartition(topic, i) for i in range(count)]


def everyone_wants(names: set[str]) -> dict[str, set[str]]:
    return {name: {TOPIC} for name in names}


def spread(owners: dict[TopicPartition, str], names: set[str]) -> int:
    """How much more the fullest has than the emptiest."""
    loads = Counter(owners.values())
    return max(loads[name] for name in names) - min(loads[name] for name in names)


def fewest_moves(before: dict[TopicPartition, str], names: set[str], count: int) -> int:
    """Moves between members who stay that no balanced assignment can do without."""
    loads = sorted(Counter(o for o in before.values() if o in names)[n] for n in names)[::-1]
    least, more = divmod(count, len(names))
    return sum(max(0, load - (least + (i < more))) for i, load in enumerate(loads))


@given(members, counts)
def test_every_partition_has_an_owner_and_nobody_has_two_more_than_another(
    names: set[str], count: int
) -> None:
    owners = assign(everyone_wants(names), places(count), {})
    assert set(owners) == set(places(count))
    assert spread(owners, names) <= 1


@given(members, members, counts)
def test_whoever_comes_and_goes_only_what_must_move_moves(
    before: set[str], after: set[str], count: int
) -> None:
    first = assign(everyone_wants(before), places(count), {})
    second = assign(everyone_wants(after), places(count), first)
    assert set(second) == set(places(count))
    assert spread(second, after) <= 1
    moved = [place for place in first if first[place] in after and first[place] != second[place]]
    assert len(moved) == fewest_moves(first, after, count)


@given(members, counts)
def test_an_assignment_that_is_right_stays_as_it_is(names: set[str], count: int) -> None:
    owners = assign(everyone_wants(names), places(count), {})
    assert assign(everyone_wants(names), places(count), owners) == owners


@given(
    st.dictionaries(
        st.sampled_from([f"m{i}" for i in range(8)]),
        st.sets(st.sampled_from(["a", "b", "c"])),
        min_size=1,
    ),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)),
    st.randoms(use_true_random=False),
)
def test_members_get_only_topics_that_they_follow_and_share_them_fairly(
    wants: dict[str, set[str]], topics: dict[str, int], chance: random.Random
) -> None:
    everything = [place for topic, count in topics.items() for place in places(count, topic)]
    current = {place: chance.choice([*wants, "gone"]) for place in everything}
    owners = assign(wants, everything, current)
    followed = set().union(*wants.values())
    assert set(owners) == {place for place in everything if place[0] in followed}
    loads = Counter(owners.values())
    for (topic, _), owner in owners.items():
        assert topic in wants[owner]
        for other, theirs in wants.items():
            if topic in theirs:
                assert loads[owner] - loads[other] <= 1


def test_fifty_members_that_join_and_leave_a_topic_of_64_partitions_stay_balanced() -> None:
    chance = random.Random(7)
    owners: dict[TopicPartition, str] = {}
    here: set[str] = set()
    for step in range(300):
        before = set(here)
        if len(here) < 50 and (step < 50 or chance.random() < 0.5):
            here.add(f"m{step}")
        elif len(here) > 1:
            here.remove(chance.choice(sorted(here)))
        after = assign(everyone_wants(here), places(64), owners)
        assert spread(after, here) <= 1
        moved = [p for p in owners if owners[p] in here and owners[p] != after[p]]
        assert len(moved) == fewest_moves(owners, here, 64)
        if before - here:
            assert moved == []
        owners = after
