"""Transactions for the blocking client. Messages cross over many at a time."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from fanlog.client.blocking.front import LoopFront, blocking, like
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.outgoing import OutgoingLine
from fanlog.client.blocking.threads import call_in_thread, check_plain
from fanlog.client.forwarding import passed, shown
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.schedules import Time
from fanlog.client.transactions.transaction import Transaction
from fanlog.client.transactions.transform import Function as AsyncFunction
from fanlog.client.transactions.transform import Made
from fanlog.client.values import Encoding, as_published, own_headers
from fanlog.format.messages import TransactionCommitted

_OUTGOING_MAX = 500

BlockingFunction = Callable[[Message], Made]


class BlockingTransaction(LoopFront[Transaction]):
    """Made by `client.transaction()`; use it with `with`. It commits at the end of the block, and
    aborts when an exception leaves it.

    >>> with client.transaction() as tx:  # doctest: +SKIP
    ...     tx.publish("orders", b"one tea", key="alice")
    ...     tx.publish("stock", b"-1", key="tea")
    """

    def __init__(self, loop: LoopThread, behind: Transaction, sent: OutgoingLine) -> None:
        super().__init__(loop, behind)
        self._sent = sent
        self._one_at_a_time = asyncio.Lock()
        self._outgoing: deque[tuple[str, Value, dict[str, Any]]] = deque()

    encoding = shown(Transaction, lambda transaction: transaction.encoding)
    ticket = shown(Transaction, lambda transaction: transaction.ticket)
    id = shown(Transaction, lambda transaction: transaction.id)
    committed_before = shown(Transaction, lambda transaction: transaction.committed_before)
    begin = blocking(Transaction.begin)
    commit_offsets = passed(Transaction.commit_offsets)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._leave(kind, error, trace))

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                await self.hand_over()
            except BaseException as fault:
                await self._behind.__aexit__(type(fault), fault, fault.__traceback__)
                raise
        await self._behind.__aexit__(kind, error, trace)

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
        priority: int = 0,
        encoding: Encoding | None = None,
        delay_seconds: float | None = None,
        at: Time | None = None,
        schedule_id: str | None = None,
    ) -> None:
        """Stages one message. The next call, `flush` or `commit` raises errors."""
        self._behind.check_unfinished()
        value, headers = as_published(value, headers, encoding, self._behind.encoding)
        if headers:
            headers = own_headers(headers)
        given = {
            "key": key,
            "headers": headers,
            "event_time": event_time,
            "partition": partition,
            "priority": priority,
            "delay_seconds": delay_seconds,
            "at": at,
            "schedule_id": schedule_id,
        }
        self._outgoing.append((topic, value, given))
        if len(self._outgoing) >= _OUTGOING_MAX:
            self._loop.call(self.hand_over())

    send = publish

    async def hand_over(self) -> None:
        """Gives the waiting messages to the transaction, after all that its client has sent. Runs
        on the loop."""
        await self._sent.hand_over()
        # Several threads may stage: a message that waits for its topic is not overtaken.
        async with self._one_at_a_time:
            # One by one: a refused message must not fail the others.
            while self._outgoing:
                topic, value, given = self._outgoing.popleft()
                await self._behind.publish(topic, value, **given)

    @like(Transaction.flush)
    def flush(self) -> None:
        self._loop.call(self._flush())

    async def _flush(self) -> None:
        await self.hand_over()
        await self._behind.flush()

    @like(Transaction.commit)
    def commit(self, id: str = "", *, tickets: Iterable[str] = ()) -> TransactionCommitted:
        return self._loop.call(self._commit(id, tuple(tickets)))

    async def _commit(self, id: str, tickets: tuple[str, ...]) -> TransactionCommitted:
        await self.hand_over()
        return await self._behind.commit(id, tickets=tickets)

    @like(Transaction.abort)
    def abort(self) -> None:
        self._outgoing.clear()
        self._loop.call(self._behind.abort())


def work_in_thread(
    loop: LoopThread, work: Callable[[BlockingTransaction], None], sent: OutgoingLine
) -> Callable[[Transaction], Awaitable[None]]:
    """Runs plain code as the work of an asyncio transaction."""

    check_plain(work)

    async def called(transaction: Transaction) -> None:
        wrapped = BlockingTransaction(loop, transaction, sent)
        await call_in_thread(None, work, wrapped)
        await wrapped.hand_over()

    return called


def function_in_thread(function: BlockingFunction) -> AsyncFunction:
    """Runs a slow plain function beside the loop."""

    check_plain(function)

    async def called(message: Message) -> Made:
        return await call_in_thread(None, function, message)

    return called
