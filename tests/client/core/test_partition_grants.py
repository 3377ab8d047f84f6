"""What a member's application hears of its partitions, and when they are given back. The table is
complete, and any order of events keeps the law."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.partition_grants import (
    GRANT_TRANSITIONS,
    GrantChange,
    GrantState,
    GrantStep,
    PartitionGrants,
    releases,
)
from fanlog.format.messages import Release
from fanlog.model import TopicPartition

A, B, C = (TopicPartition("t", i) for i in range(3))
S = GrantState
EVERY = list(itertools.product(GrantState, GrantChange))


class Application:
    """Hears steps, and says what it has in hand."""

    def __init__(self, *, announces: bool = True) -> None:
        self.in_hand: set[TopicPartition] = set()
        self.grants = PartitionGrants(self.in_hand.__contains__, announces=announces)
        self.grants.on_news = self._look
        self.looks = 0
        self.heard: list[tuple[bool, tuple[TopicPartition, ...]]] = []

    def _look(self) -> None:
        self.looks += 1

    def step(self) -> GrantStep | None:
        step = self.grants.next_step()
        if step is not None:
            self.heard.append((step.came, step.partitions))
        return step

    def all_steps(self) -> list[tuple[bool, tuple[TopicPartition, ...]]]:
        while self.step() is not None:
            pass
        heard, self.heard = self.heard, []
        return heard


def answer(*partitions: TopicPartition) -> Release:
    (release,) = releases(partitions)
    return release


@pytest.mark.parametrize(("state", "change"), EVERY)
def test_whatever_the_broker_says_is_in_the_table(state: GrantState, change: GrantChange) -> None:
    """Only a notification depends on the member itself."""
    allowed = change is not GrantChange.NOTIFY or state is S.WANTED_BACK
    assert (change in GRANT_TRANSITIONS[state]) == allowed


def test_the_life_of_a_partition() -> None:
    member = Application()
    grants = member.grants
    assert grants.grant(A)
    assert (grants.state(A), grants.active, member.looks) == (S.READ, {A}, 1)
    assert member.all_steps() == [(True, (A,))]
    assert grants.revoke(A)
    assert (grants.state(A), grants.active, grants.going) == (S.WANTED_BACK, set(), {A})
    member.in_hand.add(A)
    assert member.step() is None
    member.in_hand.clear()
    assert member.step() == GrantStep(came=False, partitions=(A,), releasing=(A,))
    assert grants.state(A) is S.RELEASING
    assert list(grants.released(answer(A))) == [A]
    assert (grants.state(A), grants.going) == (S.ELSEWHERE, set())


def test_messages_wait_only_if_the_application_wants_to_hear_of_partitions() -> None:
    silent = Application(announces=False)
    assert not silent.grants.grant(A)
    assert silent.all_steps() == []
    member = Application()
    assert [member.grants.grant(A), member.grants.grant(A)] == [True, False]


def test_a_lost_partition_goes_at_once_even_with_a_message_in_hand() -> None:
    member = Application()
    member.grants.grant(A)
    member.all_steps()
    member.in_hand.add(A)
    member.grants.lose(A)
    assert member.step() == GrantStep(came=False, partitions=(A,))


def test_what_was_lost_and_came_again_is_heard_of_in_that_order() -> None:
    member = Application()
    member.grants.grant(A)
    assert member.all_steps() == [(True, (A,))]
    member.grants.lose(A)
    member.grants.grant(A)
    member.grants.grant(B)
    assert member.all_steps() == [(False, (A,)), (True, (A, B))]


def test_messages_of_a_partition_that_came_twice_wait_until_the_second_time_was_heard() -> None:
    member = Application()
    for change in (member.grants.grant, member.grants.lose, member.grants.grant):
        change(A)
    first, second = member.step(), (member.step(), member.step())[1]
    assert first is not None
    assert second is not None
    member.grants.lose(B)
    assert member.grants.heard(second) == [A]
    member.grants.lose(A)
    member.grants.grant(A)
    assert member.grants.heard(first) == []


def test_a_partition_that_is_wanted_back_before_it_was_heard_of_comes_first() -> None:
    member = Application()
    member.grants.grant(B)
    member.all_steps()
    member.grants.lose(B)
    member.grants.grant(A)
    member.grants.revoke(A)
    assert member.all_steps() == [(False, (B,)), (True, (A,)), (False, (A,))]


def test_a_restarted_broker_that_grants_what_is_on_its_way_back_changes_nothing() -> None:
    member = Application()
    member.grants.grant(A)
    member.grants.revoke(A)
    assert not member.grants.grant(A)
    assert member.grants.state(A) is S.WANTED_BACK
    assert not member.grants.revoke(A)


def test_an_answer_to_a_release_that_a_loss_has_overtaken_takes_nothing() -> None:
    member = Application()
    grants = member.grants
    grants.grant(A)
    grants.revoke(A)
    member.all_steps()
    grants.lose(A)
    grants.grant(A)
    assert list(grants.released(answer(A))) == []
    assert grants.state(A) is S.READ
    # It had heard that it goes: not again.
    assert member.all_steps() == [(True, (A,))]


def test_the_last_thing_that_is_heard_is_all_that_goes() -> None:
    member = Application()
    grants = member.grants
    for partition in (A, B, C):
        grants.grant(partition)
    grants.revoke(A)
    member.all_steps()
    grants.revoke(B)
    grants.lose(C)
    looks = member.looks
    assert grants.leave() == (B, C)
    grants.left()
    assert not grants.revoke(C)
    grants.look()
    assert (member.all_steps(), member.looks, grants.active) == ([], looks, set())


def test_all_that_is_lost_with_the_membership_is_heard_of_once() -> None:
    member = Application()
    grants = member.grants
    for partition in (A, B, C):
        grants.grant(partition)
    grants.revoke(A)
    member.all_steps()
    grants.revoke(B)
    grants.lose_all()
    assert member.all_steps() == [(False, (B, C))]
    assert (grants.active, grants.going) == (set(), set())


def test_each_topic_is_released_by_one_request() -> None:
    assert releases((A, TopicPartition("u", 5), C)) == [Release("t", (0, 2)), Release("u", (5,))]


EVENTS = st.tuples(
    st.sampled_from(("grant", "revoke", "lose", "answer", "step", "take", "finish")),
    st.sampled_from((A, B, C)),
)


@given(st.lists(EVENTS, max_size=60))
def test_an_application_hears_that_partitions_come_and_go_in_turns(
    steps: list[tuple[str, TopicPartition]],
) -> None:
    """It never hears that something goes that it does not have, or comes that it has; and nothing
    is released that is in hand."""
    member = Application()
    grants = member.grants
    has: set[TopicPartition] = set()
    releasing: set[TopicPartition] = set()

    def hear() -> bool:
        step = member.step()
        if step is None:
            return False
        for partition in step.partitions:
            assert (partition in has) is not step.came
            (has.add if step.came else has.remove)(partition)
        assert not member.in_hand.intersection(step.releasing)
        releasing.update(step.releasing)
        return True

    for event, partition in steps:
        match event:
            case "grant":
                grants.grant(partition)
            case "revoke":
                grants.revoke(partition)
            case "lose":
                grants.lose(partition)
                member.in_hand.discard(partition)
            case "answer" if partition in releasing:
                releasing.discard(partition)
                list(grants.released(answer(partition)))
            case "take" if partition in grants.active:
                member.in_hand.add(partition)
            case "finish":
                member.in_hand.discard(partition)
            case _:
                hear()
        assert not grants.active & grants.going
    member.in_hand.clear()
    while hear():
        pass
    assert has == grants.active
    grants.lose_all()
    while hear():
        pass
    assert not has
