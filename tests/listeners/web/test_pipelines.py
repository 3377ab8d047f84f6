"""Spark queries that commit their progress, and runs of pipelines that were reported."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fanlog
from fanlog.broker.state.pipelines import SPARK_CLIENT, Pipelines
from fanlog.cli.pipeline import watch
from fanlog.cli.pipeline_display import Watching
from fanlog.cli.pipeline_reports import RunReports
from fanlog.client.aio import Client
from fanlog.config import Config
from fanlog.errors import ConnectionLostError, ForbiddenError, LimitError, ProtocolError
from fanlog.format.frames import FrameKind
from fanlog.format.pipelines import PipelineRun, PipelineStream
from fanlog.identity import Role
from fanlog.spark import pipelines
from fanlog.spark.pipelines.runs import RunningPipeline
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.guarded import guarded

RUN = PipelineRun(
    name="pipeline.archive",
    pipeline="archive",
    started_us=1_700_000_000_000_000,
    state="running",
    host="worker-3",
    options={"topics": "orders"},
    streams=(PipelineStream(name="lake", batch=3, records=120, lag=5),),
    records=120,
)


# A free port for the native listener.
CONFIG = msgspec.structs.replace(
    Config(), listener=msgspec.structs.replace(Config().listener, port=0)
)


@asynccontextmanager
async def connected(broker: fanlog.Broker, **options: Any) -> AsyncIterator[Client]:
    native = broker.listen()
    async with fanlog.connect(f"fanlog://127.0.0.1:{native.port}", **options) as client:
        yield client


async def report(client: Client, **changed: Any) -> None:
    await client.ask(FrameKind.PIPELINE_RUN, msgspec.structs.replace(RUN, **changed))


async def shown(site: Site, query: str = "") -> dict[str, Any]:
    async with site.http.get(f"/v1/pipelines{query}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_there_are_none_at_first(serving: Serving) -> None:
    async with serving() as site:
        assert await shown(site) == {"queries": [], "runs": [], "runs_total": 0}


async def test_a_query_moves_its_group(serving: Serving) -> None:
    async with serving(CONFIG) as site, connected(site.broker, name=SPARK_CLIENT) as spark:
        await site.broker.create_topic("orders", partitions=2)
        for number in range(20):
            await site.broker.publish("orders", str(number), partition=number % 2)
        for offset in (2, 6):
            for partition in (0, 1):
                await spark.groups.reset("pipeline.archive", offset, "orders", (partition,))
        (query,) = (await shown(site))["queries"]
        assert (query["group"], query["topics"]) == ("pipeline.archive", ["orders"])
        assert (query["partitions"], query["lag"], query["state"]) == (2, 8, "running")
        # Where it began is no batch.
        assert (query["batches"], query["last_batch_records"], query["records"]) == (1, 8, 8)
        assert query["last_batch"]
        await report(spark, state="done")
        assert (await shown(site))["queries"][0]["state"] == "idle"
        # Whoever resets a group by hand is no query.
        await site.broker.groups.reset("other", "earliest", "orders")
        assert len((await shown(site))["queries"]) == 1


async def test_a_pipelines_group_is_known_after_a_restart(serving: Serving, tmp_path: Path) -> None:
    async with serving(CONFIG, path=tmp_path / "d") as site, connected(site.broker) as client:
        await site.broker.publish("orders", "x")
        await site.broker.groups.reset("pipeline.archive", "earliest", "orders")
        await report(client)
    async with serving(CONFIG, path=tmp_path / "d") as site:
        found = await shown(site)
        (query,) = found["queries"]
        assert (query["state"], query["last_batch"], query["lag"]) == ("idle", None, 1)
        assert found["runs"][0]["name"] == "pipeline.archive"


async def test_a_run_is_reported_until_it_ends(serving: Serving) -> None:
    async with serving(CONFIG) as site, connected(site.broker) as client:
        await report(client)
        (run,) = (await shown(site))["runs"]
        assert (run["state"], run["records"], run["ended"]) == ("running", 120, None)
        assert run["streams"][0]["lag"] == 5
        await report(client, state="failed", ended_us=RUN.started_us + 5_000_000, why="no disk")
        found = await shown(site)
        (run,) = found["runs"]
        assert (run["state"], run["seconds"], run["why"]) == ("failed", 5, "no disk")
        assert found["runs_total"] == 1
        async with site.http.get("/v1/overview") as answer:
            findings = (await answer.json())["attention"]
        (failed,) = [one for one in findings if one["kind"] == "pipeline_failed"]
        assert (failed["link"], failed["about"]) == ("pipelines", "pipeline.archive")
        await report(client, started_us=RUN.started_us + 9_000_000, state="done")
        assert [one["state"] for one in (await shown(site))["runs"]] == ["done", "failed"]
        assert (await shown(site, "?name=pipeline.other"))["runs"] == []
        assert len((await shown(site, "?limit=1"))["runs"]) == 1


async def test_a_bounded_number_of_runs_is_kept(serving: Serving) -> None:
    async with serving(CONFIG) as site, connected(site.broker) as client:
        for number in range(25):
            await report(client, started_us=number, state="done")
        found = await shown(site, "?limit=500")
        assert found["runs_total"] == 20
        known: Pipelines = site.listener.bus.core.pipelines
        for number in range(600):
            known.report(msgspec.structs.replace(RUN, name=f"pipeline.p{number}"))
        assert len(known.runs()) == 500


async def test_a_wrong_report_is_refused(serving: Serving) -> None:
    async with serving(CONFIG) as site:
        for wrong in (
            {"name": ""},
            {"name": "x" * 300},
            {"state": "lost"},
            {"options": {str(i): "" for i in range(51)}},
            {"why": "x" * 2001},
            {"started_us": -1},
        ):
            # Bytes that do not fit the frame end the connection.
            async with connected(site.broker, reconnect=False) as client:
                with pytest.raises((ProtocolError, ConnectionLostError)):
                    await report(client, **wrong)
        huge = {f"{i:050}": "x" * 2000 for i in range(50)}
        async with connected(site.broker) as client:
            with pytest.raises(LimitError):
                await report(client, options=huge)
        assert (await shown(site))["runs"] == []


async def test_a_limited_account_sees_and_reports_its_own() -> None:
    async with guarded() as site:
        key = site.key("ann", groups=("pipeline.mine",), describe=("open.>",))
        async with connected(site.broker, key=key) as client:
            await report(client, name="pipeline.mine")
            with pytest.raises(ForbiddenError):
                await report(client, name="pipeline.theirs")
        core = site.node.core
        core.pipelines.report(msgspec.structs.replace(RUN, name="pipeline.theirs"))
        _, mine = await site.ask("GET", "/v1/pipelines", key=key)
        assert [run["name"] for run in mine["runs"]] == ["pipeline.mine"]
        assert (mine["runs_total"], mine["runs"][0]["host"]) == (1, "")
        _, found = await site.ask("GET", "/v1/pipelines", key=site.key("root", Role.ADMIN))
        assert found["runs_total"] == 2


PROGRAM = """import pathlib
pathlib.Path("progress.json").write_text(
    '{"chunks": 2, "chunks_done": 2, "records": 30, "records_done": 30}'
)
raise SystemExit(CODE)
"""


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (3, "failed")])
async def test_the_command_reports_its_run(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, state: str
) -> None:
    monkeypatch.setattr("fanlog.spark.pipelines.runs.check_ready", lambda *_: None)
    pipelines.copy(pipelines.find("drops"), tmp_path / "mine")
    (tmp_path / "mine/drops.py").write_text(PROGRAM.replace("CODE", str(code)))
    pipeline = pipelines.find(str(tmp_path / "mine"))

    def run(url: str) -> None:
        reports = RunReports(url, running, watching)
        reports.send()
        watch(running, watching, reports.send_now_and_then)
        reports.end(why=running.why() if code else "", summary="It is done.")

    async with serving(CONFIG) as site:
        url = f"fanlog://127.0.0.1:{site.broker.listen().port}"
        state_folder = tmp_path / "state"
        watching = Watching(url, state_folder)
        running = RunningPipeline(pipeline, {"report": "out"}, state_folder, "local[1]", os.environ)
        await asyncio.to_thread(run, url)
        (found,) = (await shown(site))["runs"]
    assert (found["name"], found["pipeline"], found["state"]) == ("pipeline.state", "drops", state)
    assert (found["records"], found["exit_code"], found["report"]) == (30, code, "out")
    assert found["streams"] == [
        {
            "name": "state",
            "batch": 2,
            "records": 30,
            "per_second": pytest.approx(0, abs=1e9),
            "lag": 0,
        }
    ]


def test_a_broker_that_takes_no_reports_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fanlog.spark.pipelines.runs.check_ready", lambda *_: None)
    pipelines.copy(pipelines.find("drops"), tmp_path / "mine")
    (tmp_path / "mine/drops.py").write_text("")
    watching = Watching("fanlog://127.0.0.1:1", tmp_path / "state")
    pipeline = pipelines.find(str(tmp_path / "mine"))
    running = RunningPipeline(pipeline, {}, tmp_path / "state", "local[1]", os.environ)
    reports = RunReports("fanlog://127.0.0.1:1", running, watching)
    reports.send()
    assert running.wait(60)
    reports.end()
    assert capsys.readouterr().err.count("can't show this run") == 1
