"""The table of all topics: searched, sorted and paged, for everybody as they may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from fanlog.broker.insight.topic_table import matcher
from fanlog.broker.slices import Slices
from fanlog.config import Config
from fanlog.format.messages import Position
from fanlog.identity import Role
from fanlog.listeners.web import topic_lists
from tests.listeners.web.conftest import Serving
from tests.listeners.web.guarded import bearer, guarded


async def page(http: aiohttp.ClientSession, **params: Any) -> dict[str, Any]:
    headers = params.pop("headers", {})
    asked = {name: str(value).lower() for name, value in params.items()}
    async with http.get("/v1/topic-list", params=asked, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def names(found: dict[str, Any]) -> list[str]:
    return [topic["name"] for topic in found["topics"]]


async def seen(http: aiohttp.ClientSession, sort: str, expected: list[str]) -> bool:
    found = await page(http, sort=sort)
    return (names(found), found["total"]) == (expected, len(expected))


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - a request is all there is to ask with
            await asyncio.sleep(0.02)


async def test_a_row_says_what_a_topic_has(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders", partitions=2, retention_seconds=60)
        await client.publish_many("orders", [b"x" * 100 for _ in range(10)])
        async with client.consume("orders", group="billing", reset="earliest") as group:
            messages = aiter(group)
            for _ in range(4):
                await anext(messages)
            await group.commit()
        async with client.subscribe("orders"):
            (row,) = (await page(site.http))["topics"]
        assert row["name"] == "orders"
        assert (row["partitions"], row["durability"], row["cleanup"]) == (2, "memory", "delete")
        assert (row["messages"], row["published"], row["state"]) == (10, 10, "ok")
        assert row["bytes"] > 1000
        assert row["readers"] == 2
        assert (row["lag"], row["lag_by"], row["lag_kind"]) == (6, "billing", "stream")
        assert row["retention_seconds"] == 60
        assert row["newest_us"] > 0
        assert not row["internal"]


async def test_the_list_says_what_a_new_topic_would_have(serving: Serving) -> None:
    config = Config()
    config = msgspec.structs.replace(
        config, topic=msgspec.structs.replace(config.topic, retention_seconds=77)
    )
    async with serving(config) as site:
        assert (await page(site.http))["defaults"]["retention_seconds"] == 77


async def test_topics_are_searched(serving: Serving) -> None:
    async with serving() as site:
        for name in ("orders.eu.new", "orders.us", "Payments.EU", "logs"):
            await site.broker.create_topic(name)
        for search, expected in (
            ("eu", ["Payments.EU", "orders.eu.new"]),
            ("ORD", ["orders.eu.new", "orders.us"]),
            ("ord new", ["orders.eu.new"]),
            ("orders.*", ["orders.us"]),
            ("orders.>", ["orders.eu.new", "orders.us"]),
            ("*s", ["logs", "orders.us"]),
            ("log?", ["logs"]),
            ("nothing", []),
            ("", ["Payments.EU", "logs", "orders.eu.new", "orders.us"]),
        ):
            found = await page(site.http, search=search)
            assert (names(found), found["total"]) == (expected, len(expected)), search


async def test_topics_are_sorted_and_paged(serving: Serving) -> None:
    async with serving() as site:
        sizes = {"a": 3, "b": 1, "c": 2, "d": 2}
        for name, count in sizes.items():
            await site.broker.create_topic(name, partitions=5 - count)
            await site.broker.publish_many(name, [b"x" * 50] * count)
        for sort in ("messages", "size"):
            assert names(await page(site.http, sort=sort)) == ["b", "c", "d", "a"]
            found = names(await page(site.http, sort=sort, descending=True))
            assert found == ["a", "c", "d", "b"]
        assert names(await page(site.http, sort="partitions")) == ["a", "c", "d", "b"]
        assert names(await page(site.http, descending=True)) == ["d", "c", "b", "a"]
        for sort in ("rate", "byte_rate", "readers", "lag", "missed"):
            assert names(await page(site.http, sort=sort)) == ["a", "b", "c", "d"]
        middle = await page(site.http, sort="messages", offset=1, limit=2)
        assert (names(middle), middle["total"], middle["offset"]) == (["c", "d"], 4, 1)
        assert names(await page(site.http, offset=1, limit=2, descending=True)) == ["c", "b"]
        assert names(await page(site.http, offset=100)) == []


async def test_the_largest_lag_comes_first(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        for name in ("a", "b", "c"):
            await client.publish_many(name, [b"x"] * 5)
        core = site.listener.core
        core.durable.commit_positions([("group/g", (Position("b", 0, 2, core.epoch),))])
        async with client.work("c", queue="q", reset="earliest"):
            pass
        found = await page(site.http, sort="lag", descending=True)
        rows = [(row["name"], row["lag"], row["lag_by"]) for row in found["topics"]]
        assert rows == [("c", 5, "q"), ("b", 3, "g"), ("a", None, "")]


async def test_every_group_counts_however_many_there_are(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.publish_many("a", [b"x"] * 5)
        core = site.listener.core
        committed = [(f"group/g{n:04}", (Position("a", 0, 4, core.epoch),)) for n in range(1100)]
        core.durable.commit_positions(committed)
        core.durable.commit_positions([("group/g1099", (Position("a", 0, 1, core.epoch),))])
        core.durable.commit_positions([("reader", (Position("a", 0, 0, core.epoch),))])
        (row,) = (await page(site.http))["topics"]
        assert (row["lag"], row["lag_by"]) == (4, "g1099")
        # A group whose members have committed nothing yet has everything left.
        await client.publish_many("b", [b"x"] * 3)
        async with client.consume("b", group="new", reset="earliest", window_bytes=1):
            await until(lambda: lagging(site.http, "b", "new"))


async def lagging(http: aiohttp.ClientSession, topic: str, group: str) -> bool:
    rows = (await page(http, search=topic))["topics"]
    return [row["lag_by"] for row in rows] == [group]


async def test_rates_come_while_somebody_looks(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("a")
        async with asyncio.timeout(30):
            while True:
                await site.broker.publish_many("b", [b"x"] * 5)
                (row, *_) = (await page(site.http, sort="rate", descending=True))["topics"]
                if row["messages_per_second"] > 0:
                    break
                await asyncio.sleep(0.1)
        assert row["name"] == "b"
        assert row["bytes_per_second"] > 0


async def test_the_brokers_own_topics_are_shown_on_request(serving: Serving, tmp_path: Any) -> None:
    async with serving(path=tmp_path / "data") as site:
        await site.broker.publish("orders", b"x")
        async with site.broker.consume("orders", group="g", reset="earliest") as group:
            await anext(aiter(group))
            await group.commit()
        assert names(await page(site.http)) == ["orders"]
        assert names(await page(site.http, search="fanlog")) == []
        own = [row for row in (await page(site.http, internal=True))["topics"] if row["internal"]]
        assert "_fanlog.cursors" in [row["name"] for row in own]


async def test_topics_that_come_and_go_are_seen_at_once(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("a")
        for sort in ("name", "size"):
            assert names(await page(site.http, sort=sort)) == ["a"]
            await site.broker.create_topic("b")
            await until(lambda sort=sort: seen(site.http, sort, ["a", "b"]))
            await site.broker.delete_topic("b")
            await until(lambda sort=sort: seen(site.http, sort, ["a"]))


async def test_nobody_sees_or_counts_what_is_not_theirs() -> None:
    async with guarded() as site:
        admin, team = site.key("root", Role.ADMIN), site.key("team", describe=("team.>",))
        none = site.key("none", publish=("other.>",))
        for name in ("team.a", "team.b", "secret.a", "secret.b", "secret.c"):
            await site.broker.create_topic(name)
            await site.broker.publish(name, b"x")
        async with site.broker.consume("team.a", group="hidden", reset="earliest") as group:
            await anext(aiter(group))
            await group.commit()
        http = site.http
        for sort in ("name", "size", "lag"):
            found = await page(http, sort=sort, headers=bearer(team))
            assert (sorted(names(found)), found["total"]) == (["team.a", "team.b"], 2)
            assert (await page(http, sort=sort, headers=bearer(admin)))["total"] == 5
            assert (await page(http, sort=sort, headers=bearer(none)))["total"] == 0
        secret = await page(http, search="secret", internal=True, headers=bearer(team))
        assert (secret["topics"], secret["total"]) == ([], 0)
        (row, _) = (await page(http, headers=bearer(team)))["topics"]
        assert (row["lag"], row["lag_by"], row["lag_kind"]) == (0, "", None)
        (row,) = (await page(http, search="team.a", headers=bearer(admin)))["topics"]
        assert row["lag_by"] == "hidden"
        # What was taken away is gone at once.
        site.key("team", describe=("team.b",))
        assert names(await page(http, headers=bearer(team))) == ["team.b"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": "0"},
        {"limit": "x"},
        {"offset": "-1"},
        {"offset": "99999999999"},
        {"sort": "colour"},
        {"search": "x" * 300},
        {"descending": "perhaps"},
        {"unknown": "1"},
    ],
)
async def test_wrong_questions_are_refused(serving: Serving, wrong: dict[str, str]) -> None:
    async with serving() as site, site.http.get("/v1/topic-list", params=wrong) as answer:
        assert answer.status == 400, await answer.text()


async def test_a_page_has_a_limit(serving: Serving) -> None:
    async with serving(page_entries_max=3) as site:
        for n in range(5):
            await site.broker.create_topic(f"t{n}")
        found = await page(site.http, limit=1_000_000)
        assert (len(found["topics"]), found["total"]) == (3, 5)


async def test_many_who_ask_share_one_look(serving: Serving) -> None:
    async with serving() as site:
        for n in range(300):
            await site.broker.create_topic(f"t{n}")
        found = await asyncio.gather(
            *(page(site.http, sort="size", limit=10) for _ in range(20)),
            *(page(site.http, sort="lag", descending=True, limit=10) for _ in range(20)),
        )
        assert {one["total"] for one in found} == {300}


def test_strange_searches_find_nothing() -> None:
    for search in ("[", "\\", "**", "a[", "?", "((", "a.>.b"):
        find = matcher(search)
        assert find is not None
        find("orders")


async def test_a_long_page_is_made_in_slices(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = 0, list[int]()
    turn, listed = Slices._turn, topic_lists.listed

    async def counted(self: Slices) -> None:
        nonlocal turns
        turns += 1
        await turn(self)

    def noted(*about: Any) -> Any:
        seen.append(turns)
        return listed(*about)

    async with serving() as site:
        for number in range(20):
            await site.broker.create_topic(f"t{number}")
        monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
        monkeypatch.setattr(Slices, "_turn", counted)
        monkeypatch.setattr(topic_lists, "listed", noted)
        assert len(names(await page(site.http))) == 20
        assert seen[-1] - seen[0] >= 10
