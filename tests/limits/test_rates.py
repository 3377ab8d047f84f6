"""Message and byte rates on every listener: back-pressure first, refusal second. The clock that
rates count by is the test's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest
from redis import asyncio as redis_asyncio
from redis.exceptions import ResponseError

import fanlog
from fanlog.errors import RateLimitedError
from tests.limits.limited import Limited, limited, until


def paused(broker: Limited) -> int:
    return sum(bool(session._throttled) for session in broker.sessions)


async def is_open(task: asyncio.Task[Any]) -> bool:
    await asyncio.sleep(0.02)
    return not task.done()


async def test_a_native_publisher_above_its_rate_is_not_read_and_goes_on_when_it_has_paid() -> None:
    async with (
        limited(messages_per_second=10, pause_seconds_max=10) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        # Taken as a whole, and answered; 2 seconds are owed then.
        await client.publish_many("t", [b"x"] * 30)
        await until(lambda: paused(broker) == 1)
        later = asyncio.ensure_future(client.publish("t", b"later"))
        assert await is_open(later)
        broker.pay(3)
        assert (await later).offset == 30
        assert not paused(broker)


async def test_bytes_count_as_messages_do() -> None:
    async with (
        limited(bytes_per_second=1000, pause_seconds_max=10) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.publish("t", b"x" * 500)
        assert not paused(broker)
        await client.publish("t", b"x" * 3000)
        await until(lambda: paused(broker) == 1)


async def test_who_owes_more_than_the_longest_pause_is_refused_and_told_when_to_come_back() -> None:
    async with (
        limited(messages_per_second=10, pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.publish_many("t", [b"x"] * 110)
        with pytest.raises(RateLimitedError) as refused:
            await client.publish("t", b"y")
        assert refused.value.retry_after_seconds == pytest.approx(10)
        counters = broker.node.core.metering.counters()
        assert counters["paused"] >= 1
        assert counters["refused"] >= 1
        assert "The address 127.0.0.1 publishes more than its 10 messages" in str(refused.value)
        # Who was refused owes nothing for it.
        broker.pay(10)
        assert (await client.publish("t", b"y")).offset == 110


async def test_a_rate_of_almost_nothing_refuses_with_a_time_that_answers_can_hold() -> None:
    async with (
        limited(messages_per_second=5e-324, pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.publish_many("t", [b"x"] * 3)
        with pytest.raises(RateLimitedError) as refused:
            await client.publish("t", b"y")
        assert refused.value.retry_after_seconds == 365 * 86_400
        async with aiohttp.ClientSession() as web:
            answer = await web.post(f"{broker.http}/v1/topics/t/messages", data=b"hello")
            assert (answer.status, answer.headers.get("Retry-After")) == (429, "31536000")


async def test_all_connections_of_an_address_have_one_rate_together() -> None:
    async with (
        limited(messages_per_second=10, pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as first,
        await fanlog.connect(broker.url) as second,
    ):
        await first.publish_many("t", [b"x"] * 110)
        with pytest.raises(RateLimitedError):
            await second.publish("t", b"y")
        async with aiohttp.ClientSession() as web:
            answer = await web.post(f"{broker.http}/v1/topics/t/messages", data=b"hello")
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "10"
            assert (await answer.json())["code"] == "rate_limited"
        redis = redis_asyncio.Redis(port=broker.redis.port)
        async with redis.pubsub() as pubsub:
            await pubsub.subscribe("c")
            with pytest.raises(ResponseError, match="publishes more than"):
                await redis.publish("c", "m")
        await redis.aclose()


async def test_a_batch_that_was_stored_is_known_as_a_repeat_also_while_its_publisher_owes() -> None:
    async with limited(messages_per_second=10, pause_seconds_max=0.01) as broker:
        core = broker.node.core
        async with await fanlog.connect(broker.url) as client:
            await client.publish_many("t", [b"x"] * 110)
            outcomes = await asyncio.gather(
                *(client.publish("t", b"y") for _ in range(20)), return_exceptions=True
            )
            assert all(isinstance(outcome, RateLimitedError) for outcome in outcomes)
            broker.pay(60)
            await client.publish("t", b"z")
        topic = core.catalog.get("t")
        assert topic.partitions[0].visible_end == 111


async def test_a_redis_publisher_waits_with_all_its_commands_in_order() -> None:
    async with limited(messages_per_second=10, pause_seconds_max=10) as broker:
        redis = redis_asyncio.Redis(port=broker.redis.port, single_connection_client=True)
        other = redis_asyncio.Redis(port=broker.redis.port)
        async with other.pubsub() as pubsub:
            await pubsub.subscribe("c")
            pipeline = redis.pipeline(transaction=False)
            for number in range(30):
                pipeline.publish("c", number)
            assert await pipeline.execute() == [1] * 30
            await until(lambda: paused(broker) == 1)
            ping = asyncio.ensure_future(redis.ping())
            assert await is_open(ping)
            # Others are not held up.
            assert await other.echo("hello") == b"hello"
            broker.pay(2)
            assert await ping
        await redis.aclose()
        await other.aclose()


async def test_a_websocket_above_its_rate_is_not_read_for_a_while() -> None:
    async with (
        limited(messages_per_second=10, pause_seconds_max=10) as broker,
        aiohttp.ClientSession() as web,
        web.ws_connect(f"{broker.http}/v1/ws") as socket,
    ):
        messages = [{"text": "x"}] * 30
        await socket.send_json({"id": 1, "op": "publish", "topic": "t", "messages": messages})
        await answer_to(socket, 1)
        assert [stream._throttled for stream in broker.web.streams] == [True]
        await socket.send_json({"id": 2, "op": "publish", "topic": "t", "text": "later"})
        second = asyncio.ensure_future(answer_to(socket, 2))
        assert await is_open(second)
        broker.pay(2)
        assert "error" not in await second


async def answer_to(socket: aiohttp.ClientWebSocketResponse, number: int) -> Any:
    while True:
        frame = json.loads(await socket.receive_str())
        if frame.get("id") == number:
            return frame


async def test_a_request_over_http_is_refused_at_once_and_may_come_back_later() -> None:
    async with limited(messages_per_second=2) as broker, aiohttp.ClientSession() as web:
        url = f"{broker.http}/v1/topics/t/messages"
        body = {"messages": [{"text": "x"}] * 5}
        assert (await web.post(url, json=body)).status == 200
        refused = await web.post(url, json=body)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "2")
        broker.pay(2)
        assert (await web.post(url, json=body)).status == 200


async def test_a_topic_has_a_rate_of_its_own_for_all_publishers_together() -> None:
    async with (
        limited(pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as first,
        await fanlog.connect(broker.url) as second,
        aiohttp.ClientSession() as web,
    ):
        await first.create_topic("slow", messages_per_second_max=10)
        await first.publish_many("slow", [b"x"] * 110)
        for client in (first, second):
            with pytest.raises(RateLimitedError, match="Topic 'slow' gets more than its 10 "):
                await client.publish("slow", b"y")
        answer = await web.post(f"{broker.http}/v1/topics/slow/messages", data=b"hello")
        assert answer.status == 429
        # Other topics go on, and so does this one without the limit.
        await second.publish("fast", b"y")
        await first.alter_topic("slow", messages_per_second_max=0)
        await second.publish("slow", b"y")


async def test_a_topic_above_its_rate_pauses_its_publishers() -> None:
    async with (
        limited(pause_seconds_max=10) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.create_topic("slow", bytes_per_second_max=1000)
        await client.publish("slow", b"x" * 3000)
        await client.publish("slow", b"y")
        await until(lambda: paused(broker) == 1)
        later = asyncio.ensure_future(client.publish("slow", b"z"))
        assert await is_open(later)
        broker.pay(10)
        await later


async def test_staged_batches_count_for_the_rate() -> None:
    async with (
        limited(messages_per_second=10, pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.create_topic("t")
        async with client.transaction() as transaction:
            for _ in range(110):
                await transaction.publish("t", b"x")
        with pytest.raises(RateLimitedError):
            await client.publish("t", b"y")
        broker.pay(60)
        await client.publish("t", b"y")


async def test_without_limits_nothing_is_measured() -> None:
    async with limited() as broker, await fanlog.connect(broker.url) as client:
        assert not broker.node.core.metering.on
        await client.publish_many("t", [b"x"] * 100)
        assert not len(broker.node.core.metering._table)


async def test_without_the_last_rate_nothing_is_measured_any_more() -> None:
    async with limited() as broker, await fanlog.connect(broker.url) as client:
        metering = broker.node.core.metering
        for name in ("altered", "deleted"):
            await client.create_topic(name, messages_per_second_max=1000)
        await client.alter_topic("altered", messages_per_second_max=0)
        assert metering.on
        await client.delete_topic("deleted")
        assert not metering.on
        await client.publish("altered", b"x")


async def test_a_rate_that_is_changed_holds_at_once_for_open_connections() -> None:
    async with (
        limited(pause_seconds_max=0.01) as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.publish_many("t", [b"x"] * 200)
        config = broker.node._config
        limits = msgspec.structs.replace(config.limits, messages_per_second=10)
        broker.node.apply(msgspec.structs.replace(config, limits=limits))
        await client.publish_many("t", [b"x"] * 110)
        with pytest.raises(RateLimitedError):
            await client.publish("t", b"y")
        limits = msgspec.structs.replace(limits, messages_per_second=0)
        broker.node.apply(msgspec.structs.replace(config, limits=limits))
        await client.publish("t", b"y")
