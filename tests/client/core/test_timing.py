"""Pings, silence, waits between attempts and fresh logins, with times that are handed in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.timing import ConnectAttempts, Heartbeat, HeartbeatStep, LoginPlan
from fanlog.config import ClientOptions
from fanlog.identity import Login


def test_a_quiet_connection_is_pinged_and_one_that_stays_quiet_is_silent() -> None:
    heartbeat = Heartbeat(ping_seconds=5, silence_seconds=15)
    heartbeat.start(100)
    beats = [heartbeat.check(100 + second, 1) for second in range(1, 17)]
    assert [second + 1 for second, beat in enumerate(beats) if beat is HeartbeatStep.PING] == [
        5,
        10,
        15,
    ]
    assert beats[-1] is HeartbeatStep.SILENT


def test_a_broker_that_sends_anything_is_not_silent() -> None:
    heartbeat = Heartbeat(ping_seconds=5, silence_seconds=15)
    heartbeat.start(0)
    for second in range(1, 100):
        if second % 10 == 0:
            heartbeat.heard(second)
        assert heartbeat.check(second, 1) is not HeartbeatStep.SILENT


def test_a_program_that_was_stalled_does_not_blame_the_broker() -> None:
    heartbeat = Heartbeat(ping_seconds=5, silence_seconds=15)
    heartbeat.start(0)
    assert heartbeat.check(1, 1) is HeartbeatStep.REST
    assert heartbeat.check(1000, 1) is HeartbeatStep.PING
    beats = [heartbeat.check(1000 + second, 1) for second in range(1, 20)]
    assert HeartbeatStep.SILENT in beats
    assert beats.index(HeartbeatStep.SILENT) >= 13


def test_waits_double_up_to_the_longest_and_end_in_time() -> None:
    options = ClientOptions(backoff_first_seconds=0.1, backoff_max_seconds=1.0)
    endless = ConnectAttempts(options)
    assert [endless.maybe_wait_seconds(0) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    limited = ConnectAttempts(options, give_up_at=10.0)
    assert limited.maybe_wait_seconds(9.9) == 0.1
    assert limited.maybe_wait_seconds(9.9) is None


@given(st.floats(0, 100), st.floats(0.001, 10), st.floats(0.001, 60))
def test_nobody_waits_past_the_time_to_give_up(wait: float, first: float, most: float) -> None:
    options = ClientOptions(backoff_first_seconds=first, backoff_max_seconds=most)
    attempts = ConnectAttempts(options, give_up_at=wait)
    now = 0.0
    while (seconds := attempts.maybe_wait_seconds(now)) is not None:
        now += seconds
    assert now <= wait


def test_a_fresh_login_is_shown_once_before_the_old_one_expires() -> None:
    plan = LoginPlan(refreshable=True)
    plan.accepted(100, 0)
    assert not plan.take_due(10_000)
    plan.accepted(100, 50)
    assert not plan.take_due(139)
    assert plan.take_due(140)
    assert not plan.take_due(150)
    plan.refresh_failed(150)
    assert not plan.take_due(151)
    assert plan.take_due(152)


def test_a_login_that_never_changes_is_not_shown_again() -> None:
    plan = LoginPlan(refreshable=False)
    plan.accepted(0, 50)
    assert not plan.take_due(49)
    plan.shown(Login(key="a"))
    assert plan.is_refused_for_good()


def test_a_login_that_was_refused_is_given_up_when_it_is_the_same_again() -> None:
    plan = LoginPlan(refreshable=True)
    plan.shown(Login(key="old"))
    assert not plan.is_refused_for_good()
    plan.shown(Login(key="new"))
    assert not plan.is_refused_for_good()
    plan.shown(Login(key="new"))
    assert plan.is_refused_for_good()
    plan.shown(None)
    assert plan.is_refused_for_good()
