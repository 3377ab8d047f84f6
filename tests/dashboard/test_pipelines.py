"""Spark queries and runs of pipelines in a browser."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from fanlog.broker.state.pipelines import SPARK_CLIENT
from fanlog.format.frames import FrameKind
from fanlog.format.pipelines import PipelineRun, PipelineStream
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard


async def report(board: Board, **changed: Any) -> None:
    now_us = board.node.core.now_us()
    given: dict[str, Any] = {
        "name": "pipeline.archive",
        "pipeline": "archive",
        "started_us": now_us - 90_000_000,
        "state": "running",
        "options": {"topics": "orders"},
        "streams": (PipelineStream(name="lake", batch=3, records=1200, lag=7),),
        "records": 1200,
    }
    async with board.client() as client:
        await client.ask(FrameKind.PIPELINE_RUN, PipelineRun(**(given | changed)))


async def test_a_newcomer_sees_how_to_begin(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/pipelines") as page:
        await expect(page.get_by_text("fanlog pipeline list")).to_be_visible()
        await axe(page)
        await report(board)
        await expect(page.get_by_role("table", name="Last runs of pipelines")).to_be_visible()


async def test_a_query_and_its_lag(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.client(name=SPARK_CLIENT) as spark:
        for number in range(10):
            await board.broker.publish("orders", str(number))
        for offset in (2, 6):
            await spark.groups.reset("pipeline.archive", offset, "orders", (0,))
        async with board.visit("/pipelines") as page:
            row = page.get_by_role("table", name="Spark queries").locator("tbody tr[data-row]")
            await expect(row).to_contain_text("Running")
            await expect(row.get_by_role("cell").nth(4)).to_have_text("4")
            await expect(row.get_by_role("link", name="orders")).to_be_visible()
            await row.get_by_role("link", name="archive").click()
            await expect(page.get_by_role("heading", name="pipeline.archive")).to_be_visible()


async def test_runs_and_why_one_failed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await report(board)
        ended = board.node.core.now_us()
        why = "The topic 'orders' is gone."
        await report(board, name="pipeline.clean", state="failed", ended_us=ended, why=why)
        async with board.visit("/") as page:
            await page.get_by_role("link", name="See the run").click()
            runs = page.get_by_role("table", name="Last runs of pipelines").locator(
                "tbody tr[data-row]"
            )
            await expect(runs).to_have_count(1)
            await expect(runs).to_contain_text("Failed")
            await axe(page)
            await runs.get_by_role("button", name="clean").click()
            await expect(page.get_by_role("dialog")).to_contain_text(why)
            await page.keyboard.press("Escape")
            await page.get_by_role("button", name="Show all").click()
            await expect(runs).to_have_count(2)
            await page.get_by_role("button", name="archive").click()
            streams = page.get_by_role("dialog").get_by_role("table", name="Streams of the run")
            await expect(streams).to_contain_text("1,200")
