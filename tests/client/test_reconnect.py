"""Connections that are cut and brokers that restart: nothing is lost, repeated or out of order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import Config, ListenerOptions
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import ErrorAnswer
from fanlog.model import KIB, TopicSettings
from fanlog.node import Node
from tests.client.proxy import Proxy, proxy_to
from tests.client.ways import FREE_PORT, PATIENCE_SECONDS, take, take_values, until
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

EAGER: dict[str, Any] = {"backoff_first_seconds": 0.001, "backoff_max_seconds": 0.01}


class Restartable:
    """A broker on one port and one folder, through its restarts."""

    def __init__(self, folder: Path | None, **listener: Any) -> None:
        self.folder = folder
        # Nobody is given it by chance while the broker is down, its own client among them.
        self.port = free_port()
        self.node: Node | None = None
        self._listener: dict[str, Any] = {"drain_seconds": 2.0} | listener

    async def start(self) -> None:
        config = Config(
            listener=ListenerOptions(port=self.port, **self._listener),
            topic=TopicSettings(durability="memory" if self.folder is None else "os"),
        )
        self.node = Node(self.folder, config)
        self.node.start()
        self.port = self.node.listen().port

    async def stop(self) -> None:
        if self.node is not None:
            node, self.node = self.node, None
            await node.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self.port}"


@asynccontextmanager
async def running(folder: Path | None, **listener: Any) -> AsyncIterator[Restartable]:
    broker = Restartable(folder, **listener)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def through(proxy: Proxy, **options: Any) -> Any:
    return fanlog.connect(f"fanlog://127.0.0.1:{proxy.port}", **EAGER, **options)


async def stored(broker: Restartable, topic: str) -> list[bytes]:
    """Everything in a topic, read by a client that nobody disturbs."""
    async with fanlog.connect(broker.url) as calm:
        count = (await calm.describe_topic(topic)).records
        async with calm.subscribe(topic, start="earliest") as history:
            return await take_values(history, count)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


# A connection that is cut


@pytest.mark.parametrize("seed", range(6))
async def test_publishing_through_cuts_stores_everything_once_and_in_order(
    data: Path, seed: int
) -> None:
    async with running(data) as broker, proxy_to(broker.port, seed=seed) as proxy:
        async with through(proxy, batch_records=3, batches_in_flight=5) as client:
            await client.create_topic("t", durability="fsync" if seed % 2 else "os")
            await client.publish("t", b"0")
            proxy.cut_after = (300, 3000)
            proxy.cut()
            offsets = []
            for i in range(1, 400, 40):
                some = [client.publish("t", b"%d" % j) for j in range(i, min(i + 40, 400))]
                offsets += [receipt.offset for receipt in await asyncio.gather(*some)]
            assert offsets == list(range(1, 400))
            assert client.reconnects > 3
            proxy.cut_after = None
        assert await stored(broker, "t") == numbers(400)


# A TLS record of 16 KiB never gets through a connection that is cut after 5,000 bytes.
@pytest.mark.plain
@pytest.mark.parametrize("seed", range(6))
async def test_sending_through_cuts_stores_everything_once_and_in_order(
    data: Path, seed: int
) -> None:
    async with running(data) as broker, proxy_to(broker.port, seed=seed) as proxy:
        async with through(proxy, batch_records=7, compression="lz4") as client:
            await client.create_topic("t")
            await client.publish("t", b"0")
            proxy.cut_after = (200, 5000)
            proxy.cut()
            for i in range(1, 3000):
                await client.send("t", b"%d" % i)
                if i % 50 == 0:
                    await asyncio.sleep(0)
            await client.flush()
            assert client.reconnects > 3
            proxy.cut_after = None
        assert await stored(broker, "t") == numbers(3000)


@pytest.mark.parametrize("seed", range(6))
async def test_subscriptions_resume_at_their_cursor_through_cuts(data: Path, seed: int) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port, seed=seed) as proxy,
        fanlog.connect(broker.url) as calm,
        through(proxy) as client,
    ):
        await calm.create_topic("a.1", tail_bytes=4 * KIB)
        await calm.publish_many("a.1", numbers(200))
        async with (
            client.subscribe("a.1", start="earliest", window_bytes=4 * KIB) as exact,
            client.subscribe("a.*", start="earliest") as pattern,
        ):
            proxy.cut_after = (500, 12_000)
            proxy.cut()

            async def publish() -> None:
                for i in range(200, 1500, 10):
                    await calm.publish_many("a.1", [b"%d" % j for j in range(i, i + 10)])
                    if i == 800:
                        await calm.publish_many("a.2", numbers(50))

            publishing = asyncio.create_task(publish())
            assert await take_values(exact, 1500) == numbers(1500)
            got: dict[str, list[bytes]] = {"a.1": [], "a.2": []}
            for message in await take(pattern, 1550):
                got[message.topic].append(message.value)
            assert got == {"a.1": numbers(1500), "a.2": numbers(50)}
            await publishing
            assert (exact.gaps, pattern.gaps) == (0, 0)
            assert client.reconnects > 2
            proxy.cut_after = None


async def test_publishing_and_subscribing_on_one_client_survive_cuts_together(data: Path) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port, seed=99) as proxy,
        through(proxy, batch_records=5) as client,
    ):
        await client.create_topic("t", partitions=3)
        async with client.subscribe("t", start="earliest", window_bytes=4 * KIB) as reader:
            await client.publish("t", b"0", key="0")
            proxy.cut_after = (1000, 20_000)
            proxy.cut()

            async def publish() -> None:
                for i in range(1, 2000):
                    await client.send("t", b"%d" % i, key=b"%d" % (i % 7))
                    if i % 20 == 0:
                        await asyncio.sleep(0)
                await client.flush()

            publishing = asyncio.create_task(publish())
            per_key: dict[bytes | None, list[int]] = {}
            for message in await take(reader, 2000):
                per_key.setdefault(message.key, []).append(int(message.value))
            await publishing
            assert per_key == {b"%d" % k: list(range(k, 2000, 7)) for k in range(7)}
            assert client.reconnects > 2
            proxy.cut_after = None


async def test_a_subscription_begun_while_there_is_no_connection_starts_with_the_next_one(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
        through(proxy) as client,
    ):
        await calm.publish_many("t", numbers(5))
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        live = client.subscribe("t")
        starting = asyncio.create_task(live.start())
        history = client.subscribe("t", start=2)
        starting_too = asyncio.create_task(history.start())
        await asyncio.sleep(0.02)
        proxy.refusing = False
        await asyncio.gather(starting, starting_too)
        await calm.publish("t", b"new")
        assert await take_values(live, 1) == [b"new"]
        assert await take_values(history, 4) == [b"2", b"3", b"4", b"new"]


async def test_a_topic_first_published_to_while_there_is_no_connection_is_opened_later(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy) as client,
    ):
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        publishing = asyncio.create_task(client.publish("new", b"x"))
        await asyncio.sleep(0.02)
        proxy.refusing = False
        assert (await asyncio.wait_for(publishing, PATIENCE_SECONDS)).offset == 0


async def test_a_publish_that_nobody_answers_in_time_fails_as_unknown(data: Path) -> None:
    options = {"delivery_timeout_seconds": 0.05, "ping_seconds": 0.02}
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        async with through(proxy, **options) as client:
            # Nobody waits for this one, so that it may take as long as it likes.
            await client.send("t", b"0")
            await client.flush()
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not client.connected)
            with pytest.raises(errors.RequestTimeoutError, match="outcome is unknown"):
                await asyncio.wait_for(client.publish("t", b"1"), PATIENCE_SECONDS)
            proxy.refusing = False
            await client.flush()
        assert await stored(broker, "t") == [b"0", b"1"]


async def test_a_silent_broker_counts_as_gone(data: Path) -> None:
    """A connection that stays open and brings nothing is given up after three pings."""
    async with running(data) as broker:
        silent: set[asyncio.StreamWriter] = set()
        taken: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(writer)
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", broker.port)
            taken.append(to_writer)

            async def back() -> None:
                while data := await to_reader.read(1 << 16):
                    if writer not in silent:
                        writer.write(data)

            going_back = asyncio.create_task(back())
            while data := await reader.read(1 << 16):
                to_writer.write(data)
            going_back.cancel()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with fanlog.connect(f"127.0.0.1:{port}", ping_seconds=0.02, **EAGER) as client:
            await client.publish("t", b"0")
            before = client.reconnects
            silent.update(taken)
            await until(lambda: client.reconnects > before)
            assert (await client.publish("t", b"1")).offset == 1
        for writer in taken:
            writer.close()
        server.close()
        await server.wait_closed()


# A broker that restarts


async def test_a_restart_of_the_broker_goes_unnoticed_but_for_the_wait(data: Path) -> None:
    async with (
        running(data) as broker,
        fanlog.connect(broker.url, batch_records=5, **EAGER) as client,
    ):
        for durability in ("os", "fsync"):
            await client.create_topic(durability, durability=durability)
        async with (
            client.subscribe("os", start="earliest") as one,
            client.subscribe("fsync", start="earliest") as two,
        ):
            restarts = 0

            async def publish(topic: str) -> list[int]:
                """Before, between, during and after the restarts."""
                offsets: list[int] = []
                while restarts < 3 or len(offsets) < 600:
                    at = len(offsets)
                    some = [client.publish(topic, b"%d" % j) for j in range(at, at + 20)]
                    offsets += [r.offset for r in await asyncio.gather(*some)]
                    await asyncio.sleep(0.002)
                return offsets

            publishing = [asyncio.create_task(publish(t)) for t in ("os", "fsync")]
            for _ in range(3):
                await asyncio.sleep(0.01)
                await broker.restart()
                restarts += 1
                await until(lambda: client.reconnects == restarts)  # noqa: B023
            for offsets, reader in zip(await asyncio.gather(*publishing), (one, two), strict=True):
                assert offsets == list(range(len(offsets)))
                assert await take_values(reader, len(offsets)) == numbers(len(offsets))
            assert (one.gaps, two.gaps, client.reconnects) == (0, 0, 3)


async def test_a_repeat_after_a_restart_is_recognised_by_what_is_on_disk(data: Path) -> None:
    """The acknowledgement is lost with the connection, and the broker restarts before the
    client is back: its second attempt gets the offset of the first."""
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        async with through(proxy) as client:
            await client.create_topic("t")
            await client.publish_many("t", numbers(5))
            proxy.mute = True
            proxy.refusing = True
            publishing = asyncio.create_task(client.publish("t", b"5"))
            async with fanlog.connect(broker.url) as calm:
                while (await calm.describe_topic("t")).records < 6:  # noqa: ASYNC110 - the state is the broker's
                    await asyncio.sleep(0)
            proxy.cut()
            await broker.restart()
            proxy.mute = False
            proxy.refusing = False
            receipt = await publishing
            assert (receipt.offset, receipt.duplicate) == (5, True)
            assert (await client.publish("t", b"6")).offset == 6
        assert await stored(broker, "t") == numbers(7)


async def test_a_memory_broker_that_restarts_tells_its_readers(data: Path) -> None:
    async with running(None) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await client.publish_many("t", numbers(5))
        async with client.subscribe("t", start="earliest") as reader:
            assert await take_values(reader, 5) == numbers(5)
            await broker.restart()
            with pytest.raises(fanlog.MessagesLostError) as lost:
                await take(reader, 1)
            assert (lost.value.reason, lost.value.first, lost.value.next) == ("reset", 5, 0)
            await client.publish("t", b"new")
            (message,) = await take(reader, 1)
            assert (message.value, message.offset) == (b"new", 0)


async def test_a_topic_replaced_while_its_reader_was_away_is_read_from_its_first_record(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
        through(proxy) as client,
    ):
        await calm.publish_many("t", [b"old"] * 5)
        async with client.subscribe("t", start="earliest") as reader:
            await take(reader, 5)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not client.connected)
            await calm.delete_topic("t")
            await calm.create_topic("t")
            async with fanlog.connect(broker.url) as other:
                await other.publish_many("t", numbers(8))
            proxy.refusing = False
            with pytest.raises(fanlog.MessagesLostError) as lost:
                await take(reader, 1)
            assert lost.value.reason == "reset"
            assert await take_values(reader, 8) == numbers(8)


async def test_a_draining_broker_answers_for_what_it_took_and_gets_nothing_more(
    data: Path,
) -> None:
    async with running(data) as broker:
        async with fanlog.connect(broker.url, **EAGER) as client:
            await client.publish("t", b"0")
            some = [asyncio.ensure_future(client.publish("t", b"%d" % i)) for i in range(1, 50)]
            await asyncio.sleep(0)
            stopping = asyncio.create_task(broker.stop())
            some += [asyncio.ensure_future(client.publish("t", b"%d" % i)) for i in range(50, 99)]
            await stopping
            await until(lambda: not client.connected)
            await broker.start()
            receipts = await asyncio.gather(*some)
            assert [r.offset for r in receipts] == list(range(1, 99))
        assert await stored(broker, "t") == numbers(99)


async def test_a_stop_completes_commits_on_the_loop_and_not_in_a_thread(data: Path) -> None:
    """asyncio's debug mode refuses calls into the loop from other threads."""
    asyncio.get_running_loop().set_debug(True)
    async with running(data, drain_seconds=0.0) as broker:
        async with fanlog.connect(broker.url, **EAGER) as client:
            await client.create_topic("t", durability="fsync")
            await client.publish("t", b"0")
            for i in range(1, 30):
                await client.send("t", b"%d" % i)
                await asyncio.sleep(0)
            await broker.restart()
            await client.flush()
        assert await stored(broker, "t") == numbers(30)


