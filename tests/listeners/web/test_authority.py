"""The web listener asks the one authority before it does anything. The table names every route: one
that is added without an entry here fails, and so does one that asks for nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import Config
from fanlog.identity import Identity, Verb
from fanlog.listeners.web.app import ROUTES
from fanlog.listeners.web.operations import SocketOperation
from fanlog.listeners.web.session import HANDLERS
from fanlog.node import Node
from fanlog.security.rules import forbidden
from tests.listeners.web.test_websocket import talking

Asked = tuple[Verb, str]


class Denies:
    """Says no to everything, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: set[Asked] = set()
        self.allowed: set[Asked] = set()
        self.listeners: set[str] = set()
        self.users: set[str] = set()

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        self.asked.add((verb, name))
        self.listeners.add(who.listener)
        self.users.add(who.user)
        if (verb, name) not in self.allowed:
            raise forbidden(who, verb, name)


class Site(NamedTuple):
    rules: Denies
    broker: fanlog.Broker
    http: aiohttp.ClientSession
    port: int


@asynccontextmanager
async def denying() -> AsyncIterator[Site]:
    rules = Denies()
    config = msgspec.structs.replace(Config(), web=msgspec.structs.replace(Config().web, port=0))

    class Guarded(fanlog.Broker):
        def _make_node(self) -> Node:
            return Node(None, config, authority=rules)

    async with Guarded() as broker:
        await broker.create_topic("t")
        listener = await broker.listen_web()
        base = f"http://127.0.0.1:{listener.port}"
        async with aiohttp.ClientSession(base) as http:
            yield Site(rules, broker, http, listener.port)


class Case(NamedTuple):
    """A request about the topic `t`, and what it asks for first."""

    asked: Asked | None
    body: Any = None
    query: str = ""
    # A list leaves out what may not be seen, and is not refused.
    answered: bool = False
    # What it asks for next.
    also: tuple[Asked, ...] = ()


