"""The list of connections for people: search, order, pages, rates, and who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import fanlog
from fanlog.broker.insight.peers import Peer
from fanlog.config import Config, ListenerOptions
from fanlog.identity import Identity, Role
from fanlog.listeners.web.clients import forget_clients
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded
from tests.listeners.web.test_websocket import talking

ANY_PORT = Config(listener=ListenerOptions(port=0))


async def ask(site: Site, query: str = "") -> dict[str, Any]:
    forget_clients(site.listener)
    async with site.http.get(f"/v1/connection-list{query}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


@asynccontextmanager
async def with_people(site: Site) -> AsyncIterator[None]:
    """ann follows `a`, and bob follows `b` by the native listener."""
    native = site.broker.listen()
    url = f"fanlog://127.0.0.1:{native.port}"
    for name in ("a", "b"):
        await site.broker.create_topic(name)
    async with talking(f"{site.ws}/v1/ws?user=ann") as ann, fanlog.connect(url) as bob:
        await ann.ask(op="subscribe", target="a")
        async with bob.subscribe("b"):
            yield


async def test_clients_are_listed_with_what_they_follow_send_and_take(serving: Serving) -> None:
    async with serving(ANY_PORT) as site, with_people(site):
        found = await ask(site)
        assert (found["total"], found["connections"]) == (2, 2)
        assert found["listeners"] == {"web": 1, "native": 1}
        by_listener = {one["listener"]: one for one in found["clients"]}
        assert by_listener["web"]["user"] == "ann"
        assert by_listener["web"]["subscriptions"] == ["a"]
        assert by_listener["native"]["subscriptions"] == ["b"]
        assert {"user": "ann", "connections": 1} in found["users"]
        assert found["hosts"] == [{"host": "127.0.0.1", "connections": 2}]
        for one in found["clients"]:
            assert one["received_bytes"] > 0
            assert one["sent_bytes"] > 0
            assert one["received_rate"] > 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?search=ANN", ["web"]),
        ("?search=127.0.0.1", ["native", "web"]),
        ("?listener=native", ["native"]),
        ("?user=ann", ["web"]),
        ("?user=nobody", []),
        ("?address=127.0.0.1", ["native", "web"]),
        ("?address=127.0.0.2", []),
        ("?behind=true", []),
        ("?sort=subscriptions&limit=1&offset=2", []),
    ],
)
async def test_clients_are_searched(serving: Serving, query: str, expected: list[str]) -> None:
    async with serving(ANY_PORT) as site, with_people(site):
        found = await ask(site, query)
        assert sorted(one["listener"] for one in found["clients"]) == expected
        # What there is in all does not depend on what is searched.
        assert found["connections"] == 2


async def test_requests_are_listed_when_they_are_asked_for(serving: Serving) -> None:
    async with serving() as site:
        assert (await ask(site))["total"] == 0
        found = await ask(site, "?requests=true")
        assert [one["transport"] for one in found["clients"]] == ["http"]
        assert found["connections"] == 0


async def test_a_connection_that_was_closed_is_gone_from_the_list(serving: Serving) -> None:
    async with serving(ANY_PORT) as site, with_people(site):
        (ann,) = (await ask(site, "?user=ann"))["clients"]
        async with site.http.delete(f"/v1/connections/{ann['id']}?reason=noisy") as answer:
            assert (await answer.json())["disconnected"] == 1
        while (await ask(site, "?user=ann"))["total"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "query",
    ["?sort=id", "?limit=0", "?limit=501", "?offset=-1", "?listener=x", "?search=" + "x" * 201],
)
async def test_wrong_parameters_are_refused(serving: Serving, query: str) -> None:
    async with serving() as site, site.http.get(f"/v1/connection-list{query}") as answer:
        assert answer.status == 400


async def test_only_admins_see_who_is_connected() -> None:
    async with guarded() as site:
        viewer, admin = site.key("viewer", Role.VIEWER), site.key("root", Role.ADMIN)
        assert (await site.ask("GET", "/v1/connection-list", key=viewer))[0] == 403
        assert (await site.ask("GET", "/v1/connection-list"))[0] == 401
        assert (await site.ask("GET", "/v1/connection-list", key=admin))[0] == 200


class FakePeer:
    """One of very many."""

    transport = client = "native"
    waiting_bytes = 0

    def __init__(self, number: int) -> None:
        self.id = f"native@10.0.0.1:{number}"
        self.who = Identity(f"user{number % 7}", f"10.0.0.1:{number}", "native")
        self.since_us = number
        self.waiting_bytes = number

    def traffic(self) -> tuple[int, int] | None:
        return 1000 * self.since_us, 0

    def targets(self) -> list[str]:
        return [f"topic.{self.since_us}"]

    def behind(self) -> Iterator[Any]:
        return iter(())

    def close(self, reason: str, *, reconnect: bool) -> None: ...


async def test_ten_thousand_clients_are_sorted_in_slices(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crowd:
        name = "native"

        def peers(self) -> Iterator[Peer]:
            return iter([FakePeer(number) for number in range(10_000)])

    async with serving() as site:
        monkeypatch.setattr(site.listener, "all_listeners", lambda: [Crowd()])
        task, turns = asyncio.ensure_future(ask(site, "?limit=2&offset=1")), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        found = task.result()
        assert [one["behind_bytes"] for one in found["clients"]] == [9998, 9997]
        assert (found["total"], found["behind_bytes"]) == (10_000, 49_995_000)
        # Others have had their turns meanwhile.
        assert turns > 10
        found = await ask(site, "?search=TOPIC.77&sort=since&descending=false&limit=2")
        assert [one["subscriptions"] for one in found["clients"]] == [["topic.77"], ["topic.770"]]
        assert found["total"] == 111
        found = await ask(site, "?sort=user&descending=false&limit=1&offset=9999")
        assert found["clients"][0]["user"] == "user6"