# The first connection, the last one, and none at all


async def test_the_first_connection_to_a_dead_port_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(errors.ConnectError, match=r"No broker answers.*fanlog serve"):
            await fanlog.connect(f"127.0.0.1:{port}")
        with pytest.raises(errors.ConnectError, match=str(port)):
            await asyncio.to_thread(fanlog.sync.connect, f"127.0.0.1:{port}")


@pytest.mark.plain
async def test_something_else_on_the_port_is_a_clear_error_too() -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await reader.read(1 << 16)
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def overloaded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failure = ErrorAnswer("too_many_connections", "The broker has as many as it allows.")
        writer.write(message_frame(FrameKind.ERROR, failure))
        writer.close()

    before = asyncio.all_tasks()
    for serve, error, seconds in (
        (web_server, errors.ConnectError, PATIENCE_SECONDS),
        (silent, errors.ConnectError, 0.1),
        (overloaded, errors.TooManyConnectionsError, PATIENCE_SECONDS),
    ):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(error):
            await fanlog.connect(f"127.0.0.1:{port}", connect_timeout_seconds=seconds)
        server.close()
        await server.wait_closed()
        await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize("url", ["http://x", "fanlog://", "fanlog://h:port", "fanlog://h/path"])
async def test_a_wrong_address_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="not an address"):
        await fanlog.connect(url)


