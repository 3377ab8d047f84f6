"""Groups, queues, dead letters and requests by HTTP alone."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

import fanlog
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving, Site

QUEUE = "/v1/queues/jobs/q"


async def ask(site: Site, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    async with site.http.request(method, path, json=body, **more) as answer:
        data = await answer.read()
        if not data:
            return answer.status, None
        return answer.status, await answer.json(content_type=None)


async def get(site: Site, path: str) -> Any:
    status, body = await ask(site, "GET", path)
    assert status == 200, body
    return body


async def post(site: Site, path: str, body: Any = None) -> Any:
    status, answer = await ask(site, "POST", path, body)
    assert status == 200, answer
    return answer


async def take(site: Site, count: int = 1) -> list[Any]:
    """As many jobs as asked for, however slow the machine is."""
    found: list[Any] = []
    while len(found) < count:
        path = f"{QUEUE}/take?limit={count - len(found)}&wait_seconds={PATIENCE_SECONDS}"
        found += (await post(site, path))["jobs"]
    return sorted(found, key=lambda job: job["message"]["offset"])


# Groups


async def test_groups_are_listed_in_pages_described_reset_and_deleted(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish_many("orders", [b"x"] * 5)
        for name in ("a", "b", "c"):
            async with site.broker.consume("orders", group=name, reset="earliest") as member:
                await member.next(PATIENCE_SECONDS)
                await member.commit()
        names: list[str] = []
        after, pages = "", 0
        while after is not None:
            page = await get(site, f"/v1/groups?limit=2&after={after}")
            names += [group["name"] for group in page["groups"]]
            after, pages = page.get("next"), pages + 1
        assert (names, pages) == (["a", "b", "c"], 2)
        found = await get(site, "/v1/groups/a")
        assert (found["kind"], found["state"], found["lag"]) == ("stream", "inactive", 4)
        planned = await post(site, "/v1/groups/a/reset", {"start": "latest", "dry_run": True})
        assert planned["steps"][0]["after"] == 5
        assert (await get(site, "/v1/groups/a"))["lag"] == 4
        await post(site, "/v1/groups/a/reset", {"start": 2, "topic": "orders", "partitions": [0]})
        assert (await get(site, "/v1/groups/a"))["lag"] == 3
        assert await ask(site, "DELETE", "/v1/groups/a") == (204, None)
        status, problem = await ask(site, "GET", "/v1/groups/a")
        assert (status, problem["code"]) == (404, "group_not_found")
        assert [g["name"] for g in (await get(site, "/v1/groups?pattern=b"))["groups"]] == ["b"]


async def test_a_group_with_members_is_neither_reset_nor_deleted(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("orders", b"x")
        async with site.broker.consume("orders", group="g"):
            for method, path, body in (
                ("DELETE", "/v1/groups/g", None),
                ("POST", "/v1/groups/g/reset", {"start": "earliest"}),
            ):
                status, problem = await ask(site, method, path, body)
                assert (status, problem["code"]) == (409, "group_active")
        status, problem = await ask(site, "POST", "/v1/groups/g/reset", {"start": "yesterday"})
        assert (status, problem["code"]) == (400, "invalid_argument")


# Queues


async def test_plain_http_is_a_worker(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("jobs", {"to": "ann"}, key="ann", headers={"h": "1"})
        await site.broker.publish_many("jobs", ["b", "c", b"\xff"])
        a, b, c, d = await take(site, 4)
        assert a["message"]["json"] == {"to": "ann"}
        assert (a["message"]["key"], a["message"]["headers"]["h"]) == ("ann", "1")
        assert (a["message"]["topic"], a["deliveries"]) == ("jobs", 1)
        assert b["message"]["text"] == "b"
        assert d["message"]["base64"] == "/w=="
        assert await post(site, f"{QUEUE}/ack", {"receipts": [a["receipt"], d["receipt"]]}) == {
            "settled": 2,
            "late": [],
        }
        more = {"receipts": [b["receipt"]], "delay_seconds": 0, "reason": "busy"}
        assert (await post(site, f"{QUEUE}/nack", more))["settled"] == 1
        longer = {"receipts": [c["receipt"]], "seconds": 60}
        assert (await post(site, f"{QUEUE}/extend", longer))["settled"] == 1
        (again,) = await take(site)
        assert (again["message"]["text"], again["deliveries"]) == ("b", 2)
        broken = {"receipts": [c["receipt"], again["receipt"]], "reason": "broken"}
        assert (await post(site, f"{QUEUE}/reject", broken))["settled"] == 2
        assert (await get(site, "/v1/groups/q"))["lag"] == 0
        letters = (await get(site, "/v1/dead-letters/dead.jobs"))["letters"]
        assert [letter["message"]["text"] for letter in letters] in (["b", "c"], ["c", "b"])
        late = await post(site, f"{QUEUE}/ack", {"receipts": [a["receipt"]]})
        assert late == {"settled": 0, "late": [a["receipt"]]}


async def test_the_ack_may_go_to_another_process_than_the_take(serving: Serving) -> None:
    async with serving() as site:
        # A listener with a client of its own has nothing in common with the first but the broker.
        other = await site.broker.listen_web()
        await site.broker.publish("jobs", "a")
        (job,) = await take(site)
        url = f"http://127.0.0.1:{other.port}{QUEUE}/ack"
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, json={"receipts": [job["receipt"]]}) as answer,
        ):
            assert (await answer.json())["settled"] == 1


async def test_a_take_waits_for_a_job(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("jobs")
        assert (await post(site, f"{QUEUE}/take?limit=5"))["jobs"] == []
        waiting = asyncio.create_task(take(site))
        await site.broker.publish("jobs", "a")
        (job,) = await waiting
        assert job["message"]["text"] == "a"


async def test_settings_of_the_queue_come_with_a_take(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("jobs", "a")
        given = "visibility_seconds=90&max_deliveries=2&dead_letter=bad&ordered=true&reset=earliest"
        await post(site, f"{QUEUE}/take?{given}&retry_delay_seconds=1.5")
        queue = (await get(site, "/v1/groups/q"))["queue"]
        assert (queue["visibility_seconds"], queue["max_deliveries"]) == (90, 2)
        assert (queue["dead_letter"], queue["ordered"]) == ("bad", True)
        await post(site, f"{QUEUE}/take")
        assert (await get(site, "/v1/groups/q"))["queue"] == queue


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/queues/nothing/q/take", None, 404, "topic_not_found"),
        (f"{QUEUE}/take?limit=0", None, 400, "invalid_argument"),
        (f"{QUEUE}/take?wait_seconds=-1", None, 400, "invalid_argument"),
        (f"{QUEUE}/take?visibility_seconds=0", None, 400, "invalid_argument"),
        (f"{QUEUE}/ack", {"receipts": ["x"]}, 400, "invalid_argument"),
        (f"{QUEUE}/ack", {"receipts": []}, 400, "invalid_argument"),
        (f"{QUEUE}/ack", {}, 400, "invalid_argument"),
        (f"{QUEUE}/nack", {"receipts": ["x"], "delay_seconds": -1}, 400, "invalid_argument"),
        ("/v1/queues/jobs/other/ack", {"receipts": ["RECEIPT"]}, 400, "invalid_argument"),
    ],
    ids=range(9),
)
async def test_a_wrong_request_of_a_worker_is_refused(
    serving: Serving, path: str, body: Any, status: int, code: str
) -> None:
    async with serving() as site:
        await site.broker.publish("jobs", "a")
        if body and body.get("receipts") == ["RECEIPT"]:
            body = {"receipts": [(await take(site))[0]["receipt"]]}
        got, problem = await ask(site, "POST", path, body)
        assert (got, problem["code"]) == (status, code)


async def test_a_take_of_a_missing_topic_says_how_to_publish_to_it(serving: Serving) -> None:
    async with serving() as site:
        _, problem = await ask(site, "POST", "/v1/queues/e%20mails/q/take", None)
        assert "POST /v1/topics/e%20mails/messages" in problem["detail"]
        assert "missing=" not in problem["detail"]


# Dead letters


async def fail(site: Site, count: int) -> None:
    for number in range(count):
        await site.broker.publish("jobs", {"number": number}, key=f"k{number}", headers={"h": "1"})
    jobs = await take(site, count)
    for job in jobs:
        reason = f"bad {job['message']['json']['number']}"
        await post(site, f"{QUEUE}/reject", {"receipts": [job["receipt"]], "reason": reason})


async def test_dead_letters_are_listed_read_replayed_and_deleted(serving: Serving) -> None:
    async with serving() as site:
        await fail(site, 5)
        topics = (await get(site, "/v1/dead-letters"))["topics"]
        assert [(topic["name"], topic["letters"]) for topic in topics] == [("dead.jobs", 5)]
        letters: list[Any] = []
        after = ""
        while after is not None:
            page = await get(site, f"/v1/dead-letters/dead.jobs?limit=2&after={after}")
            assert len(page["letters"]) <= 2
            letters += page["letters"]
            after = page.get("next")
        assert [letter["reason"] for letter in letters] == [f"bad {i}" for i in range(5)]
        ids = [letter["id"] for letter in letters]
        one = await get(site, f"/v1/dead-letters/dead.jobs/letters/{ids[0]}")
        assert one == letters[0]
        assert one["message"]["json"] == {"number": 0}
        assert (one["message"]["key"], one["queue"], one["topic"]) == ("k0", "q", "jobs")
        chosen = await get(site, "/v1/dead-letters/dead.jobs?reason=bad%203&queue=q")
        assert [letter["id"] for letter in chosen["letters"]] == [ids[3]]
        replay = {"ids": ids[:2]}
        assert await post(site, "/v1/dead-letters/dead.jobs/replay", replay) == {"count": 2}
        back = await take(site, 2)
        assert [job["message"]["json"]["number"] for job in back] == [0, 1]
        path = f"/v1/dead-letters/dead.jobs/letters/{ids[2]}"
        assert await ask(site, "DELETE", path) == (204, None)
        again, problem = await ask(site, "DELETE", path)
        assert (again, problem["code"]) == (404, "dead_letter_not_found")
        to = {"ids": [ids[3]], "to": "elsewhere"}
        await site.broker.create_topic("elsewhere")
        assert await post(site, "/v1/dead-letters/dead.jobs/replay", to) == {"count": 1}
        assert (await site.broker.describe_topic("elsewhere")).records == 1
        everything = {"all": True}
        assert await post(site, "/v1/dead-letters/dead.jobs/delete", everything) == {"count": 1}
        assert (await get(site, "/v1/dead-letters/dead.jobs"))["letters"] == []


async def test_a_dead_letter_that_is_not_there_is_not_found(serving: Serving) -> None:
    async with serving() as site:
        await fail(site, 1)
        for method, path, body, status, code in (
            ("GET", "/v1/dead-letters/dead.jobs/letters/0:99", None, 404, "dead_letter_not_found"),
            ("GET", "/v1/dead-letters/dead.jobs/letters/x", None, 404, "dead_letter_not_found"),
            ("GET", "/v1/dead-letters/nothing", None, 404, "topic_not_found"),
            ("GET", "/v1/dead-letters/nothing/letters/0:1", None, 404, "topic_not_found"),
            ("POST", "/v1/dead-letters/dead.jobs/replay", {}, 400, "invalid_argument"),
            ("POST", "/v1/dead-letters/dead.jobs/delete", {}, 400, "invalid_argument"),
            ("POST", "/v1/dead-letters/jobs/delete", {"all": True}, 409, "topic_differs"),
        ):
            got, problem = await ask(site, method, path, body)
            assert (got, problem["code"]) == (status, code), path


# Request and reply


async def test_a_request_waits_for_its_answer(serving: Serving) -> None:
    async def double(job: fanlog.Job) -> Any:
        if job.value == b"fail":
            raise ValueError("no")
        return {"twice": 2 * int(job.text)}

    async with serving() as site:
        service = asyncio.create_task(site.broker.serve("svc.double", double))
        core = site.listener.bus.core
        while not core.is_awaited("svc.double"):  # noqa: ASYNC110 - the state is the broker's
            await asyncio.sleep(0.01)
        path = f"/v1/request/svc.double?timeout_seconds={PATIENCE_SECONDS}"
        answer = await post(site, path, {"text": "21"})
        assert answer == {"headers": {"content-type": "application/json"}, "json": {"twice": 42}}
        status, problem = await ask(site, "POST", path, {"text": "fail"})
        assert (status, problem["code"]) == (502, "request_failed")
        assert problem["detail"] == "ValueError: no"
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)


async def test_a_request_that_nobody_answers_says_so(serving: Serving) -> None:
    async with serving() as site:
        status, problem = await ask(site, "POST", "/v1/request/svc", {"text": "x"})
        assert (status, problem["code"]) == (503, "no_responders")
        async with site.broker.subscribe("svc"):
            path = "/v1/request/svc?timeout_seconds=0.01"
            status, problem = await ask(site, "POST", path, {"text": "x"})
            assert (status, problem["code"]) == (504, "timeout")
        for body in ({}, {"text": "a", "json": 1}, {"nothing": 1}):
            status, problem = await ask(site, "POST", "/v1/request/svc", body)
            assert (status, problem["code"]) == (400, "invalid_argument")
