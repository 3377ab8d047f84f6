"""`fanlog tail` over batches that do not decode: it says which, and comes to the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.format.crafted import column, crafted
from tests.listeners.peers import PATIENCE_SECONDS, one_message, serving


@pytest.mark.parametrize("form", ["", "--json", "--values-only"])
async def test_tail_shows_a_gap_and_goes_on(data: Path, form: str) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os")
        bad = crafted(column([0, 9, 2], b"xy"), count=2, topic=number)
        # No datetime can have this time.
        odd = one_message(number, b"behind", event_times_us=[1 << 61])
        for batch in (one_message(number, b"before"), bad, odd, bad):
            await peer.publish(batch)
        words = ["tail", "t", "--no-follow", "--url", f"fanlog://127.0.0.1:{served.port}"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fanlog", *words, *([form] if form else [])),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
        assert process.returncode == 0
        assert [line for line in (b"before", b"behind") if line in out] == [b"before", b"behind"]
        said = b" ".join(err.split())
        assert b"offsets 1 to 2 are missing" in said
        assert b"offsets 4 to 5 are missing" in said
