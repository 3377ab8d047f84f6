"""What the blocking client is made of: a loop on a thread of its own, and a subscription that is
read from another. `client.py` and its siblings put their calls on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from fanlog.client.message import Message, MessageBatch
from fanlog.client.subscription import Subscription as AsyncSubscription
from fanlog.errors import ClosedError, InvalidArgumentError
from fanlog.format.messages import Position

T = TypeVar("T")
# What does not end by then, after it was cancelled, is left behind.
_CANCEL_SECONDS = 5.0


class LoopThread:
    """An event loop that runs beside the program. Any thread may call it, and stop it: whoever
    waits then gets a ClosedError, and nobody waits for ever."""

    def __init__(self, name: str = "fanlog-client") -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._ending = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        # Whatever is handed over under it comes before the stop.
        self._handing_over = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ending:
            # A handler that calls sys.exit ends the loop. Whoever waits for it gets that, on the
            # loop as well.
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
        # Once more: what has ended tells so in the turn after.
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
        """What an asynchronous iterator gives, one after the other."""

        async def following() -> T | None:
            return await anext(items, None)

        while (found := self.call(following())) is not None:
            yield found

    def post(self, call: Callable[[], None]) -> None:
        with self._handing_over:
            if not self.running:
                raise ClosedError("The client was closed: connect again.")
            self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        with self._handing_over:
            running = self.running
            # Before the loop ends, so that whoever it lets go knows why.
            self._stopped = True
            if running:
                self._loop.call_soon_threadsafe(self._end)
        self._thread.join()


class BlockingSubscription:
    """Iterate it for messages; `batches()` gives whole batches."""

    def __init__(self, loop: LoopThread, subscription: AsyncSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._begun: Iterator[Message] = iter(())

    def start(self) -> None:
        self._loop.call(self._subscription.start())

    def close(self) -> None:
        self._loop.call(self._subscription.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check_open(self) -> None:
        """A loop ends when its subscription is closed. One that begins after that is a mistake."""
        self._subscription.check_open()

    def __iter__(self) -> Iterator[Message]:
        self._subscription.check_open()
        while True:
            try:
                yield self.next()
            except ClosedError:
                return

    def batches(self) -> Iterator[MessageBatch]:
        self._subscription.check_open()
        while True:
            try:
                yield self.next_batch()
            except ClosedError:
                return

    def next(self, timeout_seconds: float | None = None) -> Message:
        """The next message. Raises TimeoutError when none comes in time."""
        while True:
            for message in self._begun:
                self._subscription.took(message)
                return message
            self._begun = self._next_run(timeout_seconds)

    def _next_run(self, timeout_seconds: float | None) -> Iterator[Message]:
        return iter(self.next_batch(timeout_seconds).messages)

    def next_batch(self, timeout_seconds: float | None = None) -> MessageBatch:
        """The next batch as a whole. Raises TimeoutError when none comes in time."""
        return self._loop.call(self._subscription.next_batch(timeout_seconds))

    @property
    def gaps(self) -> int:
        return self._subscription.gaps

    @property
    def missed(self) -> int:
        return self._subscription.missed

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._subscription.positions

    def commit(self, message: Message | None = None) -> None:
        """Makes the durable name continue after this message, or after all that were taken."""
        self._loop.call(self._subscription.commit(message))
