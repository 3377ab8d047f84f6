"""How followers begin and wait under asyncio, for what comes into their `Arrivals`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fanlog.client.core.arrivals import Arrivals


async def begin(arrivals: Arrivals[Any], attach: Callable[[], Awaitable[None]]) -> bool:
    """Attaches the follower, if that was not done before. Whether it began now."""
    if arrivals.started:
        return False
    arrivals.started = True
    try:
        await attach()
    except BaseException:
        arrivals.started = False
        raise
    return True


async def wait_for(arrivals: Arrivals[Any]) -> None:
    """Waits until there is something to take. Raises the reason if no more will come."""
    while not arrivals.items:
        if arrivals.closed is not None:
            raise arrivals.closed
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arrivals.wake = partial(_wake, woken)
        try:
            await woken
        finally:
            arrivals.wake = None


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
