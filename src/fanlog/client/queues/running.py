"""Gives jobs to a function, several at a time, until it is stopped. Then started jobs are finished,
and the others go to other workers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fanlog.client.queues.jobs import Job
from fanlog.client.queues.worker import Worker
from fanlog.client.stopping import stopped_by_sigterm
from fanlog.errors import ClosedError, InvalidArgumentError

T = TypeVar("T")
JobHandler = Callable[[Job], Awaitable[object] | object]


async def run_worker(
    worker: Worker, handler: JobHandler, until: asyncio.Event | None = None
) -> None:
    """Gives each job to `handler`, plain or async. A job is acked when it returns. One that raises
    is logged, counted and tried again, as the worker's `retry` and its queue say."""
    check_handler(handler)

    async def handle(job: Job) -> None:
        async with job:
            await call_handler(handler, job)

    with stopped_by_sigterm(until) as stopped:
        await run_jobs(worker, handle, stopped)


def check_no_handler(concurrency: int, until: object, name: str) -> None:
    """Refuses options that need a handler, if there is none."""
    if concurrency != 1 or until is not None:
        raise InvalidArgumentError(
            f"concurrency and until belong to a handler: {name}(topic, handler, ...). Without one, "
            "leave them out."
        )


async def call_handler(handler: Callable[[T], Awaitable[object] | object], given: T) -> Any:
    """The result of the handler, plain or async."""
    try:
        result = handler(given)
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as fault:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The handler was not cancelled from outside: it fails, as with any other error.
        raise RuntimeError("The handler awaited something that was cancelled.") from fault


def check_handler(handler: object, takes: str = "a job") -> None:
    if not callable(handler):
        raise InvalidArgumentError(f"The handler must be a function that takes {takes}.")


async def run_jobs(
    worker: Worker, handle: Callable[[Job], Awaitable[None]], stopped: asyncio.Event
) -> None:
    """Handles as many jobs at a time as the worker's prefetch allows, until `stopped` is set or the
    worker is closed. An error that `handle` raises ends all of it."""
    under_way: set[asyncio.Task[None]] = set()
    async with worker:
        stopping = asyncio.ensure_future(stopped.wait())
        coming = asyncio.ensure_future(worker.next())
        try:
            while not stopped.is_set():
                await asyncio.wait(
                    {coming, stopping, *under_way}, return_when=asyncio.FIRST_COMPLETED
                )
                under_way = _without_ended(under_way)
                if coming.done() and not stopped.is_set():
                    job = coming.result()
                    under_way.add(asyncio.ensure_future(_handled(handle, job)))
                    # This reference must not keep the lease from expiring: it only handed the job
                    # on.
                    del job
                    coming = asyncio.ensure_future(worker.next())
            if under_way:
                await asyncio.wait(under_way)
                _without_ended(under_way)
        except ClosedError:
            return
        finally:
            await _cancelled(coming, stopping, *under_way)


async def _handled(handle: Callable[[Job], Awaitable[None]], job: Job) -> None:
    await handle(job)


def _without_ended(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    for task in tasks:
        if task.done():
            task.result()
    return {task for task in tasks if not task.done()}


async def _cancelled(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
