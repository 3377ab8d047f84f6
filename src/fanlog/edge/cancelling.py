"""Tasks that end when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

_PATIENCE_SECONDS = 0.1


async def end_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits for them. A library may swallow a cancellation, so that its caller
    continues: then it is cancelled again."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_PATIENCE_SECONDS)
