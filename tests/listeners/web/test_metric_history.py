"""Metrics over time, as clients see them: values, ranges, limits, and who may see what."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanlog.broker.slices import Slices
from fanlog.config import Config
from fanlog.identity import Role
from fanlog.telemetry.history_keeper import MetricHistory
from fanlog.telemetry.history_series import BROKER
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded

NOON = 1_790_000_000


def history_of(site: Any) -> MetricHistory:
    history = site.listener.core.metrics.history
    assert history is not None
    return history


async def sample(history: MetricHistory, seconds: float) -> None:
    """Takes a sample as if it were then, with a new look at all topics."""
    metrics: Any = history._source
    metrics._patient_us = metrics._scan_again_us = 0
    history._now_us = lambda: int(seconds * 1e6)
    await history.sample()


async def get(site: Site, path: str, *names: str, status: int = 200, **params: Any) -> Any:
    asked = [*(("name", name) for name in names), *params.items()]
    async with site.http.get(path, params=[(key, str(value)) for key, value in asked]) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def shown(site: Site, *names: str, **params: Any) -> dict[str, Any]:
    return await get(site, "/v1/metrics/history", *names, **params)


async def test_values_are_there_from_the_first_samples_on(serving: Serving) -> None:
    async with serving() as site:
        history = history_of(site)
        for i in range(4):
            await site.broker.publish("orders", "x" * 100)
            await sample(history, NOON + 5 * i)
        names = "published_messages", "connections", "topic.orders.messages", "loop_delay_p99"
        told = await shown(site, *names, range="5m")
        assert told["resolution_seconds"] == 5
        assert [one["name"] for one in told["series"]] == list(names)
        assert told["to"] - told["from"] in (300, 305)
        assert all(len(one["values"]) == len(told["times"]) for one in told["series"])
        last = {one["name"]: one["values"][-4:] for one in told["series"]}
        assert told["times"][-4:] == [NOON, NOON + 5, NOON + 10, NOON + 15]
        assert last["published_messages"][0] is None
        assert all(value > 0 for value in last["published_messages"][1:])
        assert last["connections"][0] >= 1
        assert last["topic.orders.messages"][-1] > 0
        units = {one["name"]: (one["unit"], one["label"]) for one in told["series"]}
        assert units["topic.orders.messages"] == ("messages/s", "Messages of orders")


async def test_all_series_of_the_broker_are_sampled(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        history = history_of(site)
        await site.broker.create_topic("orders", durability="fsync")
        for i in range(3):
            await site.broker.publish("orders", "x")
            await asyncio.sleep(0.1)
            await sample(history, NOON + 5 * i)
        assert {one.text for one in history.series()} >= set(BROKER)


async def test_a_restart_keeps_what_was_measured(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        await history_of(site).load()
        for i in range(5):
            await site.broker.publish("orders", "x")
            await sample(history_of(site), NOON + 5 * i)
        before = await shown(site, "connections", "topic.orders.stored_bytes", range="5m")
    async with serving(path=tmp_path) as site:
        history = history_of(site)
        await history.load()
        history._now_us = lambda: (NOON + 20) * 1_000_000
        assert await shown(site, "connections", "topic.orders.stored_bytes", range="5m") == before
        listed = await get(site, "/v1/metrics/series", search="orders stored")
        assert [one["name"] for one in listed["series"]] == ["topic.orders.stored_bytes"]


async def test_damaged_files_do_not_stop_a_start(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        await history_of(site).load()
        for i in range(3):
            await sample(history_of(site), NOON + 5 * i)
    files = list((tmp_path / "metrics").glob("*"))
    assert files
    for file in files:
        file.write_bytes(b"\xff" * 100)
    async with serving(path=tmp_path) as site:
        history = history_of(site)
        await history.load()
        await sample(history, NOON)
        assert (await shown(site, "connections", range="5m"))["series"][0]["values"][-1] is not None
        assert (await get(site, "/v1/status"))["state"] == "ok"


async def test_a_verify_does_not_mind_the_history(serving: Serving, tmp_path: Path) -> None:
    async with serving(path=tmp_path) as site:
        await history_of(site).load()
        await site.broker.publish("orders", "x")
        await sample(history_of(site), NOON)
        await sample(history_of(site), NOON + 5)
    command = sys.executable, "-m", "fanlog", "verify", str(tmp_path)
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-2)
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert b"metrics" not in told


async def test_a_zoom_shows_finer_values(serving: Serving) -> None:
    async with serving() as site:
        history = history_of(site)
        await site.broker.create_topic("orders")
        for i in range(0, 7200, 60):
            await sample(history, NOON + i)
        now = NOON + 7200 - 60
        wide = await shown(site, "topics", range="24h")
        assert wide["resolution_seconds"] == 240
        close = await shown(site, "topics", **{"from": now - 600, "to": now})
        assert close["resolution_seconds"] == 5
        values = close["series"][0]["values"]
        assert [value for value in values if value is not None] == [1] * 11
        assert (await shown(site, "topics", **{"from": now - 600})) == close
        ended = await shown(site, "topics", to=now, range="5m")
        assert (ended["resolution_seconds"], ended["times"][-1]) == (5, now)
        older = await shown(site, "topics", **{"from": NOON, "to": NOON + 600})
        assert older["resolution_seconds"] == 60
        assert older["series"][0]["values"] == [1] * 11
        few = await shown(site, "topics", range="24h", points=10)
        assert len(few["times"]) in (10, 11)


async def test_an_earlier_time_can_be_compared(serving: Serving) -> None:
    async with serving() as site:
        history = history_of(site)
        await site.broker.create_topic("orders")
        for i in range(3):
            await sample(history, NOON + 5 * i)
        await site.broker.create_topic("payments")
        for i in range(3):
            await sample(history, NOON + 300 + 5 * i)
        told = (await shown(site, "topics", range="5m", before=300))["series"][0]
        assert told["values"][-3:] == [2, 2, 2]
        assert told["before"][-3:] == [1, 1, 1]


async def test_topics_that_metrics_do_not_name_are_measured_once_somebody_looks(
    serving: Serving,
) -> None:
    config = Config()
    telemetry = msgspec.structs.replace(config.telemetry, topics_max=1)
    async with serving(msgspec.structs.replace(config, telemetry=telemetry)) as site:
        await site.broker.publish("busy", "x" * 10_000)
        await site.broker.publish("quiet", "x")
        history = history_of(site)
        names = "topic.quiet.readers", "topic.none.readers", "group.g.lag", "queue.q.lag"
        await sample(history, NOON)
        told = await shown(site, *names, range="5m")
        assert {value for one in told["series"] for value in one["values"]} == {None}
        await sample(history, NOON + 5)
        await sample(history, NOON + 10)
        told = {one["name"]: one["values"][-2:] for one in (await shown(site, *names))["series"]}
        assert told == {
            "topic.quiet.readers": [0, 0],
            "topic.none.readers": [None, None],
            "group.g.lag": [None, None],
            "queue.q.lag": [None, None],
        }


async def test_groups_and_queues_have_series(serving: Serving) -> None:
    async with serving() as site:
        history = history_of(site)
        await site.broker.publish("orders", "x")
        async with site.broker.consume("orders", group="billing", reset="earliest") as member:
            await anext(aiter(member))
            await member.commit()
            await site.broker.publish("orders", "y")
            await site.broker.publish("orders", "z")
            await sample(history, NOON)
            told = (await shown(site, "group.billing.lag", "group.billing.members"))["series"]
            assert [one["values"][-1] for one in told] == [2, 1]
        async with site.broker.work("orders", queue="mail") as worker:
            await site.broker.publish("orders", "job")
            job = await anext(aiter(worker))
            await sample(history, NOON + 5)
            await job.ack()
        told = (await shown(site, "queue.mail.in_flight", "queue.mail.lag"))["series"]
        assert [one["values"][-1] for one in told] == [1, 4]


@pytest.mark.parametrize(
    ("params", "about"),
    [
        ([], "missing"),
        ([("name", "nonsense")], "no series"),
        ([("name", "topic..messages")], "no series"),
        ([("name", "topic.orders.nonsense")], "no series"),
        ([("name", "connections"), ("range", "2h")], "range"),
        ([("name", "connections"), ("from", "9"), ("to", "5")], "must be before"),
        ([("name", "connections"), ("from", "nan"), ("to", "5")], "from"),
        ([("name", "connections"), ("from", "0"), ("to", "1e300")], "to"),
        ([("name", "connections"), ("before", "-1")], "before"),
        ([("name", "connections"), ("points", "0")], "points"),
        ([("name", "connections"), ("points", "1000000")], "points"),
        ([("name", f"topic.{i}.messages") for i in range(51)], "name"),
        ([("name", "topic." + "x" * 300 + ".messages")], "name"),
    ],
)
async def test_wrong_questions_are_refused(
    serving: Serving, params: list[tuple[str, str]], about: str
) -> None:
    async with serving() as site, site.http.get("/v1/metrics/history", params=params) as answer:
        assert answer.status == 400, await answer.text()
        assert about in (await answer.json())["detail"]


async def test_times_before_everything_and_after_now_are_empty(serving: Serving) -> None:
    async with serving() as site:
        await sample(history_of(site), NOON)
        for begin, end in ((0, 1), (0, 9_999_999_999), (9_000_000_000, 9_999_999_999)):
            told = await shown(site, "connections", **{"from": begin, "to": end})
            assert len(told["times"]) <= 402
            assert len(told["series"][0]["values"]) == len(told["times"])


async def test_series_are_searched_and_paged(serving: Serving) -> None:
    async with serving() as site:
        for i in range(5):
            await site.broker.publish(f"orders.{i}", "x")
        await sample(history_of(site), NOON)
        await sample(history_of(site), NOON + 5)
        first = await get(site, "/v1/metrics/series", search="ORDERS messages", limit=2)
        assert first["total"] == 5
        assert [one["owner"] for one in first["series"]] == ["orders.0", "orders.1"]
        assert first["series"][0]["of"] == "topic"
        rest = await get(site, "/v1/metrics/series", search="orders messages", offset=4)
        assert [one["owner"] for one in rest["series"]] == ["orders.4"]
        broker = await get(site, "/v1/metrics/series", of="broker")
        assert {one["of"] for one in broker["series"]} == {"broker"}
        assert "connections" in {one["name"] for one in broker["series"]}
        await get(site, "/v1/metrics/series", limit=100_000, status=400)


async def test_only_names_that_somebody_may_see_are_shown() -> None:
    async with guarded() as site:
        admin = site.key("root", Role.ADMIN)
        await site.broker.publish("orders", "x")
        await site.broker.publish("salaries", "x")
        history = site.listener.core.metrics.history
        assert history is not None
        await sample(history, NOON)
        await sample(history, NOON + 5)
        clerk = site.key("clerk", describe=("orders",), groups=("billing",))
        viewer = site.key("ann", Role.VIEWER)

        async def ask(key: str, *names: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            params = [("name", name) for name in names]
            url = "/v1/metrics/history"
            async with site.http.get(url, params=params, headers=headers) as answer:
                return answer.status

        async def listed(key: str) -> set[str]:
            headers = {"Authorization": f"Bearer {key}"}
            url = "/v1/metrics/series?limit=500"
            async with site.http.get(url, headers=headers) as answer:
                told = await answer.json()
                assert told["total"] == len(told["series"])
                return {one["owner"] or one["name"] for one in told["series"]}

        assert await ask(clerk, "topic.orders.messages") == 200
        assert await ask(clerk, "group.billing.lag") == 200
        for name in ("topic.salaries.messages", "group.other.lag", "queue.q.lag"):
            assert await ask(clerk, name) == 403
            # One that is forbidden is not hidden among others.
            assert await ask(clerk, "topic.orders.messages", name) == 403
        assert {"orders", "connections"} <= await listed(clerk) <= {"orders", *BROKER}
        # One who only publishes learns nothing about the broker.
        app = site.key("app", publish=("orders",))
        assert await ask(app, "connections") == 403
        assert await listed(app) == {"orders"}
        for key in (viewer, admin):
            assert await ask(key, "topic.salaries.messages", "connections") == 200
            assert {"orders", "salaries", "connections"} <= await listed(key)


async def test_a_broker_without_history_says_so(serving: Serving) -> None:
    config = Config()
    telemetry = msgspec.structs.replace(config.telemetry, history=False)
    async with serving(msgspec.structs.replace(config, telemetry=telemetry)) as site:
        for path in ("/v1/metrics/history?name=connections", "/v1/metrics/series"):
            async with site.http.get(path) as answer:
                assert "telemetry.history" in (await answer.json())["detail"]


async def test_those_who_ask_the_same_share_an_answer(serving: Serving) -> None:
    async with serving() as site:
        history = history_of(site)
        await sample(history, NOON)
        captured = 0
        capture = history.capture

        def counting(names: Any) -> Any:
            nonlocal captured
            captured += 1
            return capture(names)

        history.capture = counting  # type: ignore[method-assign]
        await asyncio.gather(*(shown(site, "connections", range="5m") for _ in range(10)))
        assert captured == 1


async def test_a_broker_in_memory_has_a_history_and_no_files(serving: Serving) -> None:
    async with serving() as site:
        await sample(history_of(site), NOON)
        assert history_of(site)._files is None


async def test_many_series_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    turn = Slices._turn

    async def counted(self: Slices) -> None:
        nonlocal turns
        turns += 1
        await turn(self)

    async with guarded() as site:
        await history_of(site).sample()
        count = len(list(history_of(site).series()))
        monkeypatch.setattr("fanlog.broker.slices.SLICE_US", 0)
        monkeypatch.setattr(Slices, "_turn", counted)
        key = site.key("viewer", Role.VIEWER)
        status, found = await site.ask("GET", "/v1/metrics/series", key=key)
        assert (status, found["total"]) == (200, count)
        assert turns >= count > 0
