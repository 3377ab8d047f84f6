"""Transactions over every way to a broker: embedded, networked and blocking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.client.core import staging_outbox
from fanlog.config import BrokerOptions, Config, ListenerOptions
from fanlog.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    LimitError,
    MessageTooLargeError,
    PartitionNotFoundError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Goodbye
from fanlog.node import Node
from tests.client.proxy import proxy_to
from tests.client.ways import FREE_PORT, PATIENCE_SECONDS, WAYS, Way, take_values
from tests.servers import free_port


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


async def values_of(client: Any, topic: str) -> list[bytes]:
    """All that is there now, by partition."""
    info = await client.describe_topic(topic)
    values: list[bytes] = []
    for partition in info.partitions:
        offset = 0
        while offset < partition.visible_end:
            for batch in (await client.fetch(topic, partition.partition, offset)).batches:
                values += [value or b"" for value in batch.values]
                offset = batch.next_offset
    return values


async def publish_together(client: Any, *messages: tuple[str, bytes], **given: Any) -> None:
    """One transaction; `given` is said of the last message."""
    async with client.transaction() as tx:
        for topic, value in messages[:-1]:
            await tx.publish(topic, value)
        topic, value = messages[-1]
        await tx.publish(topic, value, **given)


async def test_a_block_commits_at_its_end_and_nothing_is_seen_before(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("orders", partitions=3)
        await client.create_topic("stock")
        async with client.transaction() as tx:
            for i in range(10):
                await tx.publish("orders", b"%d" % i, key=str(i), headers={"n": b"%d" % i})
            await tx.send("stock", "minus ten", partition=0)
            await tx.flush()
            assert await values_of(client, "orders") == await values_of(client, "stock") == []
        assert sorted(await values_of(client, "orders")) == [b"%d" % i for i in range(10)]
        assert await values_of(client, "stock") == [b"minus ten"]
        async with client.subscribe("orders", start="earliest") as orders:
            for _ in range(10):
                message = await orders.next(PATIENCE_SECONDS)
                assert message.key == message.value
                assert message.headers == {"n": message.value}


async def test_an_exception_that_leaves_the_block_takes_everything_back(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("orders")
        begun: list[Any] = []

        async def fail() -> None:
            async with client.transaction("morning") as tx:
                begun.append(tx)
                await tx.publish("orders", b"tea")
                await tx.flush()
                raise RuntimeError("no tea")

        with pytest.raises(RuntimeError, match="no tea"):
            await fail()
        assert await values_of(client, "orders") == []
        with pytest.raises(InvalidArgumentError, match="aborted"):
            await begun[0].commit()
        async with client.transaction("morning") as tx:
            assert not tx.committed_before
            await tx.publish("orders", b"coffee")
            await tx.abort()
        assert await values_of(client, "orders") == []


async def test_the_same_id_happens_once_whoever_repeats_it(way: Way) -> None:
    async with way.open() as client:
        for again in range(3):
            async with client.transaction("day-1") as tx:
                assert tx.id == "day-1"
                assert tx.committed_before == bool(again)
                await tx.publish("orders", b"%d" % again)
                result = await tx.commit()
                assert result.already == bool(again)
                assert result.records == (0 if again else 1)
                assert await tx.commit() is result or way.name == "blocking"
        assert await values_of(client, "orders") == [b"0"]
    async with way.open() as client:
        async with client.transaction("day-1") as tx:
            assert tx.committed_before
            await tx.publish("orders", b"after a restart")
        assert await values_of(client, "orders") == [b"0"]


async def test_commits_of_one_id_at_the_same_time_are_one_commit(way: Way) -> None:
    async with way.open() as client:

        async def attempt(number: int) -> bool:
            async with client.transaction("same") as tx:
                await tx.publish("a", b"%d" % number)
                await tx.publish("b", b"%d" % number)
                return (await tx.commit()).already

        already = await asyncio.gather(*(attempt(i) for i in range(8)))
        assert sorted(already) == [False, *[True] * 7]
        winner = b"%d" % already.index(False)
        assert await values_of(client, "a") == await values_of(client, "b") == [winner]


async def test_a_ticket_is_shared_and_one_commits(way: Way) -> None:
    async with way.open() as client:
        coordinator = client.transaction("job-7")
        await coordinator.begin()

        async def task(number: int) -> None:
            async with client.join_transaction(coordinator.ticket) as part:
                assert part.id == "job-7"
                for i in range(50):
                    await part.publish("out", b"%d-%d" % (number, i), key=str(number))

        await asyncio.gather(*(task(number) for number in range(4)))
        assert (await client.describe_topic("out")).records == 0
        result = await coordinator.commit()
        assert result.records == 200
        values = await values_of(client, "out")
        for number in range(4):
            mine = [value for value in values if value.startswith(b"%d-" % number)]
            assert mine == [b"%d-%d" % (number, i) for i in range(50)]
        with pytest.raises(TransactionNotFoundError):
            await client.join_transaction(coordinator.ticket).begin()


async def test_one_who_joined_can_commit_under_another_id(way: Way) -> None:
    async with way.open() as client:
        first = client.transaction()
        await first.begin()
        await first.publish("a", b"1")
        await first.flush()
        second = client.join_transaction(first.ticket)
        await second.begin()
        assert (await second.commit("chosen")).id == "chosen"
        async with client.transaction("chosen") as tx:
            assert tx.committed_before
        assert await values_of(client, "a") == [b"1"]


async def test_what_goes_wrong_while_staging_is_raised_and_nothing_is_committed(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("small", message_bytes_max=1000)
        await client.create_topic("gone")
        with pytest.raises(MessageTooLargeError):
            await publish_together(client, ("small", b"fits"), ("small", bytes(2000)))
        with pytest.raises(PartitionNotFoundError):
            await publish_together(client, ("small", b"fits"), ("small", b"x"), partition=7)
        await publish_together(client, ("gone", b"x"))
        await client.delete_topic("gone")
        with pytest.raises(TopicNotFoundError):
            await publish_together(client, ("small", b"x"), ("gone", b"x"))
        # The topic is opened anew by then.
        await publish_together(client, ("gone", b"new"))
        assert await values_of(client, "gone") == [b"new"]
        assert await values_of(client, "small") == []


async def test_limits_of_the_broker_are_named(way: Way) -> None:
    options = BrokerOptions(transaction_bytes_max=100_000, transactions_max=1)
    async with way.open(Config(broker=options)) as client:
        with pytest.raises(LimitError, match="transaction_bytes_max"):
            await publish_together(client, *[("a", bytes(50_000))] * 4)
        async with client.transaction():
            with pytest.raises(LimitError, match="transactions_max"):
                await client.transaction().begin()


async def test_one_that_has_not_begun_says_so(way: Way) -> None:
    async with way.open() as client:
        tx = client.transaction()
        with pytest.raises(InvalidArgumentError, match="has not begun"):
            await tx.commit()
        with pytest.raises(InvalidArgumentError, match="has not begun"):
            await tx.flush()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_transaction_may_be_far_larger_than_memory_allows(
    way: Way, in_memory: bool
) -> None:
    options = BrokerOptions(transaction_memory_bytes=10_000)
    async with way.open(Config(broker=options), in_memory=in_memory, linger_ms=1) as client:
        settings = {"durability": "memory"} if in_memory else {}
        await client.create_topic("big", partitions=2, **settings)
        async with client.transaction() as tx:
            for i in range(600):
                await tx.publish("big", b"%d" % i + bytes(20_000), partition=i % 2)
        values = [value.rstrip(b"\0") for value in await values_of(client, "big")]
        assert values == [b"%d" % i for i in (*range(0, 600, 2), *range(1, 600, 2))]
        if not in_memory:
            assert (await client.status()).problems == ()


async def test_the_work_of_run_transaction_happens_once(way: Way) -> None:
    async with way.open() as client:

        async def publish(tx: Any) -> None:
            await tx.publish("a", b"x")

        def publish_plainly(tx: Any) -> None:
            tx.publish("a", b"x")

        work: Any = publish_plainly if way.name == "blocking" else publish
        assert not (await client.run_transaction(work, id="once")).already
        assert (await client.run_transaction(work, id="once")).already
        assert not (await client.run_transaction(work)).already
        assert await values_of(client, "a") == [b"x", b"x"]


async def test_readers_get_a_transaction_live_and_with_its_offsets(way: Way) -> None:
    async with way.open() as client, client.subscribe("a") as live:
        await client.publish("a", b"before")
        async with client.transaction() as tx:
            await tx.publish("a", b"1")
            await client.publish("a", b"between")
            await tx.publish("a", b"2")
        await client.publish("a", b"after")
        assert await take_values(live, 5) == [b"before", b"between", b"1", b"2", b"after"]


# Lost connections and restarts


@asynccontextmanager
async def behind_proxy(data: Path) -> AsyncIterator[tuple[Any, fanlog.Client]]:
    node = Node(data, Config(listener=FREE_PORT))
    node.start()
    try:
        async with proxy_to(node.listen().port, seed=4) as proxy:
            url = f"fanlog://127.0.0.1:{proxy.port}"
            async with fanlog.connect(
                url, backoff_first_seconds=0.01, backoff_max_seconds=0.02
            ) as client:
                yield proxy, client
    finally:
        await node.stop()


async def test_a_transaction_outlives_the_connections_that_it_is_staged_over(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_outbox, "_FRAME_BYTES", 3000)
    async with behind_proxy(data) as (proxy, client):
        await client.create_topic("a", partitions=2)
        proxy.cut_after = (4_000, 60_000)
        proxy.cut()
        for number in range(5):
            async with client.transaction() as tx:
                for i in range(300):
                    value = b"%d-%d" % (number, i)
                    await tx.publish("a", value + bytes(100), partition=i % 2)
                    if i % 10 == 0:
                        await asyncio.sleep(0)
                await tx.commit()
        proxy.cut_after = None
        assert proxy.cuts > 10
        values = [value.rstrip(b"\0") for value in await values_of(client, "a")]
        expected = [
            b"%d-%d" % (number, i)
            for partition in range(2)
            for number in range(5)
            for i in range(partition, 300, 2)
        ]
        assert values == expected


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_is_lost_as_a_frame_goes_out_is_no_wait_for_nothing(
    data: Path, turns: int
) -> None:
    async with behind_proxy(data) as (_, client):
        async with client.transaction() as tx:
            await tx.publish("a", b"1")
            await tx.flush()
            await tx.publish("a", b"2")
            flushing = asyncio.create_task(tx.flush())
            for _ in range(turns):
                await asyncio.sleep(0)
            link = client._session._link
            assert link is not None
            link.close()
            link.connection_lost(None)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await flushing
        assert await values_of(client, "a") == [b"1", b"2"]


async def test_a_request_on_a_link_that_is_lost_fails_at_once(data: Path) -> None:
    async with behind_proxy(data) as (_, client):
        link = client._session._link
        assert link is not None
        link.close()
        link.connection_lost(None)
        with pytest.raises(ConnectionLostError):
            await client._session.request_now(FrameKind.STATUS, Goodbye())


async def test_a_commit_whose_answer_was_lost_is_repeated_and_done_once(data: Path) -> None:
    async with behind_proxy(data) as (proxy, client):
        async with client.transaction("x") as tx:
            await tx.publish("a", b"1")
            await tx.flush()
            proxy.mute = True
            committing = asyncio.create_task(tx.commit())
            async with fanlog.connect(f"fanlog://127.0.0.1:{proxy.target_port}") as calm:
                while not await values_of(calm, "a"):  # noqa: ASYNC110 - the state is the broker's
                    await asyncio.sleep(0.01)
            assert not committing.done()
            proxy.mute = False
            proxy.cut()
            assert (await committing).already
        assert await values_of(client, "a") == [b"1"]


async def restarted(data: Path, port: int, broker: BrokerOptions | None = None) -> Node:
    """On a port of `free_port`, which nobody is given by chance between two starts."""
    listener = ListenerOptions(port=port)
    node = Node(data, Config(listener=listener, broker=broker or BrokerOptions()))
    node.start()
    node.listen()
    return node


async def test_a_restart_in_between_loses_what_was_staged_and_says_so(data: Path) -> None:
    port = free_port()
    node = await restarted(data, port)
    async with fanlog.connect(f"fanlog://127.0.0.1:{port}", backoff_max_seconds=0.05) as client:
        await client.create_topic("a")
        attempts: list[str] = []

        async def work(tx: fanlog.Transaction) -> None:
            nonlocal node
            attempts.append(tx.ticket)
            await tx.publish("a", b"%d" % len(attempts))
            await tx.flush()
            if len(attempts) < 3:
                await node.stop()
                node = await restarted(data, port)

        with pytest.raises(TransactionNotFoundError, match="stage again"):
            await client.run_transaction(work, id="x", attempts=2)
        assert not (await client.run_transaction(work, id="x")).already
        assert len(attempts) == 3
        assert await values_of(client, "a") == [b"3"]
        await client.run_transaction(work, id="x")
        assert len(attempts) == 3
    await node.stop()
