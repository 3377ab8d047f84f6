"""Dead letters for people: grouped by reason, in pages, and very many of them."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from fanlog.format.dead_letters import Death, death_headers
from fanlog.listeners.web import dead_index
from fanlog.listeners.web.dead_reasons import NO_REASON, error_of, group_of
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving
from tests.listeners.web.dead import BEGIN, DEAD, complete, ended, kill, kill_many, letters
from tests.listeners.web.test_work import ask, get, post

# Reasons


@pytest.mark.parametrize(
    ("reason", "group", "error"),
    [
        (
            "ValueError: order 17 of 1,200.5 is unknown",
            "ValueError: order <n> of <n> is unknown",
            "ValueError",
        ),
        ("KeyError", "KeyError", "KeyError"),
        (
            "requests.exceptions.Timeout: 10.0.0.1:80",
            "requests.exceptions.Timeout: <n>",
            "requests.exceptions.Timeout",
        ),
        ("no user 6f1c2b9e-0d3f-4a55-9c1e-2b7a8d9e0f11", "no user <id>", ""),
        ("blob 9fceb02d0ae598e95dc970b74767f19372d61af8 is gone", "blob <id> is gone", ""),
        ("timed out in the hands of worker web-7/x", "timed out in the hands of worker <name>", ""),
        ("two\nlines", "two", ""),
        ("  ", NO_REASON, ""),
        ("", NO_REASON, ""),
    ],
)
def test_reasons_that_differ_in_numbers_are_one_group(reason: str, group: str, error: str) -> None:
    assert (group_of(reason), error_of(group)) == (group, error)


def test_a_very_long_reason_has_a_short_group() -> None:
    assert len(group_of("a1 " * 100_000)) <= 160


async def test_dead_letters_are_grouped_by_reason(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="order 1 is odd", b="order 2 is odd", c="TypeError: no")
        answer = await complete(site, f"{DEAD}/reasons")
        found = [(one["group"], one["error"], one["count"]) for one in answer["reasons"]]
        assert found == [("order <n> is odd", "", 2), ("TypeError: no", "TypeError", 1)]
        assert (answer["total"], answer["groups"], answer["records"]) == (3, 2, 3)
        assert answer["origins"] == [{"topic": "jobs", "queue": "workers", "count": 3}]
        odd = answer["reasons"][0]
        example = await get(site, f"{DEAD}/letters/{odd['example']}")
        assert example["reason"] == "order 2 is odd"
        assert odd["first"] <= odd["last"] == example["died"]
        # One of them goes: what is said of its group is still true.
        await site.broker.dead_letters.delete("dead.jobs", [odd["example"]])
        odd = (await complete(site, f"{DEAD}/reasons"))["reasons"]
        assert [one["count"] for one in odd] == [1, 1]
        example = await get(site, f"{DEAD}/letters/{odd[1]['example']}")
        assert {odd[0]["example"], odd[1]["example"]} == {
            letter.id for letter in await letters(site.broker, "dead.jobs", 2)
        }


async def test_topics_say_what_is_in_them(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="order 1 is odd", b="order 2 is odd", c="TypeError: no")
        await kill(site.broker, "mails", a="x")
        await site.broker.create_topic("orders")
        answer = await get(site, "/v1/dead-letters?sort=letters")
        assert [(t["name"], t["letters"]) for t in answer["topics"]] == [
            ("dead.jobs", 3),
            ("dead.mails", 1),
        ]
        first = answer["topics"][0]
        assert (first["top_reason"], first["top_count"]) == ("order <n> is odd", 2)
        assert (first["sources"], first["complete"]) == (["jobs"], True)
        assert first["oldest"] <= first["newest"]
        newest = await get(site, "/v1/dead-letters?sort=newest&limit=1")
        assert ([t["name"] for t in newest["topics"]], newest["total"]) == (["dead.mails"], 2)
        await site.broker.dead_letters.purge("dead.mails")
        assert (await get(site, "/v1/dead-letters?empty=false"))["total"] == 1
        assert (await get(site, "/v1/dead-letters?search=mail"))["total"] == 1


# Pages


async def test_pages_are_filtered_by_all_that_is_known(serving: Serving) -> None:
    async with serving() as site:
        await kill_many(site.broker, 20, lambda i: f"{'odd' if i % 2 else 'even'} {i}")

        async def found(query: str) -> list[str]:
            page = await complete(site, f"{DEAD}/browse?{query}")
            assert page["total"] == len(page["letters"]) or "limit" in query
            return [letter["reason"] for letter in page["letters"]]

        assert await found("group=odd+%3Cn%3E&limit=3") == ["odd 19", "odd 17", "odd 15"]
        assert await found("group=odd+%3Cn%3E&limit=3&offset=3&order=oldest") == [
            "odd 7",
            "odd 9",
            "odd 11",
        ]
        assert await found("reason=d+1&order=oldest") == [
            "odd 1",
            "odd 11",
            "odd 13",
            "odd 15",
            "odd 17",
            "odd 19",
        ]
        assert await found("key=k4") == ["even 4"]
        assert await found("text=%22number%22:7") == ["odd 7"]
        assert await found("queue=workers&origin=jobs&key=first") == ["the first one"]
        assert await found("queue=others") == []
        assert await found("group=nothing") == []
        since = (BEGIN + dt.timedelta(seconds=18)).isoformat().replace("+00:00", "Z")
        until = (BEGIN + dt.timedelta(seconds=2)).isoformat().replace("+00:00", "Z")
        assert await found(f"since={since}&until=2026-02-01T00:00:00Z") == ["odd 19", "even 18"]
        assert await found(f"until={until}") == ["odd 1", "even 0"]
        page = await complete(site, f"{DEAD}/browse?key=k4")
        (letter,) = page["letters"]
        assert (letter["preview"], letter["value_bytes"], letter["key"]) == (
            '{"number":4}',
            12,
            "k4",
        )
        assert (letter["topic"], letter["queue"], letter["deliveries"]) == ("jobs", "workers", 5)
        beyond = await complete(site, f"{DEAD}/browse?offset=1000")
        assert (beyond["letters"], beyond["total"]) == ([], 21)


async def test_dead_letters_of_several_partitions_come_by_time(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("bad", partitions=3)
        for number in range(12):
            death = Death(
                "jobs", 0, number, "q", f"r{number}", 1, BEGIN + dt.timedelta(seconds=number)
            )
            await site.broker.publish(
                "bad",
                b"x",
                key=death.letter_key,
                headers=death_headers(death),
                partition=number % 3,
            )
        page = await complete(site, "/v1/dead-letters/bad/browse?limit=5&offset=1")
        assert [letter["reason"] for letter in page["letters"]] == ["r10", "r9", "r8", "r7", "r6"]
        ids: list[str] = []
        after: str | None = ""
        while after is not None:
            listed = await get(site, f"/v1/dead-letters/bad?limit=5&after={after}")
            ids += [letter["id"] for letter in listed["letters"]]
            after = listed["next"]
        assert ids == [letter.id for letter in await letters(site.broker, "bad", 12)]


async def test_what_is_wrong_is_refused(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x")
        both = {"ids": ["0:0"], "where": {"group": "x"}}
        task = {"all": True, "background": True}
        for method, path, body, status, code in [
            ("GET", "/v1/dead-letters/nothing/reasons", None, 404, "topic_not_found"),
            ("GET", "/v1/dead-letters/nothing/browse", None, 404, "topic_not_found"),
            ("GET", "/v1/dead-letters/nothing/export", None, 404, "topic_not_found"),
            ("GET", f"{DEAD}/browse?limit=0", None, 400, "invalid_argument"),
            ("GET", f"{DEAD}/browse?limit=501", None, 400, "invalid_argument"),
            ("GET", f"{DEAD}/browse?offset=-1", None, 400, "invalid_argument"),
            ("GET", f"{DEAD}/browse?since=yesterday", None, 400, "invalid_argument"),
            ("GET", f"{DEAD}/browse?order=best", None, 400, "invalid_argument"),
            ("POST", f"{DEAD}/replay", both, 400, "invalid_argument"),
            ("POST", f"{DEAD}/replay", {"where": {"colour": "red"}}, 400, "invalid_argument"),
            ("POST", f"{DEAD}/replay", {"ids": ["x"]}, 400, "invalid_argument"),
            ("POST", f"{DEAD}/replay", {"all": True, "to": "nothing"}, 404, "topic_not_found"),
            ("POST", f"{DEAD}/replay", {"all": True, "to": "_fanlog.x"}, 400, "invalid_name"),
            ("POST", "/v1/dead-letters/jobs/delete", task, 409, "topic_differs"),
            ("POST", f"{DEAD}/letters/0:9/replay", {}, 404, "dead_letter_not_found"),
            ("POST", f"{DEAD}/letters/x/replay", {}, 404, "dead_letter_not_found"),
            ("POST", f"{DEAD}/letters/0:0/replay", {"message": {}}, 400, "invalid_argument"),
            ("GET", "/v1/tasks/abc", None, 404, "task_not_found"),
            ("DELETE", "/v1/tasks/abc", None, 404, "task_not_found"),
        ]:
            got, problem = await ask(site, method, path, body)
            assert (got, problem["code"]) == (status, code), (path, body, problem)
        assert len(await letters(site.broker, "dead.jobs", 1)) == 1


# Very many


async def test_tens_of_thousands_are_looked_at_without_holding_up_the_loop(
    serving: Serving, tmp_path: Path
) -> None:
    count = 30_000
    async with serving(path=tmp_path / "data") as site:
        await kill_many(site.broker, count, lambda i: f"Error{i % 7}: job {i}")
        reasons = await complete(site, f"{DEAD}/reasons")
        assert sum(one["count"] for one in reasons["reasons"]) == count + 1
        # The digit of the class is a number as well: it is one group.
        assert reasons["groups"] == 2
        page = await complete(site, f"{DEAD}/browse?offset={count // 2}&limit=50")
        assert (page["total"], len(page["letters"])) == (count + 1, 50)
        deaths = [letter["died"] for letter in page["letters"]]
        assert deaths == sorted(deaths, reverse=True)
        found = await complete(site, f"{DEAD}/browse?key=k29999")
        assert [letter["reason"] for letter in found["letters"]] == ["Error4: job 29999"]
        body = {"where": {"reason": "Error3"}, "background": True}
        task = await ended(site, (await post(site, f"{DEAD}/replay", body))["task"])
        assert (task["state"], task["done"]) == ("done", len(range(3, count, 7)))
        assert (await complete(site, f"{DEAD}/browse?reason=Error3"))["total"] == 0
        async with site.http.get(f"{DEAD}/export") as answer:
            lines = 0
            async for _ in answer.content:
                lines += 1
        assert lines == count + 1 - task["done"]


async def test_an_answer_does_not_wait_for_a_topic_to_be_read(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dead_browse", "dead_letters"):
        monkeypatch.setattr(f"fanlog.listeners.web.{module}.PATIENCE_SECONDS", 0.0)
    async with serving() as site:
        await kill_many(site.broker, 5000, lambda i: f"r{i}")
        first = await get(site, f"{DEAD}/reasons")
        assert (first["complete"], first["records"]) == (False, 5001)
        assert first["looked_at"] < 5001
        listed = (await get(site, "/v1/dead-letters"))["topics"]
        assert [topic["name"] for topic in listed] == ["dead.jobs"]
        assert (await complete(site, f"{DEAD}/reasons"))["total"] == 5001
        assert (await complete(site, f"{DEAD}/browse?text=4999"))["total"] == 1


async def test_what_nobody_asks_for_is_forgotten(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_index, "_SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(dead_index, "_IDLE_SECONDS", 0.0)
    async with serving() as site:
        await kill(site.broker, a="x")
        topic = site.listener.core.catalog.get("dead.jobs")
        index = site.listener.dead_letters.of(topic)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while site.listener.dead_letters.of(topic) is index:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await complete(site, f"{DEAD}/reasons"))["total"] == 1


async def test_too_many_are_refused_with_what_to_do(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_index, "ROWS_MAX", 10)
    async with serving() as site:
        await kill_many(site.broker, 20, lambda i: "x")
        status, problem = await ask(site, "GET", f"{DEAD}/reasons")
        assert (status, problem["code"]) == (429, "limit")
        assert "fanlog dead" in problem["detail"]
        assert (await get(site, "/v1/dead-letters"))["topics"][0]["complete"] is False


async def test_a_topic_that_is_made_again_is_another_one(serving: Serving) -> None:
    async with serving() as site:
        await kill(site.broker, a="x")
        assert (await complete(site, f"{DEAD}/reasons"))["total"] == 1
        await site.broker.delete_topic("dead.jobs")
        assert (await ask(site, "GET", f"{DEAD}/reasons"))[0] == 404
        await kill(site.broker, b="y")
        answer = await complete(site, f"{DEAD}/reasons")
        assert [one["group"] for one in answer["reasons"]] == ["y"]