JOBS = {"receipts": ["r"]}
PUBLISH, SUBSCRIBE, MANAGE = (Verb.PUBLISH, "t"), (Verb.SUBSCRIBE, "t"), (Verb.MANAGE, "t")
GROUP, QUEUE, USER = (Verb.GROUP, "g"), (Verb.QUEUE, "q"), (Verb.USER, "u")
ADMIN = (Verb.ADMIN, "")
STREAM = "_stream.s"
CASES: dict[str, Case] = {
    "POST /v1/topics": Case((Verb.MANAGE, "new"), {"name": "new"}),
    "GET /v1/topics": Case((Verb.DESCRIBE, "t"), answered=True),
    "GET /v1/topics/{topic}": Case((Verb.DESCRIBE, "t")),
    "PATCH /v1/topics/{topic}": Case(MANAGE, {"retention_seconds": 1}),
    "DELETE /v1/topics/{topic}": Case(MANAGE),
    "POST /v1/topics/{topic}/grow": Case(MANAGE, {"partitions": 2}),
    "POST /v1/topics/{topic}/truncate": Case(MANAGE, {"offsets": {"0": 0}}),
    "POST /v1/topics/{topic}/compact": Case(MANAGE),
    "GET /v1/topic-list": Case((Verb.DESCRIBE, "t"), answered=True),
    "GET /v1/topics/{topic}/details": Case((Verb.DESCRIBE, "t")),
    "GET /v1/topics/{topic}/messages": Case(SUBSCRIBE),
    "GET /v1/topics/{topic}/partitions/{partition}/messages": Case(SUBSCRIBE),
    "GET /v1/explore": Case(SUBSCRIBE, query="?topic=t"),
    "GET /v1/explore/message": Case(SUBSCRIBE, query="?topic=t&partition=0&offset=0"),
    "GET /v1/explore/range": Case(SUBSCRIBE, query="?topic=t"),
    "POST /v1/topics/{topic}/messages": Case(PUBLISH, {"text": "x"}),
    "POST /v1/publish": Case(PUBLISH, {"publish": [{"topic": "t", "text": "x"}]}),
    "POST /v1/request/{topic}": Case(PUBLISH, {"text": "x"}),
    "GET /v1/topics/{topic}/stream": Case(SUBSCRIBE),
    "GET /v1/stream": Case(SUBSCRIBE, query="?topic=t"),
    "GET /v1/groups": Case(None, answered=True),
    "GET /v1/groups/{group}": Case(GROUP),
    "GET /v1/group-list": Case(None, answered=True),
    "GET /v1/groups/{group}/overview": Case(GROUP),
    "GET /v1/groups/{group}/partitions": Case(GROUP),
    "POST /v1/groups/{group}/reset": Case(GROUP, {"start": "earliest"}),
    "DELETE /v1/groups/{group}": Case(GROUP),
    "GET /v1/groups/{group}/stream": Case(SUBSCRIBE, query="?topic=t", also=(GROUP,)),
    "POST /v1/queues/{topic}/{queue}/take": Case(SUBSCRIBE, also=(QUEUE,)),
    "POST /v1/queues/{topic}/{queue}/ack": Case(QUEUE, JOBS),
    "POST /v1/queues/{topic}/{queue}/nack": Case(QUEUE, JOBS),
    "POST /v1/queues/{topic}/{queue}/reject": Case(QUEUE, JOBS),
    "POST /v1/queues/{topic}/{queue}/extend": Case(QUEUE, JOBS),
    "GET /v1/queues/{queue}": Case(QUEUE),
    "GET /v1/queues/{queue}/workers": Case(QUEUE),
    "GET /v1/queues/{queue}/retries": Case(QUEUE),
    "GET /v1/queues/{queue}/scheduled": Case(QUEUE),
    "GET /v1/dead-letters": Case(None, answered=True),
    "GET /v1/dead-letters/{topic}": Case(SUBSCRIBE),
    "GET /v1/dead-letters/{topic}/letters/{id}": Case(SUBSCRIBE),
    "POST /v1/dead-letters/{topic}/replay": Case(MANAGE, {"all": True}),
    "POST /v1/dead-letters/{topic}/delete": Case(MANAGE, {"all": True}),
    "DELETE /v1/dead-letters/{topic}/letters/{id}": Case(MANAGE),
    "GET /v1/dead-letters/{topic}/reasons": Case(SUBSCRIBE),
    "GET /v1/dead-letters/{topic}/browse": Case(SUBSCRIBE),
    "GET /v1/dead-letters/{topic}/export": Case(SUBSCRIBE),
    "POST /v1/dead-letters/{topic}/letters/{id}/replay": Case(MANAGE, {}),
    "GET /v1/tasks": Case(None, answered=True),
    "POST /v1/streams/{name}": Case((Verb.PUBLISH, STREAM)),
    "POST /v1/streams/{name}/append": Case((Verb.PUBLISH, STREAM), {}),
    "POST /v1/streams/{name}/end": Case((Verb.PUBLISH, STREAM)),
    "GET /v1/streams/{name}": Case((Verb.SUBSCRIBE, STREAM)),
    "DELETE /v1/streams/{name}": Case((Verb.PUBLISH, STREAM)),
    "POST /v1/users/{user}/messages": Case(USER, {"text": "x"}),
    "POST /v1/users/{user}/disconnect": Case(USER),
    "POST /v1/broadcast": Case(PUBLISH, {"pattern": "*", "text": "x"}),
    "GET /v1/connections": Case(ADMIN),
    "DELETE /v1/connections/{connection}": Case(ADMIN),
    "GET /v1/presence/{topic}": Case((Verb.PRESENCE, "t")),
    "GET /v1/connection-list": Case(ADMIN),
    "GET /v1/rooms": Case(None, answered=True),
    "GET /v1/cluster": Case((Verb.DESCRIBE, "")),
    "GET /v1/account-list": Case(ADMIN),
    "GET /v1/config/options": Case(ADMIN),
    "GET /v1/audit/search": Case(ADMIN),
    "GET /v1/audit/verify": Case(ADMIN),
    "GET /v1/config": Case(ADMIN),
    "PATCH /v1/config": Case(ADMIN, {"values": {"audit.level": "all"}}),
    "POST /v1/config/reload": Case(ADMIN),
    "POST /v1/cluster/move": Case(ADMIN, body={"node": "b"}),
    "GET /v1/audit": Case(ADMIN),
    "GET /v1/status": Case((Verb.DESCRIBE, "")),
    "GET /v1/overview": Case((Verb.DESCRIBE, "")),
    "GET /v1/transactions": Case((Verb.DESCRIBE, "")),
    "POST /v1/transactions/{transaction}/abort": Case(ADMIN),
    "GET /v1/schedules": Case(None, answered=True),
    "GET /v1/schedules/{schedule}": Case((Verb.SCHEDULE, "nightly")),
    "PUT /v1/schedules/{schedule}": Case(
        (Verb.SCHEDULE, "nightly"),
        {"topic": "t", "text": "x", "every_seconds": 60},
        also=(PUBLISH,),
    ),
    "DELETE /v1/schedules/{schedule}": Case((Verb.SCHEDULE, "nightly"), also=(PUBLISH,)),
    "POST /v1/schedules/{schedule}/run": Case((Verb.SCHEDULE, "nightly"), also=(PUBLISH,)),
    "GET /v1/delayed": Case((Verb.DESCRIBE, "t"), query="?topic=t"),
    "POST /v1/delayed": Case(PUBLISH, {"topic": "t", "text": "x", "delay_seconds": 60}),
    "POST /v1/delayed/cancel": Case((Verb.SCHEDULE, "i"), {"ids": ["i"]}),
    "GET /v1/pipelines": Case(None, answered=True),
    "GET /v1/keys": Case(ADMIN),
    "POST /v1/keys": Case(ADMIN, {"name": "k"}),
    "GET /v1/keys/{key}": Case(ADMIN),
    "PATCH /v1/keys/{key}": Case(ADMIN, {}),
    "POST /v1/keys/{key}/rotate": Case(ADMIN, {}),
    "DELETE /v1/keys/{key}": Case(ADMIN),
    "GET /v1/users": Case(ADMIN),
    "POST /v1/users": Case(ADMIN, {"name": "k"}),
    "GET /v1/users/{user}": Case(ADMIN),
    "PATCH /v1/users/{user}": Case(ADMIN, {}),
    "POST /v1/users/{user}/password": Case(ADMIN, {"password": "long enough"}),
    "DELETE /v1/users/{user}": Case(ADMIN),
    "GET /v1/may": Case(ADMIN, query="?verb=publish&name=t&account=other"),
    "GET /metrics": Case((Verb.DESCRIBE, "")),
    "GET /v1/metrics": Case((Verb.DESCRIBE, "")),
    "GET /v1/metrics/history": Case((Verb.DESCRIBE, "t"), query="?name=topic.t.messages"),
    "GET /v1/metrics/series": Case(None, answered=True),
    "GET /v1/traces": Case(None, answered=True),
    "GET /v1/traces/{trace}": Case(None, answered=True),
}
# They are open to all: a WebSocket asks with each operation, a load balancer has no user, and the
# others are documents.
FREE = {
    "GET /v1/ws",
    "GET /v1/health",
    "GET /healthz/live",
    "GET /healthz/ready",
    "GET /v1/openapi.json",
    "GET /v1/reference",
}
# They are about whoever asks.
# Everybody has their own tasks, and finds no others.
FREE |= {"GET /v1/tasks/{task}", "DELETE /v1/tasks/{task}"}
FREE |= {
    "GET /v1/login",
    "POST /v1/login",
    "POST /v1/logout",
    "GET /v1/whoami",
    "POST /v1/tickets",
    "GET /v1/sessions",
    "DELETE /v1/sessions/{session}",
    "GET /v1/oidc/login",
    "GET /v1/oidc/callback",
}
THERE = [f"{route.method} {route.path}" for route in ROUTES]
PARTS = {
    "{topic}": "t",
    "{group}": "g",
    "{queue}": "q",
    "{partition}": "0",
    "{user}": "u",
    "{name}": "s",
    "{id}": "0:1",
    "{connection}": "c",
    "{key}": "k",
    "{trace}": "1" * 32,
    "{transaction}": "1" * 16,
    "{schedule}": "nightly",
}


