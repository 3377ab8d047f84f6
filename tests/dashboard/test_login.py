"""The login page: each way in, what is said of a wrong one, and the page that was asked for."""

from __future__ import annotations

from playwright.async_api import Page, expect

from fanlog.config import Config
from fanlog.config_limits import LimitOptions
from fanlog.identity import Role
from tests.dashboard.boards import PASSWORD, axe, fits
from tests.dashboard.conftest import Dashboard


async def fill_password(page: Page, user: str, password: str) -> None:
    await page.get_by_label("User").fill(user)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


async def test_a_user_logs_in_and_gets_the_page_that_was_asked_for(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/security?tab=roles", login="") as page:
            await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()
            await axe(page)
            await fill_password(page, "ann", PASSWORD)
            await expect(page.get_by_role("heading", name="Security")).to_be_visible()
            await expect(page.get_by_role("heading", name="How rules work")).to_be_visible()
            await expect(page.get_by_role("link", name="ann")).to_be_visible()
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()


async def test_a_key_logs_in(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board, board.visit("/cluster", login="", phone=True) as page:
        await page.get_by_role("tab", name="Key").click()
        await page.locator("form").get_by_label("Key").fill(f" {board.key} ")
        await fits(page)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Cluster")).to_be_visible()


async def test_a_wrong_password_is_told_and_many_are_locked_out(dashboard: Dashboard) -> None:
    limits = LimitOptions(wrong_logins_max=2)
    config = Config(limits=limits)
    async with dashboard(auth=True, config=config) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/", login="", allow={429}, dark=True) as page:
            await fill_password(page, "ann", "wrong")
            await expect(page.get_by_role("alert")).to_contain_text("wrong")
            # The secret is gone; the name stays.
            await expect(page.get_by_label("Password")).to_have_value("")
            await expect(page.get_by_label("User")).to_have_value("ann")
            # On a slow machine wrong logins are forgotten nearly as fast as they come.
            for _ in range(60):
                await fill_password(page, "ann", "wrong again")
                await expect(page.get_by_role("button", name="Log in")).not_to_have_attribute(
                    "aria-busy", "true"
                )
                if "Too many" in "".join(await page.get_by_role("alert").all_inner_texts()):
                    break
            await expect(page.get_by_role("alert")).to_contain_text("Too many wrong logins")
            await axe(page)


async def test_who_loses_the_session_is_asked_for_a_login(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/cluster", login="ann", allow={401}) as page:
            await expect(page.get_by_text("One node holds all topics.")).to_be_visible()
            sessions = board.listener.entrance.sessions
            for session in sessions.all("ann"):
                sessions.close(session)
            await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()
            await fill_password(page, "ann", PASSWORD)
            await expect(page.get_by_role("heading", name="Cluster")).to_be_visible()


async def test_single_sign_on_is_offered_where_there_is_a_provider(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board, board.visit("/audit", login="", wait=False) as page:
        offered = {"auth": True, "ways": ["password", "key", "oidc"], "oidc": "/v1/oidc/login"}
        await page.route("**/v1/login", lambda route: route.fulfill(json=offered))
        await page.reload()
        link = page.get_by_role("link", name="Continue with single sign-on")
        await expect(link).to_have_attribute("href", "/v1/oidc/login?page=%2F%23%2Faudit")
