"""The loop of the blocking client, on a thread of its own. `front.py` puts calls on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fanlog.errors import ClosedError, FanlogError, InvalidArgumentError

T = TypeVar("T")
# The loop does not wait longer than this for cancelled tasks.
_CANCEL_SECONDS = 5.0


class LoopThread:
    """An event loop that runs beside the program. Any thread may call it or stop it. After a stop,
    all waiting callers get a ClosedError."""

    def __init__(self, name: str = "fanlog-client") -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._ending = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        # Calls that are handed over under this lock come before the stop.
        self._handing_over = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ending:
            # A handler that calls sys.exit ends the loop. Its caller gets the same exception, also
            # on the loop.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        try:
            self._end_tasks()
        finally:
            self._loop.close()
            for waiting in list(self._waiting):
                waiting.cancel()

    def _end_tasks(self) -> None:
        unfinished = asyncio.all_tasks(self._loop)
        for task in unfinished:
            task.cancel()
        if unfinished:
            self._loop.run_until_complete(asyncio.wait(unfinished, timeout=_CANCEL_SECONDS))
        # One more round: tasks report their end one round later.
        self._loop.run_until_complete(asyncio.sleep(0))

    def _end(self) -> None:
        self._ending = True
        self._loop.stop()

    @property
    def running(self) -> bool:
        return not self._stopped and self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidArgumentError(
                "on_lost, on_back and on_gap are called in the client's own thread, which can't "
                "wait for itself. Use the client in another thread, or send() without flush()."
            )
        with self._handing_over:
            if not self.running:
                work.close()
                raise ClosedError("The client was closed: connect again.")
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(waiting)
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise ClosedError("The client was closed: connect again.") from None
            raise
        except KeyboardInterrupt:
            waiting.cancel()
            raise
        finally:
            self._waiting.discard(waiting)

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous iterator, one by one."""

        async def following() -> list[T]:
            """One item, or no item at the end: an item may be any object."""
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        try:
            while found := self.call(following()):
                yield found[0]
        finally:
            self._close_soon(items)

    def _close_soon(self, items: AsyncIterator[Any]) -> None:
        """Without waiting: an iteration that was given up ends wherever Python finds it."""
        if not isinstance(items, AsyncGenerator):
            return

        async def closed() -> None:
            with contextlib.suppress(FanlogError):
                await items.aclose()

        def close() -> None:
            task = asyncio.ensure_future(closed())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        with contextlib.suppress(ClosedError):
            self.post(close)

    def post(self, call: Callable[[], None]) -> None:
        with self._handing_over:
            if not self.running:
                raise ClosedError("The client was closed: connect again.")
            self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        with self._handing_over:
            running = self.running
            # Before the loop ends, so that waiting callers learn the reason.
            self._stopped = True
            if running:
                self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
