"""The card of the node, as an admin and as a viewer see it."""

from __future__ import annotations

from playwright.async_api import expect

from fanlog.identity import Role
from tests.dashboard.boards import axe, fits
from tests.dashboard.conftest import Dashboard


async def test_the_node_is_described(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.client():
        await board.broker.create_topic("orders")
        async with board.visit("/cluster") as page:
            await expect(page.get_by_text("One node holds all topics.")).to_be_visible()
            await expect(page.get_by_role("main").get_by_text("Healthy")).to_be_visible()
            table = page.get_by_role("table", name="Listeners")
            await expect(table).to_contain_text(f"127.0.0.1:{board.listener.port}")
            await expect(table.get_by_role("row", name="native")).to_be_visible()
            await expect(page.get_by_text(str(board.node.core.folder))).to_be_visible()
            await axe(page)


async def test_a_viewer_does_not_see_the_folder(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/cluster", login="ann", phone=True, dark=True) as page:
            await expect(page.get_by_text("One node holds all topics.")).to_be_visible()
            await expect(page.get_by_text("Data folder")).to_have_count(0)
            await fits(page)
            await axe(page)