def test_every_route_has_its_verb_here() -> None:
    unknown = [name for name in THERE if name not in CASES and name not in FREE]
    assert not unknown, f"Add these to CASES, with the verb that they ask for: {unknown}"


async def send(site: Site, name: str, case: Case) -> tuple[int, Any]:
    method, path = name.split(" ")
    for part, value in PARTS.items():
        path = path.replace(part, value)
    body = None if case.body is None else json.dumps(case.body)
    headers = {} if body is None else {"Content-Type": "application/json"}
    url = path + case.query
    async with site.http.request(method, url, data=body, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("name", [name for name in CASES if name in THERE])
async def test_a_route_is_refused_without_its_verb(name: str) -> None:
    case = CASES[name]
    async with denying() as site:
        status, got = await send(site, name, case)
        if case.answered:
            assert status == 200
            assert "'t'" not in str(got)
        else:
            assert (status, got["code"]) == (403, "forbidden"), got
        assert case.asked is None or case.asked in site.rules.asked
        assert site.rules.listeners <= {"web"}
        # Nothing was done.
        topic = await site.broker.describe_topic("t")
        assert (topic.records, len(topic.partitions)) == (0, 1)
        assert [one.name for one in await site.broker.topics()] == ["t"]


# Operations of a WebSocket, and what each asks for.
OPERATIONS: dict[str, tuple[dict[str, Any], Asked | None]] = {
    "subscribe": ({"target": "t"}, SUBSCRIBE),
    "publish": ({"topic": "t", "text": "x"}, PUBLISH),
    "request": ({"topic": "t", "text": "x", "timeout_seconds": 1}, PUBLISH),
    "presence": ({"topic": "t"}, (Verb.PRESENCE, "t")),
    "history": ({"topic": "t"}, SUBSCRIBE),
    "unsubscribe": ({"target": "t"}, None),
    "token": ({"token": "x"}, None),
    "ping": ({}, None),
}


def test_every_operation_has_its_verb_here() -> None:
    kinds = {kind.__struct_config__.tag for kind in HANDLERS}
    assert kinds <= set(OPERATIONS), f"Add to OPERATIONS: {kinds - set(OPERATIONS)}"
    assert {kind.__struct_config__.tag for kind in SocketOperation.__args__} <= set(OPERATIONS)


async def test_an_operation_is_refused_without_its_verb() -> None:
    handled = {kind.__struct_config__.tag for kind in HANDLERS}
    async with denying() as site, talking(f"ws://127.0.0.1:{site.port}/v1/ws?user=ann") as client:
        for op, (fields, asked) in OPERATIONS.items():
            if op not in handled:
                continue
            site.rules.asked.clear()
            answer = await client.ask(op=op, **fields)
            if asked is not None:
                assert answer["error"]["code"] == "forbidden", (op, answer)
                assert asked in site.rules.asked
        assert (await site.broker.describe_topic("t")).records == 0


async def test_a_websocket_reader_of_a_pattern_gets_only_what_it_may_read() -> None:
    async with denying() as site, talking(f"ws://127.0.0.1:{site.port}/v1/ws") as client:
        for name in ("a.open", "a.secret"):
            await site.broker.create_topic(name)
        site.rules.allowed |= {(Verb.SUBSCRIBE, "a.*"), (Verb.SUBSCRIBE, "a.open")}
        answer = await client.ask(op="subscribe", target="a.*", start="earliest")
        assert list(answer["ok"]["positions"]) == ["a.open/0"]
        await site.broker.publish("a.secret", "no")
        await site.broker.publish("a.new", "no")
        await site.broker.publish("a.open", "yes")
        assert (await client.told("messages"))["messages"][0]["text"] == "yes"
        assert not [frame for frame in client.kept if "secret" in str(frame)]


async def test_the_name_of_a_user_may_have_any_letters() -> None:
    who = {"Fanlog-User": "Zo%C3%AB%20M"}
    async with (
        denying() as site,
        site.http.post("/v1/topics/t/messages", data="x", headers=who) as answer,
    ):
        assert answer.status == 403
        assert "Zoë M" in site.rules.users
