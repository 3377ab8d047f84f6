"""One queue in full: workers and their jobs, retries, scheduled messages."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog.identity import Role
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import bearer, guarded
from tests.listeners.web.test_work import ask, get, post, take

PARTS = ("", "/workers", "/retries", "/scheduled")


async def test_a_queue_shows_its_settings_and_counts(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish_many("jobs", [b"x"] * 5)
        url = "/v1/queues/jobs/q/take?limit=2&visibility_seconds=60&wait_seconds=30"
        taken: list[Any] = []
        while len(taken) < 2:
            taken += (await post(site, url))["jobs"]
        queue = await get(site, "/v1/queues/q")
        assert (queue["name"], queue["settings"]["visibility_seconds"]) == ("q", 60)
        assert (queue["lag"], queue["in_flight"], queue["waiting"]) == (5, 2, 3)
        assert queue["lag_seconds"] >= 0
        assert queue["topics"] == [
            {"name": "jobs", "partitions": 1, "lag": 5, "dead_letter": "dead.jobs"}
        ]
        parts = await get(site, "/v1/groups/q/partitions")
        assert (parts["partitions"][0]["in_flight"], parts["partitions"][0]["waiting"]) == (2, 3)


async def test_a_queue_shows_who_has_which_job_and_for_how_long(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish_many("jobs", [b"x"] * 3)
        async with site.broker.work("jobs", queue="q", worker="anvil", prefetch=2) as work:
            first = await work.next(PATIENCE_SECONDS)
            found = await get(site, "/v1/queues/q/workers")
            assert found["total"] == 1
            (worker,) = found["workers"]
            assert (worker["id"], worker["in_flight"], worker["present"]) == ("anvil", 2, True)
            assert (worker["target"], worker["prefetch"]) == ("jobs", 2)
            jobs = {
                offset: lease
                for lease in worker["leases"]
                for offset in range(lease["offset"], lease["offset"] + lease["jobs"])
            }
            assert sorted(jobs) == [0, 1]
            lease = jobs[first.offset]
            assert (lease["topic"], lease["partition"], lease["deliveries"]) == ("jobs", 0, 1)
            assert lease["held_seconds"] >= 0
            assert 0 < lease["seconds_left"] <= 30
            assert worker["held_seconds"] >= lease["held_seconds"] - 1
            assert (await get(site, "/v1/queues/q/workers?leases=0"))["workers"][0]["leases"] == []
            assert (await get(site, "/v1/queues/q/workers?offset=1"))["workers"] == []
            for sort in ("held", "in_flight", "id"):
                assert (await get(site, f"/v1/queues/q/workers?sort={sort}"))["total"] == 1
            await first.ack()


async def test_failed_jobs_wait_for_their_retry(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish_many("jobs", [b"x"] * 3)
        jobs = await take(site, 2)
        receipts = [job["receipt"] for job in jobs]
        body = {"receipts": receipts, "delay_seconds": 600, "reason": "no stamps"}
        await post(site, "/v1/queues/jobs/q/nack", body)
        queue = await get(site, "/v1/queues/q")
        assert (queue["retrying"], queue["waiting"], queue["in_flight"]) == (2, 3, 0)
        found = await get(site, "/v1/queues/q/retries")
        assert found["jobs"] == 2
        assert sum(retry["jobs"] for retry in found["retries"]) == 2
        retry = found["retries"][0]
        assert (retry["topic"], retry["attempts"], retry["reason"]) == ("jobs", 1, "no stamps")
        assert 500 < retry["due_seconds"] <= 600
        assert (await get(site, "/v1/queues/q/retries?offset=5"))["retries"] == []
        listed = await get(site, "/v1/group-list?kind=queue&sort=retrying&descending=true")
        assert listed["groups"][0]["retrying"] == 2


async def test_scheduled_messages_of_its_topics_are_listed(serving: Serving) -> None:
    async with serving() as site:
        await _queue(site)
        for id, topic, delay in (("b", "jobs", 7200), ("a", "jobs", 3600), ("c", "other", 60)):
            await site.broker.publish(topic, b"later", delay_seconds=delay, schedule_id=id)
        found = await get(site, "/v1/queues/q/scheduled")
        assert (found["count"], found["complete"]) == (2, True)
        assert [one["id"] for one in found["scheduled"]] == ["a", "b"]
        assert (found["scheduled"][0]["topic"], found["scheduled"][0]["bytes"]) == ("jobs", 5)


async def _queue(site: Site) -> None:
    await site.broker.publish("jobs", b"x")
    async with site.broker.work("jobs", queue="q", reset="earliest"):
        pass


async def test_a_group_is_no_queue(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("jobs", b"x")
        async with site.broker.consume("jobs", group="g"):
            for name in ("g", "none"):
                for part in PARTS:
                    status, answer = await ask(site, "GET", f"/v1/queues/{name}{part}")
                    assert (status, answer["code"]) == (404, "group_not_found")


@pytest.mark.parametrize("query", ["?sort=x", "?limit=0", "?limit=201", "?leases=51", "?offset=-1"])
async def test_a_wrong_query_is_refused(serving: Serving, query: str) -> None:
    async with serving() as site:
        await _queue(site)
        assert (await ask(site, "GET", f"/v1/queues/q/workers{query}"))[0] == 400


async def test_who_may_only_see_the_queue_reads_no_reasons_and_no_addresses() -> None:
    async with guarded() as site:
        await site.broker.publish("jobs", b"x")
        async with site.broker.work(
            "jobs", queue="q", worker="anvil", retry_delay_seconds=600
        ) as work:
            job = await work.next(PATIENCE_SECONDS)
            await job.nack(reason="card 4111 refused")
        observer = site.key("eve", Role.OBSERVER)
        stranger = site.key("bob", Role.CONSUMER, queues=("other",))
        admin = site.key("root", Role.ADMIN)

        async def retries(key: str) -> Any:
            async with site.http.get("/v1/queues/q/retries", headers=bearer(key)) as answer:
                return (await answer.json())["retries"]

        assert [retry["reason"] for retry in await retries(admin)] == ["card 4111 refused"]
        assert [retry["reason"] for retry in await retries(observer)] == [""]
        for part in PARTS:
            url = f"/v1/queues/q{part}"
            async with site.http.get(url, headers=bearer(stranger)) as answer:
                assert answer.status == 403
            async with site.http.get(url, headers=bearer(observer)) as answer:
                assert answer.status == 200
