"""Brokers for tests, on a loop and in a thread of their own: time that is moved, and assertions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fanlog
import fanlog.testing
from fanlog import errors
from tests.client.ways import PATIENCE_SECONDS


@dataclass
class Order:
    tea: int


@pytest.fixture
def broker() -> Any:
    with fanlog.testing.sync_broker() as broker:
        yield broker


# Time


def test_the_time_runs_until_it_is_frozen() -> None:
    clock = fanlog.testing.Clock()
    assert abs(clock.now() - time.time()) < 5
    clock.freeze()
    frozen = clock.now_us(), clock.monotonic_us()
    time.sleep(0.01)
    assert (clock.now_us(), clock.monotonic_us()) == frozen
    clock.advance(60)
    assert clock.now_us() - frozen[0] == clock.monotonic_us() - frozen[1] == 60_000_000
    clock.unfreeze()
    assert 0 <= clock.now_us() - frozen[0] - 60_000_000 < 5_000_000
    before_us = clock.monotonic_us()
    clock.advance(3600)
    assert clock.monotonic_us() - before_us >= 3_600_000_000
    with pytest.raises(errors.InvalidArgumentError, match="only moves forward"):
        clock.advance(-1)


def test_retry_delays_go_by_the_clock(broker: fanlog.testing.SyncBroker) -> None:
    broker.clock.freeze()
    broker.publish("t", b"x")
    with broker.work("t", queue="q", max_deliveries=9) as worker:
        for deliveries in range(1, 4):
            job = worker.next(PATIENCE_SECONDS)
            assert job.deliveries == deliveries
            job.nack(delay_seconds=300)
            broker.clock.advance(299)
            with pytest.raises(TimeoutError):
                worker.next(0.25)
            broker.clock.advance(1)


def test_a_job_whose_worker_is_stuck_goes_to_another(broker: fanlog.testing.SyncBroker) -> None:
    broker.clock.freeze()
    broker.publish("t", b"x")
    with broker.work("t", queue="q") as stuck, broker.work("t", queue="q") as other:
        job = stuck.next(PATIENCE_SECONDS)
        broker.clock.advance(29)
        with pytest.raises(TimeoutError):
            other.next(0.25)
        broker.clock.advance(1)
        again = other.next(PATIENCE_SECONDS)
        assert (again.offset, again.deliveries) == (job.offset, 2)
        again.ack()
        with pytest.raises(errors.LeaseLostError):
            job.ack()


def test_retention_goes_by_the_clock(broker: fanlog.testing.SyncBroker) -> None:
    broker.create_topic("t", retention_seconds=3600)
    broker.publish("t", b"old")
    broker.clock.advance(3500)
    broker.publish("t", b"new")
    assert [message.value for message in broker.published("t")] == [b"old", b"new"]
    broker.clock.advance(200)
    broker.assert_published("t", value=b"new", count=1)
    assert broker.published("t")[0].value == b"new"


def test_scheduled_messages_go_out_by_the_clock(broker: fanlog.testing.SyncBroker) -> None:
    broker.clock.freeze()
    broker.publish("t", "later", delay_seconds=3600)
    broker.publish("t", Order(1), at=broker.clock.now() + 7200)
    broker.clock.advance(3599)
    assert broker.published("t") == []
    broker.clock.advance(1)
    broker.assert_published("t", value="later", count=1)
    broker.clock.advance(3600)
    assert [m.offset for m in broker.assert_published("t", count=2)] == [0, 1]
    broker.assert_published("t", value=Order(1), key=None)


def test_a_transaction_times_out_by_the_clock(broker: fanlog.testing.SyncBroker) -> None:
    transaction = broker.transaction(timeout_seconds=60)
    transaction.begin()
    transaction.publish("t", b"x")
    transaction.flush()
    broker.clock.advance(61)
    with pytest.raises(errors.TransactionNotFoundError):
        transaction.commit()
    assert broker.published("t") == []


def test_the_session_of_a_lost_member_ends_by_the_clock(
    broker: fanlog.testing.SyncBroker,
) -> None:
    broker.clock.freeze()
    broker.create_topic("t")
    with broker.consume("t", group="g", member="b", session_seconds=30) as other:
        host, port = broker.url.removeprefix("fanlog://").split(":")
        program = f"""
