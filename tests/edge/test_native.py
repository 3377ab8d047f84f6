"""Fanlog's own client through an edge: it works like at the broker."""

from __future__ import annotations

import asyncio

import pytest

import fanlog
from fanlog.errors import TopicNotFoundError
from tests.client.proxy import proxy_to
from tests.edge.stage import PATIENCE_SECONDS, broker_at, edge_of, until


async def test_a_client_publishes_and_asks_through_an_edge() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            info = await client.create_topic("t", partitions=2)
            assert info.number == (await broker.describe_topic("t")).number
            async with client.subscribe("t") as reader:
                receipts = [await client.publish("t", str(i), key=str(i)) for i in range(20)]
                got = [await reader.next(PATIENCE_SECONDS) for _ in range(20)]
                assert {(m.partition, m.offset) for m in got} == {
                    (r.partition, r.offset) for r in receipts
                }
            assert await client.find_offsets("t", "latest") == await broker.find_offsets(
                "t", "latest"
            )
            with pytest.raises(TopicNotFoundError):
                await client.describe_topic("none")
            assert (await client.status()).state == "ok"


async def test_groups_queues_and_transactions_work_through_an_edge() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            await client.create_topic("t")
            async with (
                client.subscribe("t") as reader,
                client.consume("t", group="g", reset="earliest") as member,
            ):
                async with client.transaction() as transaction:
                    for i in range(5):
                        await transaction.publish("t", str(i))
                mine = [await member.next(PATIENCE_SECONDS) for _ in range(5)]
                await member.commit()
                assert [m.text for m in mine] == [str(i) for i in range(5)]
                # Pieces of the mirror and of the group come on one connection.
                await broker.publish("t", "5")
                got = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(6)]
                assert got == [str(i) for i in range(6)]
                assert (await member.next(PATIENCE_SECONDS)).text == "5"
            async with client.work("jobs", queue="q") as worker:
                await client.publish("jobs", "do it")
                job = await worker.next(PATIENCE_SECONDS)
                assert job.text == "do it"
                await job.ack()
            async with client.subscribe("t", durable="name", start="earliest") as durable:
                assert (await durable.next(PATIENCE_SECONDS)).text == "0"
                await durable.commit()
            async with client.subscribe("t", durable="name") as durable:
                assert (await durable.next(PATIENCE_SECONDS)).text == "1"


async def test_requests_are_answered_between_clients_of_two_edges() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with (
            edge_of(url) as one,
            edge_of(url) as other,
            fanlog.connect(one.url) as asking,
            fanlog.connect(other.url) as answering,
        ):

            async def answer(message: fanlog.Job) -> str:
                return f"{message.text}!"

            serving = asyncio.create_task(answering.serve("echo", answer))
            try:
                await broker.create_topic("echo", exist_ok="any")
                node = broker._node  # pyright: ignore[reportPrivateUsage]
                assert node is not None
                core = node.core
                await until(lambda: core.followers_of(core.catalog.get("echo")))
                answer_ = await asking.request("echo", "hello", timeout_seconds=PATIENCE_SECONDS)
                assert answer_.text == "hello!"
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)


async def test_a_publisher_through_an_edge_outlives_upstream_exactly_once() -> None:
    async with (
        broker_at() as broker,
        proxy_to(broker.listen().port) as proxy,
        edge_of(f"fanlog://127.0.0.1:{proxy.port}") as edge,
        fanlog.connect(edge.url, backoff_first_seconds=0.01) as client,
        broker.subscribe("t") as reader,
    ):

        async def publish() -> None:
            for i in range(300):
                await client.publish("t", str(i))

        publishing = asyncio.create_task(publish())
        for _ in range(3):
            before = client.reconnects
            await asyncio.sleep(0.02)
            proxy.cut()
            await until(lambda before=before: client.reconnects > before or publishing.done())
        await asyncio.wait_for(publishing, PATIENCE_SECONDS)
        got = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(300)]
        assert got == [str(i) for i in range(300)]
        await until(lambda: edge.node.up)


async def test_large_messages_go_through_an_edge_both_ways() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            await client.create_topic("t", message_bytes_max=1 << 22, tail_bytes=1 << 28)
            value = b"x" * (1 << 20)
            async with client.subscribe("t") as reader:
                await asyncio.gather(*(client.publish("t", value) for _ in range(40)))
                sizes = [len((await reader.next(PATIENCE_SECONDS)).value or b"") for _ in range(40)]
                assert sizes == [1 << 20] * 40
            got = 0
            async with client.consume("t", group="g", reset="earliest") as member:
                while got < 40:
                    assert (await member.next(PATIENCE_SECONDS)).value == value
                    got += 1


async def test_garbage_at_an_edge_ends_that_connection_alone() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        await broker.create_topic("t")
        async with (
            edge_of(url) as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("t") as reader,
        ):
            for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" * 1000):
                stream, writer = await asyncio.open_connection("127.0.0.1", edge.port)
                writer.write(garbage)
                await asyncio.wait_for(stream.read(), PATIENCE_SECONDS)
                writer.close()
            await broker.publish("t", "x")
            assert (await reader.next(PATIENCE_SECONDS)).text == "x"
            assert client.reconnects == 0


async def test_readers_that_leave_while_upstream_is_away_leave_nothing() -> None:
    async with (
        broker_at() as broker,
        proxy_to(broker.listen().port) as proxy,
        edge_of(f"fanlog://127.0.0.1:{proxy.port}", linger_seconds=0.0) as edge,
    ):
        upstream = edge.node.upstream
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not edge.node.up)
        for name in ("a", "b"):
            client = await fanlog.connect(edge.url)
            beginning = asyncio.create_task(client.subscribe(name).start())
            await until(lambda: upstream.subscriptions)
            beginning.cancel()
            await client.close()
            await until(lambda: not upstream.subscriptions)
