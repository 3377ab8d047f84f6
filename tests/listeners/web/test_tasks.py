"""Tasks: few at a time, cancelled, forgotten, and seen by those who may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.broker.authority import Permit
from fanlog.format.dead_letters import death_headers
from fanlog.identity import Identity, Role
from fanlog.listeners.web import tasks
from tests.client.ways import PATIENCE_SECONDS
from tests.listeners.web.conftest import Serving
from tests.listeners.web.dead import DEAD, complete, ended, kill, kill_many, letters
from tests.listeners.web.guarded import Guarded, guarded
from tests.listeners.web.test_work import ask, get, post


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

        async def wait(running: tasks.RunningTask) -> None:
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

        async def broken(running: tasks.RunningTask) -> None:
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
