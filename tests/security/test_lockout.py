"""Back-off and lock-out after wrong logins, with the time handed in."""

from __future__ import annotations

import pytest

from fanlog.config_limits import LimitOptions
from fanlog.errors import RateLimitedError
from fanlog.security.lockout import Lockout

SECOND_US = 1_000_000
HERE, THERE = "10.0.0.1:500", "10.9.9.9:500"


def wait_seconds(lockout: Lockout, address: str, now_us: int, user: str = "") -> float:
    try:
        lockout.check(address, now_us, user=user)
    except RateLimitedError as refusal:
        return refusal.retry_after_seconds
    return 0.0


def test_a_few_wrong_logins_cost_nothing_and_each_further_one_doubles_the_wait() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=3, lockout_seconds=10))
    waits: list[float] = []
    now_us = 0
    for _ in range(9):
        wait = wait_seconds(lockout, HERE, now_us)
        waits.append(wait)
        now_us += int(wait * SECOND_US)
        lockout.failed(HERE, now_us, name="k")
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 10]


def test_a_locked_address_does_not_lock_another_and_is_let_in_again() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1, lockout_seconds=60))
    for _ in range(1000):
        lockout.failed(HERE, 0, name="k")
    assert wait_seconds(lockout, HERE, 0) == 60
    assert wait_seconds(lockout, "10.0.0.1:777", 0) == 60
    assert wait_seconds(lockout, THERE, 0) == 0
    assert wait_seconds(lockout, HERE, 60 * SECOND_US) == 0
    # A while later it begins anew.
    lockout.failed(HERE, 1000 * SECOND_US, name="k")
    assert wait_seconds(lockout, HERE, 1000 * SECOND_US) == 0


def test_a_right_login_takes_back_wrong_ones_of_its_own_name_only() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=2))
    for _ in range(2):
        lockout.failed(HERE, 0, name="mine")
    lockout.succeeded(HERE, 0, name="mine")
    lockout.failed(HERE, 0, name="mine")
    assert wait_seconds(lockout, HERE, 0) == 0
    # Who has one key, and guesses others in between, is locked all the same.
    for number in range(3):
        lockout.failed(HERE, 0, name=f"other{number}")
        lockout.succeeded(HERE, 0, name="mine")
    assert wait_seconds(lockout, HERE, 0) > 0


def test_nobody_can_lock_a_key_holder_out_from_another_address() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1))
    for number in range(10_000):
        lockout.failed(f"10.1.{number >> 8}.{number & 255}:1", 0, name="key-id")
    assert wait_seconds(lockout, THERE, 0) == 0


def test_a_user_whom_many_addresses_try_waits_a_little_but_not_where_it_was_before() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1, name_lockout_seconds=30))
    lockout.succeeded(HERE, 0, user="ada")
    for number in range(10_000):
        lockout.failed(f"10.1.{number >> 8}.{number & 255}:1", 0, user="ada")
    assert wait_seconds(lockout, HERE, 0, user="ada") == 0
    assert wait_seconds(lockout, THERE, 0, user="ada") == 30
    assert wait_seconds(lockout, THERE, 0, user="grace") == 0
    assert wait_seconds(lockout, THERE, 30 * SECOND_US, user="ada") == 0


def test_exempt_addresses_are_never_locked() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1, exempt_addresses="10.0.0.1"))
    for _ in range(100):
        lockout.failed(HERE, 0, name="k")
    assert wait_seconds(lockout, HERE, 0) == 0


def test_a_million_addresses_and_names_take_a_bounded_memory() -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1))
    for number in range(60_000):
        lockout.failed(f"a{number}:1", number, user=f"u{number}")
        lockout.succeeded(f"a{number}:1", number, user=f"u{number}")
    for number in range(60_000, 1_000_000):
        lockout.failed(f"a{number}:1", number, name="k")
    assert lockout.entries() <= 150_000
    # The last to fail are those that are remembered.
    lockout.failed("a999999:1", 1_000_000, name="k")
    assert wait_seconds(lockout, "a999999:1", 1_000_000) == 1


@pytest.mark.parametrize("count", [1, 100, 100_000])
def test_the_longest_wait_holds_however_often_somebody_fails(count: int) -> None:
    lockout = Lockout(LimitOptions(wrong_logins_max=1, lockout_seconds=900))
    for _ in range(count + 1):
        lockout.failed(HERE, 0, name="k")
    assert wait_seconds(lockout, HERE, 0) == min(900, 2.0 ** min(count - 1, 20))
