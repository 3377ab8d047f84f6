"""Threads for the handlers of one run, one for each concurrent call. Python's default pool is
small, and would limit the concurrency."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import ParamSpec, TypeVar

from fanlog.client.queues.running import check_handler
from fanlog.errors import InvalidArgumentError

P = ParamSpec("P")
T = TypeVar("T")
_PLAIN = (
    "The blocking client calls plain functions, not async ones. Use fanlog.connect for "
    "async functions."
)


def check_plain(function: object) -> None:
    """Refuses an async function, which would do nothing."""
    if inspect.iscoroutinefunction(function):
        raise InvalidArgumentError(_PLAIN)


def check_plain_handler(handler: object, takes: str = "a job") -> None:
    check_handler(handler, takes)
    check_plain(handler)


async def call_in_thread(
    threads: ThreadPoolExecutor | None, function: Callable[P, T], *given: P.args, **named: P.kwargs
) -> T:
    """The result of the function. Without own threads, it runs in Python's default pool."""
    context = contextvars.copy_context()

    def called() -> T:
        try:
            result = context.run(function, *given, **named)
        except StopIteration as fault:
            # No future accepts it: the caller would wait for ever.
            raise RuntimeError("The function raised StopIteration.") from fault
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidArgumentError(_PLAIN)
        return result

    return await asyncio.get_running_loop().run_in_executor(threads, called)


class HandlerThreads:
    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="fanlog-handler")

    async def call(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        return await call_in_thread(self._threads, function, *given, **named)

    def __enter__(self) -> HandlerThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=False)
