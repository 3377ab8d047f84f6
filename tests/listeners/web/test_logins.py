"""Who is let in by HTTP, WebSocket and server-sent events; what they may do; and that they are cut
off when they may not any more. The attacks are in test_web_attacks.py."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from aiohttp import WSMsgType, WSServerHandshakeError

from fanlog.errors import RateLimitedError
from fanlog.identity import Identity, Login, Role
from fanlog.listeners.web.app import ROUTES
from fanlog.listeners.web.entrance import OPEN_PATHS
from fanlog.security import passwords
from tests.listeners.web.conftest import Serving
from tests.listeners.web.event_source import EventSource
from tests.listeners.web.guarded import PAGE, Guarded, bearer, guarded

PATIENCE_SECONDS = 100.0


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG2_N", 10)


def path_of(path: str) -> str:
    for part in ("topic", "group", "queue", "user", "name", "id", "connection", "session"):
        path = path.replace(f"{{{part}}}", "x")
    return path.replace("{partition}", "0").replace("{key}", "x")


async def test_without_a_login_everything_is_refused_but_what_is_for_all() -> None:
    async with guarded() as site:
        for route in ROUTES:
            if route.path in OPEN_PATHS or route.path == "/v1/ws":
                continue
            async with site.http.request(route.method, path_of(route.path)) as answer:
                assert answer.status == 401, (route.method, route.path)
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                problem = await answer.json()
                assert problem["code"] == "unauthenticated"
                assert answer.content_type == "application/problem+json"
        # A path that does not exist says no more.
        assert (await site.ask("GET", "/v1/nothing"))[0] == 401
        for path in ("/fanlog.js", "/v1/health", "/healthz/live", "/v1/login", "/"):
            assert (await site.ask("GET", path))[0] == 200, path


async def test_a_key_is_a_bearer_and_its_role_decides() -> None:
    async with guarded() as site:
        await site.broker.create_topic("t")
        producer = site.key("shop", Role.PRODUCER)
        viewer = site.key("board", Role.VIEWER)
        publish = ("POST", "/v1/topics/t/messages")
        assert (await site.ask(*publish, key=producer, body={"text": "x"}))[0] == 200
        assert (await site.ask(*publish, key=viewer, body={"text": "x"}))[0] == 403
        status, page = await site.ask("GET", "/v1/topics/t/messages", key=viewer)
        assert (status, page["messages"][0]["text"]) == (200, "x")
        assert (await site.ask("GET", "/v1/topics/t/messages", key=producer))[0] == 403
        assert (await site.ask("GET", "/v1/topics/t/messages", key=viewer + "x"))[0] == 401


# What an observer could read a message by.
PAYLOADS = [
    ("GET", "/v1/topics/t/messages"),
    ("GET", "/v1/topics/t/partitions/0/messages"),
    ("GET", "/v1/topics/t/stream"),
    ("GET", "/v1/stream?topic=t"),
    ("GET", "/v1/groups/g/stream?topic=t"),
    ("POST", "/v1/queues/t/q/take"),
    ("GET", "/v1/dead-letters/q"),
    ("GET", "/v1/dead-letters/q/letters/0:1"),
    ("GET", "/v1/dead-letters/q/browse"),
    ("GET", "/v1/dead-letters/q/reasons"),
    ("GET", "/v1/dead-letters/q/export"),
    ("GET", "/v1/streams/s"),
    ("POST", "/v1/request/t"),
]


async def test_an_observer_sees_no_message_by_any_path() -> None:
    async with guarded() as site:
        await site.broker.publish("t", "secret")
        key = site.key("eye", Role.OBSERVER)
        for method, path in PAYLOADS:
            status, said = await site.ask(method, path, key=key, body={"text": "x"})
            assert status in (403, 404), (path, status, said)
            assert "secret" not in str(said)
        assert (await site.ask("GET", "/v1/topics/t", key=key))[0] == 200
        async with site.http.ws_connect("/v1/ws", headers=bearer(key)) as socket:
            await socket.receive_json()
            for op in ("subscribe", "history", "presence"):
                await socket.send_json(
                    {"op": op, "target": "t"} if op == "subscribe" else {"op": op, "topic": "t"}
                )
                assert (await socket.receive_json())["error"]["code"] == "forbidden", op


async def test_a_user_logs_in_and_out_with_a_cookie() -> None:
    async with guarded() as site:
        await site.user("ann", "right-password", Role.VIEWER)
        async with site.http.post(
            "/v1/login", json={"user": "ann", "password": "right-password"}, headers=PAGE
        ) as answer:
            cookie = answer.headers["Set-Cookie"]
            who = await answer.json()
        for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert word in cookie
        assert "Secure" not in cookie
        assert (who["user"], who["role"], who["kind"], who["admin"]) == (
            "ann",
            "viewer",
            "user",
            False,
        )
        session = {"Cookie": cookie.split(";")[0], **PAGE}
        status, again = await site.ask("GET", "/v1/whoami", **session)
        assert (status, again["session"]) == (200, who["session"])
        assert (await site.ask("POST", "/v1/logout", **session))[0] == 204
        assert (await site.ask("GET", "/v1/whoami", **session))[0] == 401
        wrong = {"user": "ann", "password": "wrong-password"}
        assert (await site.ask("POST", "/v1/login", body=wrong))[0] == 401
        nobody = {"user": "bob", "password": "wrong-password"}
        assert (await site.ask("POST", "/v1/login", body=nobody))[0] == 401


async def test_a_cookie_is_secure_behind_tls() -> None:
    async with guarded() as site:
        key = site.key("k", Role.VIEWER)
        headers = {**PAGE, "X-Forwarded-Proto": "https"}
        async with site.http.post("/v1/login", json={"key": key}, headers=headers) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]


async def test_sessions_are_listed_and_ended_by_their_owner_and_by_admins() -> None:
    async with guarded() as site:
        admin, ann = site.key("root", Role.ADMIN), site.key("ann", Role.VIEWER)
        first, second = await site.log_in(key=ann), await site.log_in(key=ann)
        other = await site.log_in(key=admin)
        _, listed = await site.ask("GET", "/v1/sessions", Cookie=first, **PAGE)
        assert [one["user"] for one in listed["sessions"]] == ["ann", "ann"]
        _, all_of_them = await site.ask("GET", "/v1/sessions", key=admin)
        assert len(all_of_them["sessions"]) == 3
        foreign = next(one["id"] for one in all_of_them["sessions"] if one["user"] == "root")
        assert (await site.ask("DELETE", f"/v1/sessions/{foreign}", Cookie=first, **PAGE))[0] == 404
        mine = next(one["id"] for one in listed["sessions"] if not one["current"])
        assert (await site.ask("DELETE", f"/v1/sessions/{mine}", Cookie=first, **PAGE))[0] == 204
        assert (await site.ask("GET", "/v1/whoami", Cookie=second, **PAGE))[0] == 401
        assert (await site.ask("GET", "/v1/whoami", Cookie=other, **PAGE))[0] == 200
        # Its key is revoked, and so is the session.
        site.revoke("ann")
        assert (await site.ask("GET", "/v1/whoami", Cookie=first, **PAGE))[0] == 401


async def test_an_admin_acts_for_users_and_nobody_else_does() -> None:
    async with guarded() as site:
        admin, ann = site.key("root", Role.ADMIN), site.key("ann", Role.VIEWER)
        _, who = await site.ask("GET", "/v1/whoami", key=admin, Fanlog_User="Zo%C3%AB")
        assert (who["user"], who["account"]) == ("Zoë", "root")
        assert (await site.ask("GET", "/v1/whoami", key=ann, Fanlog_User="root"))[0] == 403
        assert (await site.ask("GET", "/v1/whoami", key=ann, Fanlog_User="ann"))[0] == 200
        assert (await site.ask("GET", "/v1/stream?topic=$user&user=bob", key=ann))[0] == 403
        async with site.http.ws_connect("/v1/ws?user=bob", headers=bearer(admin)) as socket:
            assert (await socket.receive_json())["user"] == "bob"


async def test_may_answers_for_oneself_and_for_others_to_admins() -> None:
    async with guarded() as site:
        admin, ann = site.key("root", Role.ADMIN), site.key("ann", publish=("a.>",))
        ask = "/v1/may?verb=publish&name="
        assert (await site.ask("GET", ask + "a.b", key=ann))[1]["allowed"] is True
        _, no = await site.ask("GET", ask + "b", key=ann)
        assert no["allowed"] is False
        assert "publish" in no["reason"]
        _, no = await site.ask("GET", ask + "b&account=ann", key=admin)
        assert (no["allowed"], no["account"]) == (False, "ann")
        assert (await site.ask("GET", ask + "b&account=root", key=ann))[0] == 403
        assert (await site.ask("GET", ask + "b&account=nobody", key=admin))[0] == 404


async def test_a_ticket_opens_one_stream() -> None:
    async with guarded() as site:
        await site.broker.create_topic("t")
        key = site.key("ann", Role.VIEWER)
        status, got = await site.ask("POST", "/v1/tickets", key=key, body={"use": "events"})
        assert status == 201
        path = f"/v1/topics/t/stream?ticket={got['ticket']}"
        async with site.http.get(path) as answer:
            assert answer.status == 200
            source = EventSource(answer)
            await source.next("subscribed")
            await site.broker.publish("t", "hello")
            assert await source.text() == "hello"
        assert (await site.ask("GET", path))[0] == 401
        _, got = await site.ask("POST", "/v1/tickets", key=key, body={"use": "websocket"})
        async with site.http.ws_connect(f"/v1/ws?ticket={got['ticket']}") as socket:
            assert (await socket.receive_json())["user"] == "ann"


async def test_a_websocket_logs_in_by_its_first_operation() -> None:
    async with guarded() as site, site.http.ws_connect("/v1/ws") as socket:
        await site.broker.create_topic("t")
        key = site.key("ann", Role.VIEWER)
        assert (await socket.receive_json())["type"] == "login"
        await socket.send_json({"op": "subscribe", "target": "t", "id": 1})
        assert (await socket.receive_json())["error"]["code"] == "unauthenticated"
        await socket.send_json({"op": "token", "token": key + "x", "id": 2})
        assert (await socket.receive_json())["error"]["code"] == "unauthenticated"
        # What comes right behind a login waits for it.
        await socket.send_json({"op": "token", "token": key, "id": 3})
        await socket.send_json({"op": "subscribe", "target": "$user", "id": 4})
        await socket.send_json({"op": "subscribe", "target": "t", "id": 5, "presence": True})
        assert (await socket.receive_json())["ok"]["user"] == "ann"
        assert (await socket.receive_json())["type"] == "welcome"
        assert (await socket.receive_json())["ok"]["target"] == "user.ann"
        while (frame := await socket.receive_json()).get("id") != 5:
            pass
        assert "ok" in frame
        _, there = await site.ask("GET", "/v1/presence/t", key=key)
        assert [one["user"] for one in there["users"]] == ["ann"]


async def test_a_websocket_that_does_not_log_in_is_closed() -> None:
    async with guarded(login_timeout_seconds=0.1) as site, site.http.ws_connect("/v1/ws") as socket:
        assert (await socket.receive_json())["seconds"] == 0.1
        assert (await socket.receive(PATIENCE_SECONDS)).type is WSMsgType.CLOSE
        assert socket.close_code == 4003


async def opened(site: Guarded, key: str, target: str) -> Any:
    """A WebSocket that follows a topic."""
    socket = await site.http.ws_connect("/v1/ws", headers=bearer(key))
    await socket.receive_json()
    await socket.send_json({"op": "subscribe", "target": target, "id": 1})
    assert "ok" in await socket.receive_json()
    return socket


async def test_a_revoked_key_is_cut_off_everywhere() -> None:
    async with guarded() as site:
        await site.broker.create_topic("t")
        key = site.key("ann", Role.CONSUMER)
        socket = await opened(site, key, "t")
        member = await site.http.ws_connect("/v1/groups/g/stream?topic=t", headers=bearer(key))
        await member.receive_json()
        events = await site.http.get("/v1/stream?topic=t", headers=bearer(key))
        source = EventSource(events)
        await source.next("subscribed")
        waiting = asyncio.create_task(
            site.ask("GET", "/v1/topics/t/messages?start=latest&wait_seconds=30", key=key)
        )
        while not site.listener.entrance._asking:  # noqa: ASYNC110 - a dict, no event
            await asyncio.sleep(0.001)
        site.revoke("ann")
        for one in (socket, member):
            while (said := await one.receive(PATIENCE_SECONDS)).type is WSMsgType.TEXT:
                pass
            assert said.type is WSMsgType.CLOSE
            assert one.close_code == 4003
        assert (await source.next("error")).data["code"] == "unauthenticated"
        status, problem = await waiting
        assert (status, problem["code"]) == (401, "unauthenticated")
        events.close()


async def test_fewer_rights_end_what_is_not_allowed_and_leave_the_rest() -> None:
    async with guarded() as site:
        for name in ("a", "b"):
            await site.broker.create_topic(name)
        key = site.key("ann", subscribe=("a", "b"))
        socket = await opened(site, key, "a")
        await socket.send_json({"op": "subscribe", "target": "b", "id": 2})
        assert "ok" in await socket.receive_json()
        events = await site.http.get("/v1/stream?topic=a", headers=bearer(key))
        source = EventSource(events)
        await source.next("subscribed")
        site.key("ann", subscribe=("b",))
        ended = await socket.receive_json()
        assert (ended["type"], ended["target"], ended["error"]["code"]) == (
            "ended",
            "a",
            "forbidden",
        )
        assert (await source.next("error")).data["code"] == "forbidden"
        await site.broker.publish("a", "no")
        await site.broker.publish("b", "yes")
        assert (await socket.receive_json())["messages"][0]["text"] == "yes"
        await socket.close()
        events.close()


async def test_a_login_that_ends_is_told_of_and_renewed_without_a_disconnect() -> None:
    async with guarded(expiry_warning_seconds=600) as site:
        await site.broker.create_topic("t")
        soon_us = site.node.core.now_us() + 500_000_000
        key = site.key("ann", Role.VIEWER, expires_us=soon_us)
        socket = await opened(site, key, "t")
        told = await socket.receive_json(timeout=PATIENCE_SECONDS)
        assert (told["type"], 0 <= told["seconds"] <= 500) == ("expiring", True)
        other = site.key("bob", Role.VIEWER)
        await socket.send_json({"op": "token", "token": other, "id": 7})
        assert "another user" in (await socket.receive_json())["error"]["message"]
        entry = site.gate.directory.keys["ann"]
        site.gate.directory.put(msgspec.structs.replace(entry, expires_us=0))
        await socket.send_json({"op": "token", "token": key, "id": 8})
        assert (await socket.receive_json())["ok"] == {"user": "ann"}
        await site.broker.publish("t", "still here")
        assert (await socket.receive_json())["messages"][0]["text"] == "still here"
        # It passes, and nobody has renewed it.
        past_us = time.time_ns() // 1000 + 300_000
        site.gate.directory.put(msgspec.structs.replace(entry, expires_us=past_us))
        while (said := await socket.receive(PATIENCE_SECONDS)).type is WSMsgType.TEXT:
            pass
        assert said.type is WSMsgType.CLOSE
        assert socket.close_code == 4003


async def test_a_session_that_is_ended_closes_its_websockets() -> None:
    async with guarded() as site:
        cookie = await site.log_in(key=site.key("ann", Role.VIEWER))
        origin = {"Origin": site.url, "Cookie": cookie}
        socket = await site.http.ws_connect("/v1/ws", headers=origin)
        assert (await socket.receive_json())["user"] == "ann"
        assert (await site.ask("POST", "/v1/logout", **origin))[0] == 204
        assert (await socket.receive(PATIENCE_SECONDS)).type is WSMsgType.CLOSE
        assert socket.close_code == 4003


class Locked:
    """A guard that lets nobody try."""

    def check(self, login: Login, who: Identity, /) -> None:
        raise RateLimitedError("Too many wrong logins.", retry_after_seconds=2.5)

    def failed(self, login: Login, who: Identity, /) -> None: ...
    def succeeded(self, login: Login, who: Identity, /) -> None: ...


async def test_who_is_locked_out_is_told_for_how_long() -> None:
    async with guarded() as site:
        site.gate.guards.append(Locked())
        headers = bearer(site.key("ann", Role.VIEWER))
        async with site.http.get("/v1/whoami", headers=headers) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "3")


async def test_one_connection_logs_in_once() -> None:
    async with guarded() as site:
        key = site.key("ann", Role.VIEWER)
        before = site.gate.logins
        for _ in range(5):
            assert (await site.ask("GET", "/v1/whoami", key=key))[0] == 200
        assert site.gate.logins == before + 1
        site.revoke("ann")
        assert (await site.ask("GET", "/v1/whoami", key=key))[0] == 401


async def test_a_stream_of_topics_does_not_open_without_a_login() -> None:
    async with guarded() as site:
        for path in ("/v1/stream?topic=t", "/v1/topics/t/stream", "/v1/groups/g/stream?topic=t"):
            with pytest.raises(WSServerHandshakeError) as refused:
                await site.http.ws_connect(path)
            assert refused.value.status == 401


async def test_without_logins_the_same_requests_work(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.post("/v1/login", json={}) as answer:
            assert ((await answer.json())["auth"], answer.status) == (False, 200)
            assert "Set-Cookie" not in answer.headers
        headers = {"Fanlog-User": "ann"}
        async with site.http.get("/v1/whoami", headers=headers) as answer:
            who = await answer.json()
            assert (who["user"], who["admin"], who["kind"]) == ("ann", True, "anonymous")
        async with site.http.post("/v1/tickets", json={}, headers=headers) as answer:
            ticket = (await answer.json())["ticket"]
        async with site.http.get(f"/v1/stream?topic=$user&ticket={ticket}") as answer:
            begun = await EventSource(answer).next("subscribed")
            assert begun.data["targets"] == ["user.ann"]


async def test_a_queue_needs_the_permission_for_queues() -> None:
    async with guarded() as site:
        await site.broker.create_topic("t")
        admin = site.key("root", Role.ADMIN)
        assert (await site.ask("POST", "/v1/queues/t/q/take", key=admin, body={}))[0] == 200
        groups = site.key("groups", subscribe=("t",), groups=(">",))
        queues = site.key("queues", subscribe=("t",), queues=(">",))
        path = "/v1/groups/q"
        assert (await site.ask("GET", path, key=groups))[0] == 403
        assert (await site.ask("DELETE", path, key=groups))[0] == 403
        assert (await site.ask("GET", path, key=queues))[0] == 200
        assert (await site.ask("DELETE", path, key=queues))[0] in (204, 409)


async def test_a_member_of_a_group_shows_a_new_token() -> None:
    async with guarded(expiry_warning_seconds=600) as site:
        await site.broker.create_topic("t")
        soon_us = site.node.core.now_us() + 500_000_000
        key = site.key("ann", Role.CONSUMER, expires_us=soon_us)
        path = "/v1/groups/g/stream?topic=t"
        async with site.http.ws_connect(path, headers=bearer(key)) as socket:

            async def told(**wanted: Any) -> Any:
                while not wanted.items() <= (frame := await socket.receive_json()).items():
                    pass
                return frame

            await told(type="expiring")
            other = site.key("bob", Role.CONSUMER)
            await socket.send_json({"op": "token", "token": other, "id": 1})
            assert "another user" in (await told(id=1))["error"]["message"]
            entry = site.gate.directory.keys["ann"]
            site.gate.directory.put(msgspec.structs.replace(entry, expires_us=0))
            await socket.send_json({"op": "token", "token": key, "id": 2})
            assert (await told(id=2))["ok"] == {"user": "ann"}
