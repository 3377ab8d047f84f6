"""The overview in a browser: what needs attention comes first, and everything leads somewhere."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import expect

from fanlog.identity import Role
from tests.dashboard.boards import axe
from tests.dashboard.conftest import Dashboard


async def test_a_newcomer_finds_how_to_send_the_first_message(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/") as page:
        await expect(page.get_by_role("heading", name="Send the first message")).to_be_visible()
        await expect(page.get_by_text("fanlog publish orders")).to_be_visible()
        await page.get_by_role("tab", name="curl").click()
        command = page.get_by_text(f"curl {board.url}/v1/topics/orders/messages -d hello")
        await expect(command).to_be_visible()
        await expect(
            page.get_by_role("button", name="Copy: Send the first message")
        ).to_be_visible()
        # It works as it is shown.
        async with board.http.post("/v1/topics/orders/messages", data="hello") as answer:
            assert answer.status == 200
        await expect(page.get_by_role("heading", name="Send the first message")).to_have_count(0)
        busiest = page.get_by_role("table", name="Busiest topics")
        await expect(busiest.get_by_role("link", name="orders")).to_be_visible()


async def test_a_broker_that_is_well_says_so(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/") as page:
        await expect(page.get_by_text("Nothing needs your attention.")).to_be_visible()
        await expect(page.get_by_role("main").get_by_text("Healthy")).to_be_visible()
        await axe(page)


async def test_figures_and_lists_of_a_broker_at_work(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        await expect(page.get_by_role("link", name=re.compile("^Published"))).to_contain_text("/s")
        behind = page.get_by_role("table", name="Groups and queues that are furthest behind")
        await expect(behind.get_by_role("link", name="archive")).to_be_visible()
        await behind.get_by_role("link", name="archive").click()
        await expect(page).to_have_url(re.compile("#/groups/archive"))
        await page.go_back()
        await page.get_by_role("link", name=re.compile("^Open transactions")).click()
        await expect(page.get_by_role("heading", name="Transactions")).to_be_visible()


async def test_what_needs_attention_leads_to_where_it_is_fixed(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/") as page:
        findings = page.get_by_role("list", name="What needs attention").get_by_role("listitem")
        died = findings.filter(has_text="failed for good")
        await expect(died).to_contain_text("mailers")
        await died.get_by_role("link", name="See why").click()
        await expect(page).to_have_url(re.compile("#/dead/dead.emails"))


async def test_dead_letters_that_are_gone_need_no_attention(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        broker = board.broker
        await broker.publish("jobs", "broken")
        async with broker.work("jobs", queue="workers", max_deliveries=1) as jobs:
            job = await jobs.next(timeout_seconds=60)
            await job.reject("no such address")
        async with board.visit("/") as page:
            await expect(page.get_by_text("1 job of the queue workers failed")).to_be_visible()
            tile = page.get_by_role("link", name=re.compile("^Dead letters"))
            await expect(tile.last).to_contain_text("1")
            await broker.dead_letters.purge("dead.jobs")
            await expect(page.get_by_text("1 job of the queue workers failed")).to_have_count(0)


async def test_a_group_without_members_is_reported(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        broker = board.broker
        await broker.publish("orders", "one")
        async with broker.consume("orders", group="billing", reset="earliest") as member:
            await member.commit(await member.next(timeout_seconds=60))
        for number in range(20):
            await broker.publish("orders", str(number))
        async with board.visit("/") as page:
            finding = page.get_by_text(re.compile("The group billing has no member"))
            await expect(finding).to_be_visible()
            await page.get_by_role("link", name="Open billing").click()
            await expect(page).to_have_url(re.compile("#/groups/billing"))


async def test_a_viewer_sees_it_without_connections(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("vera", Role.VIEWER)
        async with board.visit("/", login="vera") as page:
            await expect(page.get_by_role("heading", name="Busiest topics")).to_be_visible()
            await expect(page.get_by_role("heading", name="Slowest readers")).to_have_count(0)
        async with board.visit("/") as page:
            await expect(page.get_by_role("heading", name="Slowest readers")).to_be_visible()


async def test_it_recovers_when_the_broker_was_away(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/", allow={503}) as page:
        await expect(page.get_by_text("Nothing needs your attention.")).to_be_visible()
        await page.route(
            "**/v1/overview", lambda route: asyncio.ensure_future(route.fulfill(status=503))
        )
        await expect(page.get_by_text("Not up to date")).to_be_visible()
        await page.unroute("**/v1/overview")
        await expect(page.get_by_text("Not up to date")).to_have_count(0)


async def test_it_reads_well_on_a_phone_and_in_the_dark(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/", phone=True, dark=True) as page:
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        await expect(page.get_by_role("table", name="Busiest topics")).to_be_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        await axe(page)
