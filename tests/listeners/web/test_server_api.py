"""The server API over REST and Python, with two processes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import fanlog
import fanlog.sync
from fanlog.client import asking
from fanlog.errors import InvalidArgumentError, InvalidNameError, NoRespondersError
from tests.listeners.web.two_processes import PATIENCE_SECONDS, Peer, Two, two_processes, until


async def ask(two: Two, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Asks the first process."""
    url = two.url(two.first, path)
    async with two.http.request(method, url, json=body) as response:
        return response.status, await response.json()


def crowd(two: Two) -> list[Peer]:
    """Ann is connected to both processes, Bob to one."""
    peers = [Peer("c1", "ann", "room.1"), Peer("c2", "bob", "room.*"), Peer("c3", "ann", "$user")]
    two.first.connections.add(peers[0])
    two.second.connections.add(peers[1])
    two.second.connections.add(peers[2])
    return peers


async def test_connections_of_all_processes_are_listed_in_pages() -> None:
    async with two_processes() as two:
        crowd(two)
        status, got = await ask(two, "GET", "/v1/connections")
        assert status == 200
        assert [one["id"] for one in got["connections"]] == ["c1", "c2", "c3"]
        assert got["connections"][0] == {
            "id": "c1",
            "user": "ann",
            "address": "10.0.0.1:5000",
            "listener": "web",
            "transport": "websocket",
            "process": two.first.bus.process,
            "since": "2023-11-14T22:13:20Z",
            "subscriptions": ["room.1"],
            "client": "",
            "account": "",
            "behind_messages": 0,
            "behind_bytes": 0,
        }
        assert (got["total"], got["next"]) == (3, "")
        first = (await ask(two, "GET", "/v1/connections?limit=2"))[1]
        assert ([one["id"] for one in first["connections"]], first["next"]) == (["c1", "c2"], "c2")
        second = (await ask(two, "GET", "/v1/connections?limit=2&after=c2"))[1]
        assert ([one["id"] for one in second["connections"]], second["next"]) == (["c3"], "")
        of_ann = (await ask(two, "GET", "/v1/connections?user=ann"))[1]
        assert [one["id"] for one in of_ann["connections"]] == ["c1", "c3"]


async def test_a_user_is_disconnected_everywhere() -> None:
    async with two_processes() as two:
        ann, bob, ann_too = crowd(two)
        got = await ask(two, "POST", "/v1/users/ann/disconnect?reason=banned")
        assert got == (200, {"disconnected": 2})
        assert ann.closed == ann_too.closed == ("banned", False)
        assert bob.closed is None
        got = await ask(two, "DELETE", "/v1/connections/c2?reconnect=true")
        assert got == (200, {"disconnected": 1})
        assert bob.closed == ("", True)
        assert await ask(two, "DELETE", "/v1/connections/nobody") == (200, {"disconnected": 0})
        status, got = await ask(two, "POST", f"/v1/users/ann/disconnect?reason={'x' * 200}")
        assert (status, got["code"]) == (400, "invalid_argument")


async def test_a_message_to_a_user_is_in_the_topic_of_the_user() -> None:
    async with two_processes(user_topic="users.{user}.inbox") as two:
        status, got = await ask(two, "POST", "/v1/users/ann/messages", {"json": {"n": 1}})
        assert status == 200
        (published,) = got["published"]
        assert (published["topic"], published["offset"]) == ("users.ann.inbox", 0)
        async with two.broker.subscribe("users.ann.inbox", start="earliest") as inbox:
            message = await inbox.next(40)
            assert message.json() == {"n": 1}
        status, got = await ask(two, "POST", "/v1/users/a%2A%2Eb%0A/messages", {"text": "x"})
        assert (status, got["code"]) == (400, "invalid_name")


async def test_a_broadcast_reaches_every_topic_that_matches() -> None:
    async with two_processes(broadcast_topics_max=3) as two:
        for name in ("room.1", "room.2", "hall.1"):
            await two.broker.create_topic(name)
        body = {"pattern": "room.*", "text": "closing"}
        status, got = await ask(two, "POST", "/v1/broadcast", body)
        assert status == 200
        assert sorted(one["topic"] for one in got["published"]) == ["room.1", "room.2"]
        assert (await two.broker.describe_topic("hall.1")).records == 0
        for name in ("room.3", "room.4"):
            await two.broker.create_topic(name)
        status, got = await ask(two, "POST", "/v1/broadcast", body)
        assert (status, got["code"]) == (429, "limit")
        assert "web.broadcast_topics_max" in got["detail"]
        status, got = await ask(two, "POST", "/v1/broadcast", body | {"pattern": "room.*x"})
        assert (status, got["code"]) == (400, "invalid_name")


async def test_presence_is_asked_for_over_rest() -> None:
    async with two_processes() as two:
        two.second.presence.join("room.1", "c1", "ann", b'{"name":"Ann"}')
        await until(lambda: two.first.presence.snapshot("room.1").count == 1)
        assert await ask(two, "GET", "/v1/presence/room.1") == (
            200,
            {
                "topic": "room.1",
                "count": 1,
                "connections": 1,
                "users": [{"user": "ann", "connections": 1, "info": {"name": "Ann"}}],
            },
        )
        nobody = {"topic": "room.2", "count": 0, "connections": 0, "users": []}
        assert await ask(two, "GET", "/v1/presence/room.2") == (200, nobody)