import os, fanlog.sync
client = fanlog.sync.connect("fanlog://{host}:{port}")
member = client.consume("t", group="g", member="a", session_seconds=30)
member.start()
os._exit(0)  # without a word, as if it were killed
"""
        broker.grow_topic("t", 2)
        subprocess.run([sys.executable, "-c", program], check=True)
        wait_until(lambda: len(other.partitions) == 1)
        # From now on its session runs out; before, it would have been there for the new time.
        wait_until(lambda: not all(m.present for m in broker.groups.describe("g").members))
        time.sleep(0.3)
        assert len(other.partitions) == 1
        broker.clock.advance(31)
        wait_until(lambda: len(other.partitions) == 2)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_time_is_moved_on_the_brokers_own_loop_and_from_other_threads() -> None:
    async with fanlog.testing.broker() as broker:
        broker.clock.freeze()
        for number, advance in enumerate(
            (broker.clock.advance, lambda s: asyncio.to_thread(broker.clock.advance, s))
        ):
            topic = f"t{number}"
            await broker.publish(topic, b"x")
            async with broker.work(topic, queue="q") as worker:
                job = await worker.next(PATIENCE_SECONDS)
                await job.nack(delay_seconds=600)
                moved = advance(600)
                if moved is not None:
                    await moved
                assert (await worker.next(PATIENCE_SECONDS)).deliveries == 2


def test_one_clock_may_be_that_of_several_brokers(tmp_path: Path) -> None:
    clock = fanlog.testing.Clock()
    with (
        fanlog.testing.sync_broker(tmp_path / "a", clock=clock) as first,
        fanlog.testing.sync_broker(clock=clock) as second,
    ):
        for broker in (first, second):
            broker.create_topic("t", retention_seconds=60)
            broker.publish("t", b"x")
        clock.advance(10_000)
        assert first.publish("t", b"y").timestamp_us - second.publish("t", b"y").timestamp_us < 5e6
    clock.advance(5)  # nobody is there any more


# What was published


def test_what_was_published_is_in_order_over_topics_and_partitions(
    broker: fanlog.testing.SyncBroker,
) -> None:
    assert broker.published("orders") == broker.published("orders.>") == []
    broker.create_topic("orders.a", partitions=3)
    broker.clock.freeze()
    for number in range(30):
        broker.publish(f"orders.{'ab'[number % 2]}", str(number), key=str(number))
        broker.clock.advance(0.001)
    assert [int(message.text) for message in broker.published("orders.*")] == list(range(30))
    assert len(broker.published("orders.a")) == 15


def test_assertions_return_what_fits(broker: fanlog.testing.SyncBroker) -> None:
    broker.publish("t", Order(1), key="a", headers={"h": "1"})
    broker.publish("t", Order(2), key="a", encoding="msgpack")
    broker.publish("t", "text")
    broker.publish("t", None, key="gone")
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1, 2, 3]),
        ({"key": "a"}, [0, 1]),
        ({"key": b"a", "count": 2}, [0, 1]),
        ({"key": None}, [2]),
        ({"value": Order(2)}, [1]),
        ({"json": {"tea": 2}}, [1]),
        ({"value": "text"}, [2]),
        ({"value": b"text", "key": None}, [2]),
        ({"value": None}, [3]),
        ({"headers": {"h": b"1"}}, [0]),
        ({"json": {"tea": 9}, "count": 0}, []),
    ]
    for given, offsets in cases:
        assert [m.offset for m in broker.assert_published("t", **given)] == offsets
    assert broker.assert_published("nothing", count=0) == []


def test_an_assertion_waits_for_what_comes_late(broker: fanlog.testing.SyncBroker) -> None:
    late = threading.Timer(0.2, lambda: broker.publish("t", {"n": 1}))
    late.start()
    (message,) = broker.assert_published("t", json={"n": 1}, timeout_seconds=PATIENCE_SECONDS)
    assert message.offset == 0
    late.join()


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            {"topic": "orders", "key": "bob"},
            [
                "expected at least 1 message in 'orders' with key='bob', found 0.",
                "'orders' has 3 messages:",
                "  orders/0@0 key='alice' headers={content-type: 'application/json'} {'tea': 1}",
                "  orders/0@1 b'\\xff'",
                "  orders/0@2 key='alice' a tombstone",
            ],
        ),
        (
            {"topic": "orders", "key": "alice", "count": 1},
            ["expected 1 message in 'orders' with key='alice', found 2."],
        ),
        (
            {"topic": "order", "value": b"x", "headers": {"a": "b"}, "count": 1},
            [
                "expected 1 message in 'order' with value=b'x', headers={'a': 'b'}, found 0.",
                "'order' does not exist. Topics: 'empty', 'orders'.",
            ],
        ),
        ({"topic": "empty"}, ["'empty' is empty. Topics: 'empty', 'orders'."]),
    ],
)
def test_a_failure_shows_what_is_there(
    broker: fanlog.testing.SyncBroker, given: dict[str, Any], lines: list[str]
) -> None:
    broker.create_topic("empty")
    broker.publish("orders", Order(1), key="alice")
    broker.publish("orders", b"\xff")
    broker.publish("orders", None, key="alice")
    with pytest.raises(AssertionError) as failed:
        broker.assert_published(**given, timeout_seconds=0.02)
    said = str(failed.value).splitlines()
    assert [line for line in lines if line not in said] == []


def test_a_failure_shows_the_newest_of_many(broker: fanlog.testing.SyncBroker) -> None:
    broker.publish_many("t", [f"{number} " + "x" * 1000 for number in range(5000)])
    with pytest.raises(AssertionError) as failed:
        broker.assert_published("t", value="y", timeout_seconds=0)
    said = str(failed.value).splitlines()
    assert len(said) == 23
    assert "4980 before these" in said[2]
    assert said[-1].startswith("  t/0@4999 '4999 x")
    assert max(map(len, said)) < 250


async def test_a_broker_on_the_loop_has_an_address() -> None:
    async with fanlog.testing.broker() as broker:
        assert broker.url == broker.url
        async with fanlog.connect(broker.url) as client:
            await client.publish("t", b"x")
        await broker.assert_published("t", value=b"x", count=1)
