"""Schedules and delayed messages over REST."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from fanlog.identity import Role
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded


async def ask(
    site: Site, method: str, path: str, body: Any = None, status: int = 200
) -> dict[str, Any]:
    async with site.http.request(method, path, json=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json() if status != 204 else {}


async def test_a_schedule_is_added_changed_shown_and_removed(serving: Serving) -> None:
    async with serving() as site:
        body = {"topic": "reports", "json": {"week": 1}, "cron": "0 8 * * 1-5", "key": "k"}
        made = await ask(site, "PUT", "/v1/schedules/weekly", body)
        assert (made["name"], made["topic"], made["cron"]) == ("weekly", "reports", "0 8 * * 1-5")
        assert (made["last_run"], made["key"]) == (None, "k")
        found = await ask(site, "GET", "/v1/schedules")
        assert (found["total"], found["schedules"]) == (1, [made])
        shown = await ask(site, "GET", "/v1/schedules/weekly")
        assert shown["message"] == {
            "key": "k",
            "headers": {"content-type": "application/json"},
            "json": {"week": 1},
        }
        assert len(shown["upcoming"]) == 5
        assert shown["upcoming"] == sorted(shown["upcoming"])
        assert shown["upcoming"][0] == made["next_run"]
        changed = {"topic": "reports", "text": "x", "every_seconds": 3600, "missed": "skip"}
        made = await ask(site, "PUT", "/v1/schedules/weekly", changed)
        assert (made["every_seconds"], made["cron"], made["missed"]) == (3600, "", "skip")
        assert [one.name for one in await site.broker.schedules()] == ["weekly"]
        await ask(site, "DELETE", "/v1/schedules/weekly", status=204)
        assert await site.broker.schedules() == []
        gone = await ask(site, "DELETE", "/v1/schedules/weekly", status=404)
        assert gone["code"] == "schedule_not_found"
        await ask(site, "GET", "/v1/schedules/weekly", status=404)
        await ask(site, "POST", "/v1/schedules/weekly/run", status=404)


async def test_a_schedule_runs_once_more_when_asked(serving: Serving) -> None:
    async with serving() as site:
        body = {"topic": "t", "text": "tick", "every_seconds": 86400, "headers": {"a": "b"}}
        before = await ask(site, "PUT", "/v1/schedules/s", body)
        done = await ask(site, "POST", "/v1/schedules/s/run")
        assert (done["published"]["topic"], done["published"]["offset"]) == ("t", 0)
        async with site.broker.subscribe("t", start="earliest") as reader:
            message = await reader.next(timeout_seconds=60)
        assert (message.value, dict(message.headers)["a"]) == (b"tick", b"b")
        after = await ask(site, "GET", "/v1/schedules")
        assert after["schedules"][0]["next_run"] == before["next_run"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "t", "text": "x"},
        {"topic": "t", "text": "x", "cron": "nonsense"},
        {"topic": "t", "text": "x", "cron": "* * * * *", "timezone": "Mars/Base"},
        {"topic": "t", "text": "x", "cron": "* * * * *", "every_seconds": 5},
        {"topic": "t", "text": "x", "every_seconds": 0.1},
        {"topic": "t", "every_seconds": 60},
        {"topic": "t", "text": "x", "json": 1, "every_seconds": 60},
        {"topic": "_fanlog.audit", "text": "x", "every_seconds": 60},
        {"topic": "a*", "text": "x", "every_seconds": 60},
        {"topic": "t", "text": "x", "every_seconds": 60, "unknown": 1},
        {"topic": "t", "text": "x", "every_seconds": 60, "missed": "twice"},
    ],
)
async def test_a_wrong_schedule_is_refused(serving: Serving, wrong: dict[str, Any]) -> None:
    async with serving() as site:
        await ask(site, "PUT", "/v1/schedules/s", wrong, status=400)
        assert (await ask(site, "GET", "/v1/schedules"))["total"] == 0


async def test_schedules_are_searched_sorted_and_paged(serving: Serving) -> None:
    async with serving() as site:
        for i in range(30):
            await site.broker.add_schedule(
                f"s{i:02}", f"topic{i % 3}", "x", every_seconds=1000 - i * 10
            )
        found = await ask(site, "GET", "/v1/schedules?limit=3")
        assert [one["name"] for one in found["schedules"]] == ["s29", "s28", "s27"]
        found = await ask(site, "GET", "/v1/schedules?sort=name&descending=true&offset=1&limit=2")
        assert [one["name"] for one in found["schedules"]] == ["s28", "s27"]
        found = await ask(site, "GET", "/v1/schedules?search=TOPIC1&sort=topic&limit=1000")
        assert found["total"] == 10
        assert {one["topic"] for one in found["schedules"]} == {"topic1"}
        await ask(site, "GET", "/v1/schedules?sort=cron", status=400)


async def test_delayed_messages_are_made_listed_and_cancelled(serving: Serving) -> None:
    async with serving() as site:
        at = dt.datetime(2031, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
        body = {"topic": "mails", "json": {"to": "ann"}, "at": at.isoformat(), "id": "late"}
        made = await ask(site, "POST", "/v1/delayed", body)
        assert (made["id"], made["due"]) == ("late", "2031-01-02T03:04:05Z")
        body = {"topic": "mails", "text": "soon", "delay_seconds": 3600, "key": "k"}
        soon = await ask(site, "POST", "/v1/delayed", body)
        await ask(site, "POST", "/v1/delayed", {**body, "topic": "other", "delay_seconds": 7200})
        found = await ask(site, "GET", "/v1/delayed")
        assert [one["topic"] for one in found["messages"]] == ["mails", "other", "mails"]
        assert (found["total"], found["next"]) == (3, "")
        assert found["messages"][0]["key"] == "k"
        found = await ask(site, "GET", "/v1/delayed?topic=mails&limit=1")
        assert [one["id"] for one in found["messages"]] == [soon["id"]]
        found = await ask(site, "GET", f"/v1/delayed?topic=mails&after={found['next']}")
        assert [one["id"] for one in found["messages"]] == ["late"]
        ids = {"ids": ["late", "never"]}
        assert await ask(site, "POST", "/v1/delayed/cancel", ids) == {"cancelled": [True, False]}
        waiting = [one.id async for one in site.broker.scheduled("mails")]
        assert waiting == [soon["id"]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "t", "text": "x"},
        {"topic": "t", "text": "x", "delay_seconds": 1, "at": "2031-01-01T00:00:00Z"},
        {"topic": "t", "text": "x", "at": "2031-01-01T00:00:00"},
        {"topic": "t", "text": "x", "delay_seconds": -1},
        {"topic": "t", "text": "x", "delay_seconds": 1e9 * 9},
        {"topic": "t", "text": "x", "delay_seconds": 1, "id": ""},
        {"topic": "t", "text": "x", "delay_seconds": 1, "id": "_fanlog/schedule/s"},
        {"topic": "_fanlog.audit", "text": "x", "delay_seconds": 1},
    ],
)
async def test_a_wrong_delayed_message_is_refused(serving: Serving, wrong: dict[str, Any]) -> None:
    async with serving() as site:
        await ask(site, "POST", "/v1/delayed", wrong, status=400)


async def test_wrong_pages_and_ids(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("t", "x", delay_seconds=60)
        await ask(site, "GET", "/v1/delayed?after=1.2", status=400)
        await ask(site, "GET", "/v1/delayed?limit=0", status=400)
        await ask(site, "POST", "/v1/delayed/cancel", {"ids": []}, status=400)
        await ask(site, "POST", "/v1/delayed/cancel", {"ids": ["x"] * 1001}, status=400)
        run = {"ids": ["_fanlog/schedule/s"]}
        await ask(site, "POST", "/v1/delayed/cancel", run, status=400)


async def test_the_next_run_of_a_schedule_waits_among_the_others(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.add_schedule("s", "t", "x", every_seconds=60)
        found = await ask(site, "GET", "/v1/delayed")
        assert found["messages"][0]["schedule"] == "s"


async def test_what_a_limited_account_may_do() -> None:
    async with guarded() as site:
        for topic in ("open.t", "secret.t"):
            await site.broker.create_topic(topic)
            await site.broker.add_schedule(f"of-{topic}", topic, "value", key="k", every_seconds=60)
            await site.broker.publish(topic, "x", delay_seconds=600, schedule_id=f"d-{topic}")
        viewer = site.key("viewer", describe=("open.>",))
        writer = site.key("writer", Role.PRODUCER, publish=("open.>",), describe=("open.>",))
        for key in (viewer, writer):
            for path in ("/v1/schedules", "/v1/delayed"):
                status, found = await site.ask("GET", path, key=key)
                assert status == 200
                assert "secret" not in str(found)
                assert "open.t" in str(found)
            status, found = await site.ask("GET", "/v1/delayed?topic=secret.t", key=key)
            assert status == 403
        status, found = await site.ask("GET", "/v1/schedules/of-open.t", key=viewer)
        assert (status, found.get("message"), found.get("key")) == (200, None, None)
        for method, path in (
            ("DELETE", "/v1/schedules/of-secret.t"),
            ("POST", "/v1/schedules/of-secret.t/run"),
        ):
            for key in (viewer, writer):
                status, _ = await site.ask(method, path, key=key)
                assert status == 403, path
        steal = {"topic": "open.t", "text": "x", "every_seconds": 60}
        status, _ = await site.ask("PUT", "/v1/schedules/of-secret.t", key=writer, body=steal)
        assert status == 403
        status, _ = await site.ask(
            "POST", "/v1/delayed/cancel", key=viewer, body={"ids": ["d-open.t"]}
        )
        assert status == 403
        body = {"topic": "secret.t", "text": "x", "delay_seconds": 5}
        status, _ = await site.ask("POST", "/v1/delayed", key=writer, body=body)
        assert status == 403
        assert len(await site.broker.schedules()) == 2


async def test_the_topic_of_a_schedule_is_not_told_to_who_may_not_see_it() -> None:
    async with guarded() as site:
        await site.broker.create_topic("secret.t")
        await site.broker.add_schedule("payroll", "secret.t", "value", every_seconds=60)
        writer = site.key("writer", Role.PRODUCER, publish=("open.>",))
        found = await site.ask("GET", "/v1/schedules/payroll", key=writer)
        missing = await site.ask("GET", "/v1/schedules/nothing", key=writer)
        assert str(found).replace("payroll", "nothing") == str(missing)
        body = {"topic": "open.t", "text": "x", "every_seconds": 60}
        for method, path in (("DELETE", ""), ("POST", "/run"), ("PUT", "")):
            sent = body if method == "PUT" else None
            full = f"/v1/schedules/payroll{path}"
            status, refusal = await site.ask(method, full, key=writer, body=sent)
            assert status == 403
            assert "secret" not in str(refusal)
