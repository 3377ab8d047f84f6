"""Readers of topics that do not exist: they create none, say that they wait, and miss nothing."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import Config
from fanlog.model import TopicSettings
from tests.client.proxy import proxy_to
from tests.client.test_reconnect import EAGER, running, through
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, take, until

GONE = "orders does not exist any more; waiting until it is created again."
WAITS = "orders does not exist yet; waiting for its first message."


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "fanlog.client" and record.levelno == logging.WARNING
    ]


async def topic_names(client: Any) -> list[str]:
    return [topic.name for topic in await client.topics()]


STARTS = [
    "latest",
    "earliest",
    0,
    dt.datetime.now(dt.UTC) - dt.timedelta(days=1),
    dt.datetime.now(dt.UTC) + dt.timedelta(days=1),
]


@pytest.mark.parametrize("start", STARTS, ids=["latest", "earliest", "offset", "past", "future"])
async def test_a_reader_waits_for_its_topic_and_gets_all_from_the_first_message(
    way: Way, caplog: pytest.LogCaptureFixture, start: Any
) -> None:
    async with way.open() as client, client.subscribe("orders", start=start) as orders:
        await until(lambda: said(caplog) == [WAITS])
        assert await topic_names(client) == []
        await client.publish("orders", b"first")
        await client.publish("orders", b"second")
        got = await take(orders, 2)
        assert [(m.offset, m.value) for m in got] == [(0, b"first"), (1, b"second")]
        assert said(caplog) == [WAITS]


async def test_a_reader_that_waits_does_not_decide_on_the_settings(way: Way) -> None:
    async with way.open() as client, client.subscribe("orders") as orders:
        await client.create_topic("orders", partitions=4, durability="fsync", exist_ok=True)
        for index in range(4):
            await client.publish("orders", b"%d" % index, partition=index)
        assert {(m.partition, m.value) for m in await take(orders, 4)} == {
            (index, b"%d" % index) for index in range(4)
        }
        await client.grow_topic("orders", 5)
        await client.publish("orders", b"grown", partition=4)
        assert (await orders.next(PATIENCE_SECONDS)).value == b"grown"


async def test_a_reader_may_fail_instead(way: Way) -> None:
    async with way.open() as client:
        says = "There is no topic 'orders' to read.*missing='wait'"
        with pytest.raises(errors.TopicNotFoundError, match=says):
            await client.subscribe("orders", missing="fail").start()
        with pytest.raises(errors.TopicNotFoundError, match=says):
            await client.consume("orders", group="g", missing="fail").start()
        with pytest.raises(errors.InvalidArgumentError, match="'wait' or 'fail'"):
            client.subscribe("orders", missing="make")
        assert await topic_names(client) == []
        await client.publish("orders", b"x")
        async with client.subscribe("orders", missing="fail", start="earliest") as orders:
            assert (await orders.next(PATIENCE_SECONDS)).value == b"x"
        async with client.subscribe("other.>", missing="fail"):
            assert await topic_names(client) == ["orders"]


@pytest.mark.parametrize("reset", ["latest", "earliest", "none"])
async def test_a_group_waits_for_its_topic(
    way: Way, caplog: pytest.LogCaptureFixture, reset: Any
) -> None:
    async with way.open() as client, client.consume("orders", group="g", reset=reset) as orders:
        await until(lambda: said(caplog) == [WAITS])
        assert await topic_names(client) == []
        await client.create_topic("orders", partitions=3)
        for index in range(3):
            await client.publish("orders", b"%d" % index, partition=index)
        assert {m.value for m in await take(orders, 3)} == {b"0", b"1", b"2"}


@pytest.mark.parametrize("reset", ["latest", "earliest"])
async def test_a_worker_waits_for_its_topic(
    data: Path, caplog: pytest.LogCaptureFixture, reset: Any
) -> None:
    async with (
        fanlog.Broker(data) as broker,
        broker.work("orders", queue="q", reset=reset) as worker,
    ):
        await until(lambda: said(caplog) == [WAITS])
        assert await topic_names(broker) == []
        with pytest.raises(errors.TopicNotFoundError, match="There is no topic 'mail' to read"):
            await broker.work("mail", queue="q", missing="fail").start()
        await broker.publish("orders", b"first")
        job = await worker.next(PATIENCE_SECONDS)
        assert job.value == b"first"
        await job.ack()


async def test_a_request_finds_who_serves_a_topic_that_nobody_has_used(data: Path) -> None:
    async with fanlog.Broker(data) as broker:

        async def echo(job: fanlog.Job) -> bytes:
            return job.value

        serving = asyncio.create_task(broker.serve("svc.echo", echo))
        await until(
            lambda: broker._node is not None and len(broker._node.core.queues._workers) == 1
        )
        assert await topic_names(broker) == []
        answer = await broker.request("svc.echo", b"hello", timeout_seconds=PATIENCE_SECONDS)
        assert answer.value == b"hello"
        serving.cancel()


async def test_an_offset_is_kept_to_when_its_topic_appears(way: Way) -> None:
    async with way.open() as client, client.subscribe("orders", start=5) as orders:
        await client.create_topic("orders")
        await client.publish_many("orders", [b"%d" % n for n in range(3)])
        await client.publish_many("orders", [b"%d" % n for n in range(3, 8)])
        got = await take(orders, 3)
        assert [m.offset for m in got] == [5, 6, 7]


async def test_a_durable_name_that_waited_goes_on_where_it_committed(way: Way) -> None:
    async with way.open() as client:
        async with client.subscribe("orders", durable="me") as orders:
            await client.publish_many("orders", [b"1", b"2", b"3"])
            got = await take(orders, 2)
            await orders.commit(got[-1])
        async with client.subscribe("orders", durable="me") as orders:
            assert (await orders.next(PATIENCE_SECONDS)).value == b"3"


async def test_a_topic_that_is_deleted_is_waited_for_again(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    async with way.open() as client, client.subscribe("orders") as orders:
        for turn in (b"1", b"2", b"3"):
            await client.create_topic("orders")
            await client.publish("orders", turn)
            got = await orders.next(PATIENCE_SECONDS)
            assert (got.offset, got.value) == (0, turn)
            await client.delete_topic("orders")
        await until(lambda: len(said(caplog)) == 4)
        assert said(caplog)[1:] == [GONE] * 3
        assert await topic_names(client) == []


async def test_a_pattern_says_that_it_leaves_its_parent_out(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "orders.> does not include orders itself; to read both, follow orders too."
    async with way.open() as client:
        async with client.subscribe("orders.>") as below:
            await client.publish("orders", b"parent")
            await until(lambda: said(caplog) == [hint])
            await client.publish("orders.new", b"child")
            assert (await below.next(PATIENCE_SECONDS)).value == b"child"
        caplog.clear()
        async with client.subscribe("orders.>"), client.consume("orders.>", group="g"):
            await until(lambda: said(caplog) == [hint, hint])
        caplog.clear()
        async with client.subscribe("*.>"), client.subscribe("orders.*"), client.subscribe(">"):
            await client.topics()
        assert said(caplog) == []


async def test_a_group_and_a_worker_are_told_of_a_parent_that_appears(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fanlog.Broker(data) as broker,
        broker.consume("orders.>", group="g"),
        broker.work("orders.>", queue="q"),
    ):
        assert said(caplog) == []
        await broker.publish("orders", b"parent")
        await until(lambda: len(said(caplog)) == 2)
        assert all("orders.> does not include orders" in sentence for sentence in said(caplog))


# Over lost connections and restarts


async def test_a_reader_that_was_away_when_its_topic_was_made_misses_nothing(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as publisher,
        through(proxy) as client,
        client.subscribe("orders") as orders,
        client.consume("orders", group="g", session_seconds=60) as member,
    ):
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        await publisher.create_topic("orders", partitions=2)
        for index in range(2):
            await publisher.publish("orders", b"%d" % index, partition=index)
        proxy.refusing = False
        for reader in (orders, member):
            assert {m.value for m in await take(reader, 2)} == {b"0", b"1"}
        # Once for each of the two, however often they connect.
        assert said(caplog).count(WAITS) == 2


async def test_a_reader_that_waits_through_a_restart_says_so_once(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(data) as broker,
        fanlog.connect(broker.url, **EAGER) as client,
        client.subscribe("orders", missing="wait") as orders,
    ):
        for _ in range(2):
            await broker.restart()
            await until(lambda: client.connected)
        await client.publish("orders", b"first")
        assert (await orders.next(PATIENCE_SECONDS)).value == b"first"
        assert said(caplog).count(WAITS) == 1


async def test_who_fails_for_a_missing_topic_goes_on_when_it_was_deleted_while_away(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as other,
        through(proxy) as client,
    ):
        await other.publish("t", b"1")
        async with client.subscribe("t", start="earliest", missing="fail") as reader:
            assert (await reader.next(PATIENCE_SECONDS)).value == b"1"
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not client.connected)
            await other.delete_topic("t")
            proxy.refusing = False
            await until(lambda: client.connected)
            await other.create_topic("t")
            await other.publish("t", b"2")
            with pytest.raises(errors.MessagesLostError, match="created again"):
                await reader.next(PATIENCE_SECONDS)
            assert (await reader.next(PATIENCE_SECONDS)).value == b"2"


async def test_a_reader_of_a_topic_in_memory_is_told_what_a_restart_took() -> None:
    async with running(None) as broker, fanlog.connect(broker.url, **EAGER) as client:
        async with fanlog.connect(broker.url) as other:
            await other.publish_many("t", [b"1", b"2"])
        async with (
            client.subscribe("t", start="earliest") as named,
            client.subscribe(">", start="earliest") as pattern,
        ):
            for reader in (named, pattern):
                assert [m.value for m in await take(reader, 2)] == [b"1", b"2"]
            await broker.restart()
            await until(lambda: client.connected)
            assert await topic_names(client) == []
            async with fanlog.connect(broker.url) as other:
                await other.publish("t", b"new")
            for reader in (named, pattern):
                with pytest.raises(errors.MessagesLostError, match="lives in memory"):
                    await reader.next(PATIENCE_SECONDS)
                assert (await reader.next(PATIENCE_SECONDS)).value == b"new"


async def test_a_durable_reader_of_a_topic_in_memory_is_told_what_a_restart_took(
    way: Way,
) -> None:
    config = Config(topic=TopicSettings(durability="memory"))
    async with way.open(config) as client, client.subscribe("t", durable="me") as reader:
        await client.publish("t", b"1")
        await reader.next(PATIENCE_SECONDS)
        await reader.commit()
    async with way.open(config) as client, client.subscribe("t", durable="me") as reader:
        await client.publish("t", b"2")
        with pytest.raises(errors.MessagesLostError, match="lives in memory"):
            await reader.next(PATIENCE_SECONDS)
        assert (await reader.next(PATIENCE_SECONDS)).value == b"2"
