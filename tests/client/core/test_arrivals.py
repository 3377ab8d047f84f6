"""What has come for a follower, without waiting: order, faults in their turn, and the end."""

from __future__ import annotations

import pytest

from fanlog.client.core.arrivals import Arrivals
from fanlog.errors import ClosedError, ConnectionLostError, MessagesLostError

CLOSED = ClosedError("closed")


def test_things_and_faults_come_out_in_the_order_in_which_they_came() -> None:
    arrivals: Arrivals[str] = Arrivals()
    arrivals.put("tea")
    arrivals.put(MessagesLostError("two are lost"))
    arrivals.put("coffee")
    assert arrivals.take() == "tea"
    with pytest.raises(MessagesLostError):
        arrivals.take()
    assert arrivals.take() == "coffee"


def test_it_is_wanted_while_a_shell_waits_and_nothing_is_there() -> None:
    arrivals: Arrivals[str] = Arrivals()
    woken: list[str] = []
    assert not arrivals.wanted
    arrivals.wake = lambda: woken.append("woken")
    assert arrivals.wanted
    arrivals.put("tea")
    assert woken == ["woken"]
    assert not arrivals.wanted


def test_it_is_closed_once_and_the_first_reason_counts() -> None:
    arrivals: Arrivals[str] = Arrivals()
    heard: list[str] = []
    arrivals.wake = lambda: heard.append("woken")
    arrivals.on_close = lambda: heard.append("closed")
    arrivals.check_open()
    assert arrivals.close(ConnectionLostError("lost"))
    assert not arrivals.close(CLOSED)
    with pytest.raises(ConnectionLostError):
        arrivals.check_open()
    assert heard == ["woken", "closed"]


def test_what_came_before_the_end_can_still_be_taken() -> None:
    arrivals: Arrivals[str] = Arrivals()
    arrivals.put("tea")
    arrivals.close(CLOSED)
    assert arrivals.take() == "tea"
