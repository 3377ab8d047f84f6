"""Every role × every operation × every listener, over real sockets, with a real key.

One table says what a role may, in needs. What an operation needs comes from the tables of
`tests/listeners`, which name every frame, command, route and operation. So nothing is left out: one
that is added has to be added there, and is in the matrix at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest

from fanlog.client.core.handshake import hello
from fanlog.format import messages
from fanlog.format.frames import FrameKind, frame
from fanlog.identity import Login, Role, Rules, Verb
from tests.listeners import test_authority as sockets
from tests.listeners.peers import one_message
from tests.listeners.redis.wire import Wire
from tests.listeners.test_login import Guarded, guarded
from tests.listeners.web import test_authority as site
from tests.listeners.web.test_websocket import talking

NOTHING: frozenset[str] = frozenset()
NAMES = {Verb.PRODUCER, Verb.SCHEDULE}
SEES = frozenset({"state", Verb.DESCRIBE})
# What a role may do by itself, without lists. `state` is to see a group or queue, and not use it.
MAY: dict[Role | None, frozenset[str]] = {
    Role.ADMIN: frozenset({*Verb, "state"}),
    Role.PRODUCER: frozenset({Verb.PUBLISH, Verb.DESCRIBE, *NAMES}),
    Role.CONSUMER: SEES | {Verb.SUBSCRIBE, Verb.GROUP, Verb.QUEUE, Verb.PRESENCE},
    Role.VIEWER: SEES | {Verb.SUBSCRIBE, Verb.PRESENCE},
    Role.OBSERVER: SEES,
    None: NOTHING,
}
ROLES = list(MAY)
# A group's state is asked about with the verb of its use, and may be seen without it.
STATES = {
    FrameKind.DESCRIBE_GROUP,
    "GET /v1/groups/{group}",
    "GET /v1/groups/{group}/overview",
    "GET /v1/groups/{group}/partitions",
    "GET /v1/queues/{queue}",
    "GET /v1/queues/{queue}/workers",
    "GET /v1/queues/{queue}/retries",
    "GET /v1/queues/{queue}/scheduled",
}
ROUTES = [name for name in site.THERE if name in site.CASES]


def may(role: Role | None, operation: object, asked: tuple[sockets.Asked, ...]) -> bool:
    needs = {"state"} if operation in STATES else {verb for verb, _ in asked}
    return needs <= MAY[role]


def name_of(role: Role | None) -> str:
    return "none" if role is None else role.value


@dataclass
class Stage:
    served: Guarded
    key: str

    def topic(self) -> int:
        """The number of the topic `t`, which a case before may have deleted."""
        core = self.served.node.core
        found = core.catalog.find("t") or core.create_topic("t", {"durability": "memory"})
        return found.number

    def public_topics(self) -> list[str]:
        return [t.name for t in self.served.node.core.catalog if not t.name.startswith("_")]


@asynccontextmanager
async def stage(role: Role | None) -> AsyncIterator[Stage]:
    """A broker with a topic `t`, and a key of this role."""
    async with guarded() as served:
        here = Stage(served, served.add_key(name_of(role), Rules(role=role)))
        here.topic()
        yield here


@pytest.mark.parametrize("role", ROLES, ids=name_of)
async def test_the_native_listener(role: Role | None) -> None:
    wrong: list[str] = []
    async with stage(role) as here:
        for kind, case in sockets.CASES.items():
            number = here.topic()
            peer = await here.served.dial()
            await peer.send(hello("a peer", Login(key=here.key)))
            await peer.expect(FrameKind.WELCOME)
            if kind is FrameKind.FETCH:
                answer = await peer.ask(kind, messages.Fetch(number, 0, 0), aux=7)
            else:
                answer = await sockets._ask(peer, kind, case)
            refused = answer.kind is FrameKind.ERROR and answer.failure.code == "forbidden"
            if refused is (case.answered or may(role, kind, case.asked)):
                wrong.append(f"{kind.name}: {'refused' if refused else 'allowed'}")
            peer.close()
    assert not wrong


@pytest.mark.parametrize("role", ROLES, ids=name_of)
async def test_batches_of_the_native_listener(role: Role | None) -> None:
    """A client can send the number of any topic, without a word before."""
    async with stage(role) as here:
        number = here.topic()
        peer = await here.served.dial()
        await peer.send(hello("a peer", Login(key=here.key)))
        await peer.expect(FrameKind.WELCOME)
        await peer.send(one_message(number))
        answer = await peer.until(FrameKind.ACK if Verb.PUBLISH in MAY[role] else FrameKind.REFUSED)
        if answer.kind is FrameKind.REFUSED:
            assert answer.read(messages.Refused).code == "forbidden"


@pytest.mark.parametrize("role", ROLES, ids=name_of)
async def test_the_redis_listener(role: Role | None) -> None:
    wrong: list[str] = []

    def talk(port: int, key: str) -> None:
        for name, (words, asked, _) in sockets.REDIS.items():
            with Wire(port) as wire:
                wire.send("auth", key)
                wire.expect(b"+OK\r\n")
                wire.send(*words)
                wire.send("ping", "all-said")
                said = wire.take_until(b"all-said")
                # PUBSUB leaves out what may not be seen.
                listing = name.startswith("pubsub|") and name != "pubsub|numpat"
                if (b"NOPERM" in said) is (listing or may(role, name, asked)):
                    wrong.append(f"{name}: {said!r}")

    async with stage(role) as here:
        await asyncio.to_thread(talk, here.served.node.listen_redis().port, here.key)
    assert not wrong


@pytest.mark.parametrize("role", ROLES, ids=name_of)
async def test_the_web_listener(role: Role | None) -> None:
    wrong: list[str] = []
    async with stage(role) as here:
        port = (await here.served.node.listen_web()).port
        headers = {"Authorization": f"Bearer {here.key}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http:
            for name in ROUTES:
                case = site.CASES[name]
                here.topic()
                async with asked_for(http, name) as answer:
                    assert answer.status not in (401, 500), (name, await answer.text())
                    refused = answer.status == 403
                    assert not refused or (await answer.json())["code"] == "forbidden"
                asked = (*([] if case.asked is None else [case.asked]), *case.also)
                if refused is (case.answered or may(role, name, asked)):
                    wrong.append(f"{name}: {'refused' if refused else 'allowed'}")
    assert not wrong


@asynccontextmanager
async def asked_for(
    http: aiohttp.ClientSession, name: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    method, path = name.split(" ")
    for part, value in site.PARTS.items():
        path = path.replace(part, value)
    case = site.CASES[name]
    async with http.request(method, path + case.query, json=case.body) as answer:
        yield answer


@pytest.mark.parametrize("role", ROLES, ids=name_of)
async def test_the_operations_of_a_websocket(role: Role | None) -> None:
    wrong: list[str] = []
    async with stage(role) as here:
        port = (await here.served.node.listen_web()).port
        url = f"ws://127.0.0.1:{port}/v1/ws"
        headers = {"Authorization": f"Bearer {here.key}"}
        async with talking(url, additional_headers=headers) as client:
            for op, (fields, asked) in site.OPERATIONS.items():
                if asked is None:
                    continue
                answer = await client.ask(op=op, **fields)
                refused = answer.get("error", {}).get("code") == "forbidden"
                if refused is may(role, op, (asked,)):
                    wrong.append(f"{op}: {answer}")
    assert not wrong


async def test_without_a_login_no_route_and_no_operation_answers() -> None:
    async with stage(None) as here:
        port = (await here.served.node.listen_web()).port
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            for name in ROUTES:
                async with asked_for(http, name) as answer:
                    assert answer.status == 401, (name, await answer.text())
        # A WebSocket may log in by its first operation, and do nothing else.
        for op, (fields, asked) in site.OPERATIONS.items():
            if asked is None:
                continue
            async with talking(f"ws://127.0.0.1:{port}/v1/ws") as client:
                await client.socket.send(json.dumps({"id": 1, "op": op, **fields}))
                assert (await client.refused())["code"] == "unauthenticated", op
        assert here.public_topics() == ["t"]


async def test_without_a_login_no_redis_command_answers() -> None:
    def talk(port: int) -> None:
        for words, *_ in sockets.REDIS.values():
            with Wire(port) as wire:
                wire.send(*words)
                assert b"NOAUTH" in wire.take_until(b"\r\n")

    async with stage(None) as here:
        await asyncio.to_thread(talk, here.served.node.listen_redis().port)


async def test_without_a_login_no_frame_is_answered() -> None:
    async with stage(None) as here:
        for kind, case in sockets.CASES.items():
            message = case.message() if case.message else None
            payload = b"" if message is None else msgspec.msgpack.encode(message)
            # In the place of the hello, and behind one without a login.
            for before, code in ((b"", "bad_magic"), (hello("a peer"), "unauthenticated")):
                peer = await here.served.dial()
                await peer.send(before + frame(kind, payload, request=1))
                frames = await peer.rest()
                assert [one.kind for one in frames] == [FrameKind.ERROR], kind
                assert frames[0].failure.code == code, kind
                peer.close()
        assert here.public_topics() == ["t"]
