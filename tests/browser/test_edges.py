"""Browsers on several edges in front of one bus: the chat example, as a user starts it."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.async_api import Browser

from tests.browser.conftest import Chromium
from tests.browser.visitors import Edge, Visitor, chat_on_edges, visit


@pytest.mark.parametrize("bus", ["fanlog", "redis", "nats"])
async def test_a_browser_moves_to_another_edge_and_misses_nothing(
    bus: str, chromium: Chromium
) -> None:
    with chat_on_edges(2, bus) as (first, second):
        async with chromium.driven() as browser, visit(browser, second.url, "Bob") as bob:
            await moved(browser, first, second, bob)
            # Ann has closed her window.
            await bob.sees_online("Bob")


async def moved(browser: Browser, first: Edge, second: Edge, bob: Visitor) -> None:
    """Ann chats on the first edge, which is killed, and goes on on the second one."""
    async with visit(browser, first.url, "Ann") as ann:
        await ann.sees_online("Ann", "Bob")
        await bob.sees_online("Ann", "Bob")
        await ann.say("from the first edge")
        await bob.sees("from the first edge")
        await bob.say("from the second edge")
        await ann.sees("from the first edge", "from the second edge")

        os.kill(first.pid, signal.SIGKILL)
        missed = [f"while Ann was away {i}" for i in range(10)]
        for text in missed:
            await bob.say(text)
        await ann.say("Ann, before she is back")
        await ann.is_connected(second.url)
        await ann.sees_online("Ann", "Bob")
        await bob.sees_online("Ann", "Bob")
        await bob.say("the end")
        everything = ["from the first edge", "from the second edge", *missed, "the end"]
        for visitor in (ann, bob):
            await visitor.until(
                "count => document.querySelectorAll('.message:not(.waiting)').length >= count",
                len(everything) + 1,
            )
            said = await visitor.said()
            assert [one for one in said if not one.startswith("Ann,")] == everything
            assert said.count("Ann, before she is back") == 1
