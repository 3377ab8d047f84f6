"""Topics with a type, over every implementation of the API."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import Any, assert_type

import pytest

import fanlog
import fanlog.sync
from fanlog import errors
from fanlog.client.typed import options
from tests.client.kinds import (
    ORDERS,
    WHEN,
    AttrsOrder,
    DataclassOrder,
    Opaque,
    PydanticOrder,
    StructOrder,
)
from tests.client.ways import ALL_WAYS, PATIENCE_SECONDS, Way, until


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


# Publishing and reading


@pytest.mark.parametrize("encoding", [None, "json", "msgpack"])
@pytest.mark.parametrize("name", ORDERS)
async def test_what_is_published_is_read_as_its_type(name: str, encoding: Any, way: Way) -> None:
    order = ORDERS[name]
    async with way.open(in_memory=True) as client:
        orders = client.topic("orders", type(order), encoding=encoding)
        async with orders.subscribe(start="earliest") as messages:
            receipt = await orders.publish(order, key="alice", headers={"own": "1"})
            await orders.send(order)
            await orders.publish_many([order, order])
            got = [await messages.next(PATIENCE_SECONDS) for _ in range(4)]
        assert [message.data for message in got] == [order] * 4
        assert (got[0].topic, got[0].offset, got[0].key) == ("orders", receipt.offset, b"alice")
        assert got[0].headers["own"] == b"1"
        said = got[0].headers["content-type"]
        assert said == f"application/{encoding or 'json'}".encode()
        assert {message.headers["content-type"] for message in got} == {said}
        assert isinstance(got[0], fanlog.Message)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (str, ["tea", "", '"x"']),
        (bytes, [b"\x00", b""]),
        (int, [1, -5]),
        (float, [1.5, 3]),
        (list[int], [[1, 2], []]),
        (dict[str, Any], [{"a": [1, {"b": None}]}]),
        (StructOrder | str, ["tea", ORDERS["struct"]]),
        (DataclassOrder | None, [ORDERS["dataclass"], None]),
        (Any, [{"a": 1}, 5, [None], "text"]),
    ],
    ids=str,
)
async def test_types_are_whatever_decodes(way: Way, kind: Any, values: list[Any]) -> None:
    async with way.open(in_memory=True) as client:
        topic = client.topic("t", kind)
        for value in values:
            await topic.publish(value, key="k")
        async with topic.subscribe(start="earliest") as messages:
            assert [(await messages.next(PATIENCE_SECONDS)).data for _ in values] == values


async def test_none_is_a_tombstone_where_the_type_allows_it(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        prices = client.topic("prices", StructOrder | None)
        await prices.publish(None, key="tea")
        async with client.subscribe("prices", start="earliest") as plain:
            message = await plain.next(PATIENCE_SECONDS)
        assert message.is_tombstone
        with pytest.raises(errors.InvalidArgumentError, match="StructOrder, not NoneType"):
            await client.topic("prices", StructOrder).publish(None, key="tea")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (StructOrder, {"tea": 1, "when": WHEN}, "'t' takes messages of type StructOrder, not dict"),
        (StructOrder, DataclassOrder(1, WHEN), "not DataclassOrder"),
        (StructOrder, StructOrder("many", WHEN), r"Expected `int`, got `str` - at `\$.tea`"),  # pyright: ignore[reportArgumentType]
        (DataclassOrder, DataclassOrder(1, "noon"), r"at `\$.when`"),  # pyright: ignore[reportArgumentType]
        (AttrsOrder, AttrsOrder(None, WHEN), "Expected `int`, got `null`"),  # pyright: ignore[reportArgumentType]
        (PydanticOrder, {"teaCups": 1}, "PydanticOrder, not dict"),
        (list[int], [1, "2"], r"at `\$\[1\]`"),
        (list[int], "12", "not str"),
        (int, True, "Expected `int`, got `bool`"),
        (str, b"x", "not bytes"),
        (bytes, "x", "not str"),
        (StructOrder | None, 5, "not int"),
    ],
    ids=str,
)
async def test_a_value_of_another_type_is_refused_at_once(
    way: Way, kind: Any, value: Any, why: str
) -> None:
    async with way.open(in_memory=True) as client:
        topic = client.topic("t", kind)
        good = ORDERS["struct"] if kind is StructOrder else None
        for call in (topic.publish, topic.send, topic.request):
            with pytest.raises(errors.InvalidArgumentError, match=why):
                await call(value)
        with pytest.raises(errors.InvalidArgumentError, match=why):
            await topic.publish_many([*([good] if good else []), value])
        assert (await client.publish("t", b"first")).offset == 0


def test_a_type_that_nothing_decodes_to_is_refused_when_the_topic_is_made() -> None:
    broker = fanlog.Broker()
    for kind, why in (
        (Opaque, "Opaque does not declare its fields"),
        (Opaque | StructOrder | DataclassOrder, "Messages of 't' can't be of type"),
        ("StructOrder", "can't be of type"),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=why):
            broker.topic("t", kind)
    with pytest.raises(errors.InvalidArgumentError, match="no encoding 'xml'"):
        broker.topic("t", StructOrder, encoding="xml")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert repr(broker.topic("t", list[int])) == "<Topic 't' of list[int]>"


# What does not decode


async def spoiled(client: Any) -> Any:
    """A topic with two messages that do not decode, between two that do."""
    orders = client.topic("orders", StructOrder)
    await orders.publish(StructOrder(1, WHEN))
    await client.publish("orders", {"tea": "many", "when": WHEN})
    await client.publish("orders", None, key="k")
    await orders.publish(StructOrder(2, WHEN))
    return orders


async def test_what_does_not_decode_is_raised_and_the_next_loop_continues(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        orders = await spoiled(client)
        got: list[Any] = []
        async with orders.subscribe(start="earliest") as messages:
            while len(got) < 4:
                try:
                    async for message in messages:
                        got.append(message.data.tea)
                        if message.offset == 3:
                            break
                except errors.DecodeError as fault:
                    got.append((fault.topic, fault.partition, fault.offset, fault.expected))
        assert got == [1, ("orders", 0, 1, "StructOrder"), ("orders", 0, 2, "StructOrder"), 2]


async def test_what_does_not_decode_can_be_skipped_with_a_log_line(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    async with way.open(in_memory=True) as client:
        orders = await spoiled(client)
        reader = orders.subscribe(start="earliest", durable="d", on_undecodable="skip")
        with caplog.at_level(logging.WARNING, "fanlog.client"):
            async with reader as messages:
                got = [await messages.next(PATIENCE_SECONDS) for _ in range(2)]
                await messages.commit()
        assert [message.data.tea for message in got] == [1, 2]
        assert [record.message[:46] for record in caplog.records] == [
            "A message is skipped. The message orders/0@1 d",
            "A message is skipped. The message orders/0@2 d",
        ]
        (position,) = await client.committed("d")
        assert position.offset == 4


async def test_what_does_not_decode_can_be_handed_to_a_function(way: Way) -> None:
    bad: list[tuple[int, str]] = []

    def note(message: fanlog.Message, fault: errors.DecodeError) -> None:
        bad.append((message.offset, fault.expected))

    async with way.open(in_memory=True) as client:
        orders = await spoiled(client)
        async with orders.consume(group="g", reset="earliest", on_undecodable=note) as member:
            got = [await member.next(PATIENCE_SECONDS) for _ in range(2)]
            await member.commit(got[-1])
        assert [message.data.tea for message in got] == [1, 2]
        assert bad == [(1, "StructOrder"), (2, "StructOrder")]
        with pytest.raises(errors.InvalidArgumentError, match="'raise', 'skip', or a function"):
            orders.subscribe(on_undecodable="ignore")


async def test_an_async_function_may_move_what_does_not_decode_elsewhere() -> None:
    async with fanlog.Broker() as broker:
        orders = await spoiled(broker)

        async def put_aside(message: fanlog.Message, fault: errors.DecodeError) -> None:
            await broker.publish("aside", message.value, headers={"why": fault.reason})

        async with orders.subscribe(start="earliest", on_undecodable=put_aside) as messages:
            async for message in messages:
                if message.data.tea == 2:
                    break
        async with broker.subscribe("aside", start="earliest") as aside:
            moved = [await aside.next(PATIENCE_SECONDS) for _ in range(2)]
        assert moved[0].headers["why"] == b"Expected `int`, got `str` - at `$.tea`"


async def test_the_time_for_the_next_message_counts_those_that_are_skipped(way: Way) -> None:
    async with way.open(in_memory=True) as client:
        orders = client.topic("orders", StructOrder)
        await client.publish_many("orders", [b"bad"] * 50)
        async with orders.subscribe(start="earliest", on_undecodable="skip") as messages:
            with pytest.raises(TimeoutError):
                await messages.next(0.3)


async def test_many_messages_that_do_not_decode_let_others_have_their_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "fanlog.client")
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with fanlog.Broker() as broker:
        await broker.publish_many("t", [b"bad"] * 20_000)
        topic = broker.topic("t", StructOrder)
        await topic.publish(StructOrder(1, WHEN))
        async with topic.subscribe(start="earliest", on_undecodable="skip") as messages:
            beside = asyncio.ensure_future(another())
            assert (await messages.next(PATIENCE_SECONDS)).data.tea == 1
            beside.cancel()
    assert turns > 10_000


# Groups with a handler


@pytest.mark.parametrize("on_undecodable", ["raise", "skip", "call"])
async def test_a_handler_of_a_group_gets_typed_messages(
    way: Way, on_undecodable: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "fanlog.client")
    seen: list[int] = []
    bad: list[int] = []
    stop: Any = threading.Event() if way.name.startswith("blocking") else asyncio.Event()

    def bill(message: fanlog.TypedMessage[StructOrder]) -> None:
        seen.append(message.data.tea)
        if message.data.tea == 2:
            stop.set()

    async with way.open(in_memory=True) as client:
        orders = await spoiled(client)
        calls = {"call": lambda message, _: bad.append(message.offset)}
        given: Any = calls.get(on_undecodable, on_undecodable)
        await handled(
            orders, bill, stop, way, on_undecodable=given, retry=fanlog.Backoff(first_seconds=0)
        )
        assert seen == [1, 2]
        assert bad == ([1, 2] if on_undecodable == "call" else [])
        topics = {topic.name for topic in await client.topics()}
        assert ("dead.orders" in topics) == (on_undecodable == "raise")


async def handled(orders: Any, handler: Any, stop: Any, way: Way, **options: Any) -> None:
    if way.name.startswith("blocking"):
        consume = orders._blocking.consume
        await asyncio.to_thread(
            consume, handler, group="g", reset="earliest", until=stop, **options
        )
    else:
        await orders.consume(handler, group="g", reset="earliest", until=stop, **options)


# Jobs


async def test_a_job_that_does_not_decode_becomes_a_dead_letter_as_any_failing_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "fanlog.client")
    async with fanlog.Broker() as broker:
        emails = broker.topic("emails", StructOrder)
        await broker.publish("emails", {"tea": "many"})
        await emails.publish(StructOrder(7, WHEN))
        sent: list[int] = []
        worker = emails.work(queue="mailers", max_deliveries=3, retry_delay_seconds=0, prefetch=2)
        async with worker:
            async for job in worker:
                async with job:
                    sent.append(job.data.tea)
                if worker.failures == 3 and sent:
                    break
        assert sent == [7]
        (letter,) = await dead(broker, "dead.emails", 1)
        assert letter.death.deliveries == 3
        assert "emails/0@0 does not decode as StructOrder" in letter.death.reason


async def test_a_handler_gets_typed_jobs_and_may_settle_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "fanlog.client")
    stop = asyncio.Event()
    sent: list[int] = []
    async with fanlog.Broker() as broker:
        emails = broker.topic("emails", StructOrder, encoding="msgpack")
        await emails.publish_many([StructOrder(tea, WHEN) for tea in range(4)])

        async def send(job: fanlog.TypedJob[StructOrder]) -> None:
            assert_type(job.data, StructOrder)
            if job.data.tea == 2:
                await job.reject("no")
                return
            sent.append(job.data.tea)
            if len(sent) == 3:
                stop.set()

        await emails.work(send, queue="mailers", concurrency=2, until=stop)
        assert sorted(sent) == [0, 1, 3]
        (letter,) = await dead(broker, "dead.emails", 1)
        assert letter.decode(StructOrder).tea == 2


async def dead(broker: fanlog.Broker, topic: str, count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                letters = await broker.dead_letters.list(topic)
            except errors.TopicNotFoundError:
                letters = []
            if len(letters) >= count:
                return letters
            await asyncio.sleep(0.01)


async def test_requests_of_a_typed_topic_are_answered_with_objects() -> None:
    async with fanlog.Broker() as broker:
        teas = broker.topic("teas", StructOrder)

        def price(job: fanlog.TypedJob[StructOrder]) -> dict[str, int]:
            return {"price": job.data.tea * 3}

        serving = asyncio.ensure_future(teas.serve(price))
        await until(lambda: broker._node is not None and bool(broker._followers.attached()))
        while True:
            try:
                reply = await teas.request(StructOrder(2, WHEN), timeout_seconds=PATIENCE_SECONDS)
                break
            except errors.NoRespondersError:
                await asyncio.sleep(0.01)
        assert reply.decode() == {"price": 6}
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_plain_code_works_on_typed_jobs(way_blocking: fanlog.sync.Client) -> None:
    client = way_blocking
    emails = client.topic("emails", StructOrder)
    assert_type(emails, fanlog.sync.Topic[StructOrder])
    emails.publish_many([StructOrder(tea, WHEN) for tea in range(3)])
    stop = threading.Event()
    seen: list[int] = []

    def send(job: fanlog.sync.TypedJob[StructOrder]) -> None:
        seen.append(job.data.tea)
        if len(seen) == 3:
            stop.set()

    emails.work(send, queue="q", until=stop)
    assert sorted(seen) == [0, 1, 2]
    client.publish("emails", b"bad")
    with emails.work(queue="q", max_deliveries=1) as worker:
        with worker.next(PATIENCE_SECONDS) as job:
            assert_type(job.data, StructOrder)
            pytest.fail("it does not decode")
        assert worker.failures == 1


@pytest.fixture
def way_blocking() -> Any:
    """A blocking client, of a broker in another thread."""
    ready: list[Any] = []
    started = threading.Event()

    async def serve() -> None:
        stop = asyncio.Event()
        async with fanlog.Broker(
            config=fanlog.Config(listener=fanlog.config.ListenerOptions(port=0))
        ) as broker:
            ready.extend((asyncio.get_running_loop(), stop, broker.listen().port))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    loop, stop, port = ready
    with fanlog.sync.connect(f"fanlog://127.0.0.1:{port}") as client:
        yield client
    loop.call_soon_threadsafe(stop.set)
    thread.join()


# Types and options


async def types_are_inferred(client: fanlog.Client, plain: fanlog.sync.Client) -> None:
    """Never called: pyright checks it."""
    orders = client.topic("orders", StructOrder)
    assert_type(orders, fanlog.Topic[StructOrder])
    async with orders.subscribe(start="earliest") as messages:
        async for message in messages:
            assert_type(message, fanlog.TypedMessage[StructOrder])
            assert_type(message.data, StructOrder)
            assert_type(message.value, bytes)
            assert_type(message.decode(PydanticOrder), PydanticOrder)
    async with orders.consume(group="g") as member:
        assert_type((await member.next()).data, StructOrder)
    async with orders.work(queue="q") as worker:
        async for job in worker:
            async with job:
                assert_type(job.data, StructOrder)
    with plain.topic("orders", StructOrder).subscribe() as messages:
        for message in messages:
            assert_type(message.data, StructOrder)


def named(call: Any, *without: str) -> set[str]:
    parameters = inspect.signature(call).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - set(without)


@pytest.mark.parametrize("client", [fanlog.Client, fanlog.sync.Client])
def test_a_typed_topic_takes_every_option_that_the_client_takes(client: Any) -> None:
    """Who gives the client a new option adds it to `client/typed/options.py` too."""
    assert options.LaterOptions.__annotations__.keys() == named(client.publish, "encoding")
    assert options.SendOptions.__annotations__.keys() == named(client.send, "encoding")
    assert options.RequestOptions.__annotations__.keys() == named(client.request, "encoding")
    assert options.SubscribeOptions.__annotations__.keys() == named(client.subscribe)
