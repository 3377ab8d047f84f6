"""The broker at a glance: one computation for all who look, and for each what they may see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.broker.insight.overviews import Overviews
from fanlog.identity import Role
from fanlog.telemetry.findings import BrokerFacts, Finding, Severity, Trouble
from fanlog.telemetry.snapshot import Snapshot
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded


def core_of(site: Site) -> Core:
    return site.listener.bus.core


async def overview(site: Site) -> dict[str, Any]:
    async with site.http.get("/v1/overview") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def read(broker: fanlog.Broker, topic: str, group: str, count: int) -> None:
    """As a member of a group."""
    async with broker.consume(topic, group=group, reset="earliest", commit="manual") as member:
        for _ in range(count):
            message = await member.next(timeout_seconds=60)
        await member.commit(message)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


def forget(core: Core) -> None:
    """The next look is a new one."""
    core.overviews._kept = None  # pyright: ignore[reportPrivateUsage]
    core.metrics._kept = None  # pyright: ignore[reportPrivateUsage]
    core.metrics._scan_again_us = 0  # pyright: ignore[reportPrivateUsage]


async def test_an_empty_broker_is_well(serving: Serving) -> None:
    async with serving() as site:
        found = await overview(site)
    assert (found["state"], found["reasons"], found["ready"]) == ("ok", [], True)
    assert found["attention"] == []
    assert found["counts"]["topics"] == 0
    assert found["rates"]["published_messages"] == 0
    assert found["in_memory"] is True
    assert found["topics"] == found["groups"] == found["queues"] == found["readers"] == []


async def test_what_happens_is_in_the_figures(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path / "data") as site:
        core = core_of(site)
        await overview(site)
        for i in range(50):
            await site.broker.publish("orders", f"order {i}")
        await read(site.broker, "orders", "billing", 10)
        forget(core)
        found = await overview(site)
    assert found["rates"]["published_messages"] > 0
    assert found["history"]["published_messages"][-1] > 0
    assert found["topics"][0]["name"] == "orders"
    assert found["groups"][0]["name"] == "billing"
    assert found["groups"][0]["lag"] == 40
    assert found["counts"]["group_lag"] == 40
    assert found["process"]["disk_total_bytes"] > 0
    assert found["in_memory"] is False
    assert found["latency"]["turn"]["p99_us"] > 0


async def test_all_who_look_share_one_computation(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    facts = Overviews._facts  # pyright: ignore[reportPrivateUsage]

    def counted(self: Overviews, snapshot: Snapshot, letters: Any) -> BrokerFacts:
        nonlocal made
        made += 1
        return facts(self, snapshot, letters)

    monkeypatch.setattr(Overviews, "_facts", counted)
    async with serving() as site:
        await asyncio.gather(*(overview(site) for _ in range(20)))
        await overview(site)
    assert made == 1


async def test_a_look_that_takes_long_does_not_hold_up_who_asks(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        core = core_of(site)
        first = await overview(site)
        going_on = asyncio.Event()
        snapshot = core.metrics.snapshot

        async def slow() -> Snapshot:
            await going_on.wait()
            return await snapshot()

        monkeypatch.setattr(core.metrics, "snapshot", slow)
        core.overviews._kept_until_us -= 3_000_000  # pyright: ignore[reportPrivateUsage]
        assert await overview(site) == first
        going_on.set()


async def test_what_needs_attention_says_where(serving: Serving) -> None:
    async with serving() as site:
        core = core_of(site)
        await site.broker.publish("jobs", "one")
        async with site.broker.work("jobs", queue="mails", max_deliveries=1) as jobs:
            job = await jobs.next(timeout_seconds=60)
            await job.reject("no such address")
        await until(lambda: core.queues.counted()[2] > 0)
        forget(core)
        found = await overview(site)
        by_kind = {one["kind"]: one for one in found["attention"]}
        new = by_kind["dead_letters_new"]
        assert (new["about"], new["link"]) == ("mails", "dead-letters-of")
        assert new["target"] == "dead.jobs"
        assert by_kind["memory_only"]["severity"] == "info"
        assert found["counts"]["dead_letters"] == 1
        # Once they are gone nobody is asked to look.
        await site.broker.dead_letters.purge("dead.jobs")
        forget(core)
        found = await overview(site)
    assert "dead_letters_new" not in str(found["attention"])
    assert found["counts"]["dead_letters"] == 0


async def test_a_failed_log_is_a_reason(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as site:
        trouble = Trouble("failed", "orders", "The log orders-0 has failed.")
        monkeypatch.setattr(core_of(site).overviews, "_troubles", lambda: [trouble])
        found = await overview(site)
    assert found["reasons"] == ["The log orders-0 has failed."]
    assert found["attention"][0]["link"] == "topic"


FINDINGS = [
    ("topic", "secret.t", False),
    ("topic", "open.t", False),
    ("dead-letters", "secret.d", False),
    ("group", "secret-group", False),
    ("queue", "secret-queue", False),
    ("dead-letters-of", "secret-queue", False),
    ("pipelines", "pipeline.secret", False),
    ("clients", "conn", True),
    ("disk", "", False),
]


async def test_a_limited_account_sees_no_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Finding(
            kind="k", severity=Severity.BAD, text=f"about {about}", link=link, about=about, admin=a
        )
        for link, about, a in FINDINGS
    ]
    monkeypatch.setattr("fanlog.broker.insight.overviews.find", lambda *_: found)
    async with guarded() as site:
        for topic in ("secret.t", "open.t"):
            await site.broker.publish(topic, "x")
            await read(site.broker, topic, "secret-group", 1)
        admin, limited = site.key("root", Role.ADMIN), site.key("ann", describe=("open.>",))
        status, all_of_it = await site.ask("GET", "/v1/overview", key=admin)
        assert status == 200
        assert len(all_of_it["attention"]) == len(FINDINGS)
        assert all_of_it["readers"] is not None
        status, some = await site.ask("GET", "/v1/overview", key=limited)
        assert (status, some["readers"]) == (200, None)
        assert [one["name"] for one in some["topics"]] == ["open.t"]
        assert "secret" not in str(some)
        assert [one["link"] for one in some["attention"]] == ["topic", "disk"]


async def test_a_queue_does_not_tell_where_its_dead_letters_are() -> None:
    async with guarded() as site:
        core = site.listener.core
        await site.broker.publish("secret", "one")
        async with site.broker.work("secret", queue="mails", max_deliveries=1) as jobs:
            job = await jobs.next(timeout_seconds=60)
            await job.reject("no such address")
        await until(lambda: core.queues.counted()[2] > 0)
        limited = site.key("ann", describe=("open.>",), queues=("mails",))
        forget(core)
        status, found = await site.ask("GET", "/v1/overview", key=limited)
        assert status == 200
        (new,) = [one for one in found["attention"] if one["kind"] == "dead_letters_new"]
        assert (new["about"], new["target"]) == ("mails", "")
        assert "secret" not in str(found)
        status, found = await site.ask("GET", "/v1/overview", key=site.key("root", Role.ADMIN))
        assert "1 dead letter waits in dead.secret." in str(found["attention"])


async def test_without_a_login_there_is_none() -> None:
    async with guarded() as site:
        status, _ = await site.ask("GET", "/v1/overview")
    assert status == 401


async def test_a_broker_is_watched_without_anybody_looking(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.broker.insight.overviews.WATCH_SECONDS", 0.01)
    async with serving() as site:
        core = core_of(site)
        core.metrics._kept_until_us = 0  # pyright: ignore[reportPrivateUsage]
        await until(lambda: bool(core.overviews.recent.counters))
