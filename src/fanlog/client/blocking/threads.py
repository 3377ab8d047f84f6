"""Threads for the handlers of one run: as many as it may handle at a time. Python's own threads for
such calls are few, and would make the concurrency that was asked for smaller."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HandlerThreads:
    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="fanlog-handler")

    async def call(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: context.run(function, *given, **named)
        )

    def __enter__(self) -> HandlerThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=False)
