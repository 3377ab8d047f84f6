"""The window that a follower grants the broker."""

from __future__ import annotations

from fanlog.client.core.credit_window import CreditWindow


def test_half_a_window_that_is_done_with_is_granted_again() -> None:
    granted: list[int] = []
    window = CreditWindow(100, granted.append)
    window.consume(49)
    assert granted == []
    window.consume(1)
    window.consume(49)
    window.consume(11)
    assert granted == [150, 210]


def test_no_window_grants_nothing() -> None:
    granted: list[int] = []
    CreditWindow(0, granted.append).consume(1000)
    assert granted == []


def test_bytes_of_a_connection_before_are_not_granted_again() -> None:
    granted: list[int] = []
    window = CreditWindow(100, granted.append)
    window.queued_bytes = 120
    window.reconnect()
    window.free(60)
    window.queued_bytes += 60
    window.free(60)
    assert granted == []
    assert window.take(60)
    window.consume(60)
    assert (granted, window.queued_bytes) == ([160], 0)
