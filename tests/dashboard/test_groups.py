"""The pages of groups: who lags, resets with a preview, deletion."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from playwright.async_api import Page, expect

from fanlog.identity import Role
from tests.client.ways import PATIENCE_SECONDS
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard


async def fill(board: Board) -> None:
    """`late` is 12 behind in two topics, `slow` 4, and `done` keeps up."""
    broker = board.broker
    await broker.create_topic("orders", partitions=2)
    await broker.create_topic("prices")
    for partition in (0, 1):
        for _ in range(4):
            await broker.publish("orders", b"x", partition=partition)
    await broker.publish_many("prices", [b"x"] * 4)
    for topic in ("orders", "prices"):
        await broker.groups.reset("late", "earliest", topic)
    await broker.groups.reset("slow", 2, "orders")
    await broker.groups.reset("done", "latest", "orders")


async def names(page: Page) -> list[str]:
    rows = page.locator("tbody tr[data-row] td:first-child a strong")
    return await rows.all_inner_texts()


async def committed(board: Board, group: str) -> dict[tuple[str, int], int | None]:
    found = await board.broker.groups.describe(group)
    return {(p.topic, p.partition): p.committed for p in found.partitions}


async def test_who_lags_is_said_first(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups") as page:
            await expect(page.locator(".notice")).to_contain_text(
                re.compile(r"late is furthest behind: 12 messages; the oldest has waited .* Nobody")
            )
            assert await names(page) == ["late", "slow", "done"]
            header = page.get_by_role("columnheader", name="Lag", exact=True)
            await expect(header).to_have_attribute("aria-sort", "descending")
            await axe(page)
            await page.get_by_role("link", name="late").first.click()
            await expect(page.get_by_role("heading", level=1)).to_have_text("late")


async def test_groups_are_searched_and_sorted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups") as page:
            await page.get_by_role("searchbox", name="Search groups").fill("LO")
            await expect(page.get_by_role("link", name="late")).to_have_count(0)
            assert await names(page) == ["slow"]
            await page.get_by_role("searchbox", name="Search groups").fill("")
            await expect(page.get_by_role("link", name="done")).to_be_visible()
            await page.get_by_role("button", name="Group", exact=True).click()
            header = page.get_by_role("columnheader", name="Group")
            await expect(header).to_have_attribute("aria-sort", "ascending")
            await expect(page.locator("tbody tr[data-row]").first).to_contain_text("done")
            await page.get_by_label("Only behind").check()
            await expect(page.get_by_role("link", name="done")).to_have_count(0)
            await page.get_by_label("Only behind").uncheck()
            await page.get_by_role("combobox", name="State").select_option("active")
            await expect(page.get_by_text("No group fits.")).to_be_visible()
            # What is chosen is in the address.
            assert "state=active" in page.url


async def test_many_groups_have_pages(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", b"x")
        for i in range(60):
            await board.broker.groups.reset(f"g{i:02}", "earliest", "orders")
        async with board.visit("/groups?sort=name&order=up") as page:
            await expect(page.get_by_text("1–50 of 60 groups")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_role("link", name="g59")).to_be_visible()
            await page.locator("tbody tr[data-row]").last.focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_have_text("g59")


async def test_a_group_shows_its_partitions_and_topics(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups/late") as page:
            await expect(page.get_by_text("The group has no members.")).to_be_visible()
            table = page.get_by_role("table", name="Partitions")
            await expect(table.locator("tbody tr[data-row]")).to_have_count(3)
            await page.get_by_role("searchbox", name="Search partitions by topic").fill("price")
            await expect(table.locator("tbody tr[data-row]")).to_have_count(1)
            await expect(table.locator("tbody tr[data-row]")).to_contain_text("nobody")
            await page.get_by_role("tab", name="Topics").click()
            topics = page.get_by_role("table", name="Topics")
            await expect(topics.locator("tbody tr[data-row]").first).to_contain_text("orders")
            await page.get_by_role("tab", name="Members").click()
            await expect(page.get_by_text("The group has no members now.")).to_be_visible()
            await axe(page)


async def test_a_member_is_linked_to_its_connection(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with (
            board.client(name="till-7") as client,
            client.consume("orders", group="shop", reset="earliest", commit="manual") as member,
        ):
            await member.next(PATIENCE_SECONDS)
            async with board.visit("/groups/shop?tab=members") as page:
                # A little lag is no reason to worry. It says who is late only after a while.
                await expect(page.locator(".notice")).to_contain_text(
                    re.compile("It keeps up: 8 messages are on the way|Furthest behind is")
                )
                row = page.get_by_role("table", name="Members").locator("tbody tr[data-row]")
                await expect(row).to_contain_text("till-7")
                await row.get_by_role("link").click()
                await expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
                clients = page.get_by_role("table", name="Clients").locator("tbody tr[data-row]")
                await expect(clients).to_have_count(1)
                await expect(clients).to_contain_text("till-7")


async def open_reset(page: Page) -> None:
    await page.get_by_role("button", name="Reset …").click()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def preview(page: Page, says: str) -> None:
    await page.get_by_role("button", name="Preview").click()
    await expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text(says)


async def test_a_reset_shows_what_it_would_do_and_then_does_it(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        before = await committed(board, "slow")
        async with board.visit("/groups/slow") as page:
            await open_reset(page)
            await preview(page, "4 messages would be read again")
            assert await committed(board, "slow") == before
            await axe(page)
            # Another choice needs another preview.
            await page.get_by_role("combobox", name="Continue at").select_option("latest")
            await expect(page.get_by_role("button", name="Preview")).to_be_visible()
            await preview(page, "4 messages would be skipped")
            assert await committed(board, "slow") == before
            await page.get_by_role("button", name="Reset 2 partitions").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(page.get_by_text("It keeps up")).to_be_visible()
            assert await committed(board, "slow") == {("orders", 0): 4, ("orders", 1): 4}


@pytest.mark.parametrize("start", ["offset", "time", "age"])
async def test_a_reset_goes_to_an_offset_a_time_or_an_age(dashboard: Dashboard, start: str) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups/slow") as page:
            await open_reset(page)
            await page.get_by_role("combobox", name="Continue at").select_option(start)
            if start == "offset":
                await page.get_by_role("textbox", name="Offset").fill("three")
                await page.get_by_role("button", name="Preview").click()
                await expect(page.get_by_role("alert")).to_contain_text("a whole number")
                await page.get_by_role("textbox", name="Offset").fill("3")
                expected = 3
            elif start == "time":
                ahead = dt.datetime.now() + dt.timedelta(days=1)
                field = page.get_by_role("dialog").get_by_label(re.compile("^Time"))
                await field.fill(ahead.strftime("%Y-%m-%dT%H:%M:%S"))
                expected = 4
            else:
                await page.get_by_role("textbox", name="How long ago").fill("2")
                await page.get_by_role("combobox", name="Unit").select_option("h")
                expected = 0
            await preview(page, "2 partitions would be set")
            await page.get_by_role("button", name="Reset 2 partitions").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
            found = await committed(board, "slow")
            assert found == {("orders", 0): expected, ("orders", 1): expected}


async def test_a_reset_may_be_of_one_topic_or_some_partitions(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups/late", allow={404}) as page:
            await open_reset(page)
            await page.get_by_role("combobox", name="Continue at").select_option("latest")
            await page.get_by_role("combobox", name="Topic").select_option("orders")
            await page.get_by_role("textbox", name="Partitions").fill("one")
            await page.get_by_role("button", name="Preview").click()
            await expect(page.get_by_role("alert")).to_contain_text("“one” is no partition")
            await page.get_by_role("textbox", name="Partitions").fill("1-7")
            await page.get_by_role("button", name="Preview").click()
            await expect(page.get_by_role("alert")).to_contain_text("no partition 2")
            await page.get_by_role("textbox", name="Partitions").fill("1")
            await preview(page, "1 partition would be set")
            await page.get_by_role("button", name="Reset 1 partition").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
            expected = {("orders", 0): 0, ("orders", 1): 4, ("prices", 0): 0}
            assert await committed(board, "late") == expected


async def test_a_group_with_very_many_partitions_stays_readable(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("wide", partitions=1000)
        await board.broker.publish("wide", b"x", partition=777)
        await board.broker.groups.reset("wide-readers", "earliest", "wide")
        async with board.visit("/groups/wide-readers") as page:
            rows = page.get_by_role("table", name="Partitions").locator("tbody tr[data-row]")
            await expect(rows).to_have_count(50)
            # The one that is behind comes first.
            await expect(rows.first).to_contain_text("777")
            await expect(page.get_by_text("1–50 of 1,000 partitions")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_text("51–100 of 1,000 partitions")).to_be_visible()
            await open_reset(page)
            await page.get_by_role("combobox", name="Continue at").select_option("latest")
            await preview(page, "1,000 partitions would be set. 1 message would be skipped.")
            plan = page.get_by_role("table", name="What would change")
            await expect(plan.locator("tbody tr[data-row]")).to_have_count(200)
            await page.get_by_role("button", name="Show more of 1,000").click()
            await expect(plan.locator("tbody tr[data-row]")).to_have_count(1000)
            await page.get_by_role("button", name="Reset 1,000 partitions").click()
            await expect(page.get_by_text("It keeps up")).to_be_visible()
        assert (await committed(board, "wide-readers"))["wide", 777] == 1


async def test_a_group_with_members_says_why_it_can_not_be_changed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with (
            board.broker.consume("orders", group="shop"),
            board.visit("/groups/shop") as page,
        ):
            await expect(page.get_by_text("Active")).to_be_visible()
            for name in ("Reset …", "Delete …"):
                await page.get_by_role("button", name=name).click()
                dialog = page.get_by_role("dialog")
                await expect(dialog).to_contain_text("Stop them first")
                await expect(dialog.get_by_role("button", name="Preview")).to_have_count(0)
                await page.keyboard.press("Escape")
                await expect(dialog).to_have_count(0)


async def test_a_group_is_deleted_by_typing_its_name(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        async with board.visit("/groups/late") as page:
            await page.get_by_role("button", name="Delete …").click()
            button = page.get_by_role("button", name="Delete group")
            await expect(button).to_be_disabled()
            await page.get_by_role("dialog").get_by_role("textbox").fill("lat")
            await expect(button).to_be_disabled()
            await page.get_by_role("dialog").get_by_role("textbox").fill("late")
            await button.click()
            await expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
            await expect(page.get_by_role("link", name="slow").first).to_be_visible()
            assert "late" not in await names(page)
            assert "late" not in {group.name for group in await board.broker.groups.list()}


async def test_a_viewer_sees_groups_and_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await fill(board)
        await board.user("ann", Role.VIEWER)
        async with (
            board.client(name="till-7") as client,
            client.consume("orders", group="shop"),
            board.visit("/groups/shop?tab=members", login="ann") as page,
        ):
            row = page.get_by_role("table", name="Members").locator("tbody tr[data-row]")
            await expect(row).to_contain_text("till-7")
            await expect(row.get_by_role("link")).to_have_count(0)
            await expect(page.get_by_role("button", name="Reset …")).to_have_count(0)
            await expect(page.get_by_role("button", name="Delete …")).to_have_count(0)


async def test_a_limited_user_sees_only_own_groups(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await fill(board)
        await board.user("bob", Role.CONSUMER, groups=("slow",))
        async with board.visit("/groups", login="bob") as page:
            await expect(page.get_by_role("link", name="slow").first).to_be_visible()
            assert await names(page) == ["slow"]
        async with board.visit("/groups/late", login="bob", allow={403}) as page:
            await expect(page.get_by_role("alert").first).to_contain_text("bob")


async def test_a_group_that_is_not_there_says_so(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/groups/none", allow={404}) as page:
        await expect(page.get_by_role("alert").first).to_contain_text("There is no group")


async def test_groups_fit_on_a_phone(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await fill(board)
        for path in ("/groups", "/groups/late"):
            async with board.visit(path, phone=True, dark=True) as page:
                await expect(page.locator("tbody tr[data-row]").first).to_be_visible()
                await axe(page)
