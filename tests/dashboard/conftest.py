"""Browser tests of the dashboard: a live broker with its web listener, and pages in Chromium.

    async def test_a_topic_is_created(dashboard: Dashboard) -> None:
        async with dashboard() as board, board.visit("/topics") as page:
            await page.get_by_role("button", name="Create topic").click()
            ...
            assert (await board.broker.describe_topic("orders")).name == "orders"

`dashboard(flowing=True)` has data in it that keeps coming (tests/dashboard/flowing.py: topics,
groups that lag, queues, dead letters, an open transaction, schedules, people in a room), and
settings as `fanlog serve` has them.
`dashboard(auth=True)` asks for logins: a visit is logged in as the admin `admin`, unless it says
`login=""` (not logged in), or the name of a user made with `await board.user("ann", Role.VIEWER)`.
`dashboard(config=..., limits=..., body_bytes_max=1024)` changes settings; names are of section web.

`board.broker` and `board.client()` check effects, `board.http` asks the REST API by path alone.
`board.visit(path, dark=True, phone=True)` is a page of a visitor who knows nothing yet. When it
ends, it fails if the page logged an error, broke the CSP, asked another host, or got a 5xx answer.
A test that expects answers such as 403 says `allow={403}`, one that stops the broker
`allow_lost=True`. `await axe(page)` (tests/dashboard/boards.py) fails on what axe calls serious.
Playwright's `expect` waits as long as a slow machine needs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from fanlog.config import Config
from tests.browser.conftest import PATIENCE_MS, Chromium, chromium
from tests.dashboard.boards import Board, open_board
from tests.dashboard.flowing import flowing as with_data

__all__ = ["chromium"]

expect.set_options(timeout=PATIENCE_MS)

Dashboard = Callable[..., AbstractAsyncContextManager[Board]]


@pytest.fixture
def dashboard(chromium: Chromium, tmp_path: Path) -> Dashboard:
    """`async with dashboard(flowing=True, auth=True) as board:`; the header says the rest."""

    @asynccontextmanager
    async def opened(
        *, flowing: bool = False, auth: bool = False, config: Config | None = None, **web: Any
    ) -> AsyncIterator[Board]:
        folder = tmp_path / "data"
        async with (
            chromium.driven() as browser,
            open_board(folder, browser, auth=auth, config=config, web=web) as board,
        ):
            if not flowing:
                yield board
                return
            board.serve_settings(tmp_path / "fanlog.toml")
            async with with_data(board.broker, board.url, board.key) as data:
                board.data = data
                yield board

    return opened
