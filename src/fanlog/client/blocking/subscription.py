"""Subscriptions for the blocking client. Messages cross over in whole batches, not one by one."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from fanlog.client.blocking.front import LoopFront, blocking, like
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.forwarding import passed, shown
from fanlog.client.message import Message, MessageBatch
from fanlog.client.subscription import Subscription
from fanlog.errors import ClosedError


class BlockingSubscription(LoopFront[Subscription]):
    """Iterate it for messages; `batches()` gives whole batches."""

    def __init__(self, loop: LoopThread, behind: Subscription) -> None:
        super().__init__(loop, behind)
        self._begun: Iterator[Message] = iter(())

    target = shown(Subscription, lambda subscription: subscription.target)
    gaps = shown(Subscription, lambda subscription: subscription.gaps)
    missed = shown(Subscription, lambda subscription: subscription.missed)
    positions = shown(Subscription, lambda subscription: subscription.positions)
    start = blocking(Subscription.start)
    close = blocking(Subscription.close)
    commit = blocking(Subscription.commit)
    check_open = passed(Subscription.check_open)
    next_batch = blocking(Subscription.next_batch)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._behind.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        self.check_open()
        while True:
            try:
                yield self.next()
            except ClosedError:
                return

    def batches(self) -> Iterator[MessageBatch]:
        """Whole batches; see the asyncio client."""
        self.check_open()
        while True:
            try:
                yield self.next_batch()
            except ClosedError:
                return

    @like(Subscription.next)
    def next(self, timeout_seconds: float | None = None) -> Message:
        while True:
            for message in self._begun:
                self._behind.took(message)
                return message
            self._begun = self._loop.call(self._behind.next_run(timeout_seconds))
