"""Topics over REST."""

from __future__ import annotations

from tests.listeners.web.conftest import Serving


async def test_a_topic_lives_and_dies(serving: Serving) -> None:
    async with serving() as site:
        http = site.http
        async with http.post("/v1/topics", json={"name": "orders", "partitions": 4}) as answer:
            assert answer.status == 201, await answer.text()
            assert answer.headers["Location"] == "/v1/topics/orders"
            assert len((await answer.json())["partitions"]) == 4
        async with http.post("/v1/topics", json={"name": "orders"}) as answer:
            assert answer.status == 409
            assert (await answer.json(content_type=None))["code"] == "topic_exists"
        again = {"name": "orders", "exist_ok": True, "partitions": 4}
        async with http.post("/v1/topics", json=again) as answer:
            assert answer.status == 201
        async with http.patch("/v1/topics/orders", json={"retention_seconds": 60}) as answer:
            assert (await answer.json())["settings"]["retention_seconds"] == 60
        async with http.post("/v1/topics/orders/grow", json={"partitions": 5}) as answer:
            assert len((await answer.json())["partitions"]) == 5
        async with http.get("/v1/topics/orders") as answer:
            assert (await answer.json())["settings"]["partitions"] == 5
        async with http.delete("/v1/topics/orders") as answer:
            assert answer.status == 204
        async with http.get("/v1/topics/orders") as answer:
            assert answer.status == 404
            assert (await answer.json(content_type=None))["code"] == "topic_not_found"


async def test_pages_of_topics_have_each_of_them_once(serving: Serving) -> None:
    async with serving() as site:
        names = sorted(f"room.{number}" for number in range(25))
        client = site.broker
        for name in names:
            await client.create_topic(name)
        await client.create_topic("other")
        found: list[str] = []
        after = ""
        while True:
            asked = {"limit": "10", "pattern": "room.*", "after": after}
            async with site.http.get("/v1/topics", params=asked) as answer:
                page = await answer.json()
            assert len(page["topics"]) <= 10
            found += [topic["name"] for topic in page["topics"]]
            after = page["next"]
            if after is None:
                break
        assert found == names


async def test_truncate_deletes_the_oldest(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.publish_many("orders", [str(n) for n in range(10)])
        url = "/v1/topics/orders/truncate"
        async with site.http.post(url, json={"offsets": {"0": 4}}) as answer:
            assert await answer.json() == {"offsets": {"0": 4}, "messages": 4}
        async with site.http.get("/v1/topics/orders/messages?offset=0") as answer:
            page = await answer.json()
            assert page["gaps"] == [{"partition": 0, "from": 0, "to": 4, "reason": "retention"}]
            assert [message["offset"] for message in page["messages"]] == [4, 5, 6, 7, 8, 9]
        async with site.http.post(url, json={"before": "latest"}) as answer:
            assert await answer.json() == {"offsets": {"0": 10}, "messages": 6}
        for wrong in ({}, {"before": "5"}, {"offsets": {"x": 1}}, {"offset": 3}):
            async with site.http.post(url, json=wrong) as answer:
                assert answer.status == 400, wrong


async def test_a_dry_run_says_what_a_truncation_takes(serving: Serving) -> None:
    async with serving() as site:
        client = site.broker
        await client.create_topic("orders", partitions=2)
        for partition, count in ((0, 10), (1, 5)):
            for n in range(count):
                await client.publish("orders", str(n), partition=partition)
        url = "/v1/topics/orders/truncate"
        asked = {"dry_run": True}
        async with site.http.post(url, json={"offsets": {"0": 4}, **asked}) as answer:
            assert await answer.json() == {"offsets": {"0": 4}, "messages": 4}
        async with site.http.post(url, json={"before": "latest", **asked}) as answer:
            assert await answer.json() == {"offsets": {"0": 10, "1": 5}, "messages": 15}
        async with site.http.post(url, json={"before": "1h", **asked}) as answer:
            assert await answer.json() == {"offsets": {"0": 0, "1": 0}, "messages": 0}
        async with site.http.post(url, json={"offsets": {"1": 6}, **asked}) as answer:
            assert answer.status == 416, await answer.text()
        assert (await client.describe_topic("orders")).records == 15


async def test_what_a_topic_can_not_become_is_a_conflict(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=4)
        async with site.http.post("/v1/topics/orders/grow", json={"partitions": 2}) as answer:
            assert answer.status == 409
            assert "only grow" in (await answer.json(content_type=None))["detail"]
        url = "/v1/topics/orders/truncate"
        async with site.http.post(url, json={"offsets": {"4": 1}}) as answer:
            assert answer.status == 404
        url = "/v1/dead-letters/orders/delete"
        async with site.http.post(url, json={"all": True}) as answer:
            assert answer.status == 409


async def test_a_wrong_setting_is_named(serving: Serving) -> None:
    async with serving() as site:
        for wrong, named in (
            ({"name": "a", "partitions": 0}, "partitions"),
            ({"name": "a", "partition": 1}, "partition"),
            ({"name": "a", "durability": "disk"}, "durability"),
            ({"name": "a.>"}, "a.>"),
            ({}, "name"),
        ):
            async with site.http.post("/v1/topics", json=wrong) as answer:
                assert answer.status == 400
                assert named in (await answer.json(content_type=None))["detail"]


async def test_a_name_may_have_any_character(serving: Serving) -> None:
    async with serving() as site:
        async with site.http.post("/v1/topics", json={"name": "a/b é%2F?"}) as answer:
            assert answer.status == 201
            where = answer.headers["Location"]
        async with site.http.get(site.url + where) as answer:
            assert (await answer.json())["name"] == "a/b é%2F?"
