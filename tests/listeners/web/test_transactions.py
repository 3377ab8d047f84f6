"""Open transactions over REST: listed without their tickets, and aborted by operators."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog.errors import TransactionNotFoundError
from fanlog.identity import Role
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded


async def listed(site: Site, query: str = "") -> dict[str, Any]:
    async with site.http.get(f"/v1/transactions{query}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_an_open_transaction_is_listed_until_it_ends(serving: Serving) -> None:
    async with serving() as site:
        assert await listed(site) == {"transactions": [], "total": 0, "bytes": 0, "offset": 0}
        async with site.broker.transaction("closing", timeout_seconds=60) as work:
            await work.publish("orders", "one")
            await work.publish("orders", "two")
            await work.publish("payments", "three")
            await work.flush()
            found = await listed(site)
            (one,) = found["transactions"]
            assert (one["id"], one["messages"], one["topic_count"]) == ("closing", 3, 2)
            assert one["topics"] == [
                {"name": "orders", "messages": 2},
                {"name": "payments", "messages": 1},
            ]
            assert one["bytes"] == found["bytes"] > 0
            assert 0 <= one["idle_seconds"] <= one["age_seconds"] < 60
            assert (one["timeout_seconds"], one["committing"]) == (60, False)
        assert (await listed(site))["total"] == 0


async def test_an_operator_aborts_one(serving: Serving) -> None:
    async with serving() as site:
        work = site.broker.transaction("stuck")
        await work.__aenter__()
        await work.publish("orders", "lost")
        await work.flush()
        number = (await listed(site))["transactions"][0]["number"]
        async with site.http.post(f"/v1/transactions/{number}/abort") as answer:
            assert (answer.status, await answer.json()) == (200, {"aborted": True})
        assert (await listed(site))["total"] == 0
        with pytest.raises(TransactionNotFoundError):
            await work.commit()
        async with site.http.post(f"/v1/transactions/{number}/abort") as answer:
            assert answer.status == 404
            assert (await answer.json())["code"] == "transaction_not_found"
        assert (await site.broker.describe_topic("orders")).records == 0


async def test_pages_are_sorted(serving: Serving) -> None:
    async with serving() as site:
        works = [site.broker.transaction(f"w{i}") for i in range(5)]
        for i, work in enumerate(works):
            await work.__aenter__()
            for _ in range(i + 1):
                await work.publish("orders", "x" * 100)
            await work.flush()
        found = await listed(site, "?sort=messages&limit=2&offset=1")
        assert [one["id"] for one in found["transactions"]] == ["w3", "w2"]
        assert found["total"] == 5
        found = await listed(site, "?sort=age&descending=false")
        assert [one["id"] for one in found["transactions"]] == [f"w{i}" for i in (4, 3, 2, 1, 0)]
        for wrong in ("?sort=user", "?limit=0", "?offset=-1"):
            async with site.http.get(f"/v1/transactions{wrong}") as answer:
                assert answer.status == 400
        for work in works:
            await work.abort()


async def test_a_ticket_is_never_shown(serving: Serving) -> None:
    async with serving() as site, site.broker.transaction() as work:
        await work.publish("orders", "x")
        await work.flush()
        (one,) = (await listed(site))["transactions"]
        assert one["id"] == ""
        assert work.ticket not in str(one)


async def test_what_a_limited_account_sees() -> None:
    async with guarded() as site:
        await site.broker.create_topic("open.t")
        await site.broker.create_topic("secret.t")
        works = [site.broker.transaction(name) for name in ("a", "b", "c")]
        for work, topics in zip(works, (["open.t"], ["open.t", "secret.t"], []), strict=True):
            await work.__aenter__()
            for topic in topics:
                await work.publish(topic, "x")
            await work.flush()
        admin, limited = site.key("root", Role.ADMIN), site.key("ann", describe=("open.>",))
        _, found = await site.ask("GET", "/v1/transactions", key=admin)
        assert {one["id"] for one in found["transactions"]} == {"a", "b", "c"}
        status, found = await site.ask("GET", "/v1/transactions", key=limited)
        assert (status, found["total"]) == (200, 1)
        (one,) = found["transactions"]
        assert (one["id"], one["user"], one["address"], one["client"]) == ("", "", "", "")
        status, _ = await site.ask("POST", f"/v1/transactions/{one['number']}/abort", key=limited)
        assert status == 403
        status, _ = await site.ask("POST", f"/v1/transactions/{one['number']}/abort", key=admin)
        assert status == 200
        for work in works:
            await work.abort()
