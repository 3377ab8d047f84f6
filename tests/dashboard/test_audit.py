"""The audit page: what happened is found, older records too, and the chain is checked."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from playwright.async_api import expect

from fanlog.format.batch import encode_batch
from fanlog.identity import Identity, Role
from fanlog.security.audit import AUDIT_TOPIC
from tests.dashboard.boards import Board, axe
from tests.dashboard.conftest import Dashboard

ANN = Identity("ann", "192.0.2.7:1", "native")


async def note(board: Board, *notes: tuple[str, str, Any]) -> None:
    """Has these written down, and waits until they can be read."""
    audit: Any = board.node.core.audit
    for action, name, result in notes:
        audit.note(ANN, action, name, result, "for a test")
    while await written(board) < len(notes):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


async def written(board: Board) -> int:
    async with board.http.get("/v1/audit/search?limit=1") as answer:
        return (await answer.json())["total"]


async def test_records_are_searched_by_text_who_action_and_result(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await note(
            board,
            ("topic.create", "orders", "ok"),
            ("topic.delete", "orders", "failed"),
            ("key.create", "shop", "ok"),
        )
        async with board.visit("/audit") as page:
            rows = page.get_by_role("table", name="Audit records").get_by_role("row")
            await expect(rows).to_have_count(4)
            # The newest first. What failed is gathered for a moment.
            await expect(rows.nth(1)).to_contain_text("topic.delete")
            await expect(rows.nth(3)).to_contain_text("topic.create")
            await page.get_by_label("Search the audit log").fill("ORDERS")
            await expect(rows).to_have_count(3)
            await page.get_by_label("Result").select_option("failed")
            await expect(rows).to_have_count(2)
            await expect(rows.nth(1)).to_contain_text("topic.delete")
            await axe(page)
            # It is all in the address.
            await page.reload()
            await expect(rows.nth(1)).to_contain_text("topic.delete")
            await page.get_by_role("button", name="Clear the search").click()
            await page.get_by_label("Action").select_option("key.*")
            await expect(rows.nth(1)).to_contain_text("shop")
            await page.get_by_label("Search who did it").fill("nobody")
            await expect(page.get_by_text("No record fits.")).to_be_visible()
            await page.get_by_label("Search who did it").fill("ann")
            await expect(rows.nth(1)).to_contain_text("shop")
            await rows.nth(1).click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("192.0.2.7")
            await expect(dialog).to_contain_text('"prev"')


async def test_a_time_range_limits_the_search(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await note(board, ("topic.create", "orders", "ok"))
        async with board.visit("/audit") as page:
            await expect(page.get_by_text("1 record shown")).to_be_visible()
            await page.get_by_label("When").select_option("1h")
            await expect(page.get_by_role("row", name="orders")).to_be_visible()
            await page.get_by_label("When").select_option("range")
            await page.get_by_label("To", exact=True).fill("2020-01-01T00:00")
            await expect(page.get_by_text("No record fits.")).to_be_visible()
            await page.get_by_label("To", exact=True).fill("2100-01-01T00:00")
            await expect(page.get_by_role("row", name="orders")).to_be_visible()


async def test_older_records_are_shown_on_demand(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await note(board, *(("topic.create", f"t{number:03}", "ok") for number in range(120)))
        async with board.visit("/audit") as page:
            await expect(page.get_by_text("50 records shown; the log has 120")).to_be_visible()
            await page.get_by_role("button", name="Show older").click()
            await expect(page.get_by_text("100 records shown")).to_be_visible()
            await page.get_by_role("button", name="Show older").click()
            await expect(page.get_by_text("120 records shown")).to_be_visible()
            await expect(page.get_by_role("row", name="t000")).to_be_visible()
            await expect(page.get_by_role("button", name="Show older")).to_have_count(0)


async def test_a_chain_is_verified_and_a_foreign_record_is_found(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await note(board, *(("topic.create", f"t{number}", "ok") for number in range(30)))
        async with board.visit("/audit") as page:
            verify = page.get_by_role("button", name="Verify the chain")
            await verify.click()
            await expect(page.get_by_text("The chain is whole")).to_be_visible()
            await expect(page.get_by_text("30 records, 0 to 29.")).to_be_visible()
            head = await page.locator(".head code").inner_text()
            assert re.fullmatch("29:[0-9a-f]{64}", head)
            await page.get_by_text("Compare with a head").click()
            await page.get_by_role("textbox", name="Head").fill("29:" + "0" * 64)
            await verify.click()
            await expect(page.get_by_text("does not have the hash that you kept")).to_be_visible()
            await axe(page)
            await page.get_by_role("textbox", name="Head").fill(head)
            await verify.click()
            await expect(page.get_by_text("The chain is whole")).to_be_visible()
            # Somebody puts in a record.
            core = board.node.core
            partition = core.catalog.get(AUDIT_TOPIC).partitions[0]
            core.internal.write_internal(partition, encode_batch([b"{}"]), lambda fault: None)
            await verify.click()
            await expect(page.get_by_text("The log was changed or damaged")).to_be_visible()
            await expect(page.get_by_text("Record 30 was changed")).to_be_visible()


async def test_a_viewer_sees_no_audit_log(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/audit", login="ann") as page:
            await expect(page.get_by_text("Only admins see the audit log.")).to_be_visible()
            await expect(page.get_by_role("link", name="Audit", exact=True)).to_have_count(0)
            for path in ("search", "verify"):
                answer = await page.request.get(f"{board.url}/v1/audit/{path}")
                assert answer.status == 403
