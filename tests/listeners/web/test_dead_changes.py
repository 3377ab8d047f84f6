"""Dead letters are edited, replayed, deleted and exported, and nothing is repeated."""

from __future__ import annotations

import asyncio
import json

from fanlog.format.dead_letters import death_headers
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving
from tests.listeners.web.dead import DEAD, complete, ended, kill, kill_many, letters, values
from tests.listeners.web.test_work import ask, get, post

# Edit and replay


async def test_a_dead_letter_is_edited_and_replayed_once(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x", b="y")
        first, second = await letters(site.broker, "dead.jobs", 2)
        message = {"key": "new", "headers": {"h": "2"}, "json": {"name": "fixed"}}
        path = f"{DEAD}/letters/{first.id}/replay"
        both = await asyncio.gather(*(ask(site, "POST", path, {"message": message}) for _ in "12"))
        assert sorted(status for status, _ in both) == [200, 404]
        assert await post(site, f"{DEAD}/letters/{second.id}/replay", {}) == {"count": 1}
        assert await values(site.broker, "jobs", 4) == [
            {"name": "a"},
            {"name": "b"},
            {"name": "fixed"},
            {"name": "b"},
        ]
        async with site.broker.subscribe("jobs", start="earliest") as subscription:
            found = [await subscription.next(PATIENCE_SECONDS) for _ in range(4)]
        assert (found[2].key, found[2].headers["h"]) == (b"new", b"2")
        assert (found[3].key, found[3].headers["h"]) == (b"b", b"1")
        assert await site.broker.dead_letters.list("dead.jobs") == []


async def test_an_edited_dead_letter_may_be_any_bytes_or_none(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x", b="y")
        first, second = await letters(site.broker, "dead.jobs", 2)
        raw = {"message": {"base64": "AP8=", "headers_base64": {"h": "/w=="}}}
        await post(site, f"{DEAD}/letters/{first.id}/replay", raw)
        gone = {"message": {"key": "k", "deleted": True}, "to": "others"}
        await site.broker.create_topic("others")
        await post(site, f"{DEAD}/letters/{second.id}/replay", gone)
        async with site.broker.subscribe("jobs", start=2) as subscription:
            message = await subscription.next(PATIENCE_SECONDS)
            assert (message.value, message.key, message.headers["h"]) == (
                b"\x00\xff",
                None,
                b"\xff",
            )
        async with site.broker.subscribe("others", start="earliest") as subscription:
            assert (await subscription.next(PATIENCE_SECONDS)).is_tombstone


async def test_what_can_not_be_stored_stays_a_dead_letter(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x")
        (letter,) = await letters(site.broker, "dead.jobs", 1)
        large = {"message": {"text": "x" * 900_000}}
        await site.broker.alter_topic("jobs", message_bytes_max=1024)
        status, problem = await ask(site, "POST", f"{DEAD}/letters/{letter.id}/replay", large)
        assert (status, problem["code"]) == (413, "message_too_large")
        await site.broker.delete_topic("jobs")
        status, problem = await ask(site, "POST", f"{DEAD}/letters/{letter.id}/replay", {})
        assert (status, problem["code"]) == (404, "topic_not_found")
        assert [one.id for one in await letters(site.broker, "dead.jobs", 1)] == [letter.id]


# Many


async def test_many_are_replayed_by_reason_as_a_task(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 1000, lambda i: f"{'odd' if i % 2 else 'even'} {i}")
        body = {"where": {"group": "odd <n>"}, "background": True}
        answer = await post(site, f"{DEAD}/replay", body)
        task = await ended(site, answer["task"])
        assert (task["state"], task["done"], task["total"], task["failed"]) == ("done", 500, 500, 0)
        assert (task["kind"], task["about"], task["error"]) == ("dead.replay", "dead.jobs", "")
        assert task["started"] <= task["finished"]
        back = await values(site.broker, "jobs", 501)
        assert [value["number"] for value in back[1:]] == list(range(1, 1000, 2))
        listed = (await get(site, "/v1/tasks?about=dead.jobs"))["tasks"]
        assert [one["id"] for one in listed] == [answer["task"]]
        assert (await get(site, "/v1/tasks?about=others"))["tasks"] == []
        # Again there is nothing to do.
        again = await ended(site, (await post(site, f"{DEAD}/replay", body))["task"])
        assert (again["state"], again["done"], again["total"]) == ("done", 0, 0)
        assert (await complete(site, f"{DEAD}/reasons"))["total"] == 501


async def test_two_replays_of_everything_repeat_nothing(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 900, lambda i: "x")
        body = {"all": True, "background": True}
        ids = [(await post(site, f"{DEAD}/replay", body))["task"] for _ in range(3)]
        done = [(await ended(site, id))["done"] for id in ids]
        assert sum(done) == 901
        # The first job, and each of the dead letters once.
        assert (await site.broker.describe_topic("jobs")).records == 902
        assert await site.broker.dead_letters.list("dead.jobs") == []


async def test_those_that_can_not_go_back_are_counted(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 300, lambda i: "x")
        await site.broker.publish("gone", b"x")
        await kill(site.broker, "gone", a="y", b="y")
        async for letter in site.broker.dead_letters.scan("dead.gone"):
            headers = {**letter.headers, **death_headers(letter.death)}
            key = letter.death.letter_key
            await site.broker.publish("dead.jobs", letter.value, key=key, headers=headers)
        await site.broker.delete_topic("gone")
        await site.broker.alter_topic("jobs", message_bytes_max=1024)
        task = await ended(
            site, (await post(site, f"{DEAD}/replay", {"all": True, "background": True}))["task"]
        )
        assert (task["state"], task["done"], task["failed"]) == ("done", 301, 2)
        assert "no topic 'gone'" in task["error"]
        assert len(await letters(site.broker, "dead.jobs", 2)) == 2
        some = {"ids": ["0:7777"], "background": True}
        task = await ended(site, (await post(site, f"{DEAD}/delete", some))["task"])
        assert (task["state"], task["failed"], task["total"]) == ("failed", 1, 1)


async def test_some_are_deleted_and_the_rest_is_purged(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 600, lambda i: f"{'odd' if i % 2 else 'even'} {i}")
        some = {"where": {"key": "k7"}}
        assert await post(site, f"{DEAD}/delete", some) == {"count": 1}
        body = {"where": {"group": "odd <n>"}, "background": True}
        task = await ended(site, (await post(site, f"{DEAD}/delete", body))["task"])
        assert (task["kind"], task["done"], task["total"]) == ("dead.delete", 299, 299)
        assert len(await letters(site.broker, "dead.jobs", 301)) == 301
        body = {"all": True, "background": True}
        task = await ended(site, (await post(site, f"{DEAD}/delete", body))["task"])
        assert (task["kind"], task["done"], task["total"]) == ("dead.purge", 301, 301)
        assert await site.broker.dead_letters.list("dead.jobs") == []
        assert (await complete(site, f"{DEAD}/browse"))["total"] == 0
        # The jobs themselves were not touched.
        assert (await site.broker.describe_topic("jobs")).records == 1


async def test_an_export_has_all_that_fit(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 700, lambda i: f"{'odd' if i % 2 else 'even'} {i}")
        async with site.http.get(f"{DEAD}/export?group=odd+%3Cn%3E") as answer:
            assert answer.status == 200
            assert answer.content_type == "application/x-ndjson"
            assert "dead.jobs.ndjson" in answer.headers["Content-Disposition"]
            lines = (await answer.text()).splitlines()
        found = [json.loads(line) for line in lines]
        assert [line["reason"] for line in found] == [f"odd {i}" for i in range(1, 700, 2)]
        assert json.loads(found[0]["value"]) == {"number": 1}
        async with site.http.get(f"{DEAD}/export") as answer:
            assert len((await answer.text()).splitlines()) == 701
        # As the command line exports it.
        mine = [json.loads(line) async for line in site.broker.dead_letters.export("dead.jobs")]
        assert found[0] in mine


async def test_few_exports_run_at_a_time(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x")
        site.listener.dead_letters.exports = 4
        status, problem = await ask(site, "GET", f"{DEAD}/export")
        assert (status, problem["code"]) == (429, "limit")
        site.listener.dead_letters.exports = 0
        assert (await ask(site, "GET", f"{DEAD}/letters/0:0"))[0] == 200
