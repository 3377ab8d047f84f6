"""Open transactions in a browser: seen, sorted and aborted."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from fanlog.errors import TransactionNotFoundError
from fanlog.identity import Role
from tests.dashboard.boards import axe
from tests.dashboard.conftest import Dashboard


async def test_a_transaction_is_shown_and_aborted(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.client(name="loader") as client:
        work = client.transaction("monthly", timeout_seconds=600)
        await work.__aenter__()
        await work.publish("payments", "one")
        await work.publish("payments", "two")
        await work.flush()
        async with board.visit("/transactions") as page:
            row = page.get_by_role("row").filter(has_text="monthly")
            await expect(row).to_contain_text("payments")
            await expect(row).to_contain_text("loader")
            await expect(row.get_by_role("cell").nth(3)).to_have_text("2")
            await axe(page)
            await row.get_by_role("button", name="Abort monthly").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("2 staged messages")
            await page.keyboard.press("Escape")
            await expect(row).to_be_visible()
            await row.get_by_role("button", name="Abort monthly").click()
            await dialog.get_by_role("button", name="Abort the transaction").click()
            await expect(page.get_by_text("monthly is aborted.")).to_be_visible()
            await expect(page.get_by_text("No transaction is open.")).to_be_visible()
        with pytest.raises(TransactionNotFoundError):
            await work.commit()
        assert (await board.broker.describe_topic("payments")).records == 0


async def test_the_order_is_in_the_address(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        works = [board.broker.transaction(f"w{i}") for i in range(3)]
        for i, work in enumerate(works):
            await work.__aenter__()
            for _ in range(i + 1):
                await work.publish("t", "x")
            await work.flush()
        async with board.visit("/transactions") as page:
            rows = page.get_by_role("table").locator("tbody tr")
            await expect(rows).to_have_count(3)
            await page.get_by_role("button", name="Messages").click()
            await expect(rows.first).to_contain_text("w2")
            await page.get_by_role("button", name="Messages").click()
            await expect(rows.first).to_contain_text("w0")
            await page.reload()
            await expect(rows.first).to_contain_text("w0")
        for work in works:
            await work.abort()


async def test_a_viewer_can_not_abort(dashboard: Dashboard) -> None:
    async with dashboard(auth=True, flowing=True) as board:
        await board.user("vera", Role.VIEWER)
        async with board.visit("/transactions", login="vera") as page:
            await expect(page.get_by_role("row").filter(has_text="payments")).to_be_visible()
            await expect(page.get_by_role("button", name="Abort")).to_have_count(0)
