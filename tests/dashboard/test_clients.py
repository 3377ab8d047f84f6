"""Clients in the browser: who sends most is found, closed, limited and kept out."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from playwright.async_api import expect

from fanlog.errors import FanlogError
from fanlog.identity import Role
from tests.dashboard.boards import axe, fits
from tests.dashboard.conftest import Dashboard
from tests.listeners.web.test_websocket import talking


async def test_a_noisy_client_is_found_closed_and_kept_out(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.broker.create_topic("orders")
        noisy, quiet = (
            board.make_key("noisy", Role.PRODUCER),
            board.make_key("quiet", Role.CONSUMER),
        )
        async with (
            board.client(key=noisy, reconnect=False) as flood,
            board.client(key=quiet) as reader,
            reader.subscribe("orders"),
        ):
            for _ in range(50):
                await flood.publish("orders", b"x" * 10_000)
            async with board.visit("/clients") as page:
                await page.get_by_text("How to stop a noisy client").click()
                await expect(page.get_by_text("Keep it out, or slow it down")).to_be_visible()
                await page.get_by_role("button", name="Sends most").click()
                rows = page.get_by_role("table", name="Clients").get_by_role("row")
                await expect(rows.nth(1)).to_contain_text("noisy")
                await expect(rows.nth(2)).to_contain_text("orders")
                await axe(page)
                # Limited
                await rows.nth(1).get_by_text("noisy").click()
                dialog = page.get_by_role("dialog")
                await expect(dialog).to_contain_text("key noisy")
                await dialog.get_by_role("link", name="Limit its rate").click()
                await dialog.get_by_label("Messages a second").fill("7")
                await dialog.get_by_role("button", name="Save").click()
                await expect(page.get_by_role("row", name="noisy")).to_contain_text("7 messages/s")
                assert board.node.security is not None
                allowance = board.node.security.directory.keys["noisy"].allowance
                assert allowance.messages_per_second == 7
                # Closed
                await page.go_back()
                await page.goto(f"{board.url}/#/clients?sort=received_rate")
                await page.get_by_role("button", name="Close noisy").click()
                await dialog.get_by_label("Reason").fill("too noisy")
                await dialog.get_by_role("button", name="Close connection", exact=True).click()
                await expect(page.get_by_text("Closed 1 connection.")).to_be_visible()
                with pytest.raises(FanlogError, match="too noisy"):
                    await flood.publish("orders", b"x")
                # Kept out
                await page.get_by_role("button", name="Keep it out").click()
                await page.get_by_role("button", name="Revoke noisy").click()
                await dialog.get_by_role("textbox").fill("noisy")
                await dialog.get_by_role("button", name="Revoke").click()
                await expect(page.get_by_text("Revoked the key noisy.")).to_be_visible()
        with pytest.raises(FanlogError):
            async with board.client(key=noisy, reconnect=False):
                pass


async def test_all_connections_of_a_user_are_closed(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic("orders")
        url = board.url.replace("http", "ws") + "/v1/ws?user=ann"
        async with talking(url) as one, talking(url) as two:
            await one.ask(op="subscribe", target="orders")
            await two.ask(op="subscribe", target="orders")
            async with board.visit("/clients") as page:
                await expect(page.get_by_role("row", name="ann")).to_have_count(2)
                await page.get_by_role("link", name="ann 2").click()
                await expect(page.get_by_role("button", name="Only user ann")).to_be_visible()
                await page.get_by_role("button", name="Close ann").first.click()
                dialog = page.get_by_role("dialog")
                await dialog.get_by_label("All connections of ann (2)").check()
                await dialog.locator("footer").get_by_role("button", name="Close").click()
                await expect(page.get_by_text("Closed 2 connections.")).to_be_visible()
                await expect(page.get_by_role("row", name="ann")).to_have_count(0)
            while len(board.listener.connections):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)


async def test_clients_are_searched_and_filtered(dashboard: Dashboard) -> None:
    async with dashboard(flowing=True) as board, board.visit("/clients", phone=True) as page:
        table = page.get_by_role("table", name="Clients")
        await expect(table.get_by_role("row").nth(1)).to_be_visible()
        await fits(page)
        await page.get_by_label("Search clients").fill("chat.room")
        await expect(page.get_by_text("4 clients")).to_be_visible()
        await page.get_by_label("Listener").select_option("redis")
        await expect(page.get_by_text("No client fits.")).to_be_visible()
        await page.get_by_label("Listener").select_option("web")
        await expect(page.get_by_text("4 clients")).to_be_visible()


async def test_clients_of_all_processes_are_listed_page_by_page(dashboard: Dashboard) -> None:
    async with dashboard() as board, AsyncExitStack() as stack:
        url = board.url.replace("http", "ws") + "/v1/ws?user="
        for number in range(60):
            await stack.enter_async_context(talking(f"{url}user{number}"))
        async with board.visit("/clients?edges=true") as page:
            rows = page.get_by_role("table", name="Clients of all processes").get_by_role("row")
            await expect(rows).to_have_count(51)
            await expect(page.get_by_text("60 in all")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(rows).to_have_count(11)
            await page.get_by_role("button", name="Previous page").click()
            await expect(rows).to_have_count(51)
            await page.get_by_label("User", exact=True).fill("user7")
            await expect(rows).to_have_count(2)
            await page.get_by_role("button", name="Close user7").click()
            await page.locator("dialog footer").get_by_role("button", name="Close").click()
            await expect(page.get_by_text("No client fits.")).to_be_visible()


async def test_a_viewer_sees_nobody(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/clients", login="ann") as page:
            await expect(page.get_by_text("Only admins see the connections.")).to_be_visible()
            await expect(page.get_by_role("link", name="Clients")).to_have_count(0)
            for path in ("connection-list", "connections"):
                assert (await page.request.get(f"{board.url}/v1/{path}")).status == 403
            page_of_ours = {"Sec-Fetch-Site": "same-origin"}
            for method, path in (("delete", "connections/x"), ("post", "users/u/disconnect")):
                send = getattr(page.request, method)
                answer = await send(f"{board.url}/v1/{path}", headers=page_of_ours)
                assert answer.status == 403
