"""WebSocket, with the `websockets` client: subscribe, publish, request, and who may."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fanlog.format.header import read_header
from tests.listeners.web.conftest import Serving


class Talker:
    """The `websockets` client; frames are taken by their kind, and none is lost."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.kept: list[Any] = []

    async def told(self, kind: str) -> Any:
        """The next frame of a type."""
        return await self.next(lambda frame: frame.get("type") == kind)

    async def ask(self, **operation: Any) -> Any:
        """Sends an operation, and returns its answer."""
        await self.socket.send(json.dumps({"id": 1, **operation}))
        return await self.next(lambda frame: frame.get("id") == 1)

    async def refused(self) -> Any:
        return (await self.next(lambda frame: "error" in frame))["error"]

    async def next(self, fits: Callable[[Any], bool]) -> Any:
        for i, frame in enumerate(self.kept):
            if fits(frame):
                return self.kept.pop(i)
        while True:
            data = await self.socket.recv()
            frame = json.loads(data) if isinstance(data, str) else {"binary": data}
            if fits(frame):
                return frame
            self.kept.append(frame)


@asynccontextmanager
async def talking(url: str, **options: Any) -> AsyncIterator[Talker]:
    # It would give up by itself where a machine is slow.
    patient: dict[str, Any] = {"open_timeout": None, "ping_timeout": None}
    async with connect(url, **(patient | options)) as socket:
        yield Talker(socket)


async def test_the_server_says_who_it_is(serving: Serving) -> None:
    async with serving(ping_seconds=7) as site, talking(f"{site.ws}/v1/ws?user=ann") as client:
        welcome = await client.told("welcome")
        assert welcome["type"] == "welcome"
        assert welcome["user"] == "ann"
        assert welcome["ping_seconds"] == 7
        assert (welcome["version"], welcome["bus"], welcome["up"]) == (1, "fanlog", True)
        assert client.socket.subprotocol is None
        assert not client.socket.protocol.extensions


