"""Presence and the server API as WebSocket clients see them, on two processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from websockets.exceptions import ConnectionClosed

from fanlog import WebConnectionInfo
from fanlog.identity import Identity, Verb
from fanlog.listeners.web.server import WebListener
from fanlog.security.rules import forbidden
from tests.listeners.web.test_websocket import Talker, talking
from tests.listeners.web.two_processes import PATIENCE_SECONDS, Two, two_processes, until


def ws(listener: WebListener, user: str) -> str:
    return f"ws://127.0.0.1:{listener.port}/v1/ws?user={user}"


async def here(client: Talker, topic: str = "lobby") -> list[str]:
    answer = await client.ask(op="presence", topic=topic)
    return [user["user"] for user in answer["ok"]["users"]]


async def test_clients_on_two_processes_see_each_other_come_and_go() -> None:
    async with two_processes() as two:
        await two.broker.create_topic("lobby")
        async with talking(ws(two.first, "ann")) as ann:
            await ann.ask(op="subscribe", target="lobby", presence={"name": "Ann"})
            assert await here(ann) == ["ann"]
            async with talking(ws(two.second, "bob")) as bob:
                await bob.ask(op="subscribe", target="lobby", presence=True)
                event = await ann.next(lambda f: "bob" in str(f.get("joined")))
                assert event == {
                    "type": "presence",
                    "topic": "lobby",
                    "count": 2,
                    "joined": [{"user": "bob"}],
                    "left": [],
                }
                # The other process hears of ann in its own time.
                await until(lambda: two.second.presence.snapshot("lobby").count == 2)
                answer = await bob.ask(op="presence", topic="lobby")
                assert answer["ok"]["users"][0] == {
                    "user": "ann",
                    "connections": 1,
                    "info": {"name": "Ann"},
                }
            event = await ann.next(lambda f: bool(f.get("left")))
            assert (event["left"], event["count"]) == ([{"user": "bob"}], 1)


async def test_who_comes_back_on_the_other_process_was_never_away() -> None:
    async with two_processes(presence_grace_seconds=3600.0) as two:
        await two.broker.create_topic("lobby")
        async with talking(ws(two.first, "ann")) as ann:
            await ann.ask(op="subscribe", target="lobby", presence=True)
            for listener in (two.second, two.first, two.second):
                async with talking(ws(listener, "bob")) as bob:
                    await bob.ask(op="subscribe", target="lobby", presence=True)
                    await until(lambda: two.first.presence.snapshot("lobby").connections == 2)
                await until(lambda: two.first.presence.snapshot("lobby").connections == 1)
            async with talking(ws(two.second, "cyd")) as cyd:
                await cyd.ask(op="subscribe", target="lobby", presence=True)
                event = await ann.next(lambda f: "cyd" in str(f.get("joined")))
                assert event["count"] == 3
            told = [frame for frame in ann.kept if frame.get("type") == "presence"]
            assert not [frame for frame in told if frame["left"]]
            assert sum("bob" in str(frame["joined"]) for frame in told) == 1


async def test_an_unsubscribed_client_is_not_there_any_more() -> None:
    async with two_processes(presence_grace_seconds=0.0) as two:
        await two.broker.create_topic("lobby")
        async with talking(ws(two.first, "ann")) as ann:
            await ann.ask(op="subscribe", target="lobby", presence=True)
            await ann.ask(op="subscribe", target="lobby", filter={"key": "a*"}, presence=True)
            await ann.ask(op="unsubscribe", target="lobby")
            assert await here(ann) == ["ann"]
            await ann.ask(op="unsubscribe", target="lobby", filter={"key": "a*"})
            assert await here(ann) == []
            assert not two.first.presence._watchers


async def test_presence_of_a_pattern_is_refused_and_nothing_is_left_behind() -> None:
    async with two_processes(presence_info_bytes_max=20) as two:
        await two.broker.create_topic("lobby")
        async with talking(ws(two.first, "ann")) as ann:
            answer = await ann.ask(op="subscribe", target="lob.*", presence=True)
            assert answer["error"]["code"] == "invalid_argument"
            answer = await ann.ask(op="subscribe", target="lobby", presence={"name": "x" * 50})
            assert answer["error"]["code"] == "limit"
            assert "web.presence_info_bytes_max" in answer["error"]["message"]
            assert await here(ann) == []
            # The subscription was refused as a whole: it can be made again.
            assert "ok" in await ann.ask(op="subscribe", target="lobby", presence=True)


async def ids_of(two: Two, user: str) -> list[str]:
    return [one.id for one in await known_of(two, user)]


async def known_of(two: Two, user: str | None = None) -> list[WebConnectionInfo]:
    asked = two.broker.web.connections(user=user, timeout_seconds=PATIENCE_SECONDS)
    return [one async for one in asked]


async def disconnect(two: Two, user: str = "", **how: Any) -> int:
    return await two.broker.web.disconnect(user, timeout_seconds=PATIENCE_SECONDS, **how)


async def test_a_program_lists_clients_and_disconnects_them_wherever_they_are() -> None:
    async with two_processes() as two:
        await two.broker.create_topic("lobby")
        async with (
            talking(ws(two.first, "ann")) as ann,
            talking(ws(two.second, "ann")) as ann_too,
            talking(ws(two.second, "bob")) as bob,
        ):
            for client in (ann, ann_too, bob):
                await client.ask(op="subscribe", target="lobby")
            found = await known_of(two)
            assert sorted((one.user, one.process) for one in found) == sorted(
                [
                    ("ann", two.first.bus.process),
                    ("ann", two.second.bus.process),
                    ("bob", two.second.bus.process),
                ]
            )
            assert {tuple(one.subscriptions) for one in found} == {("lobby",)}
            assert {one.transport for one in found} == {"websocket"}
            assert all(one.address.startswith("127.0.0.1") for one in found)
            assert await disconnect(two, "ann", reason="banned") == 2
            for client in (ann, ann_too):
                with pytest.raises(ConnectionClosed):
                    await client.told("never")
                assert (client.socket.close_code, client.socket.close_reason) == (4001, "banned")
            (id,) = await ids_of(two, "bob")
            assert await disconnect(two, connection=id, reconnect=True) == 1
            assert (await bob.told("reconnect"))["after_ms"] == 0
            with pytest.raises(ConnectionClosed):
                await bob.told("never")
            assert bob.socket.close_code == 1012
        await until(lambda: not len(two.first.connections) and not len(two.second.connections))


async def test_a_message_to_a_user_reaches_all_of_the_users_clients() -> None:
    async with two_processes() as two:
        await two.broker.web.send_to_user("ann", {"n": 0})
        async with (
            talking(ws(two.first, "ann")) as one,
            talking(ws(two.second, "ann")) as other,
        ):
            for client in (one, other):
                await client.ask(op="subscribe", target="$user", start="earliest")
            await two.broker.web.send_to_user("ann", {"n": 1})
            for client in (one, other):
                numbers: list[Any] = []
                while len(numbers) < 2:
                    frame = await client.told("messages")
                    numbers += [message["json"]["n"] for message in frame["messages"]]
                assert numbers == [0, 1]


async def events_of(answer: aiohttp.ClientResponse, kind: str) -> AsyncIterator[Any]:
    """The data of events of one kind."""
    event = ""
    async for line in answer.content:
        name, _, value = line.decode().strip().partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            if event == kind:
                yield json.loads(value)
            event = ""


async def test_a_reader_of_events_is_present_and_can_be_disconnected() -> None:
    async with two_processes() as two:
        await two.broker.create_topic("lobby")
        path = """/v1/topics/lobby/stream?user=ann&presence={"name":"Ann"}"""
        async with talking(ws(two.second, "bob")) as bob:
            await bob.ask(op="subscribe", target="lobby", presence=True)
            async with two.http.get(two.url(two.first, path)) as answer:
                event = await bob.next(lambda f: "ann" in str(f.get("joined")))
                assert event["joined"] == [{"user": "ann", "info": {"name": "Ann"}}]
                (ann,) = await known_of(two, "ann")
                assert (ann.transport, ann.subscriptions) == ("sse", ["lobby"])
                async with talking(ws(two.second, "cyd")) as cyd:
                    await cyd.ask(op="subscribe", target="lobby", presence=True)
                    async for event in events_of(answer, "presence"):
                        if "cyd" in str(event["joined"]):
                            break
                assert await disconnect(two, "ann", reason="banned") == 1
                (fault,) = [event async for event in events_of(answer, "error")]
                assert fault["message"] == "banned"
            event = await bob.next(lambda f: "ann" in str(f.get("left")))
            assert {"user": "ann"} in event["left"]


async def test_a_stream_with_impossible_presence_is_refused_with_a_status() -> None:
    async with two_processes(presence_info_bytes_max=10) as two:
        await two.broker.create_topic("lobby")
        for path, status in (
            ("/v1/topics/lob.*/stream?presence=true", 400),
            ("/v1/topics/lobby/stream?presence=yes", 400),
            ('/v1/topics/lobby/stream?presence={"name":"very long"}', 429),
        ):
            async with two.http.get(two.url(two.first, path)) as answer:
                assert answer.status == status, path
        assert not len(two.first.connections)
        assert two.first.presence.snapshot("lobby").count == 0


async def test_a_websocket_of_one_topic_is_present_by_its_address() -> None:
    async with two_processes() as two:
        await two.broker.create_topic("lobby")
        url = f"ws://127.0.0.1:{two.first.port}/v1/topics/lobby/stream?user=ann&presence=true"
        async with talking(url) as ann:
            assert await here(ann) == ["ann"]


class NoPresence:
    """Allows everything but presence."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        assert (who.listener, who.user, bool(who.connection)) == ("web", "ann", True)
        if verb is Verb.PRESENCE:
            raise forbidden(who, verb, name)


async def test_presence_needs_its_verb() -> None:
    async with two_processes() as two:
        await two.broker.create_topic("lobby")
        two.first.bus.core.authority = NoPresence()
        async with talking(ws(two.first, "ann")) as ann:
            answer = await ann.ask(op="presence", topic="lobby")
            assert answer["error"]["code"] == "forbidden"
            answer = await ann.ask(op="subscribe", target="lobby", presence=True)
            assert answer["error"]["code"] == "forbidden"
            assert "ok" in await ann.ask(op="subscribe", target="lobby")
