"""One topic in detail: its summary, and pages of its partitions, files, readers and so on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import Config
from fanlog.identity import Role
from fanlog.model import PRODUCER_ID_MAX
from tests.listeners.web.conftest import Serving
from tests.listeners.web.guarded import bearer, guarded

# A free port for native clients.
CONFIG = msgspec.structs.replace(
    Config(), listener=msgspec.structs.replace(Config().listener, port=0)
)


async def details(http: aiohttp.ClientSession, topic: str, **params: Any) -> dict[str, Any]:
    headers = params.pop("headers", {})
    asked = {name: str(value) for name, value in params.items()}
    async with http.get(f"/v1/topics/{topic}/details", params=asked, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - a request is all there is to ask with
            await asyncio.sleep(0.05)


async def test_the_summary_of_a_topic(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        client = site.broker
        await client.create_topic("orders", partitions=3, owner="")
        await client.publish_many("orders", [b"x" * 100] * 9)
        found = await details(site.http, "orders")
        assert (found["name"], found["partition_count"], found["messages"]) == ("orders", 3, 9)
        assert (found["published"], found["state"], found["lag"]) == (9, "ok", None)
        assert found["bytes"] > 900
        assert found["segment_count"] >= 1
        assert found["newest_us"] > 0
        assert found["settings"]["partitions"] == 3
        assert found["damaged"] == found["failed"] == []
        assert found["counters"]["skips"] == 0
        assert found["partitions"] is found["readers"] is None


async def test_partitions_come_in_pages(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=7)
        await site.broker.publish("orders", b"x", partition=5)
        found = (await details(site.http, "orders", show="partitions", offset=4, limit=2))[
            "partitions"
        ]
        assert (found["total"], found["offset"]) == (7, 4)
        assert [(row["partition"], row["messages"]) for row in found["rows"]] == [(4, 0), (5, 1)]
        assert found["rows"][1]["newest_us"] > 0


async def test_segments_are_files(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        client = site.broker
        await client.create_topic("orders", partitions=2, segment_bytes=65536)
        for _ in range(6):
            await client.publish("orders", b"x" * 30_000, partition=1)
        found = (await details(site.http, "orders", show="segments"))["segments"]
        rows = found["rows"]
        assert found["total"] == len(rows) >= 3
        assert {row["partition"] for row in rows} == {1}
        assert [row["active"] for row in rows] == [False] * (len(rows) - 1) + [True]
        assert rows[0]["base_offset"] == 0
        assert rows[0]["next_offset"] == rows[1]["base_offset"]
        assert rows[-1]["next_offset"] is None
        assert sum(row["bytes"] for row in rows) == (await details(site.http, "orders"))["bytes"]
        assert all(row["newest_us"] for row in rows)
        files = {path.name for path in (tmp_path / "data").rglob("*.log")}
        assert {row["file"] for row in rows} <= files
        last = await details(site.http, "orders", show="segments", offset=len(rows) - 1)
        assert last["segments"]["rows"] == rows[-1:]
        none = await details(site.http, "orders", show="segments", partition=0)
        assert none["segments"] == {"rows": [], "total": 0, "offset": 0}


async def test_compacted_files_have_a_generation(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        client = site.broker
        await client.create_topic("prices", cleanup="compact")
        for n in range(20):
            await client.publish("prices", str(n), key=str(n % 2))
        async with site.http.post("/v1/topics/prices/compact") as answer:
            assert answer.status == 200
        rows = (await details(site.http, "prices", show="segments"))["segments"]["rows"]
        assert rows[0]["generation"] >= 1


async def test_readers_are_those_who_read(serving: Serving) -> None:
    async with serving(CONFIG) as site:
        client = site.broker
        await client.create_topic("orders", partitions=2)
        await client.publish_many("orders", [b"x"] * 6)
        native = site.broker.listen()
        async with (
            fanlog.connect(f"fanlog://127.0.0.1:{native.port}", name="reporter") as far,
            far.subscribe("orders") as live,
            far.consume("orders", group="billing", reset="earliest"),
            site.http.ws_connect("/v1/ws") as socket,
        ):
            await socket.send_json({"op": "subscribe", "id": 1, "target": "orders"})
            await socket.receive_json()
            assert live is not None

            async def three() -> bool:
                found = (await details(site.http, "orders", show="readers"))["readers"]
                return found["total"] == 3

            await until(three)
            found = (await details(site.http, "orders", show="readers"))["readers"]
            assert (found["restricted"], found["complete"]) == (False, True)
            by = {(row["transport"], row["group"]): row for row in found["rows"]}
            assert by.keys() == {("native", ""), ("native", "billing"), ("websocket", "")}
            mine = by["native", ""]
            assert (mine["client"], mine["target"]) == ("reporter", "orders")
            assert (mine["partitions"], mine["lag"], mine["position"]) == (2, 0, None)
            assert mine["connection"].startswith("native@127.0.0.1:")
            assert mine["policy"] == "catch-up"
            one = (await details(site.http, "orders", show="readers", offset=1, limit=1))["readers"]
            assert (len(one["rows"]), one["total"]) == (1, 3)


async def test_a_reader_that_takes_nothing_is_behind(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders")
        async with client.subscribe("orders", start="earliest", window_bytes=1):
            for _ in range(20):
                await client.publish("orders", b"x" * 1000)

            async def behind() -> bool:
                found = (await details(site.http, "orders", show="readers"))["readers"]
                return bool(found["rows"]) and found["rows"][0]["lag"] > 0

            await until(behind)
            found = (await details(site.http, "orders", show="readers"))["readers"]
            (row,) = found["rows"]
            assert (row["live"], found["behind"]) == (False, 1)
            assert row["position"] + row["lag"] == 20


async def test_groups_and_queues_of_a_topic(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders", partitions=2)
        await client.create_topic("other")
        await client.publish_many("orders", [b"x"] * 6)
        await client.publish("other", b"x")
        async with client.consume("orders", group="billing", reset="earliest") as group:
            await anext(aiter(group))
            await group.commit()
        async with client.consume("other", group="elsewhere", reset="earliest") as group:
            await anext(aiter(group))
            await group.commit()
        async with client.work("orders", queue="mailers", reset="earliest") as jobs:
            job = await anext(aiter(jobs))
            await job.ack()
            found = (await details(site.http, "orders", show="groups"))["groups"]
        rows = {row["name"]: row for row in found["rows"]}
        assert found["total"] == 2
        assert rows.keys() == {"billing", "mailers"}
        assert (rows["billing"]["kind"], rows["billing"]["state"]) == ("stream", "inactive")
        assert rows["billing"]["lag"] == 5
        assert (rows["mailers"]["kind"], rows["mailers"]["members"]) == ("queue", 1)
        assert rows["mailers"]["lag"] == 5
        assert (await details(site.http, "orders"))["lag"] == 5


async def test_producers_with_their_last_message(serving: Serving) -> None:
    async with serving(CONFIG) as site:
        await site.broker.create_topic("orders", partitions=2)
        native = site.broker.listen()
        url = f"fanlog://127.0.0.1:{native.port}"
        async with fanlog.connect(url, producer="shop") as shop, fanlog.connect(url) as other:
            await shop.publish("orders", b"1", partition=0)
            await shop.publish("orders", b"2", partition=0)
            await shop.publish("orders", b"3", partition=1)
            await other.publish("orders", b"4", partition=0)
        async with site.broker.transaction("closing") as transaction:
            await transaction.publish("orders", b"5", partition=1)
        found = (await details(site.http, "orders", show="producers"))["producers"]
        assert (found["total"], found["complete"]) == (3, True)
        (named,) = [row for row in found["rows"] if row["name"] == "shop"]
        assert (named["partitions"], named["epoch"], named["transaction"]) == (2, 1, False)
        assert 0 < named["id"] <= PRODUCER_ID_MAX
        assert named["time_us"] > 0
        assert [row["transaction"] for row in found["rows"]].count(True) == 1
        first = await details(site.http, "orders", show="producers", partition=0)
        rows = first["producers"]["rows"]
        assert [(row["name"], row["sequence"], row["offset"]) for row in rows] == [
            ("", 0, 2),
            ("shop", 1, 1),
        ]


async def test_counts_are_for_all_and_names_for_those_who_may() -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        viewer = site.key("team", describe=("orders",), groups=("mine",))
        await site.broker.create_topic("orders")
        await site.broker.create_topic("secret")
        await site.broker.publish("orders", b"x")
        for group in ("mine", "theirs"):
            async with site.broker.consume("orders", group=group, reset="earliest") as member:
                await anext(aiter(member))
                await member.commit()
        http = site.http
        async with site.broker.subscribe("orders"):
            found = await details(http, "orders", show="readers", headers=bearer(viewer))
            assert found["readers"]["restricted"]
            assert (found["readers"]["rows"], found["readers"]["total"]) == ([], 1)
            found = await details(http, "orders", show="readers", headers=bearer(admin))
            assert len(found["readers"]["rows"]) == 1
        found = (await details(http, "orders", show="groups", headers=bearer(viewer)))["groups"]
        assert ([row["name"] for row in found["rows"]], found["total"]) == (["mine"], 1)
        found = (await details(http, "orders", show="groups", headers=bearer(admin)))["groups"]
        assert found["total"] == 2
        url = "/v1/topics/secret/details"
        async with http.get(url, headers=bearer(viewer)) as answer:
            assert answer.status == 403


@pytest.mark.parametrize(
    ("topic", "params", "status"),
    [
        ("missing", {}, 404),
        ("orders", {"show": "everything"}, 400),
        ("orders", {"limit": "0"}, 400),
        ("orders", {"offset": "-1"}, 400),
        ("orders", {"partition": "9"}, 404),
        ("orders", {"partition": "-1"}, 400),
        ("orders", {"partition": "99999999999999999999"}, 400),
    ],
)
async def test_wrong_questions_are_refused(
    serving: Serving, topic: str, params: dict[str, str], status: int
) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders")
        async with site.http.get(f"/v1/topics/{topic}/details", params=params) as answer:
            assert answer.status == status, await answer.text()


async def test_very_many_partitions_are_no_burden(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("wide", partitions=4096)
        async with site.broker.subscribe("wide"):
            for show in ("partitions", "segments", "readers", "groups", "producers"):
                found = await details(site.http, "wide", show=show, limit=100_000)
                assert found["partition_count"] == 4096
                assert len(found[show]["rows"]) <= 1000
            found = await details(site.http, "wide", show="readers")
            assert [row["partitions"] for row in found["readers"]["rows"]] == [4096]
