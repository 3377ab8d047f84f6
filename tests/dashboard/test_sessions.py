"""Browser sessions: one's own, everybody's for an admin, and ending them."""

from __future__ import annotations

from playwright.async_api import expect

from fanlog.identity import Role
from tests.dashboard.boards import axe, fits
from tests.dashboard.conftest import Dashboard


async def test_an_admin_sees_all_sessions_and_ends_one(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with (
            board.visit("/cluster", login="ann", allow={401}) as hers,
            board.visit("/sessions") as page,
        ):
            await expect(hers.get_by_role("heading", name="Cluster")).to_be_visible()
            await expect(page.get_by_role("row", name="this browser")).to_contain_text("admin")
            await axe(page)
            await page.get_by_label("Search sessions").fill("ann")
            await expect(page.get_by_text("1 session", exact=True)).to_be_visible()
            await page.get_by_role("button", name="End the session of ann").click()
            await page.get_by_role("dialog").get_by_role("button", name="End the session").click()
            await expect(page.get_by_text("No session fits.")).to_be_visible()
            await expect(hers.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()
        assert board.listener.entrance.sessions.all("ann") == []


async def test_users_see_and_end_their_own_alone(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        await board.user("bob", Role.VIEWER)
        async with (
            board.visit("/cluster", login="bob"),
            board.visit("/cluster", login="ann", allow={401}),
            board.visit("/sessions", login="ann", phone=True) as page,
        ):
            await expect(page.get_by_text("2 sessions")).to_be_visible()
            await expect(page.get_by_role("row", name="bob")).to_have_count(0)
            await fits(page)
            await page.get_by_role("button", name="End my other sessions").click()
            await page.get_by_role("dialog").get_by_role("button", name="End them").click()
            await expect(page.get_by_text("1 session", exact=True)).to_be_visible()
        assert len(board.listener.entrance.sessions.all("ann")) == 1
        assert len(board.listener.entrance.sessions.all("bob")) == 1
        foreign = board.listener.entrance.sessions.all("bob")[0].id
        async with board.visit("/sessions", login="ann") as page:
            answer = await page.request.delete(
                f"{board.url}/v1/sessions/{foreign}", headers={"Sec-Fetch-Site": "same-origin"}
            )
            assert answer.status == 404


async def test_ending_the_own_session_logs_out(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board, board.visit("/sessions", allow={401}) as page:
        row = page.get_by_role("row", name="this browser")
        await row.get_by_role("button", name="End the session").click()
        await page.get_by_role("dialog").get_by_role("button", name="End the session").click()
        await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()


async def test_without_logins_there_are_no_sessions(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/sessions") as page:
        await expect(page.get_by_text("This broker asks for no logins")).to_be_visible()