async def test_without_reconnect_a_lost_connection_ends_everything(data: Path) -> None:
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        client = await through(proxy, reconnect=False)
        await client.publish("t", b"0")
        reader = client.subscribe("t")
        await reader.start()
        proxy.cut()
        for asking in (
            lambda: reader.next(PATIENCE_SECONDS),
            lambda: client.publish("t", b"1"),
            client.status,
        ):
            with pytest.raises(errors.ConnectionLostError, match="was lost"):
                await asking()
        await client.close()


async def test_a_closed_client_leaves_no_task_behind(data: Path) -> None:
    async with running(data) as broker:
        before = asyncio.all_tasks()
        for options in ({}, {"reconnect": False}):
            async with proxy_to(broker.port) as proxy:
                client = await through(proxy, **options)
                await client.publish("t", b"x")
                proxy.refusing = True
                proxy.cut()
                await until(lambda client=client: not client.connected)
                await asyncio.sleep(0.01)
                await client.close()
            await until(lambda: asyncio.all_tasks() == before)


async def test_a_client_closed_while_publishing_tells_each_publisher(data: Path) -> None:
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        client = await through(proxy)
        await client.publish("t", b"0")
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        some = [asyncio.ensure_future(client.publish("t", b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        await client.close()
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            assert isinstance(outcome, errors.ClosedError)


async def test_closing_waits_for_what_is_on_its_way(data: Path) -> None:
    async with running(data) as broker:
        client = await fanlog.connect(broker.url)
        await client.publish("t", b"0")
        some = [asyncio.ensure_future(client.publish("t", b"%d" % i)) for i in range(1, 1000)]
        await asyncio.sleep(0)
        await client.close()
        assert [r.offset for r in await asyncio.gather(*some)] == list(range(1, 1000))


async def test_closing_without_a_connection_says_what_was_not_stored(data: Path) -> None:
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        client = await through(proxy)
        await client.publish("t", b"0")
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        for _ in range(7):
            await client.send("t", b"x")
        with pytest.raises(errors.FanlogError, match="7 messages were not stored"):
            await client.close()


async def test_a_frame_longer_than_the_broker_takes_is_refused_and_not_tried_for_ever(
    data: Path,
) -> None:
    async with running(data, frame_bytes_max=64 * KIB) as broker:
        client = await fanlog.connect(broker.url, **EAGER)
        try:
            await client.publish("t", b"0")
            some = [asyncio.ensure_future(client.publish("t", bytes(20 * KIB))) for _ in range(9)]
            large = asyncio.ensure_future(client.publish("t", bytes(100 * KIB)))
            while not large.done() and client.reconnects < 5:  # noqa: ASYNC110 - the state is the broker's
                await asyncio.sleep(0.001)
            assert client.reconnects == 0
            with pytest.raises(errors.MessageTooLargeError):
                await large
            await asyncio.gather(*some)
        finally:
            await client.close(flush=False)
            await asyncio.gather(*some, large, return_exceptions=True)


async def test_a_reader_that_is_cut_off_for_being_slow_takes_no_other_with_it(data: Path) -> None:
    async with running(data) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await client.create_topic("t", tail_bytes=4 * KIB)
        async with (
            client.subscribe("t", policy="disconnect", window_bytes=4 * KIB) as slow,
            client.subscribe("t") as other,
        ):
            for _ in range(50):
                await client.publish("t", bytes(1000))
            await take(other, 50)
            with pytest.raises(errors.SlowReaderError, match="subscribe again from there"):
                await take(slow, 50)
            await client.publish("t", b"new")
            assert await take_values(other, 1) == [b"new"]


async def test_one_connection_too_many_is_told_why(data: Path) -> None:
    async with running(data, connections_max=1) as broker, fanlog.connect(broker.url) as client:
        with pytest.raises(errors.TooManyConnectionsError, match="connections_max"):
            await fanlog.connect(broker.url)
        await client.publish("t", b"x")


async def test_a_lost_connection_is_warned_of_once_and_so_is_its_return(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with BrokerProcess(data) as broker:
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            client.on_lost = lambda error: told.append(f"lost: {error.code}")
            client.on_back = lambda: told.append("back")
            await client.publish("t", b"1")
            assert client.state == "connected"
            broker.kill()
            await until(lambda: client.state == "reconnecting")
            with pytest.raises(errors.RequestTimeoutError, match="the client is reconnecting"):
                await client.publish("t", b"2", timeout_seconds=0.2)
            with pytest.raises(TimeoutError):
                await client.subscribe("t").next(timeout_seconds=0.2)
            broker.start()
            await until(lambda: client.state == "connected")
            await until(lambda: len(told) == 2)
        assert client.state == "closed"
    assert told == ["lost: connection_lost", "back"]
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    lost, back = [said for said in warned if "broker" in said]
    assert "Reconnecting" in lost
    assert back.startswith("Connected to the broker again, after ")


async def test_a_client_comes_back_though_its_callbacks_fail(data: Path) -> None:
    told: list[str] = []

    def fail(*given: object) -> None:
        told.append("told")
        raise ValueError

    with BrokerProcess(data) as broker:
        async with fanlog.connect(broker.url, backoff_max_seconds=0.1) as client:
            client.on_lost = client.on_back = fail
            for number in range(2):
                broker.kill()
                await until(lambda: client.state == "reconnecting")
                broker.start()
                await client.publish("t", b"x", timeout_seconds=PATIENCE_SECONDS)
                await until(lambda seen=2 * number + 2: len(told) == seen)


async def test_a_client_waits_for_a_broker_that_starts_beside_it(data: Path) -> None:
    broker = BrokerProcess(data)
    with pytest.raises(errors.ConnectError):
        async with fanlog.connect(broker.url):
            pass
    connecting = asyncio.create_task(connected(broker.url))
    await asyncio.sleep(0.1)
    with broker:
        assert await asyncio.wait_for(connecting, PATIENCE_SECONDS) == 0


async def connected(url: str) -> int:
    async with fanlog.connect(url, wait_seconds=PATIENCE_SECONDS) as client:
        return (await client.publish("t", b"1")).offset


async def test_a_topic_that_was_deleted_while_its_publisher_was_away_is_not_made_again(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
        through(proxy) as client,
    ):
        await client.publish("t", b"1")
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not client.connected)
        waiting = asyncio.create_task(client.publish("t", b"2"))
        await asyncio.sleep(0)
        await calm.delete_topic("t")
        proxy.refusing = False
        with pytest.raises(errors.TopicNotFoundError):
            await waiting
        with pytest.raises(errors.TopicNotFoundError):
            await calm.describe_topic("t")
        # Who publishes now wants the topic.
        await client.publish("t", b"3")
        assert await stored(broker, "t") == [b"3"]


async def test_one_that_only_a_restart_has_lost_is_made_again() -> None:
    async with running(None) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await client.publish("t", b"1")
        await broker.stop()
        await until(lambda: not client.connected)
        waiting = asyncio.create_task(client.publish("t", b"2"))
        await broker.start()
        assert (await waiting).offset == 0
        assert await stored(broker, "t") == [b"2"]


async def test_a_topic_that_was_deleted_and_made_again_takes_the_next_message(data: Path) -> None:
    async with fanlog.Broker(data, config=fanlog.Config(listener=FREE_PORT)) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            await client.create_topic("t", partitions=4)
            await client.publish_many("t", [b"old"] * 10)
            await broker.delete_topic("t")
            await broker.create_topic("t", partitions=2)
            receipts = await client.publish_many("t", [b"%d" % i for i in range(1000)], key="k")
            assert [receipt.offset for receipt in receipts] == list(range(1000))
            await broker.delete_topic("t")
            with pytest.raises(errors.TopicNotFoundError, match="There is no topic 't'"):
                await client.publish("t", b"to nowhere")
            assert (await client.publish("t", b"a new one")).offset == 0
