"""Keys, users, roles and questions about them, in the browser, with their effect on clients."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from fanlog.errors import FanlogError
from fanlog.identity import Role
from tests.dashboard.boards import PASSWORD, Board, axe
from tests.dashboard.conftest import Dashboard


async def ask(board: Board, path: str, key: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with board.http.get(path, headers=headers) as answer:
        return answer.status, await answer.json()


async def log_in(board: Board, user: str, password: str) -> int:
    body, page = {"user": user, "password": password}, {"Sec-Fetch-Site": "same-origin"}
    async with board.http.post("/v1/login", json=body, headers=page) as answer:
        return answer.status


async def may(board: Board, account: str, verb: str, name: str) -> bool:
    path = f"/v1/may?verb={verb}&name={name}&account={account}"
    return (await ask(board, path))[1]["allowed"]


async def new_key(page: Page) -> str:
    """The key that is shown once."""
    await expect(page.get_by_text("Copy it now.")).to_be_visible()
    text = await page.locator("dialog pre").inner_text()
    await page.get_by_role("dialog").get_by_role("button", name="Copy the key").click()
    assert await page.evaluate("() => navigator.clipboard.readText()") == text
    await page.locator("dialog footer").get_by_role("button", name="Close").click()
    return text


async def test_a_key_is_created_shown_once_changed_rotated_and_revoked(
    dashboard: Dashboard,
) -> None:
    async with dashboard(auth=True) as board, board.visit("/security") as page:
        await board.broker.create_topic("orders.eu")
        # Created
        await page.get_by_role("button", name="Create a key").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("shop")
        await dialog.get_by_label("Role").select_option("producer")
        await dialog.get_by_text("Rules: which topics").click()
        await dialog.get_by_label("May publish to").fill("orders.>\n!orders.secret")
        await dialog.get_by_label("Comment").fill("of the web shop")
        await axe(page)
        await dialog.get_by_role("button", name="Create").click()
        secret = await new_key(page)
        row = page.get_by_role("row", name="shop")
        await expect(row).to_contain_text("!orders.secret")
        async with board.client(key=secret) as client:
            await client.publish("orders.eu", "hello")
        assert not await may(board, "shop", "publish", "orders.secret")
        # Changed
        await page.get_by_role("button", name="Change shop").click()
        await expect(dialog.get_by_label("Comment")).to_have_value("of the web shop")
        await dialog.get_by_label("May publish to").fill("")
        await dialog.get_by_text("Limits: how much").click()
        await dialog.get_by_label("Messages a second").fill("1500")
        await dialog.get_by_role("button", name="Save").click()
        await expect(row).to_contain_text("1.5 k messages/s")
        assert await may(board, "shop", "publish", "orders.secret")
        # Rotated, with a time in which both are good
        await page.get_by_role("button", name="Rotate shop").click()
        await dialog.get_by_label("The old secret ends").select_option("In a day")
        await dialog.get_by_role("button", name="Rotate").click()
        newer = await new_key(page)
        assert newer != secret
        for key in (secret, newer):
            assert (await ask(board, "/v1/whoami", key))[0] == 200
        await page.get_by_role("button", name="Rotate shop").click()
        await dialog.get_by_label("The old secret ends").select_option("At once")
        await dialog.get_by_role("button", name="Rotate").click()
        newest = await new_key(page)
        statuses = [(await ask(board, "/v1/whoami", key))[0] for key in (secret, newer, newest)]
        assert statuses == [401, 401, 200]
        # Revoked
        await page.get_by_role("button", name="Revoke shop").click()
        button = dialog.get_by_role("button", name="Revoke")
        await expect(button).to_be_disabled()
        await dialog.get_by_role("textbox").fill("shop")
        await button.click()
        await expect(row).to_have_count(0)
        assert (await ask(board, "/v1/whoami", newest))[0] == 401


async def test_a_user_is_created_changed_disabled_and_deleted(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board, board.visit("/security?tab=users") as page:
        dialog = page.get_by_role("dialog")
        await page.get_by_role("button", name="Create a user").click()
        await dialog.get_by_label("Name", exact=True).fill("ann")
        await dialog.get_by_label("Password").fill("first secret")
        await dialog.get_by_role("button", name="Create").click()
        row = page.get_by_role("row", name="ann")
        await expect(row).to_contain_text("viewer")
        assert await log_in(board, "ann", "first secret") == 200
        # A role and rules
        await page.get_by_role("button", name="Change ann").click()
        await dialog.get_by_label("Role").select_option("consumer")
        await dialog.get_by_text("Rules: which topics").click()
        await dialog.get_by_label("May read").fill("orders.*")
        await dialog.get_by_role("button", name="Save").click()
        await expect(row).to_contain_text("orders.*")
        assert await may(board, "ann", "subscribe", "orders.eu")
        assert not await may(board, "ann", "subscribe", "logs")
        # A password
        await page.get_by_role("button", name="Set the password of ann").click()
        await dialog.get_by_label("New password", exact=True).fill("second secret")
        await dialog.get_by_label("New password again").fill("other")
        await expect(dialog.get_by_role("button", name="Set the password")).to_be_disabled()
        await dialog.get_by_label("New password again").fill("second secret")
        await dialog.get_by_role("button", name="Set the password").click()
        await expect(page.get_by_text("The password of ann is changed.")).to_be_visible()
        assert await log_in(board, "ann", "second secret") == 200
        assert await log_in(board, "ann", "first secret") == 401
        # Off and on
        await page.get_by_role("button", name="Disable ann").click()
        await dialog.get_by_role("button", name="Disable").click()
        await expect(row).to_contain_text("disabled")
        assert await log_in(board, "ann", "second secret") == 401
        await page.get_by_role("button", name="Enable ann").click()
        await expect(row.get_by_text("disabled", exact=True)).to_have_count(0)
        # Gone
        await page.get_by_role("button", name="Delete ann").click()
        await dialog.get_by_role("textbox").fill("ann")
        await dialog.get_by_role("button", name="Delete").click()
        await expect(row).to_have_count(0)
        assert (await ask(board, "/v1/account-list?kind=user"))[1]["total"] == 0


async def test_what_the_broker_refuses_is_shown_in_the_dialog(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board, board.visit("/security", allow={400, 409}) as page:
        board.make_key("taken", Role.VIEWER)
        dialog = page.get_by_role("dialog")
        await page.get_by_role("button", name="Create a key").click()
        await dialog.get_by_label("Name").fill("taken")
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("taken")
        await dialog.get_by_label("Name").fill("other")
        await dialog.get_by_text("Rules: which topics").click()
        await dialog.get_by_label("May read").fill("a.>.b")
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("a.>.b")
        assert (await ask(board, "/v1/account-list?search=other"))[1]["total"] == 0


async def test_many_keys_are_searched_sorted_and_paged(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        for number in range(120):
            board.make_key(f"key{number:03}", Role.PRODUCER if number % 2 else Role.VIEWER)
        async with board.visit("/security?tab=keys") as page:
            await expect(page.get_by_text("1–50 of 121 keys")).to_be_visible()
            await page.get_by_role("button", name="Next page").click()
            await expect(page.get_by_text("51–100 of 121 keys")).to_be_visible()
            await expect(page.get_by_role("row", name="key049")).to_be_visible()
            await page.get_by_role("button", name="Key", exact=True).click()
            await expect(page.get_by_role("row", name="key119")).to_be_visible()
            await page.get_by_label("Search keys").fill("key11")
            await expect(page.get_by_text("10 keys")).to_be_visible()
            await page.get_by_label("Role").select_option("producer")
            await expect(page.get_by_text("5 keys")).to_be_visible()


async def test_may_this_key_publish_here(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        board.make_key("shop", Role.PRODUCER, publish=("orders.>",))
        async with board.visit("/security", allow={404}) as page:
            await page.get_by_role("link", name="Check what shop may do").click()
            await expect(page.get_by_label("Key or user")).to_have_value("shop")
            await page.get_by_label("Name or pattern").fill("orders.eu")
            await page.get_by_role("button", name="Ask").click()
            await expect(page.get_by_role("main").get_by_role("status")).to_contain_text(
                "Yes shop may publish to orders.eu"
            )
            await page.get_by_label("Name or pattern").fill("logs")
            await page.get_by_role("button", name="Ask").click()
            await expect(page.get_by_role("main").get_by_role("status")).to_contain_text(
                "No shop may not publish to logs"
            )
            await axe(page)
            await page.get_by_label("Key or user").fill("nobody")
            await page.get_by_role("button", name="Ask").click()
            await expect(page.get_by_role("alert")).to_contain_text("nobody")


async def test_a_viewer_sees_roles_and_own_rights_and_nothing_else(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/security?tab=keys", login="ann") as page:
            await expect(page.get_by_role("tab", name="What may I do?")).to_be_visible()
            for name in ("Keys", "Users"):
                await expect(page.get_by_role("tab", name=name)).to_have_count(0)
            await expect(page.get_by_role("button", name="Create a key")).to_have_count(0)
            await page.get_by_label("Name or pattern").fill("orders")
            await page.get_by_role("button", name="Ask").click()
            await expect(page.get_by_role("main").get_by_role("status")).to_contain_text("No ann")
            await page.get_by_role("tab", name="Roles").click()
            await expect(page.get_by_role("row", name="observer")).to_be_visible()
            # The server refuses what is hidden.
            for path in ("keys", "users", "account-list"):
                answer = await page.request.get(f"{board.url}/v1/{path}")
                assert answer.status == 403


async def test_users_change_their_own_password(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.user("ann", Role.VIEWER)
        async with board.visit("/sessions", login="ann", allow={401}) as page:
            await page.get_by_role("button", name="Change my password").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Old password").fill("wrong")
            await dialog.get_by_label("New password", exact=True).fill("a new secret")
            await dialog.get_by_label("New password again").fill("a new secret")
            await dialog.get_by_role("button", name="Change").click()
            await expect(dialog.get_by_role("alert")).to_contain_text("old password is wrong")
            await dialog.get_by_label("Old password").fill(PASSWORD)
            await dialog.get_by_role("button", name="Change").click()
            await expect(page.get_by_role("heading", name="Log in to Fanlog")).to_be_visible()
        assert await log_in(board, "ann", "a new secret") == 200


async def test_a_broker_without_logins_says_how_to_turn_them_on(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/security") as page:
        await expect(page.get_by_text("This broker asks for no logins")).to_be_visible()
        await expect(page.get_by_role("button", name="Create a key")).to_have_count(0)


async def test_a_revoked_key_is_cut_off(dashboard: Dashboard) -> None:
    async with dashboard(auth=True) as board:
        await board.broker.create_topic("orders")
        key = board.make_key("noisy", Role.PRODUCER)
        async with (
            board.visit("/security?tab=keys&search=noisy") as page,
            board.client(key=key, reconnect=False) as client,
        ):
            await client.publish("orders", "one")
            await page.get_by_role("button", name="Revoke noisy").click()
            await page.get_by_role("dialog").get_by_role("textbox").fill("noisy")
            await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
            await expect(page.get_by_text("Revoked the key noisy.")).to_be_visible()
            with pytest.raises(FanlogError):
                await client.publish("orders", "two")
