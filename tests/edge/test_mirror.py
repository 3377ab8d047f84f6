"""Readers on an edge of a Fanlog broker: what its mirrors give them, and what upstream does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.errors import MessagesLostError
from fanlog.format.header import BatchHeader
from fanlog.model import Gap, GapReason
from tests.client.proxy import Proxy, proxy_to
from tests.edge.stage import PATIENCE_SECONDS, Edge, broker_at, edge_of, until
from tests.scenarios.broker_process import BrokerProcess


async def test_a_reader_on_an_edge_gets_the_same_offsets_epochs_and_numbers() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        await broker.create_topic("t", partitions=2)
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            async with (
                client.subscribe("t") as there,
                broker.subscribe("t") as here,
            ):
                for i in range(10):
                    await broker.publish("t", str(i), partition=i % 2)
                got = [await there.next(PATIENCE_SECONDS) for _ in range(10)]
                direct = [await here.next(PATIENCE_SECONDS) for _ in range(10)]
                assert {(m.partition, m.offset, m.value) for m in got} == {
                    (m.partition, m.offset, m.value) for m in direct
                }
                assert set(there.positions) == set(here.positions)
                assert [m.batch.data for m in got if not m.partition] == [
                    m.batch.data for m in direct if not m.partition
                ]
            assert client.welcome is not None
            assert broker.welcome is not None
            assert client.welcome.epoch == broker.welcome.epoch


async def test_history_comes_through_an_edge_that_has_none() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        for i in range(50):
            await broker.publish("t", str(i))
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            async with client.subscribe("t", start="earliest") as reader:
                await broker.publish("t", "50")
                got = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(51)]
                assert got == [str(i) for i in range(51)]
            async with client.subscribe("t", start=20) as reader:
                assert (await reader.next(PATIENCE_SECONDS)).text == "20"
            assert edge.node.upstream.subscriptions == 1


async def test_500_readers_are_one_subscription_upstream_that_ends_after_the_last() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        await broker.create_topic("t")
        async with edge_of(url, linger_seconds=0.05) as edge, fanlog.connect(edge.url) as client:
            readers = [client.subscribe("t") for _ in range(500)]
            await asyncio.gather(*(reader.start() for reader in readers))
            status = await broker.status()
            assert status.subscriptions == 1
            await broker.publish("t", "x")
            got = [await reader.next(PATIENCE_SECONDS) for reader in readers]
            assert {message.text for message in got} == {"x"}
            await asyncio.gather(*(reader.close() for reader in readers))
            await until(lambda: not edge.ends("t"))
            node = broker._node  # pyright: ignore[reportPrivateUsage]
            assert node is not None
            await until(lambda: not len(node.core.subscriptions))
            async with client.subscribe("t") as again:
                await broker.publish("t", "y")
                assert (await again.next(PATIENCE_SECONDS)).text == "y"


async def test_topics_that_come_grow_and_go_upstream_do_so_on_the_edge() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with (
            edge_of(url) as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("a.*") as many,
            client.subscribe("a.b") as one,
        ):
            await broker.publish("a.b", "first")
            assert (await many.next(PATIENCE_SECONDS)).text == "first"
            assert (await one.next(PATIENCE_SECONDS)).text == "first"
            await broker.grow_topic("a.b", 3)
            await broker.publish("a.b", "new", partition=2)
            assert (await many.next(PATIENCE_SECONDS)).partition == 2
            assert (await one.next(PATIENCE_SECONDS)).text == "new"
            await broker.delete_topic("a.b")
            await until(lambda: not edge.ends("a.b"))
            await broker.create_topic("a.b")
            await broker.publish("a.b", "again")
            assert (await many.next(PATIENCE_SECONDS)).text == "again"
            assert (await one.next(PATIENCE_SECONDS)).offset == 0


async def test_two_feeders_of_one_topic_bring_it_once() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            await broker.create_topic("a.b")
            async with client.subscribe("a.*") as many, client.subscribe("a.b") as one:
                for i in range(100):
                    await broker.publish("a.b", str(i))
                assert [(await one.next(PATIENCE_SECONDS)).offset for _ in range(100)] == [
                    *range(100)
                ]
                assert [(await many.next(PATIENCE_SECONDS)).offset for _ in range(100)] == [
                    *range(100)
                ]
            assert edge.ends("a.b") == [100]


async def test_retention_upstream_is_one_gap_on_the_edge(data: Path) -> None:
    config = Config(listener=ListenerOptions(port=0))
    async with fanlog.Broker(data, config) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        for i in range(20):
            await broker.publish("t", str(i))
        gaps: list[Gap] = []
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            async with client.subscribe("t", start="earliest") as first:
                assert (await first.next(PATIENCE_SECONDS)).offset == 0
            await broker.delete_records("t", {0: 15})
            async with client.subscribe("t", start="earliest") as begun:
                assert (await begun.next(PATIENCE_SECONDS)).offset == 15
            async with client.subscribe("t", start=3, on_gap=gaps.append) as late:
                assert (await late.next(PATIENCE_SECONDS)).offset == 15
            assert gaps == [Gap("t", 0, 3, 15, GapReason.RETENTION)]
            assert edge.ends("t") == [20]


async def test_a_position_ahead_of_the_mirror_waits_for_it() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        await broker.publish("t", "0")
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            async with client.subscribe("t") as reader:
                mirror = edge.node.edge_core.mirror
                take = mirror.take
                held: list[tuple[bytes, BatchHeader]] = []
                mirror.take = lambda data, header: held.append((data, header))
                for i in range(1, 4):
                    await broker.publish("t", str(i))
                await until(lambda: len(held) == 3)
                starting = asyncio.create_task(client.subscribe("t", start=4).start())
                await asyncio.sleep(0.05)
                assert not starting.done()
                mirror.take = take
                for one in held:
                    take(*one)
                await starting
                assert (await reader.next(PATIENCE_SECONDS)).offset == 1
            with pytest.raises(fanlog.errors.OffsetOutOfRangeError):
                await client.subscribe("t", start=9).start()


async def test_upstream_killed_under_load_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        states: list[bool] = []
        async with (
            edge_of(broker.url) as one,
            edge_of(broker.url) as other,
            fanlog.connect(broker.url) as publisher,
        ):
            one.node.on_state.append(states.append)
            await publisher.create_topic("t", durability="fsync")
            async with fanlog.connect(one.url) as a, fanlog.connect(other.url) as b:
                readers = [a.subscribe("t"), b.subscribe("t"), a.subscribe("t", start="earliest")]
                for reader in readers:
                    await reader.start()

                async def publish() -> None:
                    for i in range(300):
                        await publisher.publish("t", str(i))

                publishing = asyncio.create_task(publish())
                for _ in range(2):
                    before = one.ends("t")[0]
                    await until(lambda before=before: one.ends("t")[0] > before + 30)
                    broker.kill()
                    await until(lambda: not one.node.up)
                    assert a.connected
                    broker.start()
                    await until(lambda: one.node.up)
                await asyncio.wait_for(publishing, PATIENCE_SECONDS)
                for reader in readers:
                    got = [await reader.next(PATIENCE_SECONDS) for _ in range(300)]
                    assert [message.offset for message in got] == [*range(300)]
                    assert [message.text for message in got] == [str(i) for i in range(300)]
                assert a.reconnects == 0
                assert states == [False, True, False, True]


async def test_a_topic_made_again_during_an_outage_is_one_explicit_gap() -> None:
    async with broker_at() as broker:
        port = broker.listen().port
        for i in range(5):
            await broker.publish("t", f"old {i}")
        async with (
            proxy_to(port) as proxy,
            edge_of(f"fanlog://127.0.0.1:{proxy.port}") as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            for _ in range(5):
                await reader.next(PATIENCE_SECONDS)
            await _cut(proxy, edge)
            await broker.delete_topic("t")
            await broker.create_topic("t")
            for i in range(7):
                await broker.publish("t", f"new {i}")
            proxy.refusing = False
            with pytest.raises(MessagesLostError) as lost:
                await reader.next(PATIENCE_SECONDS)
            assert lost.value.reason == "reset"
            got = [await reader.next(PATIENCE_SECONDS) for _ in range(7)]
            assert [message.text for message in got] == [f"new {i}" for i in range(7)]
            assert client.reconnects == 0


async def _cut(proxy: Proxy, edge: Edge) -> None:
    proxy.refusing = True
    proxy.cut()
    await until(lambda: not edge.node.up)


@pytest.mark.parametrize("records", [3, 7, 12])
async def test_a_log_that_lost_its_end_is_one_explicit_gap(records: int) -> None:
    """In memory it has lost all of it, whether it is shorter or longer since."""
    async with broker_at() as old:
        port = old.listen().port
        for i in range(7):
            await old.publish("t", f"old {i}")
        async with (
            proxy_to(port) as proxy,
            edge_of(f"fanlog://127.0.0.1:{proxy.port}") as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("t", start="earliest") as reader,
            client.subscribe("t") as live,
        ):
            for _ in range(7):
                await reader.next(PATIENCE_SECONDS)
            await _cut(proxy, edge)
            async with broker_at() as new:
                for i in range(records):
                    await new.publish("t", f"new {i}")
                proxy.target_port = new.listen().port
                proxy.refusing = False
                for stream in (reader, live):
                    with pytest.raises(MessagesLostError) as lost:
                        await stream.next(PATIENCE_SECONDS)
                    assert lost.value.reason == "reset"
                    got = [await stream.next(PATIENCE_SECONDS) for _ in range(records)]
                    assert [m.text for m in got] == [f"new {i}" for i in range(records)]


async def test_a_topic_that_is_gone_after_an_outage_is_waited_for() -> None:
    async with broker_at() as broker:
        port = broker.listen().port
        await broker.publish("t", "old")
        async with (
            proxy_to(port) as proxy,
            edge_of(f"fanlog://127.0.0.1:{proxy.port}") as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("t", start="earliest") as reader,
        ):
            await reader.next(PATIENCE_SECONDS)
            await _cut(proxy, edge)
            await broker.delete_topic("t")
            proxy.refusing = False
            await until(lambda: edge.node.up and not edge.ends("t"))
            await broker.create_topic("t")
            await broker.publish("t", "new")
            with pytest.raises(MessagesLostError):
                await reader.next(PATIENCE_SECONDS)
            assert (await reader.next(PATIENCE_SECONDS)).text == "new"


async def test_a_hand_over_between_edges_by_position_misses_and_repeats_nothing() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        await broker.create_topic("t", partitions=2)
        async with edge_of(url) as one, edge_of(url) as other:
            clients = [await fanlog.connect(edge.url) for edge in (one, other)]
            done = asyncio.Event()

            async def publish() -> None:
                i = 0
                while not done.is_set():
                    await broker.publish("t", str(i), partition=i % 2)
                    i += 1

            publishing = asyncio.create_task(publish())
            seen: dict[int, list[int]] = {0: [], 1: []}
            resume = None
            for turn in range(300):
                reader = clients[turn % 2].subscribe("t")
                if resume is not None:
                    wanted = msgspec.structs.replace(reader._core.wanted, resume=resume)
                    reader._core.wanted = wanted
                async with reader:
                    for _ in range(turn % 7):
                        message = await reader.next(PATIENCE_SECONDS)
                        seen[message.partition].append(message.offset)
                    resume = reader.positions
            done.set()
            await publishing
            for offsets in seen.values():
                assert offsets == [*range(offsets[0], offsets[0] + len(offsets))]
            for client in clients:
                await client.close()


async def test_nobody_reads_a_slow_reader_and_upstream_pays_nothing_for_it() -> None:
    async with broker_at(tail_bytes=1 << 20) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url, window_bytes=1 << 16) as client:
            await broker.create_topic("t")
            gaps: list[Gap] = []
            async with (
                client.subscribe("t", on_gap=gaps.append) as slow,
                client.subscribe("t") as quick,
            ):
                value = b"x" * 10_000
                for i in range(500):
                    await broker.publish("t", value)
                    assert (await quick.next(PATIENCE_SECONDS)).offset == i
                assert edge.ends("t") == [500]
                offsets: list[int] = []
                while not offsets or offsets[-1] < 499:
                    offsets.append((await slow.next(PATIENCE_SECONDS)).offset)
                missed = sum(gap.next - gap.first for gap in gaps)
                assert len(offsets) + missed == 500


async def test_a_broker_that_numbers_its_topics_anew_loses_none_of_them_on_an_edge() -> None:
    async with broker_at() as broker:
        port = broker.listen().port
        for name in "abc":
            await broker.create_topic(name)
        edges = edge_of(f"fanlog://127.0.0.1:{port}")
        edge = await edges.__aenter__()
        client = await fanlog.connect(edge.url)
        readers = {name: client.subscribe(name) for name in "abc"}
        for name, reader in readers.items():
            await reader.start()
            await broker.publish(name, "before")
            assert (await reader.next(PATIENCE_SECONDS)).text == "before"
    async with broker_at(port) as broker:
        # Topics in memory get their numbers in the order in which they are made.
        for name in "cab":
            await broker.create_topic(name)
        broker.listen()
        await until(lambda: edge.node.up and all(edge.ends(name) for name in "abc"))
        for name, reader in readers.items():
            await broker.publish(name, f"{name} after")
            with pytest.raises(MessagesLostError):
                await reader.next(PATIENCE_SECONDS)
            message = await reader.next(PATIENCE_SECONDS)
            assert (message.text, message.offset) == (f"{name} after", 0)
        await client.close()
        await edges.__aexit__(None, None, None)
