"""Messages for later: durable, once, cancellable, over every way to the API."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import BrokerOptions, Config
from fanlog.format.schedules import SCHEDULED_TOPIC
from tests.client.ways import (
    PATIENCE_SECONDS,
    WAYS,
    Blocking,
    BrokerClock,
    Way,
    take,
    take_values,
    until,
)

FAR_SECONDS = 3600


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def pending(client: Any, topic: str = "") -> list[fanlog.PendingMessage]:
    if isinstance(client, Blocking):
        return await asyncio.to_thread(lambda: list(client._client.scheduled(topic)))
    return [message async for message in client.scheduled(topic)]


def stored(way: Way, topic: str) -> int:
    """How many records the first partition of a topic has."""
    found = way.core.catalog.find(topic)
    return 0 if found is None else found.partitions[0].visible_end


def due_of(message: Any) -> float:
    return dt.datetime.fromisoformat(message.headers["fanlog-due"].decode()).timestamp()


async def test_a_delayed_message_comes_when_it_is_due_and_as_it_was_published(way: Way) -> None:
    async with way.open() as client:
        before = time.time()
        waiting = await client.publish(
            "t", {"tea": 1}, key="alice", headers={"trace": "7"}, delay_seconds=0.3
        )
        assert isinstance(waiting, fanlog.Scheduled)
        assert before + 0.3 <= waiting.due.timestamp() <= time.time() + 0.3
        async with client.subscribe("t", start="earliest") as messages:
            (message,) = await take(messages, 1)
        assert (message.decode(), message.key) == ({"tea": 1}, b"alice")
        assert message.headers["trace"] == b"7"
        assert due_of(message) == pytest.approx(waiting.due.timestamp())
        assert message.timestamp >= waiting.due


@pytest.mark.parametrize("zone", [dt.UTC, dt.timezone(dt.timedelta(hours=5)), None])
async def test_a_time_is_a_datetime_of_any_zone_or_seconds_since_1970(
    way: Way, zone: dt.tzinfo | None
) -> None:
    async with way.open() as client:
        at = time.time() + FAR_SECONDS
        first = await client.publish("t", b"1", at=at)
        second = await client.publish("t", b"2", at=dt.datetime.fromtimestamp(at, tz=zone))
        assert abs(first.due_us - second.due_us) <= 1
        assert [message.due_us for message in await pending(client)] == sorted(
            [first.due_us, second.due_us]
        )


async def test_a_time_that_is_over_is_now(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"late", at=0)
        await client.publish("t", b"now", delay_seconds=0)
        async with client.subscribe("t", start="earliest") as messages:
            assert sorted(await take_values(messages, 2)) == [b"late", b"now"]


async def test_what_waits_survives_a_restart_and_comes_once(way: Way) -> None:
    async with way.open() as client:
        soon = [await client.publish("t", b"%d" % i, delay_seconds=0.4) for i in range(20)]
        later = await client.publish("t", b"later", delay_seconds=FAR_SECONDS, schedule_id="x")
    async with way.open() as client:
        async with client.subscribe("t", start="earliest") as messages:
            values = await take_values(messages, 20)
            assert sorted(values, key=int) == [b"%d" % i for i in range(20)]
        (left,) = await pending(client)
        assert (left.id, left.due_us) == ("x", later.due_us)
        assert not await client.cancel_scheduled(soon[0].id)
    async with way.open() as client:
        assert await client.cancel_scheduled("x")
        assert not await client.cancel_scheduled("x")
    async with way.open() as client:
        assert not await pending(client)
        assert (await client.describe_topic("t")).records == 20


async def test_an_id_of_ones_own_replaces_what_waits_under_it(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"first", delay_seconds=FAR_SECONDS, schedule_id="r")
        await client.publish("t", b"second", delay_seconds=FAR_SECONDS, schedule_id="r")
        assert len(await pending(client)) == 1
        await client.publish("t", b"third", delay_seconds=0.1, schedule_id="r")
        async with client.subscribe("t", start="earliest") as messages:
            assert await take_values(messages, 1) == [b"third"]
        await until(lambda: not len(way.core.schedule))
    async with way.open() as client:
        assert not await pending(client)
        assert (await client.describe_topic("t")).records == 1


async def test_what_waits_is_listed_by_topic_the_first_due_in_front(way: Way) -> None:
    async with way.open() as client:
        at = time.time() + FAR_SECONDS
        for i in range(30):
            topic = "even" if i % 2 == 0 else "odd"
            if i % 3:
                await client.publish(topic, b"x" * i, at=at + 30 - i, schedule_id=f"{i}")
            else:
                seconds = at + 30 - i - time.time()
                await client.publish(
                    topic, b"x" * i, delay_seconds=seconds, schedule_id=f"{i}", key="k"
                )
        assert [message.id for message in await pending(client)] == [str(29 - i) for i in range(30)]
        odd = await pending(client, "odd")
        assert [message.id for message in odd] == [str(29 - i) for i in range(0, 30, 2)]
        assert {message.topic for message in odd} == {"odd"}
        assert [message.value_bytes for message in odd][:2] == [29, 27]
        assert odd[1].key == b"k"
        assert not await pending(client, "other")


async def test_messages_go_to_the_partition_of_their_key_or_as_they_were_told(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=5)
        direct = await client.publish("t", b"now", key="alice")
        await client.publish("t", b"keyed", key="alice", delay_seconds=0.05)
        await client.publish("t", b"told", partition=3, delay_seconds=0.05)
        async with client.subscribe("t", start="earliest") as messages:
            found = {message.value: message.partition for message in await take(messages, 3)}
        assert found == {b"now": direct.partition, b"keyed": direct.partition, b"told": 3}
        with pytest.raises(errors.PartitionNotFoundError):
            await client.publish("t", b"x", partition=9, delay_seconds=1)


async def test_a_delayed_tombstone_and_an_event_time_arrive(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", cleanup="compact")
        when = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
        await client.publish("t", None, key="k", event_time=when, delay_seconds=0.05)
        async with client.subscribe("t", start="earliest") as messages:
            (message,) = await take(messages, 1)
        assert (message.is_tombstone, message.key, message.event_time) == (True, b"k", when)


async def test_a_queue_gets_a_delayed_job_when_it_is_due(way: Way) -> None:
    async with way.open() as client:
        await client.publish("jobs", b"job", delay_seconds=0.2)
        if isinstance(client, Blocking):
            worker = client._client.work("jobs", queue="q")
            job = await asyncio.to_thread(worker.next, PATIENCE_SECONDS)
            await asyncio.to_thread(job.ack)
            await asyncio.to_thread(worker.close)
        else:
            async with client.work("jobs", queue="q") as worker:
                job = await worker.next(PATIENCE_SECONDS)
                await job.ack()
        assert job.value == b"job"
        assert time.time() >= due_of(job)


async def test_a_broker_in_memory_keeps_what_waits(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        values = [b"%d" % i * 1000 for i in range(300)]
        at = time.time() + 0.5
        for value in values:
            await client.publish("t", value, at=at)
        # Not at the time of the others: a slow machine may need longer than that to publish them.
        gone = await client.publish("t", b"gone", delay_seconds=3600)
        assert await client.cancel_scheduled(gone.id)
        async with client.subscribe("t", start="earliest") as messages:
            assert sorted(await take_values(messages, 300)) == sorted(values)
        await until(lambda: not len(way.core.schedule.records))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay_seconds": -1}, "0 s or more"),
        ({"delay_seconds": float("nan")}, "0 s or more"),
        ({"delay_seconds": "60"}, "number of seconds"),
        ({"at": "tomorrow"}, "datetime"),
        ({"at": -5}, "no time"),
        ({"delay_seconds": 1, "at": 5}, "either delay_seconds or at"),
        ({"schedule_id": "x"}, "either delay_seconds or at"),
        ({"delay_seconds": 1, "schedule_id": ""}, "1 to 255 bytes"),
        ({"delay_seconds": 1, "schedule_id": "é" * 200}, "1 to 255 bytes"),
        ({"delay_seconds": 1, "schedule_id": 7}, "is a str"),
        ({"delay_seconds": 1, "schedule_id": "_fanlog/schedule/x"}, "broker's own"),
        ({"delay_seconds": 400 * 366 * 86400}, "schedule_seconds_max"),
    ],
)
async def test_what_can_not_be_is_refused_with_what_to_do(
    way: Way, given: dict[str, Any], said: str
) -> None:
    async with way.open() as client:
        with pytest.raises(errors.InvalidArgumentError, match=said):
            await client.publish("t", b"x", **given)
        assert not await pending(client)


async def test_a_message_that_its_topic_does_not_take_is_refused_at_once(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("small", message_bytes_max=100)
        with pytest.raises(errors.MessageTooLargeError):
            await client.publish("small", b"x" * 200, delay_seconds=1)
        with pytest.raises(errors.InvalidNameError):
            await client.publish("_fanlog.cursors", b"x", delay_seconds=1)


async def test_without_auto_create_the_topic_must_exist(way: Way) -> None:
    config = Config(broker=BrokerOptions(auto_create_topics=False))
    async with way.open(config) as client:
        with pytest.raises(errors.TopicNotFoundError):
            await client.publish("t", b"x", delay_seconds=1)
        await client.create_topic("t")
        await client.publish("t", b"x", delay_seconds=0.05)
        async with client.subscribe("t", start="earliest") as messages:
            assert await take_values(messages, 1) == [b"x"]


async def test_past_the_limit_no_more_may_wait_until_some_have_gone(way: Way) -> None:
    config = Config(broker=BrokerOptions(scheduled_max=10))
    async with way.open(config) as client:
        for i in range(10):
            await client.publish("t", b"x", delay_seconds=FAR_SECONDS, schedule_id=f"{i}")
        await until(lambda: len(way.core.schedule) == 10)
        with pytest.raises(errors.LimitError, match="scheduled_max"):
            await client.publish("t", b"x", delay_seconds=FAR_SECONDS)
        assert await client.cancel_scheduled("4")
        await client.publish("t", b"x", delay_seconds=FAR_SECONDS)


async def test_a_deleted_topic_is_made_anew_when_a_message_for_it_is_due(
    way: Way, broker_clock: BrokerClock
) -> None:
    async with way.open() as client:
        await client.publish("t", b"x", at=broker_clock.now_us / 1e6 + 60)
        await client.delete_topic("t")
        broker_clock.advance(61)
        await until(lambda: way.core.catalog.find("t") is not None)
        async with client.subscribe("t", start="earliest") as messages:
            assert await take_values(messages, 1) == [b"x"]


async def test_what_a_topic_does_not_take_any_more_becomes_a_dead_letter(
    way: Way, broker_clock: BrokerClock
) -> None:
    config = Config(broker=BrokerOptions(auto_create_topics=False))
    async with way.open(config) as client:
        await client.create_topic("t")
        await client.create_topic("u")
        later = {"at": broker_clock.now_us / 1e6 + 60}
        await client.publish("t", b"x", key="k", headers={"a": "b"}, **later)
        await client.publish("u", b"y", **later)
        await client.delete_topic("t")
        broker_clock.advance(61)
        async with client.subscribe("u", start="earliest") as messages:
            assert await take_values(messages, 1) == [b"y"]
        await until(lambda: stored(way, "dead.scheduled") == 1)
        await client.create_topic("t")
        letters = client._client.dead_letters if isinstance(client, Blocking) else None
        if letters is not None:
            assert await asyncio.to_thread(letters.replay, "dead.scheduled") == 1
        else:
            assert await client.dead_letters.replay("dead.scheduled") == 1
        async with client.subscribe("t", start="earliest") as messages:
            (message,) = await take(messages, 1)
        assert (message.value, message.key, message.headers["a"]) == (b"x", b"k", b"b")


async def test_nobody_publishes_to_the_topic_of_delayed_messages_by_hand(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"x", delay_seconds=FAR_SECONDS)
        for value, given in (
            (b"junk", {"key": b"12345678id", "event_time": 5}),
            (b"junk", {"key": b"short", "event_time": 5}),
            (None, {"key": b"12345678id", "event_time": 5}),
            (b"\x93\xa1t\xc4\x01x\xc0", {"key": b"12345678id"}),
            (b"\x93\xa1t\xc4\x01x\xc0", {"event_time": 5}),
            (b"\x93\xafanlog.cursors\xc4\x01x\xc0", {"key": b"12345678id", "event_time": 5}),
        ):
            with pytest.raises(errors.FanlogError):
                await client.publish(SCHEDULED_TOPIC, value, **given)
        assert len(await pending(client)) == 1


async def test_a_transaction_schedules_all_of_its_messages_or_none(way: Way) -> None:
    async with way.open() as client:
        async with client.transaction() as tx:
            await tx.publish("now", b"now")
            await tx.publish("later", b"later", delay_seconds=0.2, schedule_id="x")
        async with client.transaction() as tx:
            await tx.publish("later", b"never", delay_seconds=0.2)
            await tx.abort()
        async with client.subscribe("later", start="earliest") as messages:
            (message,) = await take(messages, 1)
            assert message.value == b"later"
            assert message.timestamp.timestamp() >= due_of(message)
            with pytest.raises(TimeoutError):
                await messages.next(0.5)


async def test_send_schedules_too_and_flush_waits_for_it(way: Way) -> None:
    async with way.open() as client:
        at = time.time() + FAR_SECONDS
        for i in range(2000):
            await client.send("t", b"%d" % i, at=at + i, schedule_id=f"{i}")
        await client.flush()
        found = await pending(client, "t")
        assert [message.id for message in found] == [f"{i}" for i in range(2000)]


async def test_a_typed_topic_schedules_too(way: Way) -> None:
    async with way.open() as client:
        typed: Any = (client._client if isinstance(client, Blocking) else client).topic("t", dict)
        if isinstance(client, Blocking):
            waiting = await asyncio.to_thread(typed.publish, {"a": 1}, delay_seconds=0.1)
        else:
            waiting = await typed.publish({"a": 1}, delay_seconds=0.1)
        assert isinstance(waiting, fanlog.Scheduled)
        async with client.subscribe("t", start="earliest") as messages:
            (message,) = await take(messages, 1)
        assert message.decode() == {"a": 1}


async def test_a_schedule_runs_is_listed_and_removed(way: Way, broker_clock: BrokerClock) -> None:
    async with way.open() as client:
        added = await client.add_schedule("tick", "t", {"n": 1}, every_seconds=1, key="k")
        assert added.next_run > added.next_run - dt.timedelta(seconds=1)
        assert (added.topic, added.every_seconds, added.last_run) == ("t", 1.0, None)
        async with client.subscribe("t", start="earliest") as messages:
            broker_clock.advance(1)
            (first,) = await take(messages, 1)
            broker_clock.advance(1)
            (second,) = await take(messages, 1)
        assert due_of(second) - due_of(first) == pytest.approx(1.0)
        assert (first.decode(), first.key, first.headers["fanlog-schedule"]) == (
            {"n": 1},
            b"k",
            b"tick",
        )
        assert first.timestamp.timestamp() >= due_of(first)
        cron = await client.add_schedule(
            "report", "t", b"x", cron="0 8 * * 1-5", timezone="Europe/Berlin", missed="skip"
        )
        assert [info.name for info in await client.schedules()] == ["report", "tick"]
        with pytest.raises(errors.InvalidArgumentError, match="cron"):
            await client.add_schedule("bad", "t", b"x", cron="never")
        assert await client.remove_schedule("tick")
        assert not await client.remove_schedule("tick")
    async with way.open() as client:
        assert await client.schedules() == [cron]
