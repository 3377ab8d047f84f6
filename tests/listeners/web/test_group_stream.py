"""Members of consumer groups over WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fanlog.listeners.web import group_stream
from tests.client.ways import PATIENCE_SECONDS, until
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.wire import RawSocket, raw

PATHS = ("/v1/groups/g/stream?topic=orders", "/v1/topics/orders/stream?group=g")


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def member(site: Site, path: str, **query: Any) -> AsyncIterator[RawSocket]:
    given = {"reset": "earliest", **query}
    path += "".join(f"&{name}={value}" for name, value in given.items())
    async with asyncio.timeout(PATIENCE_SECONDS), raw(site.listener.port, path) as socket:
        welcome = await socket.told("welcome")
        assert welcome["group"] == "g"
        yield socket


async def texts(socket: RawSocket, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        frame = await socket.told("messages")
        assert frame["target"] == frame["topic"] == "orders"
        found += [message["text"] for message in frame["messages"]]
    return found


async def lag(site: Site) -> int:
    return (await site.broker.groups.describe("g")).lag


async def until_lag(site: Site, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await lag(site) != wanted:  # noqa: ASYNC110 - the state is the broker's
            await asyncio.sleep(0.01)


async def test_a_member_gets_its_partitions_and_their_messages(
    serving: Serving, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        await site.broker.publish_many("orders", ["a", "b", "c"])
        async with member(site, path, consumer="c1") as socket:
            assert (await socket.told("assigned"))["partitions"] == ["orders/0"]
            assert await texts(socket, 3) == ["a", "b", "c"]
            await site.broker.publish("orders", "d")
            assert await texts(socket, 1) == ["d"]
            (found,) = (await site.broker.groups.describe("g")).members
            assert found.id == "c1"
            # What was sent is committed by itself.
            await until_lag(site, 0)
        monkeypatch.setattr(group_stream, "_COMMIT_SECONDS", 3600)
        async with member(site, path) as socket:
            await socket.told("assigned")
            await site.broker.publish("orders", "e")
            assert await texts(socket, 1) == ["e"]
            (position,) = (await site.broker.groups.describe("g")).partitions
            assert position.committed == 4
        # It was gone before that counted.
        async with member(site, path) as socket:
            assert await texts(socket, 1) == ["e"]


async def test_only_what_is_acked_is_done(serving: Serving, path: str) -> None:
    async with serving() as site:
        await site.broker.publish_many("orders", ["a", "b", "c", "d"])
        async with member(site, path, commit="manual") as socket:
            assert await texts(socket, 4) == ["a", "b", "c", "d"]
            acked = await socket.ask(op="ack", topic="orders", partition=0, offset=0)
            assert acked == {"id": "asked", "ok": {}}
            assert await lag(site) == 3
        async with member(site, path, commit="manual") as socket:
            frame = await socket.told("messages")
            assert [message["text"] for message in frame["messages"]] == ["b", "c", "d"]
            positions = {"orders/0": frame["position"]}
            assert "ok" in await socket.ask(op="commit", positions=positions)
            assert await lag(site) == 0
            assert "ok" in await socket.ask(op="ping")


async def test_no_more_than_prefetch_is_sent_without_an_ack(serving: Serving, path: str) -> None:
    async with serving() as site:
        for number in range(4):
            await site.broker.publish("orders", str(number))
        async with member(site, path, commit="manual", prefetch=2) as socket:
            got = await texts(socket, 2)
            # Nothing more comes: the answer to the next operation is the next frame.
            socket.say(op="ping", id="ping")
            assert (await socket.told()).get("id") == "ping"
            await socket.ask(op="ack", topic="orders", offset=1)
            assert got + await texts(socket, 2) == ["0", "1", "2", "3"]


async def test_members_share_partitions_and_take_over(serving: Serving, path: str) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=2)
        async with member(site, path, consumer="one") as one:
            assert (await one.told("assigned"))["partitions"] == ["orders/0", "orders/1"]
            async with member(site, path, consumer="two") as two:
                (moved,) = (await one.told("revoked"))["partitions"]
                assert (await two.told("assigned"))["partitions"] == [moved]
                for partition in (0, 1):
                    await site.broker.publish("orders", str(partition), partition=partition)
                mine, theirs = await texts(one, 1), await texts(two, 1)
                assert sorted(mine + theirs) == ["0", "1"]
                assert theirs == [moved[-1]]
            # One that is gone gives its partition back at once.
            assert (await one.told("assigned"))["partitions"] == [moved]
        async with site.broker.consume("orders", group="g", reset="earliest") as native:
            await site.broker.publish("orders", "native")
            # What a member that was cut off has not committed comes again.
            while (await native.next(PATIENCE_SECONDS)).text != "native":
                pass


async def test_the_second_of_a_name_takes_the_place_of_the_first(
    serving: Serving, path: str
) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders")
        async with member(site, path, consumer="c") as first:
            await first.told("assigned")
            async with member(site, path, consumer="c") as second:
                refusal = await first.told()
                while "error" not in refusal:
                    refusal = await first.told()
                assert refusal["error"]["code"] == "fenced"
                assert await first.close_code() == 1008
                await site.broker.publish("orders", "x")
                assert await texts(second, 1) == ["x"]


async def test_what_is_wrong_is_answered(serving: Serving, path: str) -> None:
    async with serving() as site:
        await site.broker.publish("orders", "a")
        async with member(site, path, commit="manual") as socket:
            await texts(socket, 1)
            for operation, code in (
                ({"op": "ack", "topic": "orders", "offset": 5}, "invalid_argument"),
                ({"op": "ack", "topic": "other", "offset": 0}, "fenced"),
                ({"op": "ack", "topic": "orders", "offset": -1}, "invalid_argument"),
                ({"op": "commit", "positions": {}}, "invalid_argument"),
                ({"op": "commit", "positions": {"orders/0": "x"}}, "invalid_argument"),
                ({"op": "dance"}, "invalid_argument"),
            ):
                answer = await socket.ask(**operation)
                assert answer["error"]["code"] == code, operation
            assert await lag(site) == 1
        for wrong, status in (
            ("/v1/groups/g/stream", 400),
            (f"{path}&commit=never", 400),
            (f"{path}&prefetch=0", 400),
            (f"{path}&reset=yesterday", 400),
            (path, 426),
        ):
            async with site.http.get(wrong) as answer:
                assert answer.status == status, wrong


async def test_a_client_that_is_gone_leaves_its_group(serving: Serving, path: str) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders")
        async with member(site, path) as socket:
            await socket.told("assigned")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await site.broker.groups.describe("g")).members:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.01)


async def test_what_waits_for_a_client_is_not_committed_when_others_join(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_stream, "_COMMIT_SECONDS", 3600.0)
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=2)
        for i in range(24):
            await site.broker.publish("orders", bytes(800_000), partition=i % 2)
        async with member(site, PATHS[0], consumer="slow"):
            (stuck,) = site.listener.streams
            await until(lambda: stuck.kept_bytes > 0)
            async with member(site, PATHS[0], consumer="other") as other:
                frame = await other.told("messages")
                assert frame["messages"][0]["offset"] == 0


async def test_a_program_disconnects_a_member(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders")
        async with member(site, PATHS[0], consumer="c", user="ann") as socket:
            (known,) = [
                one async for one in site.broker.web.connections(timeout_seconds=PATIENCE_SECONDS)
            ]
            assert (known.user, known.subscriptions) == ("ann", ["orders"])
            assert await site.broker.web.disconnect("ann", timeout_seconds=PATIENCE_SECONDS) == 1
            assert await socket.close_code() == 4001
        await until(lambda: not len(site.listener.connections))
