"""Tasks that end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

_PATIENCE_SECONDS = 0.1


async def end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits for them. A library below may take a cancellation for itself, so that
    its caller goes on as if nothing was: then it is told again."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_PATIENCE_SECONDS)
