"""Topics with people in them, over REST: search, order, pages, and what a limited key may see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanlog.format.presence import PresenceMember
from fanlog.identity import Role
from fanlog.listeners.web.rooms import _answers, _sizes  # pyright: ignore[reportPrivateUsage]
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded


def fill(site: Any, rooms: dict[str, int]) -> None:
    """So many users in each topic; the first one has two connections."""
    presence = site.listener.presence
    for topic, users in rooms.items():
        for number in range(users):
            presence.join(topic, f"c{topic}{number}", f"u{number}")
        presence.join(topic, f"c{topic}x", "u0")
    _sizes.forget(site.listener)
    _answers.forget(site.listener)


async def ask(site: Site, query: str = "") -> dict[str, Any]:
    async with site.http.get(f"/v1/rooms{query}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_rooms_are_listed_with_the_fullest_first(serving: Serving) -> None:
    async with serving() as site:
        assert (await ask(site))["rooms"] == []
        fill(site, {"small": 1, "large": 3, "Middle": 2, "also": 2})
        found = await ask(site)
        assert [(r["topic"], r["users"], r["connections"]) for r in found["rooms"]] == [
            ("large", 3, 4),
            ("Middle", 2, 3),
            ("also", 2, 3),
            ("small", 1, 2),
        ]
        assert (found["total"], found["users"], found["connections"]) == (4, 8, 12)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?search=L", ["large", "Middle", "also", "small"]),
        ("?search=mid", ["Middle"]),
        ("?sort=topic&descending=false", ["Middle", "also", "large", "small"]),
        ("?sort=topic", ["small", "large", "also", "Middle"]),
        ("?sort=connections&descending=false&limit=2", ["small", "Middle"]),
        ("?offset=1&limit=2", ["Middle", "also"]),
        ("?offset=3", ["small"]),
        ("?offset=4", []),
    ],
)
async def test_rooms_have_search_order_and_pages(
    serving: Serving, query: str, expected: list[str]
) -> None:
    async with serving() as site:
        fill(site, {"small": 1, "large": 3, "Middle": 2, "also": 2})
        assert [room["topic"] for room in (await ask(site, query))["rooms"]] == expected


@pytest.mark.parametrize(
    "query", ["?sort=name", "?limit=0", "?limit=501", "?offset=-1", "?search=" + "x" * 256, "?a=1"]
)
async def test_wrong_parameters_are_refused(serving: Serving, query: str) -> None:
    async with serving() as site, site.http.get(f"/v1/rooms{query}") as answer:
        assert answer.status == 400


async def test_sums_and_names_are_of_rooms_that_one_may_see() -> None:
    async with guarded() as site:
        fill(site, {"open.a": 2, "secret": 5})
        key = site.key("guest", Role.CONSUMER, subscribe=("open.>",))
        status, found = await site.ask("GET", "/v1/rooms", key=key)
        assert status == 200
        assert [room["topic"] for room in found["rooms"]] == ["open.a"]
        assert (found["total"], found["users"], found["connections"]) == (1, 2, 3)
        status, found = await site.ask("GET", "/v1/rooms?search=secret", key=key)
        assert (status, found["total"], found["users"]) == (200, 0, 0)
        assert (await site.ask("GET", "/v1/rooms"))[0] == 401


async def test_very_many_rooms_are_sorted_in_slices(serving: Serving) -> None:
    async with serving() as site:
        rooms = site.listener.presence._rooms  # pyright: ignore[reportPrivateUsage]
        for number in range(20_000):
            rooms.put(
                f"room.{number:05}", ("p", f"c{number}"), PresenceMember(f"u{number}", b"", number)
            )
        task, turns = asyncio.ensure_future(ask(site, "?offset=10000&limit=3&search=ROOM")), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert [room["topic"] for room in task.result()["rooms"]] == [
            "room.10000",
            "room.10001",
            "room.10002",
        ]
        # Others have had their turns meanwhile.
        assert turns > 20
        found = await ask(site, "?offset=19999&limit=3")
        assert [room["topic"] for room in found["rooms"]] == ["room.19999"]
        assert found["total"] == 20_000
