"""The example of resumable streams in a real browser: an answer survives a reload in its middle."""

from __future__ import annotations

import asyncio
import re

from tests.browser.conftest import PATIENCE_MS, Chromium, new_context
from tests.examples.test_resumable import running

ANSWER = "document.querySelector('#answer').textContent"
DONE = "document.querySelector('#state').textContent === 'Done.'"


async def test_an_answer_survives_a_reload_in_its_middle(chromium: Chromium) -> None:
    with running("server.py", "--port", "0", "--delay", "0.04") as said:
        found = re.search(r"http://\S+/", await asyncio.to_thread(said.readline))
        assert found is not None
        async with chromium.driven() as browser:
            context = await new_context(browser)
            page = await context.new_page()
            await page.goto(found[0])
            await page.fill("#question", "why?")
            await page.click("button")
            middle = f"{ANSWER}.length > 40 && {ANSWER}"
            begun = await (await page.wait_for_function(middle, timeout=PATIENCE_MS)).json_value()
            assert begun.startswith("You asked: why?")
            await page.reload()
            # All that was there is there again, and it goes on, unless a slow machine has it all.
            await page.wait_for_function(
                f"{ANSWER}.length > {len(begun) + 10} || {DONE}", timeout=PATIENCE_MS
            )
            assert (await page.evaluate(ANSWER)).startswith(begun)
            other = await context.new_page()
            await other.goto(page.url)
            answers = []
            for tab in (page, other):
                await tab.wait_for_function(DONE, timeout=PATIENCE_MS)
                answers.append(await tab.evaluate(ANSWER))
            assert answers[0] == answers[1]
            assert answers[0].rstrip().endswith("the broker deletes the stream.")
            assert "reload costs nothing" in answers[0]
            # Once more after the end.
            await page.reload()
            await page.wait_for_function(DONE, timeout=PATIENCE_MS)
            assert await page.evaluate(ANSWER) == answers[0]
