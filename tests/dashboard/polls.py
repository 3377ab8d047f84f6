"""`python -m tests.dashboard.polls [PAGE ...]`: what pages of the dashboard ask again and again, as
Chromium sends it. `fanlog bench overhead --dashboard` has the same list."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from fanlog.bench.dashboards import OPENED, furnish
from fanlog.bench.wires.fanlog import NAME
from tests.browser.conftest import running_chromium
from tests.dashboard.boards import Board, open_board

# Longer than twice the longest interval.
WATCHED_SECONDS = 35.0


def bare(url: str, without: tuple[str, ...] = ("after",)) -> str:
    """A request's path and parameters, without those that differ each time."""
    parts = urlsplit(url)
    given = [(name, value) for name, value in parse_qsl(parts.query) if name not in without]
    return parts.path + (f"?{urlencode(given)}" if given else "")


async def polls_of(board: Board, path: str, seconds: float = WATCHED_SECONDS) -> dict[str, float]:
    """The requests that a page repeats, and the seconds between them."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    async with board.visit(path) as page:
        page.on("request", lambda one: times[bare(one.url)].append(time.monotonic()))
        await page.wait_for_timeout(seconds * 1000)
    return {
        url: statistics.median(b - a for a, b in pairwise(asked))
        for url, asked in times.items()
        if len(asked) > 1 and url.startswith("/v1/")
    }


async def prepare(board: Board) -> None:
    """The same state as the benchmark has, and messages that come."""
    port = board.broker.listen().port
    await board.broker.create_topic(NAME, durability="memory")
    await asyncio.to_thread(furnish, port)


async def publish_on(board: Board) -> None:
    while True:
        await board.broker.publish(NAME, b"x" * 128)
        await asyncio.sleep(0.1)


async def main(paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name, running_chromium(Path(name)) as chromium:
        async with chromium.driven() as browser, open_board(None, browser) as board:
            await prepare(board)
            publishing = asyncio.create_task(publish_on(board))
            for path in paths:
                print(path)
                for url, seconds in sorted((await polls_of(board, path)).items()):
                    print(f"    {seconds:6.2f} s  {url}")
            publishing.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(dict.fromkeys(OPENED))))
