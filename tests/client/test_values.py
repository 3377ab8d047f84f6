"""Objects as values of messages, over every implementation of the API: what is published comes back
as what it was, and what does not decode says where and why."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import fanlog
from fanlog import errors
from fanlog.client import values
from fanlog.client.message import MessageBatch
from fanlog.client.values import Encoding
from fanlog.format.batch import Batch, encode_batch, stamp
from tests.client.kinds import (
    ORDERS,
    WHEN,
    DataclassOrder,
    Opaque,
    PydanticOrder,
    StructOrder,
)
from tests.client.ways import ALL_WAYS, PATIENCE_SECONDS, Way, take

ENCODINGS: tuple[Encoding, ...] = ("json", "msgpack")
SEVERAL = [
    {"tea": 1, "hot": True, "price": 3.2, "sugar": None},
    [1, "two", [3]],
    (1, 2),
    7,
    2.5,
    True,
]


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def read(client: Any, topic: str, count: int = 1) -> list[fanlog.Message]:
    async with client.subscribe(topic, start="earliest") as history:
        return await take(history, count)


# Publishing objects


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_an_object_comes_back_as_what_it_was(way: Way, encoding: Encoding) -> None:
    async with way.open(encoding=encoding) as client:
        for order in ORDERS.values():
            await client.publish("orders", order, key="k", headers={"own": "1"})
        for order, message in zip(
            ORDERS.values(), await read(client, "orders", len(ORDERS)), strict=True
        ):
            assert message.decode(type(order)) == order
            assert message.headers["content-type"] == values.CONTENT_TYPES[encoding]
            assert (message.key, message.headers["own"]) == (b"k", b"1")


@pytest.mark.parametrize("encoding", [None, *ENCODINGS])
async def test_plain_objects_come_back_without_a_type(way: Way, encoding: Encoding | None) -> None:
    async with way.open() as client:
        await client.publish_many("t", SEVERAL, encoding=encoding)
        got = [message.decode() for message in await read(client, "t", len(SEVERAL))]
        assert got == [list(one) if isinstance(one, tuple) else one for one in SEVERAL]


async def test_bytes_text_and_nothing_are_stored_as_they_are_without_a_header(way: Way) -> None:
    async with way.open(encoding="msgpack") as client:
        for value in (b"\x00{", "tea", bytearray(b"x"), memoryview(b"y"), None, b""):
            await client.publish("t", value)
            await client.send("t", value)
        await client.flush()
        stored = await read(client, "t", 12)
        assert [message.value for message in stored[::2]] == [
            b"\x00{",
            b"tea",
            b"x",
            b"y",
            b"",
            b"",
        ]
        assert [message.value for message in stored[1::2]] == [m.value for m in stored[::2]]
        assert not any(message.headers for message in stored)
        assert stored[8].is_tombstone
        assert stored[2].decode(str) == "tea"
        assert stored[0].decode(bytes) == b"\x00{"
        assert stored[8].decode() is stored[8].decode(DataclassOrder | None) is None


async def test_an_object_is_sent_as_it_was_when_it_was_sent(way: Way) -> None:
    async with way.open() as client:
        order = {"tea": 1}
        text = bytearray(b"1")
        await client.send("t", order)
        await client.send("t", text)
        order["tea"] = 2
        text[:] = b"2"
        async with client.transaction() as tx:
            await tx.publish("t", order)
            order["tea"] = 3
        await client.flush()
        assert [message.decode() for message in await read(client, "t", 3)] == [
            {"tea": 1},
            1,
            {"tea": 2},
        ]


async def test_the_encoding_can_be_chosen_for_one_message(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", {"n": 1}, encoding="msgpack")
        await client.send("t", "text", encoding="json")
        await client.flush()
        async with client.transaction() as tx:
            await tx.publish("t", {"n": 2}, encoding="msgpack")
        packed, text, staged = await read(client, "t", 3)
        assert msgspec.msgpack.decode(packed.value) == packed.decode() == {"n": 1}
        assert (text.value, text.decode()) == (b'"text"', "text")
        assert staged.headers == packed.headers == {"content-type": b"application/msgpack"}


async def test_a_content_type_that_is_given_stays_and_decides(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", {"n": 1}, headers={"Content-Type": "application/x-msgpack"})
        await client.publish("t", {"n": 2}, headers={"content-type": b"application/vnd.n+json"})
        await client.publish("t", b'{"n": 3}', headers={"content-type": "text/plain; charset=x"})
        stored = await read(client, "t", 3)
        assert [message.decode()["n"] for message in stored] == [1, 2, 3]
        assert msgspec.msgpack.decode(stored[0].value) == {"n": 1}
        assert stored[1].headers == {"content-type": b"application/vnd.n+json"}


async def test_what_can_not_be_encoded_is_refused_and_nothing_is_stored(way: Way) -> None:
    endless: list[Any] = []
    endless.append(endless)
    async with way.open() as client:
        for value, reason in (
            (Opaque(), "Opaque can't be published as json"),
            ({"x": Opaque()}, "holds an object of type Opaque"),
            (Opaque, "type type"),
            (endless, "recursion"),
            ("\ud800", "surrogates"),
        ):
            for call in (client.publish, client.send):
                with pytest.raises(errors.InvalidArgumentError, match=reason):
                    await call("t", value)
        with pytest.raises(errors.InvalidArgumentError, match="no encoding 'xml'"):
            await client.publish("t", {}, encoding="xml")
        with pytest.raises(errors.InvalidArgumentError, match="leave out `encoding`"):
            await client.publish("t", b"x", encoding="json")
        named = {"content-type": "application/json"}
        with pytest.raises(errors.InvalidArgumentError, match="do not agree"):
            await client.publish("t", {}, headers=named, encoding="msgpack")
        for one in (b"abc", "abc", {"a": 1}):
            with pytest.raises(errors.InvalidArgumentError, match="list of values, not one"):
                await client.publish_many("t", one)
        receipt = await client.publish("t", b"first")
        assert receipt.offset == 0


# Decoding


async def test_what_does_not_decode_says_where_what_was_expected_and_why(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("orders", partitions=3)
        bad = {"tea": "many", "when": WHEN}
        await client.publish("orders", b"{}", partition=2)
        await client.publish("orders", bad, partition=2)
        await client.publish("orders", b"not json", partition=2)
        await client.publish("orders", None, key="k", partition=2)
        _, wrong, torn, gone = await read(client, "orders", 4)
        with pytest.raises(errors.DecodeError) as caught:
            wrong.decode(StructOrder)
        assert str(caught.value) == (
            "The message orders/2@1 does not decode as StructOrder: Expected `int`, got `str` - at "
            "`$.tea` (its content-type is application/json). Use message.value for the bytes as "
            "they are."
        )
        fault = caught.value
        assert (fault.topic, fault.partition, fault.offset) == ("orders", 2, 1)
        assert (fault.expected, fault.reason[:8]) == ("StructOrder", "Expected")
        with pytest.raises(errors.DecodeError, match=r"@2 .*malformed.*no content-type.*JSON"):
            torn.decode(dict[str, int])
        with pytest.raises(errors.DecodeError, match="tombstone"):
            gone.decode(StructOrder)


def test_pydantic_says_why_itself() -> None:
    with pytest.raises(errors.DecodeError) as caught:
        decode(b'{"teaCups": "many", "when": []}', PydanticOrder)
    assert "valid integer" in caught.value.reason
    assert "at `$.teaCups`" in caught.value.reason
    assert "at `$.when`" in caught.value.reason
    assert caught.value.expected == "PydanticOrder"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "kind",
    [
        list[PydanticOrder],
        PydanticOrder | None,
        dict[str, PydanticOrder | None],
        PydanticOrder | DataclassOrder,
        StructOrder | None,
    ],
    ids=str,
)
def test_types_may_be_made_of_others(kind: Any, encoding: Encoding) -> None:
    one = ORDERS["struct"] if kind == StructOrder | None else ORDERS["pydantic"]
    value: Any = one
    if "list" in str(kind):
        value = [one, one]
    elif "dict" in str(kind):
        value = {"a": one, "b": None}
    headers = {"content-type": values.CONTENT_TYPES[encoding]}
    assert decode(values.encode(value, encoding), kind, headers) == value


@pytest.mark.parametrize("kind", [Opaque, list[Opaque], "Order", 5], ids=str)
def test_a_type_that_nothing_decodes_to_is_named(kind: Any) -> None:
    with pytest.raises(errors.DecodeError, match=r"t/0@0 does not decode as"):
        decode(b"[{}]" if "list" in str(kind) else b"{}", kind)


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[" * 100_000, b"1e999999", b'"\\ud800"'])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bad_bytes_are_a_decode_error(value: bytes, encoding: Encoding) -> None:
    headers = {"content-type": values.CONTENT_TYPES[encoding]}
    for kind in (StructOrder, PydanticOrder, list[PydanticOrder]):
        with pytest.raises(errors.DecodeError):
            decode(value, kind, headers)


def decode(value: bytes, kind: Any, headers: dict[str, bytes] | None = None) -> Any:
    """As a message of its own batch."""
    batch = Batch(
        stamp(
            encode_batch([value], headers=[headers] if headers else None),
            base_offset=0,
            append_time_us=1,
            leader_epoch=1,
            topic=1,
        )
    )
    batch.topic_name = "t"
    return MessageBatch(batch).messages[0].decode(kind)


# Wherever messages are


async def test_requests_and_replies_are_objects(way: Way) -> None:
    async with way.open() as client:

        def double(job: Any) -> StructOrder:
            order = job.decode(StructOrder)
            return StructOrder(order.tea * 2, order.when)

        serving = asyncio.ensure_future(client.serve("svc", double))
        while True:
            try:
                reply = await client.request(
                    "svc", ORDERS["dataclass"], timeout_seconds=PATIENCE_SECONDS
                )
                break
            except errors.NoRespondersError:
                await asyncio.sleep(0.01)
        assert reply.decode(DataclassOrder).tea == 4
        assert reply.headers["content-type"] == b"application/json"
        reply = await client.request(
            "svc", ORDERS["struct"], encoding="msgpack", timeout_seconds=PATIENCE_SECONDS
        )
        assert reply.decode(StructOrder).tea == 4
        assert reply.headers["content-type"] == b"application/msgpack"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_dead_letter_decodes_as_its_job_did(encoding: Encoding) -> None:
    async with fanlog.Broker(encoding=encoding) as broker:
        await broker.publish("jobs", ORDERS["struct"])
        async with broker.work("jobs", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            assert job.decode(StructOrder) == ORDERS["struct"]
            await job.reject("no")
        letters = await broker.dead_letters.list("dead.jobs")
        assert [letter.decode(StructOrder) for letter in letters] == [ORDERS["struct"]]
        await broker.dead_letters.replay("dead.jobs")
        _, again = await read(broker, "jobs", 2)
        assert again.decode(StructOrder) == ORDERS["struct"]


async def test_a_transformation_makes_objects(way: Way) -> None:
    async with way.open() as client:
        for tea in range(3):
            await client.publish("orders", StructOrder(tea, WHEN))

        def rich(message: fanlog.Message) -> object:
            order = message.decode(StructOrder)
            if order.tea == 0:
                return {"cups": 0}
            return fanlog.Outgoing("", {"cups": order.tea}, encoding="msgpack")

        await client.transform("orders", "rich", rich, group="g", idle_seconds=0.3)
        made = await read(client, "rich", 3)
        assert [message.decode()["cups"] for message in made] == [0, 1, 2]
