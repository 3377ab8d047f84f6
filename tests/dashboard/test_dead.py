"""Dead letters in the browser: why jobs died, and all that can be done about it, checked through a
client."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from fanlog.identity import Role
from tests.client.ways import PATIENCE_SECONDS
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard
from tests.listeners.web.dead import kill, kill_many, letters

REASONS = {
    "ann": "ValueError: order 17 has no address",
    "bob": "ValueError: order 18 has no address",
    "carl": "the mail server is down",
}


def row(page: Page, name: str, table: str = "Dead letters") -> Locator:
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=name)


async def dead(board: Board) -> list[str]:
    """The reasons of the dead letters that are there."""
    return [letter.death.reason for letter in await board.broker.dead_letters.list("dead.jobs")]


async def jobs(board: Board, after: int) -> list[tuple[bytes | None, bytes]]:
    """Key and value of what came into the topic behind its first messages."""
    count = (await board.broker.describe_topic("jobs")).records - after
    async with board.broker.subscribe("jobs", start=after) as subscription:
        found = [await subscription.next(PATIENCE_SECONDS) for _ in range(count)]
    return [(message.key, message.value) for message in found]


async def is_read(page: Page) -> None:
    """Waits until the broker has read the topic, so that all counts are known."""
    await expect(
        page.get_by_role("table", name="Reasons").get_by_role("row").nth(1)
    ).to_be_visible()
    await expect(page.get_by_text("The broker is reading")).to_have_count(0)


async def test_someone_new_finds_why_a_job_died(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/") as page:
        await kill(board.broker, **REASONS)
        await page.get_by_role("link", name="Dead letters", exact=True).first.click()
        first = row(page, "dead.jobs", "Topics with dead letters")
        await expect(first).to_contain_text("ValueError: order <n> has no address")
        await expect(first).to_contain_text("3")
        await axe(page)
        await first.get_by_role("link", name="dead.jobs").click()
        reasons = page.get_by_role("table", name="Reasons")
        await expect(reasons.get_by_role("row")).to_have_count(3)
        await expect(reasons.get_by_role("row").nth(1)).to_contain_text("ValueError: order <n>")
        await axe(page)
        await row(page, "mail server").get_by_role("link").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Why it died")
        await expect(dialog).to_contain_text("the mail server is down")
        await expect(dialog).to_contain_text("The queue workers gave up after 1 attempt")
        await expect(dialog).to_contain_text("jobs, partition 0, offset 2")
        await expect(dialog).to_contain_text('"name": "carl"')
        (letter,) = [one for one in await letters(board.broker, "dead.jobs", 3) if one.id == "0:2"]
        await expect(dialog).to_contain_text(letter.death.worker)
        await dialog.get_by_role("tab", name="Hex").click()
        await expect(dialog).to_contain_text("7b 22 6e 61 6d 65")
        await dialog.get_by_role("tab", name="Text").click()
        await expect(dialog).to_contain_text('{"name":"carl"}')
        await axe(page)
        # The address is that of this dead letter.
        await page.reload()
        await expect(page.get_by_role("dialog")).to_contain_text("the mail server is down")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_one_is_replayed_and_one_is_deleted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        async with board.visit("/dead/dead.jobs") as page:
            await row(page, "order 17").get_by_role("link").click()
            await page.get_by_role("button", name="Replay", exact=True).last.click()
            await page.get_by_role("dialog").get_by_role("button", name="Replay 1").click()
            await expect(page.get_by_text("1 dead letter replayed.")).to_be_visible()
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(row(page, "order 17")).to_have_count(0)
            assert await jobs(board, 3) == [(b"ann", b'{"name":"ann"}')]
            await row(page, "order 18").get_by_role("link").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await page.get_by_role("button", name="Delete 1").click()
            await expect(page.get_by_text("1 dead letter deleted.")).to_be_visible()
            assert await dead(board) == [REASONS["carl"]]
            assert len(await jobs(board, 3)) == 1


async def test_one_is_edited_and_replayed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        async with board.visit("/dead/dead.jobs") as page:
            await row(page, "order 17").get_by_role("link").click()
            await page.get_by_role("button", name="Edit and replay").click()
            dialog = page.get_by_role("dialog", name="Edit and replay")
            await expect(dialog.get_by_label("Value", exact=True)).to_have_value('{"name":"ann"}')
            await dialog.get_by_label("Value", exact=True).fill('{"name":"ann"')
            await expect(dialog.get_by_text("no longer valid JSON")).to_be_visible()
            await axe(page)
            # Numbers stay as they are typed.
            fixed = '{"name":"ann","address":9007199254740993.10}'
            await dialog.get_by_label("Value", exact=True).fill(fixed)
            await expect(dialog.get_by_text("no longer valid JSON")).to_have_count(0)
            await dialog.get_by_label("Key", exact=True).fill("ann-2")
            await dialog.get_by_role("button", name="Add a header").click()
            await dialog.get_by_label("Name of header 3").fill("fixed-by")
            await dialog.get_by_label("Value of header 3").fill("me")
            await dialog.get_by_label("Value of header 1").fill("2")
            await dialog.get_by_role("button", name="Replay changed job").click()
            await expect(page.get_by_text("The job is back in jobs")).to_be_visible()
            await expect(page.get_by_role("dialog")).to_have_count(0)
        assert await jobs(board, 3) == [(b"ann-2", fixed.encode())]
        async with board.broker.subscribe("jobs", start=3) as subscription:
            message = await subscription.next(PATIENCE_SECONDS)
        assert message.headers["fixed-by"] == b"me"
        assert sorted(message.headers) == ["content-type", "fixed-by", "h"]
        assert sorted(await dead(board)) == sorted([REASONS["bob"], REASONS["carl"]])


async def test_bytes_are_edited_as_base64_and_what_fails_stays(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("jobs", b"\x00\xff")
        async with board.broker.work("jobs", queue="workers") as worker:
            await (await worker.next(PATIENCE_SECONDS)).reject("not text")
        await letters(board.broker, "dead.jobs", 1)
        async with board.visit("/dead/dead.jobs", allow={400, 404}) as page:
            await row(page, "not text").get_by_role("link").click()
            await expect(page.get_by_role("dialog")).to_contain_text("00 ff")
            await page.get_by_role("button", name="Edit and replay").click()
            dialog = page.get_by_role("dialog", name="Edit and replay")
            value = dialog.get_by_role("textbox", name=re.compile("Value.*base64"))
            await value.fill("AP8B")
            await dialog.get_by_label("To another topic").fill("nowhere")
            await dialog.get_by_role("button", name="Replay changed job").click()
            await expect(dialog.get_by_role("alert")).to_contain_text("no topic 'nowhere'")
            assert await dead(board) == ["not text"]
            await dialog.get_by_label("To another topic").fill("")
            await dialog.get_by_role("button", name="Replay changed job").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
        assert await jobs(board, 1) == [(None, b"\x00\xff\x01")]
        assert await dead(board) == []


async def test_some_are_selected_replayed_and_deleted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("others")
        await kill(board.broker, **REASONS, dora="KeyError: 'x'", emil="KeyError: 'y'")
        async with board.visit("/dead/dead.jobs") as page:
            for text in ("order 17", "order 18"):
                await row(page, text).get_by_role("checkbox").check()
            selected = page.get_by_role("region", name="Selected")
            await expect(selected).to_contain_text("2 selected")
            await selected.get_by_role("button", name="Replay selected").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("To another topic").fill("others")
            await dialog.get_by_role("button", name="Replay 2").click()
            await expect(page.get_by_text("2 dead letters replayed.")).to_be_visible()
            await expect(selected).to_have_count(0)
            assert (await board.broker.describe_topic("others")).records == 2
            for text in ("'x'", "'y'"):
                await row(page, text).get_by_role("checkbox").check()
            await selected.get_by_role("button", name="Delete selected").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete 2").click()
            await expect(page.get_by_text("2 dead letters deleted.")).to_be_visible()
            assert await dead(board) == [REASONS["carl"]]


async def test_all_of_a_reason_are_replayed_with_progress(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill_many(board.broker, 600, lambda i: f"{'odd' if i % 2 else 'even'} job {i}")
        async with board.visit("/dead/dead.jobs") as page:
            await is_read(page)
            await page.get_by_role("button", name="Replay all with odd job <n>").click()
            await page.get_by_role("dialog").get_by_role("button", name="Replay 300").click()
            tasks = page.get_by_role("region", name="Tasks")
            await expect(tasks).to_contain_text("300 replayed.")
            await expect(page.get_by_role("table", name="Reasons")).not_to_contain_text("odd job")
            assert len(await jobs(board, 1)) == 300
            # It is found again.
            await page.reload()
            await expect(tasks).to_contain_text("300 replayed.")
            await axe(page)
            await tasks.get_by_role("button", name="Hide this task").click()
            await expect(tasks).to_have_count(0)
            await page.get_by_role("button", name="Delete all with even job <n>").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog.get_by_role("button", name="Delete 300")).to_be_disabled()
            await dialog.get_by_label("Type").fill("dead.jobs")
            await dialog.get_by_role("button", name="Delete 300").click()
            await expect(tasks).to_contain_text("300 deleted.")
            assert await dead(board) == ["the first one"]


async def test_a_running_task_is_shown_and_cancelled(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill_many(board.broker, 60_000, lambda i: f"job {i}")
        async with board.visit("/dead/dead.jobs") as page:
            await is_read(page)
            await page.get_by_role("button", name="Replay all", exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name="Replay 60,001").click()
            tasks = page.get_by_role("region", name="Tasks")
            await expect(tasks).to_contain_text("running")
            await page.reload()
            await tasks.get_by_role("button", name="Cancel").click()
            await expect(tasks).to_contain_text("cancelled")
        async with board.http.get("/v1/tasks") as answer:
            (task,) = (await answer.json())["tasks"]
        done = task["done"]
        assert 0 < done < 60_001
        assert (await board.broker.describe_topic("jobs")).records == 1 + done


async def test_a_topic_that_is_still_read_shows_what_is_known(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanlog.listeners.web.dead_browse.PATIENCE_SECONDS", 0.0)
    async with dashboard() as board:
        await kill_many(board.broker, 5000, lambda i: f"job {i}")
        async with board.visit("/dead/dead.jobs") as page:
            await expect(page.get_by_text("The broker is reading")).to_be_visible()
            await expect(page.get_by_text("1–50 of 5,001")).to_be_visible()
            await is_read(page)
            await expect(page.get_by_role("table", name="Reasons")).to_contain_text("5,000")


async def test_all_are_replayed_and_all_are_purged(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        async with board.visit("/dead/dead.jobs") as page:
            await is_read(page)
            await page.get_by_role("button", name="Replay all", exact=True).click()
            await page.get_by_role("dialog").get_by_role("button", name="Replay 3").click()
            await expect(page.get_by_text("No dead letters: all were replayed")).to_be_visible()
            assert await dead(board) == []
            assert len(await jobs(board, 3)) == 3
        await board.broker.groups.delete("workers")
        await board.broker.dead_letters.purge("dead.jobs")
        await kill(board.broker, dora="a new one")
        before = await dead(board)
        assert before
        async with board.visit("/dead/dead.jobs") as page:
            await page.get_by_role("button", name="Purge").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
            await dialog.get_by_label("Type").fill("dead.jobs")
            await dialog.get_by_role("button", name="Purge").click()
            await expect(page.get_by_text("No dead letters: all were replayed")).to_be_visible()
            assert await dead(board) == []


async def test_filters_choose_what_is_shown_replayed_and_exported(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        await kill_many(board.broker, 120, lambda i: f"bulk {i}", topic="mails")
        async with board.visit("/dead/dead.jobs") as page:
            table = page.get_by_role("table", name="Dead letters")
            await expect(table.get_by_role("row")).to_have_count(4)
            await page.get_by_label("Search dead letters").fill('"bob"')
            await expect(table.get_by_role("row")).to_have_count(2)
            await expect(table).to_contain_text("order 18")
            await page.get_by_role("button", name="Clear filters").click()
            await expect(table.get_by_role("row")).to_have_count(4)
            await page.get_by_label("Key", exact=True).fill("carl")
            await page.get_by_label("Key", exact=True).press("Enter")
            await expect(table.get_by_role("row")).to_have_count(2)
            await expect(table).to_contain_text("mail server")
            await page.get_by_role("button", name="Clear filters").click()
            await page.get_by_text("More filters").click()
            await page.get_by_label("Died since").fill("2099-01-01T00:00")
            await page.get_by_label("Died since").blur()
            await expect(table).to_contain_text("No dead letter fits")
            await page.get_by_role("button", name="Clear filters").click()
            await page.get_by_role(
                "button", name="ValueError: order <n> has no address"
            ).first.click()
            await expect(table.get_by_role("row")).to_have_count(3)
            async with page.expect_download() as waiting:
                await page.get_by_role("link", name="Export what fits").click()
            download = await waiting.value
            assert download.suggested_filename == "dead.jobs.ndjson"
            await download.save_as(tmp_path / "file")
            lines = (tmp_path / "file").read_text().splitlines()
            assert [json.loads(line)["reason"] for line in lines] == [
                REASONS["ann"],
                REASONS["bob"],
            ]
            await page.get_by_role("button", name="Replay all that fit").click()
            await page.get_by_role("dialog").get_by_role("button", name="Replay 2").click()
            await expect(page.get_by_role("region", name="Tasks")).to_contain_text("2 replayed.")
            assert await dead(board) == [REASONS["carl"]]
        async with board.visit("/dead/dead.mails") as page:
            table = page.get_by_role("table", name="Dead letters")
            await expect(page.get_by_text("1–50 of 121")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_text("51–100 of 121")).to_be_visible()
            await expect(table.get_by_role("row").nth(1)).to_contain_text("bulk 69")
            await page.get_by_label("Order").select_option("oldest")
            await expect(table.get_by_role("row").nth(2)).to_contain_text("bulk 0")


async def test_a_viewer_reads_and_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await kill(board.broker, **REASONS)
        await board.user("eye", Role.VIEWER)
        async with board.visit("/dead/dead.jobs", login="eye") as page:
            await row(page, "order 17").get_by_role("link").click()
            await expect(page.get_by_role("dialog")).to_contain_text("order 17 has no address")
            for name in ("Replay", "Delete", "Edit", "Purge"):
                await expect(page.get_by_role("button", name=name)).to_have_count(0)
            await expect(page.get_by_role("checkbox")).to_have_count(0)
            await page.keyboard.press("Escape")
            async with page.expect_download() as waiting:
                await page.get_by_role("link", name="Export all").click()
            lines = Path(await (await waiting.value).path()).read_text().splitlines()
            assert [json.loads(line)["key"] for line in lines] == ["ann", "bob", "carl"]
        assert len(await dead(board)) == 3


async def test_the_keyboard_is_enough(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        async with board.visit("/dead") as page:
            first = row(page, "dead.jobs", "Topics with dead letters")
            await first.focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="dead.jobs", level=1)).to_be_visible()
            first = row(page, "mail server")
            await first.focus()
            await page.keyboard.press("Space")
            await expect(page.get_by_role("region", name="Selected")).to_contain_text("1 selected")
            await first.focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("dialog")).to_contain_text("the mail server is down")
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_it_fits_on_a_phone_in_the_dark(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await kill(board.broker, **REASONS)
        async with board.visit("/dead/dead.jobs", phone=True, dark=True) as page:
            await expect(row(page, "order 17")).to_be_visible()
            wide = "() => document.documentElement.scrollWidth > innerWidth"
            assert not await page.evaluate(wide)
            await axe(page)
            await row(page, "order 17").get_by_role("link").click()
            await expect(page.get_by_role("dialog")).to_contain_text("Why it died")
            await axe(page)
            assert not await page.evaluate(wide)
