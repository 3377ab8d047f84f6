"""Schedules and delayed messages in a browser: added, changed, run, removed and cancelled."""

from __future__ import annotations

from playwright.async_api import Page, expect

from fanlog.identity import Role
from tests.dashboard.boards import axe
from tests.dashboard.conftest import Dashboard


async def fill(page: Page, **fields: str) -> None:
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        await dialog.get_by_label(label.replace("_", " "), exact=False).first.fill(value)


async def test_a_schedule_is_added(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/schedules", allow={400}) as page:
        await page.get_by_role("button", name="Add a schedule").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_disabled()
        await fill(page, Name="nightly", Topic="reports", Key="eu", Headers="source: shop")
        await dialog.get_by_label("Value is").select_option("json")
        await dialog.get_by_label("Value", exact=True).fill('{"id": 9007199254740993}')
        await dialog.get_by_label("When it runs").select_option("cron")
        await fill(page, Cron_expression="nonsense", Time_zone="Europe/Berlin")
        await axe(page)
        # What is wrong is said, and the form stays.
        async with page.expect_response(lambda answer: answer.status == 400):
            await dialog.get_by_role("button", name="Add", exact=True).click()
        await expect(dialog.get_by_role("alert")).to_contain_text("not a cron expression")
        await fill(page, Cron_expression="0 8 * * 1-5")
        await dialog.get_by_role("button", name="Add", exact=True).click()
        row = page.get_by_role("row").filter(has_text="nightly")
        await expect(row).to_contain_text("0 8 * * 1-5 (Europe/Berlin)")
        (made,) = await board.broker.schedules()
        assert (made.name, made.topic, made.key) == ("nightly", "reports", b"eu")
        # Its message, and when it comes.
        await row.get_by_role("button", name="nightly", exact=True).click()
        await expect(page.get_by_role("dialog")).to_contain_text("9007199254740993")
        await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_count(5)


async def test_a_schedule_is_changed_run_and_removed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.add_schedule("tick", "ticks", "now", every_seconds=3600, key="k")
        async with board.visit("/schedules") as page:
            await page.get_by_role("button", name="Change tick").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog.get_by_label("Value", exact=True)).to_have_value("now")
            await expect(dialog.get_by_label("Unit")).to_have_value("3600")
            await dialog.get_by_label("Every", exact=True).fill("2")
            await dialog.get_by_role("button", name="Save").click()
            await expect(page.get_by_text("every 2 h")).to_be_visible()
            (changed,) = await board.broker.schedules()
            assert (changed.every_seconds, changed.key) == (7200, b"k")
            await page.get_by_role("button", name="Run tick now").click()
            await dialog.get_by_role("button", name="Run now").click()
            await expect(page.get_by_text("Published to ticks, offset 0.")).to_be_visible()
            async with board.broker.subscribe("ticks", start="earliest") as reader:
                assert (await reader.next(timeout_seconds=60)).value == b"now"
            await page.get_by_role("button", name="Remove tick").click()
            remove = dialog.get_by_role("button", name="Remove")
            await expect(remove).to_be_disabled()
            await dialog.get_by_role("textbox").fill("tick")
            await remove.click()
            await expect(page.get_by_text("No schedules yet.")).to_be_visible()
        assert await board.broker.schedules() == []


async def test_a_message_is_published_later_and_cancelled(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/schedules?tab=delayed") as page:
        await expect(page.get_by_text("No message waits.")).to_be_visible()
        await page.get_by_role("button", name="Publish later").click()
        dialog = page.get_by_role("dialog")
        await fill(page, Topic="mails", Id="reminder-1")
        await dialog.get_by_label("Value", exact=True).fill("hello")
        await dialog.get_by_label("Unit").select_option("3600")
        await dialog.get_by_role("button", name="Publish later").click()
        row = page.get_by_role("row").filter(has_text="reminder-1")
        await expect(row).to_contain_text("mails")
        assert [one.id async for one in board.broker.scheduled()] == ["reminder-1"]
        await row.get_by_role("button", name="Cancel reminder-1").click()
        await dialog.get_by_role("button", name="Cancel publishing").click()
        await expect(page.get_by_text("reminder-1 will not be published.")).to_be_visible()
        await expect(page.get_by_text("No message waits.")).to_be_visible()
        assert [one.id async for one in board.broker.scheduled()] == []


async def test_several_are_cancelled_and_a_topic_is_looked_for(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for number in range(3):
            await board.broker.publish("a", "x", delay_seconds=3600, schedule_id=f"a{number}")
        await board.broker.publish("b", "x", delay_seconds=60, schedule_id="b0")
        async with board.visit("/schedules?tab=delayed") as page:
            rows = page.get_by_role("table").locator("tbody tr")
            await expect(rows).to_have_count(4)
            await page.get_by_label("Topic of delayed messages").fill("a")
            await expect(rows).to_have_count(3)
            await page.get_by_role("checkbox", name="Select all on this page").check()
            await axe(page)
            await page.get_by_role("button", name="Cancel 3 messages").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_role("button", name="Cancel publishing").click()
            await expect(page.get_by_text("No message for a waits here.")).to_be_visible()
        assert [one.id async for one in board.broker.scheduled()] == ["b0"]


async def test_a_viewer_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True, flowing=True) as board:
        await board.user("vera", Role.VIEWER)
        async with board.visit("/schedules", login="vera") as page:
            await expect(page.get_by_role("row").filter(has_text="daily-report")).to_be_visible()
            for name in ("Add a schedule", "Publish later", "Remove daily-report", "Run daily"):
                await expect(page.get_by_role("button", name=name)).to_have_count(0)
            await page.get_by_role("tab", name="Delayed messages").click()
            await expect(page.get_by_role("row").filter(has_text="reminder-42")).to_be_visible()
            await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
            await expect(page.get_by_role("checkbox")).to_have_count(0)
