"""What `fanlog bench overhead --dashboard` sends is what the pages send, as often."""

from __future__ import annotations

import asyncio

from fanlog.bench.dashboards import ACCEPTED, OPENED, PAGES, dashboards
from tests.dashboard.conftest import Dashboard
from tests.dashboard.polls import bare, polls_of, prepare, publish_on

# A timer of the browser may be early by its own resolution, and no more.
EARLY = 0.95


def test_every_dashboard_that_is_measured_has_its_page() -> None:
    assert len(OPENED) == 10
    assert set(OPENED) == set(PAGES)


async def test_pages_ask_what_the_benchmark_asks(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await prepare(board)
        publishing = asyncio.create_task(publish_on(board))
        # Each is in a window of its own, so that none of them rests.
        found = await asyncio.gather(*(polls_of(board, path) for path in PAGES))
        publishing.cancel()
    for path, asked in zip(PAGES, found, strict=True):
        wanted = {bare(poll.path): poll.every_s for poll in PAGES[path]}
        assert set(asked) == set(wanted), path
        # A busy machine may make it slower.
        for url, seconds in asked.items():
            assert seconds >= EARLY * wanted[url], f"{url} is asked every {seconds:.2f} s"


async def test_the_benchmark_takes_what_chromium_takes(dashboard: Dashboard) -> None:
    async with dashboard() as board, board.visit("/") as page:
        async with page.expect_request("**/v1/overview") as asked:
            pass
        headers = await (await asked.value).all_headers()
        assert headers["accept-encoding"] == ACCEPTED
        assert headers["accept"] == "application/json"


async def test_the_broker_answers_what_the_benchmark_asks(dashboard: Dashboard) -> None:
    async with dashboard() as board:
        await prepare(board)
        # Enough that answers are packed.
        await board.broker.publish_many("bench", [b"x" * 128] * 200)

        def ask() -> int:
            with dashboards(board.listener.port, "", len(OPENED)) as opened:
                for _ in range(40):
                    opened.ask(0.5)
                    opened.read()
                return opened.requests

        asked = await asyncio.to_thread(ask)
        polls = [poll for path in OPENED for poll in PAGES[path]]
        expected = sum(20 / poll.every_s for poll in polls)
        assert 0.9 * expected <= asked <= expected + len(polls)
