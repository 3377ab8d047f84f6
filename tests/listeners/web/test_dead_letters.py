"""Dead letters for people: grouped by reason, in pages, edited, replayed, deleted and exported."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.broker.authority import Permit
from fanlog.format.dead_letters import Death, death_headers
from fanlog.identity import Identity, Role
from fanlog.listeners.web import dead_index, dead_table, tasks
from fanlog.listeners.web.dead_reasons import NO_REASON, error_of, group_of
from fanlog.listeners.web.dead_table import Found, LetterTable
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.dead import BEGIN, kill, kill_many, letters
from tests.listeners.web.guarded import Guarded, guarded
from tests.listeners.web.test_work import ask, get, post

DEAD = "/v1/dead-letters/dead.jobs"


async def complete(site: Site, path: str) -> Any:
    """An answer, once the whole topic has been read."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = await get(site, path)
            if answer["complete"]:
                return answer


async def ended(site: Site, id: str) -> Any:
    """A task, once it has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            task = await get(site, f"/v1/tasks/{id}")
            if task["state"] != "running":
                return task
            await asyncio.sleep(0.01)


async def values(broker: fanlog.Broker, topic: str, count: int) -> list[Any]:
    """The first messages of a topic, as JSON."""
    found: list[Any] = []
    async with broker.subscribe(topic, start="earliest") as subscription:
        async for message in subscription:
            found.append(message.json())
            if len(found) == count:
                return found
    return found


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


# Tasks


async def test_a_task_is_cancelled_and_the_rest_can_be_done_later(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.listeners.web.dead_matches.TOGETHER", 20)
    async with serving() as site:
        await kill_many(site.broker, 3000, lambda i: "x")
        body = {"all": True, "background": True}
        id = (await post(site, f"{DEAD}/replay", body))["task"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await get(site, f"/v1/tasks/{id}"))["done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status, _ = await ask(site, "DELETE", f"/v1/tasks/{id}")
        assert status == 200
        task = await ended(site, id)
        assert task["state"] == "cancelled"
        assert 0 < task["done"] < 3001
        assert (await site.broker.describe_topic("jobs")).records == 1 + task["done"]
        assert (await ask(site, "DELETE", f"/v1/tasks/{id}"))[0] == 200
        again = await ended(site, (await post(site, f"{DEAD}/replay", body))["task"])
        assert again["done"] == 3001 - task["done"]
        assert (await site.broker.describe_topic("jobs")).records == 3002


async def test_a_stop_of_the_broker_ends_tasks_and_nothing_is_repeated(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.listeners.web.dead_matches.TOGETHER", 20)
    body = {"all": True, "background": True}
    async with serving(path=tmp_path / "data") as site:
        await kill_many(site.broker, 2000, lambda i: "x")
        id = (await post(site, f"{DEAD}/replay", body))["task"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await get(site, f"/v1/tasks/{id}"))["done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    async with serving(path=tmp_path / "data") as site:
        assert (await get(site, "/v1/tasks"))["tasks"] == []
        left = (await complete(site, f"{DEAD}/reasons"))["total"]
        assert (await site.broker.describe_topic("jobs")).records == 1 + 2001 - left
        task = await ended(site, (await post(site, f"{DEAD}/replay", body))["task"])
        assert task["done"] == left
        assert (await site.broker.describe_topic("jobs")).records == 2002
        assert await site.broker.dead_letters.list("dead.jobs") == []


async def test_tasks_are_few_and_forgotten(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        await kill(site.broker, a="x")
        registry = site.listener.tasks
        held = asyncio.Event()

        async def wait(running: tasks.Running) -> None:
            await held.wait()

        ann = Permit(site.listener.core, Identity("ann"))
        bob = Permit(site.listener.core, Identity("bob"))
        for _ in range(4):
            registry.start(ann, "test", "t", wait)
        with pytest.raises(fanlog.errors.LimitError):
            registry.start(ann, "test", "t", wait)
        for _ in range(4):
            registry.start(bob, "test", "t", wait)
        carl = Permit(site.listener.core, Identity("carl"))
        with pytest.raises(fanlog.errors.LimitError):
            registry.start(carl, "test", "t", wait)
        held.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(one.task.state == "running" for one in registry.seen_by(ann)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(registry.seen_by(ann)) == 8
        monkeypatch.setattr(tasks, "_ENDED_MAX", 3)
        assert len(registry.seen_by(ann)) == 3
        monkeypatch.setattr(tasks, "_ENDED_SECONDS", 0.0)
        assert registry.seen_by(ann) == []


async def test_a_task_that_fails_by_our_fault_says_so(serving: Serving) -> None:
    async with serving() as site:

        async def broken(running: tasks.Running) -> None:
            raise RuntimeError("secret detail")

        id = site.listener.tasks.start(
            Permit(site.listener.core, Identity()), "test", "t", broken
        ).id
        task = await ended(site, id)
        assert task["state"] == "failed"
        assert "secret" not in task["error"]


# Permissions


async def guarded_task(site: Guarded, key: str, body: Any) -> Any:
    status, answer = await site.ask("POST", f"{DEAD}/replay", key=key, body=body)
    assert status == 200, answer
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            status, task = await site.ask("GET", f"/v1/tasks/{answer['task']}", key=key)
            if task["state"] != "running":
                return task
            await asyncio.sleep(0.01)


async def test_tasks_are_seen_by_their_owner_and_by_admins() -> None:
    async with guarded() as site:
        await kill(site.broker, a="x", b="y")
        admin = site.key("root", Role.ADMIN)
        ann = site.key("ann", manage=("dead.>",), subscribe=("dead.>",), publish=("jobs",))
        bob = site.key("bob", Role.VIEWER)
        task = await guarded_task(site, ann, {"ids": ["0:0"], "background": True})
        assert (task["state"], task["done"]) == ("done", 1)
        path = f"/v1/tasks/{task['id']}"
        assert (await site.ask("GET", path, key=bob))[0] == 404
        assert (await site.ask("DELETE", path, key=bob))[0] == 404
        assert (await site.ask("GET", "/v1/tasks", key=bob))[1] == {"tasks": []}
        assert (await site.ask("GET", path, key=admin))[0] == 200
        assert len((await site.ask("GET", "/v1/tasks", key=admin))[1]["tasks"]) == 1


async def test_nobody_replays_into_a_topic_that_they_may_not_publish_to() -> None:
    async with guarded() as site:
        await kill(site.broker, a="x")
        (letter,) = await letters(site.broker, "dead.jobs", 1)
        # Whoever may publish dead letters says where they came from, and may lie.
        lie = letter.death._replace(topic="secret", offset=77)
        await site.broker.create_topic("secret")
        await site.broker.publish(
            "dead.jobs", b"lie", key=lie.letter_key, headers=death_headers(lie)
        )
        ann = site.key("ann", manage=("dead.>",), subscribe=("dead.>",), publish=("jobs",))
        status, problem = await site.ask("POST", f"{DEAD}/replay", key=ann, body={"all": True})
        assert (status, problem["code"]) == (403, "forbidden")
        task = await guarded_task(site, ann, {"all": True, "background": True})
        assert (task["failed"], (await site.broker.describe_topic("secret")).records) == (1, 0)
        assert len(await letters(site.broker, "dead.jobs", 1)) == 1
        one = (await letters(site.broker, "dead.jobs", 1))[0].id
        path = f"{DEAD}/letters/{one}/replay"
        assert (await site.ask("POST", path, key=ann, body={}))[0] == 403
        assert (await site.ask("POST", path, key=ann, body={"to": "secret"}))[0] == 403
        viewer = site.key("eye", Role.VIEWER)
        assert (await site.ask("POST", path, key=viewer, body={"to": "jobs"}))[0] == 403
        assert (await site.ask("POST", f"{DEAD}/delete", key=viewer, body={"all": True}))[0] == 403
        assert (await site.ask("GET", f"{DEAD}/browse", key=viewer))[0] == 200


@pytest.mark.parametrize("how", ["revoked", "other rules"])
async def test_a_task_ends_with_the_permission_of_its_owner(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.listeners.web.dead_matches.TOGETHER", 10)
    async with guarded() as site:
        await kill_many(site.broker, 3000, lambda i: "x")
        admin = site.key("root", Role.ADMIN)
        ann = site.key("ann", manage=("dead.>",), subscribe=("dead.>",), publish=("jobs",))
        body = {"all": True, "background": True}
        _, answer = await site.ask("POST", f"{DEAD}/replay", key=ann, body=body)
        path = f"/v1/tasks/{answer['task']}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await site.ask("GET", path, key=admin))[1]["done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if how == "revoked":
                site.revoke("ann")
            else:
                site.key("ann", Role.VIEWER)
            while True:
                _, task = await site.ask("GET", path, key=admin)
                if task["state"] != "running":
                    break
        assert task["state"] == "failed"
        assert task["done"] < 3001
        assert (await site.broker.describe_topic("jobs")).records == 1 + task["done"]


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


# The table


def found(number: int, reason: str = "x") -> Found:
    return Found(number, reason, group_of(reason), "jobs", "q", 0)


def test_rows_that_are_gone_are_swept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_table, "_GONE_MIN", 10)
    table = LetterTable()
    records = [(b"%d" % i, i, found(i, f"r{i % 3} {'x' * 600 * (i % 2)}")) for i in range(1000)]
    for _ in table.take(0, records):
        pass
    assert (table.count, table.mostly_gone) == (1000, False)
    for _ in table.take(0, [(b"%d" % i, 1000 + i, None) for i in range(900)]):
        pass
    assert (table.count, table.mostly_gone) == (100, True)
    before = table.removed
    for _ in table.renumber():
        pass
    assert (len(table), table.count, table.generation, table.removed) == (100, 100, 1, before)
    assert [table.place(row) for row in range(3)] == [(0, 900), (0, 901), (0, 902)]
    assert sum(group.count for group in table.group_list) == 100
    for _ in table.take(0, [(b"950", 2000, None), (b"951", 2001, found(1))]):
        pass
    assert table.count == 99
    assert (table.find(0, 950), table.find(0, 951)) == (None, None)
    row = table.find(0, 2001)
    assert row is not None
    for _ in table.forget_before(0, 990):
        pass
    assert table.count == 11


def test_what_is_told_apart_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_table, "GROUPS_MAX", 5)
    monkeypatch.setattr(dead_table, "TEXTS_MAX", 5)
    monkeypatch.setattr(dead_table, "SOURCES_MAX", 5)
    table = LetterTable()
    records = [
        (b"%d" % i, i, Found(i, f"r{chr(97 + i)}", f"r{chr(97 + i)}", f"t{i}", "q", 0))
        for i in range(20)
    ]
    for _ in table.take(0, records):
        pass
    assert (len(table.group_list), len(table.text_list), len(table.source_list)) == (6, 6, 6)
    assert table.group_list[0].count == 15
    assert sum(table.source_counts) == 20


async def test_a_search_finds_what_was_not_kept(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_table, "TEXTS_MAX", 3)
    monkeypatch.setattr(dead_table, "SOURCES_MAX", 1)
    async with serving() as site:
        await kill_many(site.broker, 30, lambda i: f"reason {i} {'long ' * 200 * (i % 2)}end{i}")
        page = await complete(site, f"{DEAD}/browse?reason=end17")
        assert [letter["key"] for letter in page["letters"]] == ["k17"]
        assert (await complete(site, f"{DEAD}/browse?origin=jobs"))["total"] == 31
        assert (await complete(site, f"{DEAD}/browse?origin=other"))["total"] == 0
