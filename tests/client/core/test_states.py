"""The table of a connection's states: complete, and nothing happens that it does not have."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.states import (
    CONVERSING,
    HEARING,
    TRANSITIONS,
    ConnectionChange,
    ConnectionState,
    IllegalTransitionError,
    next_state,
)

S, C = ConnectionState, ConnectionChange
EVERY = list(itertools.product(ConnectionState, ConnectionChange))


@pytest.mark.parametrize(("state", "change"), EVERY)
def test_each_change_is_in_the_table_or_illegal(
    state: ConnectionState, change: ConnectionChange
) -> None:
    if change in TRANSITIONS[state]:
        assert next_state(state, change) is TRANSITIONS[state][change]
    else:
        with pytest.raises(IllegalTransitionError, match=f"{change.name} .* {state.name}"):
            next_state(state, change)


def test_the_life_of_a_connection() -> None:
    state = S.NEW
    seen = [state]
    for change in (C.DIAL, C.GREET, C.WELCOME, C.RESUME, C.DRAIN, C.LOSE, C.DIAL, C.CLOSE):
        state = next_state(state, change)
        seen.append(state)
    assert [one.name for one in seen] == [
        "NEW",
        "DIALING",
        "GREETING",
        "RESUMING",
        "READY",
        "DRAINING",
        "LOST",
        "DIALING",
        "CLOSED",
    ]


@pytest.mark.parametrize("state", ConnectionState)
def test_every_state_can_be_closed_and_lost_and_nothing_leaves_closed(
    state: ConnectionState,
) -> None:
    assert next_state(state, C.CLOSE) is S.CLOSED
    assert next_state(state, C.LOSE) in (S.LOST, S.CLOSED)
    assert set(TRANSITIONS[S.CLOSED].values()) == {S.CLOSED}


@given(st.lists(st.sampled_from(ConnectionChange), max_size=30))
def test_nobody_is_ready_who_was_not_greeted_on_this_connection(
    changes: list[ConnectionChange],
) -> None:
    state = S.NEW
    since_dial: list[ConnectionChange] = []
    for change in changes:
        try:
            state = next_state(state, change)
        except IllegalTransitionError:
            continue
        since_dial = [change] if change is C.DIAL else [*since_dial, change]
        if state in CONVERSING:
            assert since_dial[:2] == [C.DIAL, C.GREET]
            assert C.WELCOME in since_dial
        if state is S.READY:
            assert since_dial[-1] is C.RESUME


def test_a_broker_is_heard_from_the_hello_to_the_loss() -> None:
    assert set(HEARING) == {S.GREETING, S.RESUMING, S.READY, S.DRAINING}
