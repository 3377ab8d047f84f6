"""Settings in the browser: found, changed now or for the next start, and read again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from fanlog.cli.live import ServedSettings
from fanlog.cli.settings import load_settings
from fanlog.identity import Role
from tests.dashboard.boards import Board, axe, fits
from tests.dashboard.conftest import Dashboard

FILE = """\
# Ours.
[listener]
drain_seconds = 5
[audit]
level = "denials"
"""


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The level of the log is the whole process's: other tests need it as it was."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


def serve(board: Board, file: Path | None, environment: dict[str, str] | None = None) -> None:
    """Gives the broker a file with settings, as `fanlog serve` does."""
    settings = load_settings(file, {}, environment or {})
    board.node.core.settings = ServedSettings(board.node, settings, {}, lambda config: None)


async def value(board: Board, option: str) -> Any:
    async with board.http.get("/v1/config") as answer:
        found = (await answer.json())["settings"]
    return next(one for one in found if one["option"] == option)


async def test_a_live_setting_is_changed_and_written_down(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard() as board:
        serve(board, file)
        async with board.visit("/settings", allow={400}) as page:
            await page.get_by_label("Search settings").fill("drain_seconds")
            row = page.get_by_role("row", name="listener.drain_seconds")
            await expect(row).to_contain_text("at once")
            await axe(page)
            await page.get_by_role("button", name="Change listener.drain_seconds").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Value").fill("soon")
            await dialog.get_by_role("button", name="Change now").click()
            await expect(dialog.get_by_role("alert")).to_contain_text("a duration")
            await dialog.get_by_label("Value").fill("2m")
            await dialog.get_by_role("button", name="Change now").click()
            await expect(row).to_contain_text("2 min")
        assert (await value(board, "listener.drain_seconds"))["value"] == 120
        assert load_settings(file, {}, {}).config.listener.drain_seconds == 120
        assert "# Ours." in file.read_text()


async def test_a_change_may_last_until_the_next_start(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard() as board:
        serve(board, file)
        async with board.visit("/settings?search=audit.level") as page:
            await page.get_by_role("button", name="Change audit.level").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Value").select_option("all")
            await dialog.get_by_label("Only until the next start").check()
            await dialog.get_by_role("button", name="Change now").click()
            await expect(page.get_by_role("row", name="audit.level")).to_contain_text(
                "until restart"
            )
        assert (await value(board, "audit.level"))["value"] == "all"
        assert file.read_text() == FILE


async def test_what_needs_a_restart_waits_for_it_and_can_be_taken_back(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard() as board:
        serve(board, file)
        async with board.visit("/settings?search=auto_create") as page:
            name = "broker.auto_create_topics"
            await expect(page.get_by_role("row", name=name)).to_contain_text("after a restart")
            await page.get_by_role("button", name=f"Change {name}").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Value").select_option("off")
            await dialog.get_by_role("button", name="Save for the next start").click()
            await expect(page.get_by_text(f"1 change waits for a restart: {name}")).to_be_visible()
            assert (await value(board, name))["pending"] is False
            await page.get_by_role("button", name=f"Change {name}").click()
            await dialog.get_by_label("Back to the default").check()
            await dialog.get_by_role("button", name="Save for the next start").click()
            await expect(page.get_by_text("waits for a restart")).to_have_count(0)
        assert "pending" not in await value(board, name)


async def test_the_file_is_read_again(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard() as board:
        serve(board, file)
        async with board.visit("/settings?search=audit.level", allow={409}) as page:
            await expect(page.get_by_role("row", name="audit.level")).to_contain_text("denials")
            file.write_text(FILE.replace("denials", "changes"))
            await page.get_by_role("button", name="Reload the file").click()
            await page.get_by_role("dialog").get_by_role("button", name="Reload the file").click()
            await expect(page.get_by_role("row", name="audit.level")).to_contain_text("changes")
            file.write_text(FILE.replace("denials", "nonsense"))
            await page.get_by_role("button", name="Reload the file").click()
            await page.get_by_role("dialog").get_by_role("button", name="Reload the file").click()
            await expect(page.get_by_text("nonsense")).to_be_visible()
        assert (await value(board, "audit.level"))["value"] == "changes"


async def test_filters_and_where_a_value_comes_from(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard() as board:
        serve(board, file, {"FANLOG_TELEMETRY_LOG_LEVEL": "warning"})
        async with board.visit("/settings", phone=True) as page:
            await expect(page.get_by_role("heading", name="Audit log")).to_be_visible()
            await fits(page)
            await page.get_by_role("combobox", name="Show").select_option("changed")
            await expect(page.get_by_role("row", name="telemetry.log_level")).to_be_visible()
            await expect(page.get_by_role("row", name="broker.topics_max")).to_have_count(0)
            await page.get_by_role("button", name="Change telemetry.log_level").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("FANLOG_TELEMETRY_LOG_LEVEL")
            await expect(dialog.get_by_label("Only until the next start")).to_be_checked()
            await dialog.get_by_label("Value").select_option("error")
            await dialog.get_by_role("button", name="Change now").click()
            await expect(page.get_by_role("row", name="telemetry.log_level")).to_contain_text(
                "error"
            )
        assert (await value(board, "telemetry.log_level"))["value"] == "error"


async def test_a_broker_in_a_program_says_that_its_settings_are_there(
    dashboard: Dashboard,
) -> None:
    async with dashboard() as board, board.visit("/settings", allow={501}) as page:
        await expect(page.get_by_text("Settings are the program's")).to_be_visible()


async def test_a_viewer_sees_no_settings(dashboard: Dashboard, tmp_path: Path) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text(FILE)
    async with dashboard(auth=True) as board:
        serve(board, file)
        await board.user("ann", Role.VIEWER)
        async with board.visit("/settings", login="ann") as page:
            await expect(page.get_by_text("Only admins see the settings.")).to_be_visible()
            for path in ("config", "config/options"):
                assert (await page.request.get(f"{board.url}/v1/{path}")).status == 403
