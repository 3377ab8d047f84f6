"""Workers over the three ways to the one API. The blocking client's are behind a thin coat of
asyncio, so that the same test runs over each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

from tests.client.ways import PATIENCE_SECONDS, Blocking


class InThreads:
    """An object of the blocking client, each call in a thread."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not callable(found):
            return [InThreads(one) for one in found] if name == "jobs" else found

        async def call(*given: Any, **named: Any) -> Any:
            got = await asyncio.to_thread(found, *given, **named)
            return InThreads(got) if name in ("next", "next_batch") else got

        return call

    def __len__(self) -> int:
        return len(self._thing)

    async def __aenter__(self) -> InThreads:
        await asyncio.to_thread(self._thing.__enter__)
        return self

    async def __aexit__(self, *given: Any) -> bool | None:
        return await asyncio.to_thread(self._thing.__exit__, *given)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for one in self._over(iter(self._thing)):
            yield one

    async def batches(self) -> AsyncIterator[Any]:
        async for one in self._over(self._thing.batches()):
            yield one

    async def _over(self, items: Any) -> AsyncIterator[Any]:
        while (item := await asyncio.to_thread(next, items, None)) is not None:
            yield InThreads(item)


def work(client: Any, topic: str, **given: Any) -> Any:
    """`client.work`, whatever the client."""
    if isinstance(client, Blocking):
        return InThreads(client._client.work(topic, **given))
    return client.work(topic, **given)


async def said(result: Any) -> None:
    """What is a plain call with one client and a coroutine with another."""
    if inspect.isawaitable(result):
        await result


async def take_jobs(worker: Any, count: int) -> list[Any]:
    return [await worker.next(PATIENCE_SECONDS) for _ in range(count)]


async def nothing_comes(worker: Any) -> None:
    try:
        job = await worker.next(0.2)
    except TimeoutError:
        return
    raise AssertionError(f"a job came: {job.value!r}")
