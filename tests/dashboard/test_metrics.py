"""The metrics page: ranges, zoom, hover, compared times and series, tables, keys and themes."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.async_api import Locator, Page, expect

from fanlog.config import Config
from fanlog.telemetry.history_series import BROKER
from tests.dashboard.boards import Board, axe, fits
from tests.dashboard.conftest import Dashboard

HOUR, DAY = 3600, 86_400


async def remember(board: Board, seconds: int = 2 * HOUR, step: int = 5, **more: float) -> None:
    """Gives the broker a past: waves, with a gap in the middle."""
    history = board.node.core.metrics.history
    assert history is not None
    await history.load()
    now = time.time()
    for ago in range(seconds, 5, -step):
        if 0.4 < ago / seconds < 0.5:
            continue
        wave = 2 + math.sin(ago / 300)
        values: Mapping[str, float] = dict.fromkeys(BROKER, 100 * wave) | more
        topics = {f"topic.{name}.messages": 10 * wave for name in ("orders", "payments")}
        history._history.add(now - ago, values | topics)


def chart(page: Page, title: str) -> Locator:
    return page.get_by_role("figure", name=title, exact=True)


def plot(page: Page, title: str) -> Locator:
    return chart(page, title).locator(".u-over")


def params(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).fragment.partition("?")[2])


async def drag(page: Page, title: str, begin: float = 0.3, end: float = 0.6) -> None:
    over = plot(page, title)
    await over.scroll_into_view_if_needed()
    box = await over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * begin, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * end, middle, steps=5)
    await page.mouse.up()


async def test_charts_have_the_values_that_the_broker_keeps(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await expect(plot(page, "Messages")).to_be_visible()
            image = chart(page, "Messages").get_by_role("img")
            said = await image.get_attribute("aria-label") or ""
            assert re.match(r"Chart of Messages\. Published: newest [\d.]+/s, lowest 100/s, ", said)
            assert "highest 300/s" in said
            for title in ("Bytes", "Lag", "Event loop delay", "CPU", "Memory", "Refused", "Topics"):
                await expect(plot(page, title)).to_be_visible()
            await axe(page)


async def test_a_new_broker_has_charts_within_seconds(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/metrics?range=5m") as page:
        label = chart(page, "Clients").get_by_role("img")
        await expect(label).to_have_attribute("aria-label", re.compile("Connections: newest [1-9]"))


async def test_ranges_change_what_is_shown(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await expect(page.get_by_text("One value every 10 s")).to_be_visible()
            for name, words, each in (
                ("5m", "Last 5 minutes", "5 s"),
                ("15m", "Last 15 minutes", "5 s"),
                ("24h", "Last 24 hours", "4 min"),
                ("7d", "Last 7 days", "30 min"),
            ):
                button = page.get_by_role("button", name=words)
                await button.click()
                await expect(button).to_have_attribute("aria-pressed", "true")
                await expect(page.get_by_text(f"One value every {each}.")).to_be_visible()
                assert params(page)["range"] == [name]
            await page.reload()
            button = page.get_by_role("button", name="Last 7 days")
            await expect(button).to_have_attribute("aria-pressed", "true")


async def test_a_drag_zooms_all_charts_and_escape_goes_back(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await expect(plot(page, "Messages")).to_be_visible()
            for back in ("Escape", "button", "double click"):
                await drag(page, "Messages", 0.6, 0.9)
                shown = page.get_by_role("group", name="Shown time")
                await expect(shown).to_be_visible()
                begin, end = (int(params(page)[name][0]) for name in ("from", "to"))
                assert 0.25 * HOUR < end - begin < 0.35 * HOUR
                await expect(page.get_by_text("One value every 5 s.")).to_be_visible()
                await expect(page.get_by_role("button", name="Reset zoom")).not_to_have_count(0)
                await expect(
                    chart(page, "CPU").get_by_role("button", name="Reset zoom")
                ).to_be_visible()
                if back == "Escape":
                    await page.keyboard.press("Escape")
                elif back == "button":
                    await page.get_by_role("button", name="Back to the last hour").click()
                else:
                    await plot(page, "Messages").dblclick()
                await expect(shown).to_have_count(0)
                assert "from" not in params(page)


async def test_the_shown_time_can_be_moved_and_widened(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        begin, end = int(time.time()) - 1800, int(time.time()) - 1200
        async with board.visit(f"/metrics?from={begin}&to={end}") as page:
            await expect(plot(page, "Messages")).to_be_visible()
            await page.get_by_role("button", name="Earlier").click()
            await expect(page).to_have_url(re.compile(f"from={begin - 300}&to={end - 300}"))
            await page.get_by_role("button", name="Later").click()
            await expect(page).to_have_url(re.compile(f"from={begin}&to={end}"))
            await page.get_by_role("button", name="Zoom out").click()
            await expect(page.get_by_text("(20 min)")).to_be_visible()


async def test_the_pointer_is_shown_in_all_charts(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await expect(plot(page, "Lag")).to_be_visible()
            await expect(plot(page, "Messages")).to_be_visible()
            box = await plot(page, "Messages").bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
            await expect(
                chart(page, "Messages").get_by_text(re.compile(r"\d\d:\d\d:\d\d"))
            ).to_be_visible()
            when = await chart(page, "Messages").locator(".chart-when").inner_text()
            await expect(chart(page, "Lag").locator(".chart-when")).to_have_text(when)
            await page.mouse.move(5, 5)
            await expect(chart(page, "Lag").locator(".chart-when")).to_have_text("Newest")


async def test_an_earlier_time_is_a_second_line(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board, 2 * DAY, 300)
        async with board.visit("/metrics") as page:
            await page.get_by_label("Compare with").select_option(
                label="Compared with a day before"
            )
            key = chart(page, "Messages").get_by_role("button", name="Published, a day before")
            await expect(key).to_be_visible()
            assert "–" not in await key.inner_text()
            # A click hides a line.
            await key.click()
            await expect(key).to_have_attribute("aria-pressed", "false")
            await page.get_by_label("Compare with").select_option(
                label="Compared with the time before"
            )
            await expect(
                chart(page, "Messages").get_by_role("button", name="Published, 1 h before")
            ).to_be_visible()


async def test_series_of_topics_are_compared_in_a_chart_of_ones_own(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await page.get_by_role("button", name="Add a chart").click()
            dialog = page.get_by_role("dialog", name="Add a chart")
            add = dialog.get_by_role("button", name="Add", exact=True)
            await expect(add).to_be_disabled()
            await dialog.get_by_role("checkbox", name="orders").check()
            await dialog.get_by_role("searchbox").fill("pay")
            await expect(dialog.get_by_role("checkbox", name="orders")).to_have_count(0)
            await dialog.get_by_role("checkbox", name="payments").check()
            await axe(page)
            await add.click()
            mine = chart(page, "Messages of topics")
            await expect(mine.get_by_role("button", name="Hide orders")).to_have_count(0)
            for name in ("orders", "payments"):
                await expect(
                    mine.get_by_role("button", name=re.compile(f"^{name} "))
                ).to_be_visible()
            names = ["topic.orders.messages", "topic.payments.messages"]
            assert json.loads(params(page)["charts"][0]) == [names]
            await page.reload()
            await expect(mine.locator(".u-over")).to_be_visible()
            await mine.get_by_role("button", name="Remove the chart").click()
            await expect(mine).to_have_count(0)
            assert "charts" not in params(page)


async def test_a_strange_address_does_not_break_the_page(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        address = "/metrics?range=9y&from=x&to=-1&compare=z&charts=%5B1%2C%7B"
        async with board.visit(address, allow={400}) as page:
            await expect(page.get_by_role("heading", name="Metrics")).to_be_visible()
            await page.get_by_role("button", name="Last hour").click()
            await expect(plot(page, "Messages")).to_be_visible()


async def test_values_can_be_read_as_a_table_and_by_keys(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await page.get_by_role("button", name="Show Messages as table").click()
            region = page.get_by_role("region", name="Messages as table")
            await expect(region.get_by_role("row")).to_have_count(101)
            await expect(region.get_by_role("columnheader", name="Delivered")).to_be_visible()
            await axe(page)
            image = chart(page, "Lag").get_by_role("img")
            await image.focus()
            await page.keyboard.press("End")
            await page.keyboard.press("ArrowLeft")
            spoken = chart(page, "Lag").get_by_role("status")
            await expect(spoken).to_have_text(re.compile(r"\d\d:\d\d:\d\d: Groups .*, Queues "))


async def test_nothing_moves_while_paused(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics") as page:
            await expect(plot(page, "Messages")).to_be_visible()
            await page.keyboard.press("p")
            await expect(page.get_by_text("paused")).to_be_visible()
            await page.wait_for_timeout(1000)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.wait_for_timeout(11_000)
            assert not [url for url in asked if "/v1/metrics/history" in url]
            await page.get_by_role("button", name="Resume").click()
            async with page.expect_request(lambda request: "history" in request.url):
                pass


@pytest.mark.parametrize(("dark", "phone"), [(True, False), (False, True), (True, True)])
async def test_it_looks_well_in_the_dark_and_on_a_phone(
    dashboard: Dashboard, dark: bool, phone: bool
) -> None:
    async with dashboard() as board:
        await remember(board)
        charts = "charts=" + json.dumps([["topic.orders.messages"]])
        async with board.visit(f"/metrics?compare=period&{charts}", dark=dark, phone=phone) as page:
            await expect(plot(page, "Messages")).to_be_visible()
            await fits(page)
            await axe(page)


async def test_charts_follow_the_theme(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await remember(board)
        async with board.visit("/metrics?from=1&to=0") as page:
            canvas = chart(page, "Messages").locator("canvas")
            await expect(canvas).to_be_visible()
            picture = "node => node.toDataURL()"
            light = await canvas.evaluate(picture)
            await page.emulate_media(color_scheme="dark")
            for _ in range(50):
                if await canvas.evaluate(picture) != light:
                    break
                await page.wait_for_timeout(100)
            else:
                pytest.fail("the chart has the same colours in the dark")


async def test_a_limited_account_is_told_so(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("app", None, publish=("orders",))
        await board.broker.publish("orders", "x")
        async with board.visit("/metrics", login="app", allow={403}) as page:
            await expect(page.get_by_role("alert")).to_be_visible()
            await expect(page.get_by_role("figure")).to_have_count(0)


async def test_a_broker_without_history_says_how_to_turn_it_on(dashboard: Dashboard) -> None:
    config = Config()
    telemetry = msgspec.structs.replace(config.telemetry, history=False)
    config = msgspec.structs.replace(config, telemetry=telemetry)
    async with (
        dashboard(config=config) as board,
        board.visit("/metrics", allow={400, 501}) as page,
    ):
        await expect(page.get_by_role("alert")).to_contain_text("telemetry.history")


async def test_a_chart_of_a_topic_zooms_by_itself(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "x")
        await remember(board)
        async with board.visit("/topics/orders") as page:
            figure = page.get_by_role("figure", name="Messages published")
            await expect(figure.locator(".u-over")).to_be_visible()
            await drag(page, "Messages published", 0.6, 0.9)
            await figure.get_by_role("button", name="Reset zoom").click()
            await expect(figure.get_by_role("button", name="Reset zoom")).to_have_count(0)
