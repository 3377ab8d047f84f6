"""What the broker counts, as a snapshot: few names however many topics there are, counters that
only grow, and no turn of the loop that is held up by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanlog
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.broker.insight import metrics
from fanlog.broker.insight.metric_scan import MetricScan, Scanner
from fanlog.config import Config
from fanlog.config_security import TelemetryOptions
from fanlog.format.messages import Position
from fanlog.model import GROUP_PREFIX
from fanlog.telemetry.snapshot import OTHERS, TopicMetrics
from tests.broker.stage import Stage, stage

SECOND_US = 1_000_000


@pytest.fixture
def on() -> Iterator[Stage]:
    with stage() as staged:
        yield staged


def scanned(on: Stage, scanner: Scanner, *, after_seconds: int = 10) -> dict[str, TopicMetrics]:
    on.runtime.time_us += after_seconds * SECOND_US
    scan = MetricScan()
    for _ in scanner.steps(scan, on.runtime.monotonic_us()):
        pass
    return {topic.name: topic for topic in scan.topics}


def publish(on: Stage, name: str, count: int) -> None:
    on.publish(name, [b"x"] * count)
    on.run()


def test_the_busiest_topics_are_named_and_the_others_are_one_line(on: Stage) -> None:
    scanner = Scanner(on.core, 2)
    scanned(on, scanner)
    for count in range(1, 6):
        publish(on, f"t{count}", count)
    found = scanned(on, scanner)
    assert list(found) == ["t5", "t4", OTHERS]
    assert found["t5"].published_messages == 5
    assert found["t5"].messages_per_second == pytest.approx(0.5)
    assert found[OTHERS].published_messages == 1 + 2 + 3
    assert found[OTHERS].partitions == 3


def test_a_counter_of_the_others_never_goes_down(on: Stage) -> None:
    """A topic that is named now and not then would look like a restart of the broker."""
    scanner = Scanner(on.core, 1)
    publish(on, "early", 10)
    before = 0
    for step in range(20):
        publish(on, "early" if step % 4 < 2 else f"late{step % 3}", 1 + 7 * (step % 4))
        if step == 10:
            on.core.delete_topic("late0")
            on.runtime.run()
        now = scanned(on, scanner)[OTHERS].published_messages
        assert now >= before
        before = now


def test_the_brokers_own_topics_and_inboxes_are_not_named(on: Stage) -> None:
    on.core.create_topic("_inbox.a1", {})
    on.core.create_topic("orders", {})
    on.core.drops.make_topic()
    assert list(scanned(on, Scanner(on.core, 10))) == ["orders", OTHERS]


def test_no_topics_are_named_where_the_operator_wants_none(on: Stage) -> None:
    publish(on, "orders", 3)
    found = scanned(on, Scanner(on.core, 0))
    assert list(found) == [OTHERS]
    assert found[OTHERS].published_messages == 3


def test_a_topic_that_is_called_like_the_others_is_one_of_them(on: Stage) -> None:
    publish(on, OTHERS, 3)
    assert list(scanned(on, Scanner(on.core, 5))) == [OTHERS]


def test_groups_are_named_by_their_lag(on: Stage) -> None:
    publish(on, "orders", 10)
    for group, offset in (("done", 10), ("slow", 2), ("idle", 7)):
        on.core.durable.commit_positions(
            [(GROUP_PREFIX + group, (Position("orders", 0, offset, on.core.epoch),))]
        )
    scan = MetricScan()
    for _ in Scanner(on.core, 2).steps(scan, 1):
        pass
    assert [(group.name, group.lag) for group in scan.groups] == [
        ("slow", 8),
        ("idle", 3),
        (OTHERS, 0),
    ]
    assert (scan.group_count, scan.group_lag) == (3, 11)


def test_a_scan_of_very_many_topics_and_groups_is_made_of_small_steps(on: Stage) -> None:
    """Each step is some ten µs of work, so that a slice of 2 ms ends in time."""
    for number in range(3000):
        on.core.create_topic(f"t{number}", {})
    for number in range(1000):
        position = Position(f"t{number}", 0, 0, on.core.epoch)
        on.core.durable.commit_positions([(f"{GROUP_PREFIX}g{number}", (position,))])
    steps = sum(1 for _ in Scanner(on.core, 50).steps(MetricScan(), 1))
    assert steps > 3000 // 32 + 1000


async def test_everybody_who_asks_at_once_gets_one_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_KEPT_US", 3_600_000_000)
    async with fanlog.Broker() as broker:
        core = core_of(broker)
        found = await asyncio.gather(*(core.metrics.snapshot() for _ in range(5)))
        assert all(one is found[0] for one in found)
        assert await core.metrics.snapshot() is found[0]


async def test_one_who_goes_away_does_not_take_the_snapshot_from_the_others() -> None:
    async with fanlog.Broker() as broker:
        core = core_of(broker)
        gone = asyncio.ensure_future(core.metrics.snapshot())
        stays = asyncio.ensure_future(core.metrics.snapshot())
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays).state == "ok"


async def test_a_snapshot_has_what_was_published_and_delivered(tmp_path: Path) -> None:
    async with fanlog.Broker(tmp_path) as broker:
        await broker.create_topic("orders", durability="fsync")
        async with broker.subscribe("orders") as one, broker.subscribe("orders") as other:
            for number in range(10):
                await broker.publish("orders", f"{number}")
            for reader in (one, other):
                for _ in range(10):
                    await reader.next(timeout_seconds=60)
        snapshot = await core_of(broker).metrics.snapshot()
        totals = snapshot.totals
        assert (totals.published_messages, totals.delivered_messages) == (10, 20)
        assert totals.delivered_bytes == 2 * totals.published_bytes > 0
        assert snapshot.times.sync_us.count > 0
        assert snapshot.times.sync_bytes.total >= totals.published_bytes
        assert snapshot.times.turn_us.count > 0
        assert snapshot.process.disk_free_bytes > 0


async def test_labels_are_bounded_by_a_setting() -> None:
    config = Config(telemetry=TelemetryOptions(topics_max=3))
    async with fanlog.Broker(config=config) as broker:
        for number in range(10):
            await broker.create_topic(f"t{number}")
        snapshot = await core_of(broker).metrics.snapshot()
        assert len(snapshot.topics) == 4
        assert snapshot.levels.topics >= 10


def core_of(broker: fanlog.Broker) -> Core:
    assert broker._node is not None
    return broker._node.core
