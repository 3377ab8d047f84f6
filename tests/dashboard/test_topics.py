"""The pages of topics: the list, one topic, and everything that can be done to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

import fanlog
from fanlog.errors import TopicNotFoundError
from fanlog.format.messages import Position
from fanlog.identity import Role
from fanlog.model import DamagedRange
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard
from tests.dashboard.page_list import press_keys


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def field(box: Locator, label: str) -> Locator:
    """An input by how its label begins: a hint belongs to the label."""
    return box.get_by_label(re.compile(f"^\\s*{re.escape(label)}"))


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def submit(page: Page, name: str | re.Pattern[str]) -> None:
    exact = isinstance(name, str)
    await dialog(page).get_by_role("button", name=name, exact=exact).click()
    await expect(dialog(page)).to_have_count(0)


async def names(page: Page) -> list[str]:
    links = page.get_by_role("table", name="Topics").locator(
        "tbody tr td:first-child a:first-child"
    )
    return await links.all_inner_texts()


async def until(ask: Callable[[], Awaitable[object]], expected: object) -> None:
    async with asyncio.timeout(120):
        while await ask() != expected:  # noqa: ASYNC110 - a page says nothing by itself
            await asyncio.sleep(0.1)


async def messages(board: Board, topic: str) -> list[dict[str, Any]]:
    async with board.http.get(f"/v1/topics/{topic}/messages") as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["messages"]


# The list


async def test_a_topic_is_created_with_its_settings(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/topics") as page:
        await expect(page.get_by_text("No topics yet.")).to_be_visible()
        await press(page, "Create topic")
        box = dialog(page)
        await expect(box.get_by_role("button", name="Create", exact=True)).to_be_disabled()
        await field(box, "Name").fill("orders.eu")
        await field(box, "Partitions").fill("4")
        await field(box, "Durability").select_option("fsync")
        await field(box, "Keep messages for").fill("12h")
        await field(box, "Keep at most").fill("2 GiB")
        await box.get_by_text("More settings").click()
        await field(box, "Largest message").fill("64 KiB")
        await field(box, "Compression").select_option("zstd")
        await field(box, "Most messages a second").fill("5000")
        await axe(page)
        await submit(page, "Create")
        await expect(page.get_by_role("heading", name="orders.eu", level=1)).to_be_visible()
        settings = (await board.broker.describe_topic("orders.eu")).settings
        assert (settings.partitions, settings.durability) == (4, "fsync")
        assert (settings.retention_seconds, settings.retention_bytes) == (12 * 3600, 2 << 30)
        assert (settings.message_bytes_max, settings.compression) == (65536, "zstd")
        assert settings.messages_per_second_max == 5000


async def test_what_is_wrong_with_a_new_topic_is_said(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/topics", allow={400, 409}) as page:
        await board.broker.create_topic("orders")
        await press(page, "Create topic")
        box = dialog(page)
        await field(box, "Name").fill("orders")
        await field(box, "Keep messages for").fill("a week")
        await expect(box.get_by_text("Write a number with a unit")).to_be_visible()
        await expect(box.get_by_role("button", name="Create", exact=True)).to_be_disabled()
        await field(box, "Keep messages for").fill("1w")
        await box.get_by_role("button", name="Create", exact=True).click()
        await expect(box.get_by_role("alert")).to_contain_text("exists already")
        await field(box, "Name").fill("orders.>")
        await box.get_by_role("button", name="Create", exact=True).click()
        await expect(box.get_by_role("alert")).to_contain_text("orders.>")


async def test_topics_are_searched_sorted_and_paged(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for n in range(60):
            await board.broker.create_topic(f"room.{n:02}")
        await board.broker.publish_many("orders", [b"x" * 1000] * 20)
        await board.broker.publish_many("payments", [b"x"] * 30)
        core = board.listener.core
        core.durable.commit_positions([("group/slow", (Position("payments", 0, 5, core.epoch),))])
        async with board.visit("/topics") as page:
            await expect(page.get_by_text("1–50 of 62 topics")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_text("51–62 of 62 topics")).to_be_visible()
            await page.get_by_role("button", name="Messages", exact=True).click()
            await expect(page.get_by_text("1–50 of 62 topics")).to_be_visible()
            await until(lambda: _first(page), ["payments", "orders"])
            await page.get_by_role("button", name="Size", exact=True).click()
            await until(lambda: _first(page), ["orders", "payments"])
            await page.get_by_role("button", name="Lag", exact=True).click()
            await until(lambda: _first(page, 1), ["payments"])
            lag = page.get_by_role("link", name="25", exact=True)
            await expect(lag).to_have_attribute("href", "#/groups/slow")
            await page.get_by_role("searchbox", name="Search topics").fill("room.5")
            await expect(page.get_by_text("10 topics")).to_be_visible()
            await page.get_by_role("searchbox", name="Search topics").fill("*s")
            await expect(page.get_by_text("2 topics")).to_be_visible()
            await page.get_by_role("searchbox", name="Search topics").fill("nothing of this name")
            await expect(page.get_by_text("No topic has this in its name.")).to_be_visible()
            # What is shown is in the address.
            await page.get_by_role("searchbox", name="Search topics").fill("room")
            await expect(page.get_by_text("1–50 of 60 topics")).to_be_visible()
            await page.reload()
            await expect(page.get_by_text("1–50 of 60 topics")).to_be_visible()


async def _first(page: Page, count: int = 2) -> list[str]:
    return (await names(page))[:count]


async def test_the_brokers_own_topics_are_shown_on_request(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", b"x")
        board.listener.core.drops.make_topic()
        async with board.visit("/topics") as page:
            await expect(page.get_by_text("1 topic", exact=True)).to_be_visible()
            await page.get_by_label("Show the broker's own topics").check()
            await page.get_by_role("link", name="_fanlog.drops", exact=True).click()
            await expect(page.get_by_role("heading", name="_fanlog.drops")).to_be_visible()
            await expect(page.get_by_role("tab", name="Settings")).to_be_visible()
            await expect(page.get_by_role("button", name="Delete topic …")).to_have_count(0)


async def test_the_newest_message_is_one_click_away(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", "hello there")
        async with board.visit("/topics") as page:
            await page.get_by_role("link", name="Newest messages of orders").click()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("Explorer")
            await expect(page.get_by_text("hello there").first).to_be_visible()
        async with board.visit("/topics/orders") as page:
            table = page.get_by_role("table", name="Newest messages")
            await expect(table.get_by_text("hello there")).to_be_visible()
            await page.get_by_role("link", name="Newest messages", exact=True).click()
            await expect(page.get_by_text("hello there").first).to_be_visible()


async def test_the_list_is_used_by_keyboard_alone(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for name in ("a", "b"):
            await board.broker.create_topic(name)
        async with board.visit("/topics") as page:
            await expect(page.get_by_role("link", name="a", exact=True)).to_be_visible()
            await page.keyboard.press("/")
            await page.keyboard.type("b")
            await expect(page.get_by_text("1 topic", exact=True)).to_be_visible()
            await page.locator("tr[data-row='0']").focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="b", level=1)).to_be_visible()
            await press_keys(page, "g t")
            await expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
            # The page listens to keys once it is drawn.
            await expect(page.get_by_text("2 topics")).to_be_visible()
            await page.keyboard.press("c")
            await expect(field(dialog(page), "Name")).to_be_focused()
            await page.keyboard.type("c")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="c", exact=True, level=1)).to_be_visible()
            assert (await board.broker.describe_topic("c")).name == "c"


# One topic


async def test_settings_are_changed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders")
        async with board.visit("/topics/orders?tab=settings") as page:
            await page.get_by_role("tabpanel").get_by_role("button").click()
            box = dialog(page)
            await expect(field(box, "Keep messages for")).to_have_value("7d")
            await expect(box.get_by_role("button", name="Change", exact=True)).to_be_disabled()
            await field(box, "Keep messages for").fill("3d")
            await field(box, "Durability").select_option("fsync")
            await expect(box.get_by_text("past a shorter retention go at once")).to_be_visible()
            await submit(page, "Change 2 settings")
            await expect(page.get_by_role("tabpanel").get_by_text("3 d")).to_be_visible()
        settings = (await board.broker.describe_topic("orders")).settings
        assert (settings.retention_seconds, settings.durability) == (3 * 86400, "fsync")
        assert settings.segment_bytes == 128 << 20


async def test_a_change_that_can_not_be_made_is_explained(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders", durability="fsync")
        async with board.visit("/topics/orders", allow={409}) as page:
            await press(page, "Change settings")
            await field(dialog(page), "Durability").select_option("os")
            await dialog(page).get_by_role("button", name="Change 1 setting").click()
            await expect(dialog(page).get_by_role("alert")).to_contain_text("can only rise")


async def test_a_topic_grows(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders", partitions=2)
        async with board.visit("/topics/orders?tab=partitions") as page:
            await press(page, "Add partitions")
            box = dialog(page)
            await field(box, "Partitions").fill("2")
            await expect(box.get_by_role("button", name="Add partitions")).to_be_disabled()
            await field(box, "Partitions").fill("5")
            await submit(page, "Add partitions")
            rows = page.get_by_role("table", name="Partitions").locator("tbody tr")
            await expect(rows).to_have_count(5)
        assert (await board.broker.describe_topic("orders")).settings.partitions == 5


async def test_a_topic_is_compacted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("prices", cleanup="compact")
        for n in range(30):
            await board.broker.publish("prices", str(n), key=str(n % 3))
        async with board.visit("/topics/prices") as page:
            await press(page, "Compact")
            await submit(page, "Compact")
            await expect(page.get_by_text("Compacted prices")).to_be_visible()
        (partition,) = (await board.broker.describe_topic("prices")).partitions
        assert partition.compacted_until == 30
        assert [one["text"] for one in await messages(board, "prices")] == ["27", "28", "29"]


async def test_old_messages_are_deleted_after_a_preview(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders", partitions=2)
        for n in range(12):
            await board.broker.publish("orders", str(n), partition=n % 2)
        async with board.visit("/topics/orders") as page:
            await press(page, "Delete messages …")
            box = dialog(page)
            await expect(box.get_by_text("Nothing would go.")).to_be_visible()
            await field(box, "Which messages").select_option("offsets")
            await field(box, "Partition").fill("1")
            await field(box, "First offset to keep").fill("4")
            delete = box.get_by_role("button", name="Delete 4 messages")
            await expect(delete).to_be_disabled()
            await field(box, "Type orders to confirm").fill("orders")
            await axe(page)
            await submit(page, "Delete 4 messages")
            await until(lambda: _kept(board.broker), {0: (0, 6), 1: (4, 6)})
            await press(page, "Delete messages …")
            await field(box, "Which messages").select_option("everything")
            await expect(box.get_by_text("all that are there")).to_be_visible()
            await field(box, "Type orders to confirm").fill("orders")
            await submit(page, "Delete 8 messages")
            await until(lambda: _kept(board.broker), {0: (6, 6), 1: (6, 6)})
            await expect(page.get_by_text("This topic has no messages now.")).to_be_visible()


async def _kept(broker: fanlog.Broker) -> dict[int, tuple[int, int]]:
    info = await broker.describe_topic("orders")
    return {p.partition: (p.start_offset, p.end_offset) for p in info.partitions}


async def test_messages_before_a_time_are_deleted(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish_many("orders", [b"x"] * 3)
        async with board.visit("/topics/orders", allow={416}) as page:
            await press(page, "Delete messages …")
            box = dialog(page)
            await field(box, "Which messages").select_option("time")
            await field(box, "Published before").fill("2001-01-01T00:00:00")
            await expect(box.get_by_text("Nothing would go.")).to_be_visible()
            await field(box, "Published before").fill("2100-01-01T00:00:00")
            await field(box, "Type orders to confirm").fill("orders")
            await submit(page, "Delete 3 messages")
            await until(lambda: _kept(board.broker), {0: (3, 3)})
            await press(page, "Delete messages …")
            await field(box, "Which messages").select_option("offsets")
            await field(box, "First offset to keep").fill("99")
            await expect(box.get_by_role("alert")).to_contain_text("ends at offset 3")


async def test_a_topic_is_deleted_by_its_name(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish("orders", b"x")
        async with board.visit("/topics/orders") as page:
            await press(page, "Delete topic …")
            box = dialog(page)
            await expect(box.get_by_text("1 message")).to_be_visible()
            await box.get_by_role("textbox").fill("order")
            delete = box.get_by_role("button", name="Delete the topic")
            await expect(delete).to_be_disabled()
            await box.get_by_role("textbox").fill("orders")
            await submit(page, "Delete the topic")
            await expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
            await expect(page.get_by_text("No topics yet.")).to_be_visible()
        with pytest.raises(TopicNotFoundError):
            await board.broker.describe_topic("orders")


async def test_a_message_is_published_from_the_page(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders")
        async with board.visit("/topics/orders") as page:
            await press(page, "Publish")
            box = dialog(page)
            await box.get_by_label("Value", exact=True).fill('"from the page"')
            await box.locator("footer").get_by_role("button").last.click()
            table = page.get_by_role("table", name="Newest messages")
            await expect(table.get_by_text("from the page")).to_be_visible()
        (message,) = await messages(board, "orders")
        assert message["json"] == "from the page"


async def test_who_uses_a_topic_is_shown(dashboard: Dashboard) -> None:
    async with (
        dashboard(flowing=True) as board,
        board.client(name="reporter") as client,
        client.subscribe("orders"),
        board.visit("/topics/orders?tab=readers") as page,
    ):
        table = page.get_by_role("table", name="Readers")
        await expect(table.get_by_text("reporter")).to_be_visible()
        await page.get_by_role("tab", name="Groups and queues").click()
        table = page.get_by_role("table", name="Groups and queues")
        await expect(table.get_by_role("link", name="archive")).to_be_visible()
        await page.get_by_role("tab", name="Producers").click()
        table = page.get_by_role("table", name="Producers")
        await expect(table.locator("tbody tr").first).to_contain_text("partition")
        await page.get_by_role("tab", name=re.compile("Segments")).click()
        table = page.get_by_role("table", name="Segments")
        await expect(table.get_by_text("written to").first).to_be_visible()
        await page.get_by_role("tab", name=re.compile("Partitions")).click()
        await page.get_by_role("link", name="Segments of partition 0").click()
        await expect(table.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("button", name="Only partition 0").click()
        await expect(table.locator("tbody tr").nth(1)).to_be_visible()
        await page.get_by_role("tab", name="Overview").click()
        await expect(page.get_by_role("figure", name="Messages published")).to_be_visible()
        # Back and forth with the arrow keys.
        await page.get_by_role("tab", name="Overview").press("ArrowRight")
        await expect(page.get_by_role("tab", selected=True)).to_contain_text("Partitions")


async def test_dead_letters_have_a_page_of_their_own(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/topics") as page:
        link = page.get_by_role("link", name="dead letters", exact=True)
        await expect(link).to_have_attribute("href", "#/dead/dead.emails")
        await page.get_by_role("link", name="dead.emails", exact=True).click()
        link = page.get_by_role("link", name="Dead letters").last
        await expect(link).to_have_attribute("href", "#/dead/dead.emails")


async def test_damage_is_shown(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.publish_many("orders", [b"x"] * 10)
        partition = board.listener.core.catalog.get("orders").partitions[0]
        partition.log.damaged.append(DamagedRange(2, 4, "00.damaged", "a checksum is wrong"))
        async with board.visit("/topics") as page:
            await expect(page.get_by_text("damaged", exact=True)).to_be_visible()
            await page.get_by_role("link", name="orders", exact=True).click()
            await expect(page.get_by_text("a checksum is wrong")).to_be_visible()


async def test_a_topic_that_is_not_there(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/topics/missing", allow={404}) as page:
        await expect(page.get_by_text("There is no such topic")).to_be_visible()
        await page.get_by_role("link", name="Search topics").click()
        await expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()


async def test_names_with_strange_characters(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        name = "a/b é%2F? <b &y=1#z,;"
        await board.broker.publish(name, "inside")
        async with board.visit("/topics") as page:
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_role("heading", level=1)).to_have_text(name)
            await expect(page.get_by_text("inside")).to_be_visible()


async def test_a_viewer_sees_topics_and_changes_nothing(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        await board.broker.publish("orders", "hello")
        async with board.visit("/topics", login="ann") as page:
            await expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
            await expect(page.get_by_role("button", name="Create topic")).to_have_count(0)
            await page.get_by_role("link", name="orders", exact=True).click()
            await expect(
                page.get_by_role("link", name="Newest messages", exact=True)
            ).to_be_visible()
            table = page.get_by_role("table", name="Newest messages")
            await expect(table.get_by_text("hello")).to_be_visible()
            for name in ("Change settings", "Add partitions", "Delete topic …", "Publish"):
                button = page.get_by_role("button", name=name, exact=True)
                await expect(button).to_have_count(0)
            await page.get_by_role("tab", name="Readers").click()
            await expect(page.get_by_text("Only admins see who they are.")).to_be_visible()


async def test_an_observer_sees_no_message(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("olga", Role.OBSERVER)
        await board.broker.publish("orders", "secret text")
        async with board.visit("/topics/orders", login="olga") as page:
            await expect(page.get_by_text("ever published")).to_be_visible()
            await expect(page.get_by_text("secret text")).to_have_count(0)
            await expect(page.get_by_role("link", name="Newest messages")).to_have_count(0)
