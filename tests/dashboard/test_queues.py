"""The pages of queues: jobs that wait, that workers have, that fail; resets and deletion."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from fanlog.identity import Role
from tests.client.ways import PATIENCE_SECONDS
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard

REASON = "The printer is out of paper"


async def fill(board: Board) -> None:
    """`printers` has 6 jobs that wait, one of which has failed; `idle` has none."""
    broker = board.broker
    await broker.publish_many("invoices", [b"x"] * 6)
    async with broker.work(
        "invoices", queue="printers", reset="earliest", prefetch=1, retry_delay_seconds=600
    ) as work:
        job = await work.next(PATIENCE_SECONDS)
        await job.nack(reason=REASON)
    await broker.create_topic("letters")
    async with broker.work("letters", queue="idle"):
        pass


async def lag(board: Board, queue: str) -> int:
    return (await board.broker.groups.describe(queue)).lag


async def open_tab(page: Page, name: str) -> None:
    await page.get_by_role("tab", name=name).click()


async def test_where_jobs_wait_is_said_first(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/queues") as page:
            await expect(page.locator(".notice")).to_contain_text(
                re.compile(r"Most jobs wait in printers: 6; the oldest has waited .* no workers")
            )
            rows = page.get_by_role("table", name="Queues").locator("tbody tr[data-row]")
            await expect(rows).to_have_count(2)
            await expect(rows.first).to_contain_text("printers")
            await axe(page)
            await page.get_by_label("Only with jobs").check()
            await expect(rows).to_have_count(1)
            await page.get_by_label("Only with jobs").uncheck()
            await page.get_by_role("searchbox", name="Search queues").fill("idl")
            await expect(rows.first).to_contain_text("idle")
            await page.get_by_role("button", name="Retrying").click()
            header = page.get_by_role("columnheader", name="Retrying")
            await expect(header).to_have_attribute("aria-sort", "descending")
            await page.get_by_role("combobox", name="State").select_option("active")
            await expect(page.get_by_text("No queue fits.")).to_be_visible()


async def test_a_queue_shows_who_has_which_job(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with (
            board.client(name="press") as client,
            client.work("invoices", queue="printers", worker="press-1", prefetch=2) as work,
        ):
            job = await work.next(PATIENCE_SECONDS)
            async with board.visit("/queues/printers") as page:
                row = page.get_by_role("table", name="Workers").locator("tbody tr[data-row]")
                await expect(row).to_contain_text("press-1")
                await expect(row).to_contain_text(re.compile(rf"offset.* {job.offset}"))
                await expect(row).to_contain_text(re.compile("for .* left"))
                await axe(page)
                await row.get_by_role("link", name=re.compile("127.0.0.1")).click()
                await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
                clients = page.get_by_role("table", name="Clients").locator("tbody tr[data-row]")
                await expect(clients).to_contain_text("press")
            await job.ack()


async def test_a_queue_shows_why_jobs_failed_and_when_they_come_again(
    dashboard: Dashboard,
) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/queues/printers?tab=retries") as page:
            row = page.get_by_role("table", name="Retries").locator("tbody tr[data-row]")
            await expect(row).to_contain_text(REASON)
            await expect(row).to_contain_text("1 of 5 times")
            await expect(row).to_contain_text(re.compile(r"again in \d+ min"))
            await axe(page)


async def test_a_queue_shows_scheduled_jobs_settings_and_dead_letters(
    dashboard: Dashboard,
) -> None:
    async with dashboard() as board:
        await fill(board)
        await board.broker.publish(
            "invoices", b"later", delay_seconds=7200, schedule_id="reminder-7"
        )
        async with board.visit("/queues/printers") as page:
            await open_tab(page, "Scheduled")
            row = page.get_by_role("table", name="Scheduled jobs").locator("tbody tr[data-row]")
            await expect(row).to_contain_text("reminder-7")
            await expect(row).to_contain_text("in 2 h")
            await open_tab(page, "Settings")
            await expect(page.get_by_text("10 min")).to_be_visible()
            await open_tab(page, "Partitions")
            table = page.get_by_role("table", name="Partitions")
            await expect(table.locator("tbody tr[data-row]")).to_contain_text("invoices")
            await open_tab(page, "Topics and dead letters")
            link = page.get_by_role("link", name="dead.invoices")
            await expect(link).to_have_attribute("href", "#/dead/dead.invoices")


async def test_a_queue_is_reset_after_a_preview(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/queues/printers") as page:
            await page.get_by_role("button", name="Reset …").click()
            await page.get_by_role("combobox", name="Continue at").select_option("latest")
            await page.get_by_role("button", name="Preview").click()
            status = page.get_by_role("dialog").get_by_role("status")
            await expect(status).to_contain_text("6 jobs would be skipped")
            assert await lag(board, "printers") == 6
            await page.get_by_role("button", name="Reset 1 partition").click()
            await expect(page.get_by_text("Every job is done.")).to_be_visible()
            assert await lag(board, "printers") == 0


async def test_a_queue_without_jobs_says_that_some_failed_for_good(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("invoices", b"x")
        async with board.broker.work(
            "invoices", queue="printers", reset="earliest", max_deliveries=1
        ) as work:
            job = await work.next(PATIENCE_SECONDS)
            await job.nack(reason=REASON)
        async with board.visit("/queues/printers") as page:
            await expect(
                page.get_by_text("No job waits, but some failed for good.")
            ).to_be_visible()
            await page.get_by_role("link", name="See why").click()
            await page.wait_for_function("() => location.hash === '#/dead/dead.invoices'")


async def test_a_queue_with_workers_says_why_it_can_not_be_changed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with (
            board.broker.work("invoices", queue="printers"),
            board.visit("/queues/printers") as page,
        ):
            await expect(page.get_by_text("Active")).to_be_visible()
            for name in ("Reset …", "Delete …"):
                await page.get_by_role("button", name=name).click()
                await expect(page.get_by_role("dialog")).to_contain_text("Stop them first")
                await page.keyboard.press("Escape")
                await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_queue_is_deleted_by_typing_its_name(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/queues/idle") as page:
            await page.get_by_role("button", name="Delete …").click()
            button = page.get_by_role("button", name="Delete queue")
            await expect(button).to_be_disabled()
            await page.get_by_role("dialog").get_by_role("textbox").fill("idle")
            await button.click()
            await expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
            rows = page.get_by_role("table", name="Queues").locator("tbody tr[data-row]")
            await expect(rows).to_have_count(1)
            assert "idle" not in {group.name for group in await board.broker.groups.list()}


async def test_an_observer_reads_no_reasons_and_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await fill(board)
        await board.user("eve", Role.OBSERVER)
        async with board.visit("/queues/printers?tab=retries", login="eve") as page:
            row = page.get_by_role("table", name="Retries").locator("tbody tr[data-row]")
            await expect(row).to_contain_text("1 of 5 times")
            assert REASON not in await page.inner_text("body")
            await expect(page.get_by_role("button", name="Reset …")).to_have_count(0)
            await expect(page.get_by_role("button", name="Delete …")).to_have_count(0)


async def test_the_page_of_a_group_leads_to_its_queue(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups/printers") as page:
            await expect(page.get_by_role("tab", name="Retries")).to_be_visible()


async def test_queues_fit_on_a_phone(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        for path in ("/queues", "/queues/printers?tab=retries"):
            async with board.visit(path, phone=True, dark=True) as page:
                await expect(page.locator("tbody tr[data-row]").first).to_be_visible()
                await axe(page)
