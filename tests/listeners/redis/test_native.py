"""Redis clients and native ones on the same topics: what one publishes the other reads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

import fanlog
import fanlog.sync
from fanlog.config import BrokerOptions, Config, ListenerOptions, RedisOptions
from tests.listeners.redis.conftest import BothPorts
from tests.listeners.redis.wire import Wire, command, push
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

WAIT_S = 100.0


def test_native_readers_get_what_redis_clients_publish(broker: BothPorts) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        client.subscribe("news.>") as pattern,
        client.subscribe("news.a") as named,
        Wire(broker.redis_port) as publisher,
    ):
        publisher.tell("PUBLISH", "news.a", b"\x00\xff", wanted=b":2\r\n")
        publisher.tell("PUBLISH", "news.b", "later", wanted=b":1\r\n")
        assert named.next(timeout_seconds=WAIT_S).value == b"\x00\xff"
        got = [pattern.next(timeout_seconds=WAIT_S) for _ in range(2)]
        assert {(m.topic, m.value, m.key) for m in got} == {
            ("news.a", b"\x00\xff", None),
            ("news.b", b"later", None),
        }


@pytest.mark.parametrize("target", ["news.a", "news.>"])
def test_a_group_and_a_queue_that_wait_get_what_redis_clients_publish(
    broker: BothPorts, target: str
) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as publisher,
        client.consume(target, group="g") as member,
        client.work(target, queue="q") as worker,
    ):
        assert client.topics() == []
        publisher.tell("PUBLISH", "other", "x", wanted=b":0\r\n")
        publisher.send("PUBLISH", "news.a", "one")
        assert member.next(timeout_seconds=WAIT_S).value == b"one"
        with worker.next(timeout_seconds=WAIT_S) as job:
            assert job.value == b"one"
        assert [topic.name for topic in client.topics()] == ["news.a"]


def test_a_native_reader_of_a_channel_with_a_star_escapes_it(broker: BothPorts) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as publisher,
        Wire(broker.redis_port) as follower,
    ):
        follower.tell("SUBSCRIBE", "jobs*", wanted=push("subscribe", "jobs*", 1))
        with client.subscribe("jobs%2A", start="earliest") as reader:
            publisher.tell("PUBLISH", "jobs*", "one", wanted=b":2\r\n")
            follower.expect(push("message", "jobs*", "one"))
            assert reader.next(WAIT_S).value == b"one"
        client.publish("jobs%2A", "two")
        follower.expect(push("message", "jobs*", "two"))


def test_redis_clients_get_what_native_ones_publish_without_keys_and_headers(
    broker: BothPorts,
) -> None:
    with (
        fanlog.sync.connect(broker.url, compression="zstd") as client,
        Wire(broker.redis_port) as reader,
        Wire(broker.redis_port) as matcher,
    ):
        reader.tell("SUBSCRIBE", "orders", wanted=push("subscribe", "orders", 1))
        matcher.tell("PSUBSCRIBE", "ord*", wanted=push("psubscribe", "ord*", 1))
        for i in range(50):
            client.send("orders", f"tea {i}", key=f"k{i}", headers={"h": b"x"})
        client.flush()
        reader.expect(b"".join(push("message", "orders", f"tea {i}") for i in range(50)))
        matcher.expect(b"".join(push("pmessage", "ord*", "orders", f"tea {i}") for i in range(50)))
        client.publish("orders", None, key="gone")
        reader.expect(push("message", "orders", ""))


def test_a_durable_topic_keeps_what_redis_clients_publish_over_a_restart(data: Path) -> None:
    port = free_port()
    process = BrokerProcess(data, "--redis-port", str(port))
    with process:
        with fanlog.sync.connect(process.url) as client:
            client.create_topic("kept", durability="fsync")
        with Wire(port) as publisher:
            publisher.send_raw(b"".join(command("PUBLISH", "kept", f"{i}") for i in range(500)))
            publisher.expect(b":0\r\n" * 500)
        process.kill()
        process.start()
        with (
            fanlog.sync.connect(process.url) as client,
            client.subscribe("kept", start="earliest") as reader,
        ):
            got = [reader.next(timeout_seconds=WAIT_S).text for _ in range(500)]
    assert got == [str(i) for i in range(500)]


def test_a_reply_to_publish_on_a_durable_topic_comes_after_the_message(
    broker: BothPorts,
) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as wire,
        Wire(broker.redis_port) as other,
    ):
        client.create_topic("safe", durability="fsync")
        other.tell("SUBSCRIBE", "safe", wanted=push("subscribe", "safe", 1))
        wire.send("HELLO", "3")
        wire.send_raw(
            command("PUBLISH", "safe", "a")
            + command("SUBSCRIBE", "safe")
            + command("PUBLISH", "safe", "b")
            + command("PING", "end")
        )
        answer = b""
        while not answer.endswith(b"$3\r\nend\r\n"):
            answer += wire.take(1)
        assert answer.endswith(
            b"*0\r\n:1\r\n"
            + push("subscribe", "safe", 1, mark=b">")
            + push("message", "safe", "b", mark=b">")
            + b":2\r\n$3\r\nend\r\n"
        )
        other.expect(push("message", "safe", "a") + push("message", "safe", "b"))


def test_a_channel_makes_a_topic_in_memory_only_when_somebody_follows(
    broker: BothPorts,
) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as wire,
        Wire(broker.redis_port) as reader,
    ):
        wire.tell("PUBLISH", "nobody", "x", wanted=b":0\r\n")
        reader.tell("SUBSCRIBE", "quiet", wanted=push("subscribe", "quiet", 1))
        assert client.topics() == []
        wire.tell("PUBLISH", "quiet", "x", wanted=b":1\r\n")
        (info,) = client.topics()
        assert (info.name, info.settings.durability, len(info.partitions)) == ("quiet", "memory", 1)
        assert info.partitions[0].readers == 1


def test_a_topic_with_partitions_is_followed_in_all_of_them(broker: BothPorts) -> None:
    with fanlog.sync.connect(broker.url) as client, Wire(broker.redis_port) as reader:
        client.create_topic("wide", partitions=4)
        reader.tell("SUBSCRIBE", "wide", wanted=push("subscribe", "wide", 1))
        for i in range(8):
            client.publish("wide", "x", partition=i % 4)
        reader.expect(push("message", "wide", "x") * 8)
        with Wire(broker.redis_port) as publisher:
            publisher.send_raw(b"".join(command("PUBLISH", "wide", f"{i}") for i in range(100)))
            publisher.expect(b":1\r\n" * 100)
        reader.expect(b"".join(push("message", "wide", f"{i}") for i in range(100)))


def test_a_topic_that_grows_is_followed_in_all_its_partitions_and_in_order(
    broker: BothPorts,
) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as reader,
        Wire(broker.redis_port) as matcher,
        Wire(broker.redis_port) as publisher,
    ):
        client.create_topic("wide")
        reader.tell("SUBSCRIBE", "wide", wanted=push("subscribe", "wide", 1))
        matcher.tell("PSUBSCRIBE", "w*", wanted=push("psubscribe", "w*", 1))
        wanted: list[str] = []
        for partitions in (1, 3, 8):
            client.grow_topic("wide", partitions)
            client.publish("wide", "native", partition=partitions - 1)
            publisher.send_raw(b"".join(command("PUBLISH", "wide", f"{i}") for i in range(50)))
            publisher.expect(b":2\r\n" * 50)
            wanted += ["native", *map(str, range(50))]
        reader.expect(b"".join(push("message", "wide", value) for value in wanted))
        matcher.expect(b"".join(push("pmessage", "w*", "wide", value) for value in wanted))
        assert [part.readers for part in client.describe_topic("wide").partitions] == [2] * 8


def test_a_pattern_does_not_find_inboxes_and_topics_of_the_broker_by_chance(
    broker: BothPorts,
) -> None:
    with fanlog.sync.connect(broker.url) as client, Wire(broker.redis_port) as reader:
        client.create_topic("_inbox.before")
        reader.tell("PSUBSCRIBE", "*", wanted=push("psubscribe", "*", 1))
        client.create_topic("_inbox.after")
        for topic in ("_inbox.before", "_inbox.after", "seen"):
            client.publish(topic, "x")
        reader.expect(push("pmessage", "*", "seen", "x"))
        reader.tell("PSUBSCRIBE", "_inbox.*", wanted=push("psubscribe", "_inbox.*", 2))
        client.publish("_inbox.after", "x")
        reader.expect(push("pmessage", "_inbox.*", "_inbox.after", "x"))


def test_a_deleted_topic_comes_back_for_those_who_follow(broker: BothPorts) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as reader,
        Wire(broker.redis_port) as publisher,
    ):
        client.create_topic("phoenix")
        reader.tell("SUBSCRIBE", "phoenix", wanted=push("subscribe", "phoenix", 1))
        reader.tell("PSUBSCRIBE", "ph*", wanted=push("psubscribe", "ph*", 2))
        for _ in range(3):
            publisher.tell("PUBLISH", "phoenix", "x", wanted=b":2\r\n")
            reader.expect(push("message", "phoenix", "x"))
            reader.expect(push("pmessage", "ph*", "phoenix", "x"))
            client.delete_topic("phoenix")
        client.publish("phoenix", "native")
        reader.expect(push("message", "phoenix", "native"))
        reader.expect(push("pmessage", "ph*", "phoenix", "native"))


def test_a_message_too_large_for_its_topic_is_refused_and_the_rest_goes_on(
    broker: BothPorts,
) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as publisher,
        Wire(broker.redis_port) as reader,
    ):
        client.create_topic("small", message_bytes_max=1000)
        reader.tell("SUBSCRIBE", "small", wanted=push("subscribe", "small", 1))
        values = ["a", "b" * 20_000, "c"]
        publisher.send_raw(b"".join(command("PUBLISH", "small", v) for v in values))
        publisher.expect(b":1\r\n-ERR The message has 20000 bytes")
        while publisher.take(1) != b"\n":
            pass
        publisher.expect(b":1\r\n")
        reader.expect(push("message", "small", "a") + push("message", "small", "c"))


@pytest.fixture
def config() -> Config:
    return Config(
        listener=ListenerOptions(port=0),
        redis=RedisOptions(port=0, channel_idle_seconds=0.1, password="secret"),
    )


def raw(port: int, data: bytes, size: int) -> bytes:
    with Wire(port) as wire:
        wire.send_raw(data)
        return wire.take(size)


async def test_a_channel_nobody_uses_is_forgotten(config: Config) -> None:
    async with fanlog.Broker(config=config) as broker:
        port = broker.listen_redis().port

        # With TLS, a connection is made only while the broker's loop runs.
        with (
            await asyncio.to_thread(Wire, port) as wire,
            await asyncio.to_thread(Wire, port) as publisher,
        ):

            def use() -> None:
                wire.tell("AUTH", "secret", wanted=b"+OK\r\n")
                wire.tell("SUBSCRIBE", "brief", wanted=push("subscribe", "brief", 1))
                publisher.tell("AUTH", "secret", wanted=b"+OK\r\n")
                publisher.tell("PUBLISH", "brief", "x", wanted=b":1\r\n")

            await asyncio.to_thread(use)
            assert [info.name for info in await broker.topics()] == ["brief"]
        deadline = time.monotonic() + WAIT_S
        while await broker.topics() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert await broker.topics() == []


async def test_an_idle_channel_gives_up_its_topic_and_its_followers_notice_nothing(
    config: Config,
) -> None:
    config = msgspec.structs.replace(
        config, redis=msgspec.structs.replace(config.redis, password="")
    )
    async with fanlog.Broker(config=config) as broker:
        port = broker.listen_redis().port
        with (
            await asyncio.to_thread(Wire, port) as reader,
            await asyncio.to_thread(Wire, port) as matcher,
            await asyncio.to_thread(Wire, port) as publisher,
        ):

            def follow() -> None:
                reader.tell("SUBSCRIBE", "idle", wanted=push("subscribe", "idle", 1))
                matcher.tell("PSUBSCRIBE", "id*", wanted=push("psubscribe", "id*", 1))

            def publish() -> None:
                publisher.tell("PUBLISH", "idle", "x", wanted=b":2\r\n")
                reader.expect(push("message", "idle", "x"))
                matcher.expect(push("pmessage", "id*", "idle", "x"))

            await asyncio.to_thread(follow)
            for _ in range(2):
                await asyncio.to_thread(publish)
                deadline = time.monotonic() + WAIT_S
                while await broker.topics() and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert await broker.topics() == []


@pytest.mark.plain
async def test_a_password_is_asked_for(config: Config) -> None:
    async with fanlog.Broker(config=config) as broker:
        port = broker.listen_redis().port

        def talk() -> None:
            with Wire(port) as wire:
                refused = b"-NOAUTH Authentication required.\r\n"
                wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
                wire.tell("PING", wanted=refused)
                wire.send_raw(command("PUBLISH", "a", "b") * 5)
                wire.expect(refused * 5)
                wire.tell("AUTH", "guess", wanted=wrong)
                wire.tell("HELLO", "3", "AUTH", "default", "guess", wanted=wrong)
                wire.send("HELLO", "3")
                assert wire.take(13) == b"-NOAUTH HELLO"
                wire.take_until(b"\r\n")
                wire.tell("AUTH", "default", "secret", wanted=b"+OK\r\n")
                wire.tell("PING", wanted=b"+PONG\r\n")
                wire.tell("RESET", wanted=b"+RESET\r\n")
                wire.tell("PING", wanted=refused)
            with Wire(port) as wire:
                wire.send_raw(b"*11\r\n")
                assert b"unauthenticated multibulk length" in wire.rest()
            with Wire(port) as wire:
                wire.send_raw(b"*1\r\n$20000\r\n")
                assert b"unauthenticated bulk length" in wire.rest()

        await asyncio.to_thread(talk)


async def test_without_automatic_topics_only_those_that_were_made_are_channels() -> None:
    config = Config(broker=BrokerOptions(auto_create_topics=False), redis=RedisOptions(port=0))
    async with fanlog.Broker(config=config) as broker:
        port = broker.listen_redis().port
        await broker.create_topic("made")

        def talk() -> None:
            with Wire(port) as reader, Wire(port) as publisher:
                reader.send("SUBSCRIBE", "made", "other")
                reader.expect(push("subscribe", "made", 1) + push("subscribe", "other", 2))
                publisher.tell("PUBLISH", "made", "x", wanted=b":1\r\n")
                publisher.send("PUBLISH", "other", "x")
                publisher.expect(b"-ERR There is no topic 'other'")
                reader.expect(push("message", "made", "x"))

        await asyncio.to_thread(talk)


@pytest.mark.plain
async def test_the_limits_on_connections_and_subscriptions_are_kept() -> None:
    redis = RedisOptions(port=0, connections_max=2, subscriptions_max=3)
    async with fanlog.Broker(config=Config(redis=redis)) as broker:
        port = broker.listen_redis().port

        def talk() -> None:
            with Wire(port) as first, Wire(port) as second:
                first.tell("PING", wanted=b"+PONG\r\n")
                second.tell("PING", wanted=b"+PONG\r\n")
                with Wire(port) as third:
                    assert third.rest().startswith(b"-ERR max number of clients reached: ")
                first.send("SUBSCRIBE", "a", "b", "c", "d")
                first.expect(b"".join(push("subscribe", n, i) for i, n in enumerate("abc", 1)))
                first.expect(b"-ERR This connection has as many subscriptions")
                second.tell(
                    "PSUBSCRIBE",
                    "a*" * 600,
                    wanted=b"-ERR A pattern has at most 1024 bytes (redis.pattern_bytes_max).\r\n",
                )

        await asyncio.to_thread(talk)


def test_redis_clients_see_objects_as_json_and_their_json_decodes(broker: BothPorts) -> None:
    with (
        fanlog.sync.connect(broker.url) as client,
        Wire(broker.redis_port) as follower,
        Wire(broker.redis_port) as publisher,
    ):
        follower.tell("SUBSCRIBE", "orders", wanted=push("subscribe", "orders", 1))
        client.topic("orders", dict[str, int]).publish({"tea": 2}, key="alice")
        follower.expect(push("message", "orders", '{"tea":2}'))
        with client.topic("orders", dict[str, int]).subscribe(start="earliest") as orders:
            publisher.tell("PUBLISH", "orders", '{"tea": 3}', wanted=b":2\r\n")
            assert [orders.next(WAIT_S).data for _ in range(2)] == [{"tea": 2}, {"tea": 3}]
