"""Each message once, or an error that says what is known: lost acknowledgements, forgotten
producers, logs that are new, and two clients under one name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.client.core.outbox import ProducerIdentity
from fanlog.client.publishing import Publisher
from fanlog.config import ClientOptions
from fanlog.format.batch import Batch
from fanlog.format.frames import Ack
from fanlog.format.messages import ProducerRegistered, Refused, RegisterProducer, TopicOpened
from fanlog.model import KIB, TopicSettings
from tests.client.proxy import Proxy, proxy_to
from tests.client.test_reconnect import EAGER, Restartable, running, stored, through
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, until
from tests.scenarios.broker_process import BrokerProcess

LARGE = bytes(40_000)


async def records_in(url: str, topic: str) -> int:
    async with fanlog.connect(url) as calm:
        return (await calm.describe_topic(topic)).records


async def publish_unanswered(
    client: Any, proxy: Proxy, url: str, value: bytes
) -> asyncio.Task[fanlog.Receipt]:
    """Publishes to `t` so that the broker stores it, and its answer is lost with the link."""
    before = await records_in(url, "t")
    proxy.mute = True
    proxy.refusing = True
    publishing = asyncio.ensure_future(client.publish("t", value))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await records_in(url, "t") == before:  # noqa: ASYNC110 - the state is the broker's
            await asyncio.sleep(0.001)
    proxy.cut()
    await until(lambda: not client.connected)
    return publishing


def let_through(proxy: Proxy) -> None:
    proxy.mute = False
    proxy.refusing = False


async def test_a_repeat_after_a_kill_and_new_segments_gets_its_first_offset(data: Path) -> None:
    """A real broker: the acknowledgement is lost, others fill segments, the broker is killed and
    started again, and only then the client comes back."""
    with BrokerProcess(data) as broker:
        async with proxy_to(broker.port) as proxy, through(proxy) as client:
            async with fanlog.connect(broker.url) as other:
                await other.create_topic("t", segment_bytes=64 * KIB)
                assert (await client.publish("t", b"0")).offset == 0
                publishing = await publish_unanswered(client, proxy, broker.url, b"1")
                for _ in range(5):
                    await other.publish("t", LARGE)
                assert (await other.describe_topic("t")).partitions[0].segments > 2
            broker.kill()
            broker.start()
            let_through(proxy)
            receipt = await asyncio.wait_for(publishing, PATIENCE_SECONDS)
            assert (receipt.offset, receipt.duplicate) == (1, True)
            assert (await client.publish("t", b"2")).offset == 7
        assert await records_in(broker.url, "t") == 8


# A producer that the broker does not know any more


def forget_producers(broker: Restartable, topic: str = "t") -> None:
    assert broker.node is not None
    for partition in broker.node.core.catalog.get(topic).partitions:
        (partition.producers or {}).clear()


async def test_a_forgotten_producer_goes_on_unnoticed_where_nothing_is_uncertain(
    data: Path,
) -> None:
    async with running(data) as broker, fanlog.connect(broker.url, batch_records=2) as client:
        for _ in range(3):
            some = [client.publish("t", b"x") for _ in range(9)]
            await asyncio.gather(*some)
            forget_producers(broker)
        receipts = await asyncio.gather(*(client.publish("t", b"y") for _ in range(9)))
        assert [r.offset for r in receipts] == list(range(27, 36))
        assert await records_in(broker.url, "t") == 36


async def test_where_the_outcome_is_unknown_that_is_the_error_and_the_rest_goes_on(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy) as client,
    ):
        await client.publish("t", b"0")
        publishing = await publish_unanswered(client, proxy, broker.url, b"1")
        later = asyncio.ensure_future(client.publish("t", b"2"))
        forget_producers(broker)
        let_through(proxy)
        with pytest.raises(errors.UnknownProducerError, match="may or may not be stored"):
            await asyncio.wait_for(publishing, PATIENCE_SECONDS)
        assert (await asyncio.wait_for(later, PATIENCE_SECONDS)).offset == 2
        assert (await client.publish("t", b"3")).offset == 3
        assert await stored(broker, "t") == [b"0", b"1", b"2", b"3"]


# A log that is a new one


@pytest.mark.parametrize("in_memory", [False, True])
async def test_what_was_in_flight_to_a_topic_in_memory_goes_to_the_new_one(
    data: Path, *, in_memory: bool
) -> None:
    async with (
        running(None if in_memory else data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy) as client,
    ):
        await client.create_topic("t", durability="memory")
        for i in range(3):
            await client.publish("t", b"lost %d" % i)
        publishing = await publish_unanswered(client, proxy, broker.url, b"0")
        later = asyncio.ensure_future(client.publish("t", b"1"))
        await broker.restart()
        async with fanlog.connect(broker.url) as other:
            await other.create_topic("t", durability="memory")
        let_through(proxy)
        receipts = await asyncio.wait_for(asyncio.gather(publishing, later), PATIENCE_SECONDS)
        assert [(r.offset, r.duplicate) for r in receipts] == [(0, False), (1, False)]
        assert (await client.publish("t", b"2")).offset == 2
        assert await stored(broker, "t") == [b"0", b"1", b"2"]


async def test_what_was_in_flight_to_a_topic_that_was_replaced_goes_to_the_new_one(
    data: Path,
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy) as client,
        fanlog.connect(broker.url) as calm,
    ):
        await client.publish("t", b"lost")
        publishing = await publish_unanswered(client, proxy, broker.url, b"0")
        await calm.delete_topic("t")
        await calm.create_topic("t")
        let_through(proxy)
        receipt = await asyncio.wait_for(publishing, PATIENCE_SECONDS)
        assert (receipt.offset, receipt.duplicate) == (0, False)
        assert await stored(broker, "t") == [b"0"]


class Collected:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.ready = True
        self.batches: list[Batch] = []

    def write(self, data: bytes) -> None:
        self.batches.append(Batch(data))


async def test_a_topic_that_could_not_be_opened_again_goes_on_behind_its_numbers() -> None:
    """From zero again, its messages would pass for repeats of those that were given up."""
    wire = Collected()

    async def opens(name: str) -> TopicOpened:
        return TopicOpened(name, 5, 1, TopicSettings())

    async def is_refused(name: str, create: bool) -> TopicOpened:
        raise errors.LimitError("not now")

    publisher = Publisher(wire, ClientOptions(), opens)
    for value in (b"a", b"b"):
        publishing = publisher.publish(await publisher.topic("t"), value)
        publisher.flush_soon()
    await publisher.resume(is_refused, 1)
    with pytest.raises(errors.LimitError):
        await publishing
    publishing = publisher.publish(await publisher.topic("t"), b"c")
    publisher.flush_soon()
    (batch,) = (batch for batch in wire.batches if batch.values == [b"c"])
    assert batch.header.first_sequence == 2
    # Neither of the two was stored: it gets their place.
    refusal = Refused(5, 0, 2, 0, errors.OutOfSequenceError.code, "not yet")
    publisher.refused(refusal)
    assert wire.batches[-1].header.first_sequence == 0
    publisher.acked([Ack(5, 0, 1, 0, 0, 7, 0)])
    assert (await publishing).offset == 7


# Two clients under one name


def named(broker: Restartable, **options: Any) -> Any:
    return fanlog.connect(broker.url, producer="billing", **EAGER, **options)


async def test_a_second_client_under_a_name_shuts_the_first_out(data: Path) -> None:
    async with running(data) as broker, named(broker) as first:
        await asyncio.gather(*(first.publish(topic, b"1") for topic in ("t", "u")))
        async with named(broker) as second:
            # Its link is whole, and nobody has told it yet.
            with pytest.raises(errors.FencedError, match="the producer's name 'billing'"):
                await first.publish("t", b"never")
            with pytest.raises(errors.FencedError):
                await first.publish("u", b"never")
            with pytest.raises(errors.FencedError):
                await first.send("t", b"never")
            assert (await second.publish("t", b"2")).offset == 1
            assert (await second.publish("t", b"3")).offset == 2
            # It may still read.
            async with first.subscribe("t", start="earliest") as reader:
                assert (await reader.next(PATIENCE_SECONDS)).value == b"1"
        assert await stored(broker, "t") == [b"1", b"2", b"3"]
        assert await stored(broker, "u") == [b"1"]


async def test_what_a_fenced_client_has_in_flight_is_answered_or_else_uncertain() -> None:
    wire = Collected()

    async def opens(name: str) -> TopicOpened:
        return TopicOpened(name, 5, 1, TopicSettings())

    async def registers(wanted: RegisterProducer) -> ProducerRegistered:
        return ProducerRegistered(77, 3)

    publisher = Publisher(wire, ClientOptions(producer="billing", batches_in_flight=3), opens)
    await publisher.register(registers)
    topic = await publisher.topic("t")
    waiting: list[asyncio.Future[fanlog.Receipt]] = []
    for value in (b"a", b"b", b"c", b"d"):
        waiting.append(publisher.publish(topic, value))
        publisher.flush_soon()
    publisher.refused(Refused(5, 0, 1, 0, errors.FencedError.code, "fenced"))
    for failed in (waiting[1], waiting[3]):
        with pytest.raises(errors.FencedError, match="take the name back"):
            await failed
    # The acknowledgement of what was stored before comes behind the refusal.
    publisher.acked([Ack(5, 0, 1, 0, 0, 40, 0)])
    assert (await waiting[0]).offset == 40
    await publisher.register(registers)
    with pytest.raises(errors.FencedError, match="may or may not be stored"):
        await waiting[2]
    assert publisher.buffered_bytes == 0


async def test_a_client_fenced_after_a_resume_that_failed_fails_what_is_in_flight() -> None:
    async def opens(name: str) -> TopicOpened:
        return TopicOpened(name, 5, 1, TopicSettings())

    async def cut(name: str, create: bool) -> TopicOpened:
        raise errors.ConnectionLostError("The connection was lost.")

    async def registers(wanted: RegisterProducer) -> ProducerRegistered:
        return ProducerRegistered(77, 3)

    async def fences(wanted: RegisterProducer) -> ProducerRegistered:
        raise errors.FencedError("Another client has the name.")

    publisher = Publisher(Collected(), ClientOptions(producer="billing"), opens)
    await publisher.register(registers)
    waiting = publisher.publish(await publisher.topic("t"), b"a")
    publisher.flush_soon()
    await publisher.register(registers)
    with pytest.raises(errors.ConnectionLostError):
        await publisher.resume(cut, 1)
    await publisher.register(fences)
    with pytest.raises(errors.FencedError, match="may or may not be stored"):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


async def test_messages_that_nobody_waits_for_are_told_of_at_the_flush(data: Path) -> None:
    async with running(data) as broker:
        first = await named(broker)
        await first.publish("t", b"1")
        async with named(broker):
            for _ in range(3):
                await first.send("t", b"never")
            with pytest.raises(errors.FencedError, match="3 messages were not stored"):
                await first.flush()
        await first.close()
        assert await stored(broker, "t") == [b"1"]


async def test_who_was_shut_out_finds_out_when_it_comes_back_after_a_restart(data: Path) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy, producer="billing") as first,
    ):
        await first.publish("t", b"1")
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not first.connected)
        waiting = asyncio.ensure_future(first.publish("t", b"never"))
        async with named(broker) as second:
            await second.publish("t", b"2")
            await broker.restart()
            proxy.refusing = False
            with pytest.raises(errors.FencedError, match="'billing'"):
                await asyncio.wait_for(waiting, PATIENCE_SECONDS)
            assert (await second.publish("t", b"3")).offset == 2
            with pytest.raises(errors.FencedError):
                await first.publish("t", b"never")
        assert await stored(broker, "t") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_named_producer_that_nobody_shut_out_goes_on_after_cuts_and_restarts(
    data: Path, *, in_memory: bool
) -> None:
    async with running(None if in_memory else data) as broker:
        async with named(broker, batch_records=3) as client:
            offsets: list[int] = []
            for i in range(4):
                some = [client.publish("t", b"%d" % (20 * i + j)) for j in range(20)]
                offsets += [receipt.offset for receipt in await asyncio.gather(*some)]
                await broker.restart()
            await client.publish("t", b"last")
            assert offsets == ([*range(20)] * 4 if in_memory else [*range(80)])
            assert client.reconnects == 4
        if not in_memory:
            assert await stored(broker, "t") == [b"%d" % i for i in range(80)] + [b"last"]


async def test_a_name_is_taken_over_by_whoever_connects_next_through_cuts(data: Path) -> None:
    """A service that is restarted: each new one goes on where the one before was cut off."""
    async with running(data) as broker, proxy_to(broker.port) as proxy:
        for i in range(4):
            client = await through(proxy, producer="billing")
            assert (await client.publish("t", b"%d" % i)).offset == i
            proxy.cut()
            await client.close(flush=False)
        assert await stored(broker, "t") == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("way", WAYS)
async def test_any_client_may_have_a_producers_name_and_its_batches_say_so(
    way: str, data: Path
) -> None:
    seen: list[ProducerIdentity] = []
    for _ in range(2):
        async with Way(way, data).open(producer="billing") as client:
            assert (await client.publish("t", b"x")).offset == len(seen)
            async with client.subscribe("t", start=len(seen)) as reader:
                header = (await reader.next_batch(PATIENCE_SECONDS)).batch.header
            seen.append(ProducerIdentity(header.producer_id, header.producer_epoch))
    assert seen == [ProducerIdentity(seen[0].id, 1), ProducerIdentity(seen[0].id, 2)]
