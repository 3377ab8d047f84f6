"""The line of messages from `send` to the client's own thread. Law: the messages of one thread are
stored in the order of its calls. `send` only adds to the line. Every other publish first calls
`hand_over`, which waits until the asyncio client has all messages of the line.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from fanlog.client import aio
from fanlog.client.blocking.front import as_blocking
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.values import Value
from fanlog.errors import RequestTimeoutError

# `send` waits while the line holds more than this.
_WAITING_MAX = 10_000

P = ParamSpec("P")
B = TypeVar("B")
R = TypeVar("R")


class OutgoingLine:
    """The line of messages, from any thread, for one client."""

    def __init__(self, loop: LoopThread, client: aio.Client) -> None:
        self._loop = loop
        self._client = client
        self._waiting: deque[tuple[str, Value, dict[str, Any]]] = deque()
        self._taken = 0
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self.error: Exception | None = None

    def add(self, topic: str, value: Value, given: dict[str, Any]) -> None:
        """Puts a message into the line; from any thread."""
        self._waiting.append((topic, value, given))
        if len(self._waiting) > _WAITING_MAX:
            self._loop.call(self.hand_over())
        elif not self._called:
            # Another thread may be between these two statements: the loop does not have its call
            # yet.
            self._called = True
            self._loop.post(self._hand_over_soon)

    def _hand_over_soon(self) -> None:
        self._called = False
        task = asyncio.ensure_future(self.hand_over())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # On the loop

    async def hand_over(self) -> None:
        """Gives the client all messages of the line, one by one: none may overtake a message that
        waits for its topic. Does not wait for messages that come meanwhile."""
        if not self._busy():
            return
        last = self._taken + len(self._waiting)
        async with self._one_at_a_time:
            while self._taken < last:
                # It leaves the line only afterwards, because the task may be cancelled here.
                topic, value, given = self._waiting[0]
                try:
                    await self._client.send(topic, value, **given)
                except Exception as error:  # noqa: BLE001 - raised by the next flush or close
                    self.error = self.error or error
                self._waiting.popleft()
                self._taken += 1

    def _busy(self) -> bool:
        return bool(self._waiting) or self._one_at_a_time.locked()

    async def hand_over_within(self, timeout_seconds: float | None) -> float | None:
        """The same for a call with a time limit. Returns the time that is left."""
        if timeout_seconds is None or not self._busy():
            await self.hand_over()
            return timeout_seconds
        loop = asyncio.get_running_loop()
        end_at = loop.time() + timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.hand_over()
        except TimeoutError:
            raise RequestTimeoutError(
                f"Earlier messages were still waiting after {timeout_seconds} s; the client is "
                f"{self._client.state}. This message was not published."
            ) from None
        return max(0.0, end_at - loop.time())

    def raise_error(self) -> None:
        """Raises the error of a message of the line."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def in_order(
    method: Callable[Concatenate[B, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method of the client behind, after all earlier messages. A `timeout_seconds` of the
    method covers both."""
    name = method.__name__
    timed = inspect.signature(method).parameters.get("timeout_seconds")

    def called(front: Any, *given: P.args, **named: P.kwargs) -> R:
        async def calling() -> R:
            options: dict[str, Any] = dict(named)
            if timed is None:
                await front._outgoing.hand_over()
            else:
                limit = options.get("timeout_seconds", timed.default)
                options["timeout_seconds"] = await front._outgoing.hand_over_within(limit)
            return await getattr(front._behind, name)(*given, **options)

        return front._loop.call(calling())

    return as_blocking(method, called)
