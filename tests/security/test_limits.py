"""Token buckets, with the time handed in."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.config_limits import LimitOptions
from fanlog.identity import Account, Allowance, Identity, Rules
from fanlog.security.addresses import Sources, source_of
from fanlog.security.limits import Bucket, RateTable

SECOND_US = 1_000_000


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:999"


def key(name: str, **allowance: float) -> Identity:
    account = Account(
        name=name,
        kind="key",
        id=f"id-{name}",
        rules=Rules(),
        allowance=Allowance(**allowance),  # type: ignore[arg-type]
    )
    return Identity(name, address(1), "native", "1", account)


def test_a_second_worth_may_come_at_once() -> None:
    bucket = Bucket(100, 1.0, 0)
    bucket.take(100, 0)
    assert bucket.debt_seconds(0) == 0
    bucket.take(50, 0)
    assert bucket.debt_seconds(0) == 0.5
    assert bucket.debt_seconds(SECOND_US // 4) == 0.25
    assert bucket.debt_seconds(SECOND_US) == 0


def test_a_clock_that_goes_back_pays_nothing_and_costs_nothing() -> None:
    bucket = Bucket(10, 1.0, 100 * SECOND_US)
    bucket.take(20, 100 * SECOND_US)
    assert bucket.debt_seconds(50 * SECOND_US) == 1.0
    assert bucket.debt_seconds(51 * SECOND_US) == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 3 * SECOND_US), st.integers(0, 500)), max_size=60),
    st.integers(1, 200),
)
def test_who_waits_for_its_debt_never_gets_more_than_its_rate(
    steps: list[tuple[int, int]], rate: int
) -> None:
    bucket = Bucket(rate, 1.0, 0)
    now_us, taken, last = 0, 0, 0
    for passed_us, amount in steps:
        now_us += passed_us
        now_us += int(bucket.debt_seconds(now_us) * SECOND_US) + 1
        bucket.take(amount, now_us)
        taken, last = taken + amount, amount
        # Whatever came last is taken as a whole, and paid afterwards.
        assert taken - last <= rate + rate * now_us / SECOND_US + 1e-3


def test_without_limits_nobody_has_a_bucket() -> None:
    table = RateTable(LimitOptions())
    assert table.maybe_of(Identity(address=address(1)), 0) is None
    assert table.maybe_of(key("a"), 0) is None
    assert not len(table)


def test_all_connections_of_a_key_share_one_rate_and_another_key_has_its_own() -> None:
    table = RateTable(LimitOptions(messages_per_second=10))
    first = table.maybe_of(key("a"), 0)
    assert first is not None
    assert table.maybe_of(key("a"), 5) is first
    other = table.maybe_of(key("b"), 0)
    assert other is not None
    first.take(1000, 0, 0)
    assert first.debt_seconds(0) == 99
    assert other.debt_seconds(0) == 0


def test_an_accounts_own_rate_goes_before_everybodys() -> None:
    table = RateTable(LimitOptions(messages_per_second=10))
    mine = table.maybe_of(key("a", messages_per_second=1000.0), 0)
    assert mine is not None
    mine.take(1000, 0, 0)
    assert mine.debt_seconds(0) == 0


def test_a_new_rate_of_a_key_holds_for_its_next_connection() -> None:
    table = RateTable(LimitOptions())
    before = table.maybe_of(key("a", bytes_per_second=10.0), 0)
    after = table.maybe_of(key("a", bytes_per_second=20.0), 0)
    assert before is not None
    assert after is not None
    assert after is not before


def test_without_logins_the_address_counts_and_exempt_ones_do_not() -> None:
    options = LimitOptions(messages_per_second=1, exempt_addresses="192.168.0.0/16, ::1")
    table = RateTable(options)
    one = table.maybe_of(Identity(address="10.0.0.1:4000"), 0)
    assert one is not None
    assert table.maybe_of(Identity(address="10.0.0.1:4001"), 0) is one
    assert table.maybe_of(Identity(address="192.168.7.7:4001"), 0) is None
    assert table.maybe_of(Identity(address="::1:4001"), 0) is None
    assert table.maybe_of(Identity(address=""), 0) is None


def test_a_hundred_thousand_addresses_take_no_more_memory_than_ten_thousand() -> None:
    table = RateTable(LimitOptions(messages_per_second=1))
    held = table.maybe_of(Identity(address=address(0)), 0)
    for number in range(100_000):
        table.maybe_of(Identity(address=address(number)), number)
    gc.collect()
    assert len(table) <= 10_001
    # Who is connected keeps its debt, whoever else comes.
    assert table.maybe_of(Identity(address=address(0)), 1) is held


def test_a_refusal_says_who_and_when_to_come_back() -> None:
    table = RateTable(LimitOptions(messages_per_second=10, bytes_per_second=100))
    rates = table.maybe_of(key("ingest"), 0)
    assert rates is not None
    rates.take(1, 1100, 0)
    refusal = rates.refusal(0)
    assert refusal.retry_after_seconds == 10
    assert "The key 'ingest' publishes more than its 10 messages or 100 bytes" in str(refusal)
    assert "10.0 s" in str(refusal)


def test_an_ipv6_network_is_one_source_and_ipv4_inside_ipv6_is_ipv4() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert source_of("::ffff:10.0.0.7") == "10.0.0.7"
    assert source_of("somewhere") == "somewhere"
    assert Sources("10.0.0.0/8").maybe_of("::ffff:10.0.0.7:80") == ""


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1:7420", "::/64"),
        ("::1", "::/64"),
        ("[2001:db8::1]:80", "2001:db8::/64"),
        ("2001:db8::1:80", "2001:db8::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:80", "fe80::/64"),
        ("::ffff:10.0.0.7:80", "10.0.0.7"),
    ],
)
def test_a_source_is_found_with_and_without_a_port(address: str, source: str) -> None:
    assert Sources("").maybe_of(address) == source
