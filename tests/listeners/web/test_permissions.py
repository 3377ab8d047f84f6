"""The authority is asked with the web user's name: on subscribing, on recovering and on
publishing. test_logins.py has what happens when logins and permissions change."""

from __future__ import annotations

import pytest

from fanlog.identity import Identity, Verb
from fanlog.security.rules import forbidden
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.event_source import following
from tests.listeners.web.wire import raw


class Rules:
    """Allows what is listed."""

    def __init__(self, *allowed: tuple[str, Verb, str]) -> None:
        self.allowed = set(allowed)

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if (who.user, verb, name) not in self.allowed:
            raise forbidden(who, verb, name)


def obey(site: Site, *allowed: tuple[str, Verb, str]) -> Rules:
    rules = Rules(*allowed)
    core = site.listener.bus.core
    core.authority = rules
    core.permissions_changed()
    return rules


async def test_each_operation_is_asked_about(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port, "/v1/ws?user=ann") as client:
        await site.broker.create_topic("t")
        obey(site, ("ann", Verb.SUBSCRIBE, "t"))
        assert "ok" in await client.ask(op="subscribe", target="t")
        for refused in (
            {"op": "subscribe", "target": "other"},
            {"op": "subscribe", "target": ">"},
            {"op": "publish", "topic": "t", "text": "x"},
            {"op": "request", "topic": "t", "text": "x"},
            {"op": "history", "topic": "other"},
        ):
            answer = await client.ask(**refused)
            assert answer["error"]["code"] == "forbidden", refused
            assert "ann" in answer["error"]["message"]


async def test_a_pattern_shows_only_what_may_be_read(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port, "/v1/ws?user=ann") as client:
        await site.broker.publish("room.a", b"a")
        await site.broker.publish("room.b", b"b")
        obey(site, ("ann", Verb.SUBSCRIBE, "room.*"), ("ann", Verb.SUBSCRIBE, "room.b"))
        answer = await client.ask(op="subscribe", target="room.*", start="earliest")
        assert list(answer["ok"]["positions"]) == ["room.b/0"]
        assert (await client.told("messages"))["topic"] == "room.b"


async def test_who_recovers_is_asked_again(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("t")
        rules = obey(site, ("ann", Verb.SUBSCRIBE, "t"))
        path = "/v1/topics/t/stream?user=ann"
        async with raw(site.listener.port, "/v1/ws?user=ann") as client:
            answer = await client.ask(op="subscribe", target="t")
        async with following(site.http, path) as source:
            await source.next("subscribed")
        rules.allowed.clear()
        async with raw(site.listener.port, "/v1/ws?user=ann") as client:
            positions = answer["ok"]["positions"]
            answer = await client.ask(op="subscribe", target="t", positions=positions)
            assert answer["error"]["code"] == "forbidden"
        async with site.http.get(path, headers={"Last-Event-ID": source.id}) as refused:
            assert refused.status == 403


@pytest.mark.parametrize("user", ["*", ">", "a.*"])
async def test_no_user_is_everybody(serving: Serving, user: str) -> None:
    async with serving() as site, raw(site.listener.port, f"/v1/ws?user={user}") as client:
        await site.broker.publish("user.ann", b"for ann alone")
        answer = await client.ask(op="subscribe", target="$user", start="earliest")
        assert answer["error"]["code"] == "invalid_name"
        stream = f"/v1/stream?topic=$user&start=earliest&user={user}"
        async with site.http.get(stream) as answer:
            assert answer.status == 400
