"""Rooms in the browser: which topics have people in them, and who they are."""

from __future__ import annotations

from playwright.async_api import expect

from fanlog.identity import Role
from tests.dashboard.boards import axe, fits
from tests.dashboard.conftest import Dashboard
from tests.listeners.web.test_websocket import talking

LOBBY = "chat.lobby"


async def test_people_come_are_seen_and_are_disconnected(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await board.broker.create_topic(LOBBY)
        url = board.url.replace("http", "ws") + "/v1/ws?user="
        async with talking(url + "ann") as ann, talking(url + "bob") as bob:
            await ann.ask(op="subscribe", target=LOBBY, presence={"mood": "good"})
            await bob.ask(op="subscribe", target=LOBBY, presence=True)
            async with board.visit("/rooms") as page:
                row = page.get_by_role("row", name=LOBBY)
                await expect(row).to_contain_text("2")
                await axe(page)
                await page.get_by_role("link", name=LOBBY).click()
                await expect(page.get_by_role("heading", name=LOBBY)).to_be_visible()
                await expect(page.get_by_role("row", name="ann")).to_contain_text('{"mood":"good"}')
                await axe(page)
                await page.get_by_label("Search people").fill("b")
                await expect(page.get_by_role("row", name="ann")).to_have_count(0)
                await page.get_by_role("button", name="Disconnect bob").click()
                await page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
                await expect(page.get_by_text("Closed 1 connection.")).to_be_visible()
                await expect(page.get_by_role("row", name="bob")).to_contain_text("just left")
            assert [peer.user for peer in board.listener.connections.every()] == ["ann"]


async def test_many_rooms_are_searched_sorted_and_paged(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        for number in range(130):
            board.listener.presence.join(f"room.{number:03}", f"c{number}", f"u{number}")
        async with board.visit("/rooms", phone=True, dark=True) as page:
            await expect(page.get_by_text("1–50 of 130 rooms")).to_be_visible()
            await fits(page)
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_role("link", name="room.050")).to_be_visible()
            await page.get_by_role("button", name="Topic").click()
            await expect(page.get_by_role("link", name="room.000")).to_be_visible()
            await page.get_by_label("Search rooms").fill("ROOM.12")
            await expect(page.get_by_text("10 rooms")).to_be_visible()


async def test_a_viewer_sees_people_and_can_disconnect_nobody(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER, subscribe=("chat.>",))
        board.listener.presence.join(LOBBY, "c1", "carla")
        board.listener.presence.join("secret", "c2", "carla")
        async with board.visit("/rooms", login="ann", allow={403}) as page:
            await page.get_by_role("link", name=LOBBY).click()
            await expect(page.get_by_role("row", name="carla")).to_be_visible()
            await expect(page.get_by_role("button", name="Disconnect")).to_have_count(0)
            await page.goto(f"{board.url}/#/rooms")
            await expect(page.get_by_text("1 room", exact=True)).to_be_visible()
            await page.goto(f"{board.url}/#/rooms/secret")
            await expect(page.get_by_role("alert")).to_contain_text("presence")