async def test_a_client_publishes_and_reads(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        await site.broker.create_topic("chat")
        answer = await client.ask(op="subscribe", target="chat")
        positions = answer["ok"]["positions"]
        assert list(positions) == ["chat/0"]
        answer = await client.ask(op="publish", topic="chat", key="k", json={"text": "hi"})
        published = answer["ok"]["published"]
        assert [(p["topic"], p["offset"]) for p in published] == [("chat", 0)]
        await client.socket.send(json.dumps({"op": "publish", "topic": "chat", "text": "again"}))
        first = await client.told("messages")
        second = await client.told("messages")
        assert first["messages"][0]["json"] == {"text": "hi"}
        assert first["messages"][0]["key"] == "k"
        assert first["position"] == published[0]["position"]
        assert second["messages"][0]["text"] == "again"
        assert second["target"] == second["topic"] == "chat"


async def test_a_position_from_before_the_first_message_misses_nothing(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("chat")
        async with talking(f"{site.ws}/v1/ws") as client:
            answer = await client.ask(op="subscribe", target="chat")
        await site.broker.publish("chat", b"missed")
        async with talking(f"{site.ws}/v1/ws") as client:
            await client.ask(op="subscribe", target="chat", positions=answer["ok"]["positions"])
            frame = await client.told("messages")
            assert [m["text"] for m in frame["messages"]] == ["missed"]


async def test_a_subscription_waits_for_its_topic(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        answer = await client.ask(op="subscribe", target="later")
        assert answer["ok"]["positions"] == {}
        notice = await client.told("notice")
        assert (notice["kind"], notice["topic"]) == ("missing", "later")
        await site.broker.publish("later", b"x")
        joined = await client.told("joined")
        assert list(joined["positions"]) == ["later/0"]
        assert (await client.told("messages"))["messages"][0]["text"] == "x"
        await site.broker.delete_topic("later")
        assert (await client.told("left"))["topic"] == "later"
        answer = await client.ask(op="subscribe", target="other", missing="fail")
        assert answer["error"]["code"] == "topic_not_found"


async def test_a_pattern_follows_topics_that_come_later(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        await client.ask(op="subscribe", target="room.*")
        await site.broker.publish("room.a", b"1")
        frame = await client.told("messages")
        assert (frame["target"], frame["topic"]) == ("room.*", "room.a")


async def test_subscriptions_begin_where_they_are_asked_to(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        for i in range(5):
            await site.broker.publish("log", str(i).encode())
        starts: list[tuple[Any, list[str]]] = [
            ("earliest", ["0", "1", "2", "3", "4"]),
            ({"offset": 3, "partition": 0}, ["3", "4"]),
            ({"offset": 4}, ["4"]),
            ({"time": "1h"}, ["0", "1", "2", "3", "4"]),
            ({"last": 2}, ["3", "4"]),
        ]
        for start, wanted in starts:
            await client.ask(op="subscribe", target="log", start=start)
            got: list[str] = []
            while len(got) < len(wanted):
                got += [m["text"] for m in (await client.told("messages"))["messages"]]
            assert got == wanted, start
            assert "ok" in await client.ask(op="unsubscribe", target="log")


async def test_filters_are_separate_subscriptions(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        await site.broker.create_topic("t")
        answer = await client.ask(op="subscribe", target="t", filter={"key": "a*"})
        text = answer["ok"]["filter"]
        await client.ask(op="subscribe", target="t", filter={"headers": {"kind": ["x"]}})
        await site.broker.publish("t", b"1", key=b"b")
        await site.broker.publish("t", b"2", key=b"ab")
        frame = await client.told("messages")
        assert frame["filter"] == text
        assert [m["text"] for m in frame["messages"]] == ["2"]
        assert "ok" in await client.ask(op="unsubscribe", target="t", filter={"key": "a*"})
        answer = await client.ask(op="unsubscribe", target="t", filter={"key": "a*"})
        assert answer["error"]["code"] == "invalid_argument"


async def test_binary_frames_carry_batches_unchanged(serving: Serving) -> None:
    url = "/v1/ws"
    async with (
        serving() as site,
        talking(f"{site.ws}{url}", subprotocols=["other", "fanlog.binary"]) as client,
    ):
        assert client.socket.subprotocol == "fanlog.binary"
        await site.broker.create_topic("t")
        answer = await client.ask(op="subscribe", target="t")
        (number,) = answer["ok"]["numbers"]
        assert answer["ok"]["numbers"][number] == "t"
        await site.broker.publish("t", b"raw")
        frame = (await client.next(lambda frame: "binary" in frame))["binary"]
        assert frame[:2] == b"\x01t"
        header = read_header(frame[2:])
        assert header.topic == int(number)


async def test_a_request_waits_for_its_reply(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        answer = await client.ask(op="request", topic="nobody", text="x", timeout_seconds=1)
        assert answer["error"]["code"] == "no_responders"
        answer = await client.ask(op="request", topic="t", text="x", timeout_seconds=1e6)
        assert "web.wait_seconds_max" in answer["error"]["message"]


@pytest.mark.plain
async def test_what_is_wrong_with_an_operation_is_its_answer(serving: Serving) -> None:
    async with serving(subscriptions_max=1) as site, talking(f"{site.ws}/v1/ws") as client:
        for wrong in (
            {"op": "nothing"},
            {"op": "subscribe"},
            {"op": "subscribe", "target": "a.>.b"},
            {"op": "subscribe", "target": "a", "start": "tomorrow or so"},
            {"op": "subscribe", "target": "a", "start": {"offset": 1, "time": "1h"}},
            {"op": "subscribe", "target": "a", "positions": {"a/0": "nonsense"}},
            {"op": "subscribe", "target": "$user"},
            {"op": "publish", "topic": "a"},
            {"op": "publish", "topic": "a", "text": "x", "json": 1},
            {"op": "publish", "topic": "a", "messages": []},
            {"op": "publish", "topic": "a", "text": "x", "messages": [{"text": "y"}]},
            {"op": "unsubscribe", "target": "a"},
        ):
            answer = await client.ask(**wrong)
            assert "error" in answer, (wrong, answer)
        await client.socket.send("{not json")
        assert (await client.refused())["code"] == "invalid_argument"
        await client.ask(op="subscribe", target="a")
        answer = await client.ask(op="subscribe", target="a")
        assert "already follows" in answer["error"]["message"]
        answer = await client.ask(op="subscribe", target="b")
        assert "web.subscriptions_max" in answer["error"]["message"]
        assert (await client.ask(op="ping"))["ok"] == {}
        assert (await client.ask(op="token", token="t"))["ok"] == {"user": ""}


async def test_a_user_has_a_topic_of_its_own(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws?user=ann") as client:
        answer = await client.ask(op="subscribe", target="$user")
        assert answer["ok"]["target"] == "user.ann"


async def test_pages_of_other_hosts_may_not_connect(serving: Serving) -> None:
    async with serving(origins="https://app.example.com") as site:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{site.ws}/v1/ws", origin="http://evil.example.com"):  # type: ignore[arg-type]
                pass
        assert refused.value.response.status_code == 403
        assert b"web.origins" in (refused.value.response.body or b"")
        for origin in ("https://app.example.com", site.url):
            async with connect(f"{site.ws}/v1/ws", origin=origin) as client:  # type: ignore[arg-type]
                await client.recv()


async def test_a_large_message_closes_with_1009(serving: Serving) -> None:
    async with serving(message_bytes_max=1024) as site, talking(f"{site.ws}/v1/ws") as client:
        await client.socket.send("x" * 2000)
        await client.told("welcome")
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_history_is_read_backwards(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        for i in range(25):
            await site.broker.publish("t", str(i).encode())
        seen: list[str] = []
        before = None
        while True:
            answer = await client.ask(op="history", topic="t", before=before, limit=10)
            page = [m["text"] for m in answer["ok"]["messages"]]
            seen = page + seen
            before = answer["ok"]["before"]
            if before is None:
                break
            assert len(page) == 10
            assert answer["ok"]["positions"]["t/0"].startswith(f"{page[0]}.")
        assert seen == [str(i) for i in range(25)]
        answer = await client.ask(op="history", topic="t", before="3.1.1", limit=2)
        assert [m["offset"] for m in answer["ok"]["messages"]] == [1, 2]
        for wrong in (
            {"topic": "none"},
            {"topic": "t", "partition": 7},
            {"topic": "t", "limit": 0},
        ):
            assert "error" in await client.ask(op="history", **wrong)


async def test_the_latest_values_come_first_and_then_changes(serving: Serving) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        await site.broker.create_topic("prices", cleanup="compact")
        for i in range(10):
            await site.broker.publish("prices", str(i).encode(), key=str(i % 3).encode())
        await site.broker.publish("prices", None, key=b"1")
        answer = await client.ask(op="subscribe", target="prices", latest=True)
        # Who is cut off before the snapshot has come whole begins again with this one.
        assert answer["ok"]["positions"]["prices/0"].startswith("0.")
        frame = await client.told("snapshot")
        assert {m["key"]: m["text"] for m in frame["messages"]} == {"0": "9", "2": "8"}
        assert frame["more"] is False
        assert frame["position"].startswith("11.")
        await site.broker.publish("prices", b"new", key=b"1")
        change = await client.told("messages")
        assert [m["offset"] for m in change["messages"]] == [11]
        await site.broker.publish("other", b"x")
        answer = await client.ask(op="subscribe", target="other", latest=True)
        assert "not compacted" in answer["error"]["message"]
        answer = await client.ask(op="subscribe", target="other")
        assert "ok" in answer


@pytest.mark.parametrize("there", [True, False], ids=["topic-there", "topic-later"])
async def test_a_broker_without_a_disk_that_was_restarted_is_one_gap(
    serving: Serving, there: bool
) -> None:
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        for i in range(3):
            await site.broker.publish("t", str(i).encode())
        await client.ask(op="subscribe", target="t", start={"offset": 2})
        position = (await client.told("messages"))["position"]
    async with serving() as site, talking(f"{site.ws}/v1/ws") as client:
        if there:
            await site.broker.create_topic("t")
        answer = await client.ask(op="subscribe", target="t", positions={"t/0": position})
        if not there:
            # It is not known yet what becomes of it: the position stays as it is.
            assert answer["ok"]["positions"] == {"t/0": position}
            await client.told("notice")
        await site.broker.publish("t", b"new")
        gap = await client.told("gap")
        assert (gap["from"], gap["reason"]) == (position, "reset")
        assert (await client.told("messages"))["messages"][0]["text"] == "new"
        assert not [frame for frame in client.kept if frame.get("type") == "gap"]