async def use_all(two: Two, web: Any, calls: Any) -> None:
    """The Python API, whatever kind of client it belongs to."""
    ann, bob, _ = crowd(two)
    two.second.presence.join("room.1", "c9", "ann", b'{"name":"Ann"}')
    found = [one async for one in calls.each(web.connections())]
    assert [(one.id, one.user, one.process) for one in found] == [
        ("c1", "ann", two.first.bus.process),
        ("c2", "bob", two.second.bus.process),
        ("c3", "ann", two.second.bus.process),
    ]
    assert found[0].since.year == 2023
    found = [one async for one in calls.each(web.connections(user="bob"))]
    assert [one.id for one in found] == ["c2"]
    assert await calls.get(web.disconnect, "ann", reason="bye") == 2
    assert ann.closed == ("bye", False)
    assert await calls.get(web.disconnect, connection="c2", reconnect=True) == 1
    assert bob.closed == ("", True)
    await until(lambda: two.first.presence.snapshot("room.1").count == 1)
    room = await calls.get(web.presence, "room.1")
    assert (room.count, room.connections) == (1, 1)
    assert [(user.user, user.info) for user in room.users] == [("ann", {"name": "Ann"})]
    receipt = await calls.get(web.send_to_user, "ann", {"n": 1})
    assert receipt.topic == "user.ann"
    receipts = await calls.get(web.broadcast, "user.*", "to all")
    assert [receipt.topic for receipt in receipts] == ["user.ann"]
    assert [r.topic for r in await calls.get(web.broadcast, "user.ann", "to one")] == ["user.ann"]
    with pytest.raises(InvalidArgumentError):
        await calls.get(web.disconnect)
    with pytest.raises(InvalidNameError):
        await calls.get(web.send_to_user, "a*", "x")


class Asyncio:
    def each(self, found: Any) -> Any:
        return found

    async def get(self, call: Any, *given: Any, **options: Any) -> Any:
        return await call(*given, **options)


class Threads:
    async def each(self, found: Any) -> Any:
        for one in await asyncio.to_thread(list, found):
            yield one

    async def get(self, call: Any, *given: Any, **options: Any) -> Any:
        return await asyncio.to_thread(call, *given, **options)


async def test_the_embedded_broker_has_the_python_api() -> None:
    async with two_processes() as two:
        await use_all(two, two.broker.web, Asyncio())


async def test_the_asyncio_client_has_the_python_api() -> None:
    async with two_processes() as two:
        port = two.broker.listen().port
        async with fanlog.connect(f"fanlog://127.0.0.1:{port}") as client:
            await use_all(two, client.web, Asyncio())


async def test_the_blocking_client_has_the_python_api() -> None:
    async with two_processes() as two:
        port = two.broker.listen().port
        url = f"fanlog://127.0.0.1:{port}"
        client = await asyncio.to_thread(fanlog.sync.connect, url)
        try:
            await use_all(two, client.web, Threads())
        finally:
            await asyncio.to_thread(client.close)


async def test_many_connections_are_read_page_by_page() -> None:
    async with two_processes() as two:
        for n in range(1300):
            listener = two.first if n % 3 else two.second
            listener.connections.add(Peer(f"c{n:04}", f"u{n % 7}"))
        found = [
            one.id async for one in two.broker.web.connections(timeout_seconds=PATIENCE_SECONDS)
        ]
        assert found == [f"c{n:04}" for n in range(1300)]


async def test_very_many_subscriptions_do_not_keep_a_page_from_being_answered() -> None:
    async with two_processes() as two:
        for n in range(500):
            follows = [f"{n}.{at}.{'x' * 200}" for at in range(100)]
            two.second.connections.add(Peer(f"c{n:04}", "u" * 250, *follows))
        found = [one async for one in two.broker.web.connections(timeout_seconds=PATIENCE_SECONDS)]
        assert len(found) == 500
        assert found[0].subscriptions == [f"0.0.{'x' * 200}"]


async def test_without_a_web_listener_nobody_answers() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(NoRespondersError, match="No web listener answered"):
            await broker.web.presence("t", timeout_seconds=0.05)


async def test_a_process_that_does_not_answer_holds_the_others_up_for_the_timeout_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeout, waited = asyncio.timeout(None), list[float]()

    def limit(seconds: float) -> asyncio.Timeout:
        waited.append(seconds)
        return timeout

    async with two_processes(ask_timeout_seconds=7.0) as two:
        crowd(two)
        # It is known, and hears nothing any more.
        two.second.server_api._hear = lambda data: None  # type: ignore[method-assign]
        two.second.bus._signals._hearers["web"].clear()  # type: ignore[attr-defined]
        monkeypatch.setattr(asking, "asyncio", SimpleNamespace(timeout=limit, Event=asyncio.Event))
        answer = asyncio.create_task(ask(two, "GET", "/v1/connections"))
        asker = two.first.server_api._asker
        await until(lambda: any(waiting.answers for waiting in asker._waiting.values()))
        assert waited == [7.0]
        timeout.reschedule(asyncio.get_running_loop().time())
        assert [one["id"] for one in (await answer)[1]["connections"]] == ["c1"]


async def test_a_connection_that_changed_its_user_is_still_removed() -> None:
    async with two_processes() as two:
        peer = Peer("c1", "guest")
        two.first.connections.add(peer)
        peer.user = "ann"
        two.first.connections.remove(peer)
        two.first.connections.remove(peer)
        assert len(two.first.connections) == 0
        assert two.first.connections.page("", 10, "guest") == []


async def test_garbage_on_the_channel_of_web_listeners_is_ignored() -> None:
    async with two_processes() as two:
        crowd(two)
        for data in (b"", b"\xc1", b"\x93\xa1q\xa1x\xa7unknown", b"x" * 1000):
            two.first.bus.signal("web", data)
            two.first.bus.signal("presence", data)
        assert (await ask(two, "GET", "/v1/connections"))[1]["total"] == 3
