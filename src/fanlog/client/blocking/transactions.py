"""Transactions for the blocking client: what `client.transactions` does, each call on
the client's own loop. Messages cross over many at a time."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any

from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.outgoing import OutgoingLine
from fanlog.client.blocking.threads import call_in_thread, check_plain
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value, own_headers
from fanlog.client.schedules import Time
from fanlog.client.transactions import transaction, transform
from fanlog.client.transactions.transaction import CommittingMember, Taken
from fanlog.client.transactions.transform import Made
from fanlog.client.values import Encoding, as_published
from fanlog.format.messages import TransactionCommitted

_OUTGOING_MAX = 500

Function = Callable[[Message], Made]


class BlockingTransaction:
    """Made by `client.transaction()`; use it with `with`. It commits at the end of the block, and
    aborts when an exception leaves it.

    >>> with client.transaction() as tx:  # doctest: +SKIP
    ...     tx.publish("orders", b"one tea", key="alice")
    ...     tx.publish("stock", b"-1", key="tea")
    """

    def __init__(
        self, loop: LoopThread, transaction: transaction.Transaction, sent: OutgoingLine
    ) -> None:
        self._loop = loop
        self._transaction = transaction
        self._sent = sent
        self._one_at_a_time = asyncio.Lock()
        self._outgoing: deque[tuple[str, Value, dict[str, Any]]] = deque()

    @property
    def ticket(self) -> str:
        return self._transaction.ticket

    @property
    def id(self) -> str:
        return self._transaction.id

    @property
    def committed_before(self) -> bool:
        return self._transaction.committed_before

    def begin(self) -> None:
        self._loop.call(self._transaction.begin())

    def __enter__(self) -> BlockingTransaction:
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
                await self._transaction.__aexit__(type(fault), fault, fault.__traceback__)
                raise
        await self._transaction.__aexit__(kind, error, trace)

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
        """Stages one message; what goes wrong is raised by the next call, `flush` or `commit`."""
        self._transaction.check_unfinished()
        value, headers = as_published(value, headers, encoding, self._transaction.encoding)
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
        """Gives what waits to the transaction, behind what its client has sent; on the loop."""
        await self._sent.hand_over()
        # Several threads may stage: a message that waits for its topic is not overtaken.
        async with self._one_at_a_time:
            # One by one: one that is refused must not take the others with it.
            while self._outgoing:
                topic, value, given = self._outgoing.popleft()
                await self._transaction.publish(topic, value, **given)

    def commit_offsets(self, member: CommittingMember, taken: Taken = None) -> None:
        """Commits a group's positions with the transaction; see the asyncio client."""
        self._transaction.commit_offsets(member, taken)

    def flush(self) -> None:
        """Waits until everything so far is staged."""
        self._loop.call(self._flush())

    async def _flush(self) -> None:
        await self.hand_over()
        await self._transaction.flush()

    def commit(self, id: str = "", *, tickets: Iterable[str] = ()) -> TransactionCommitted:
        """Commits; the result says whether its id was committed `already`."""
        return self._loop.call(self._commit(id, tuple(tickets)))

    async def _commit(self, id: str, tickets: tuple[str, ...]) -> TransactionCommitted:
        await self.hand_over()
        return await self._transaction.commit(id, tickets=tickets)

    def abort(self) -> None:
        """Takes everything back."""
        self._outgoing.clear()
        self._loop.call(self._transaction.abort())


def work_in_thread(
    loop: LoopThread, work: Callable[[BlockingTransaction], None], sent: OutgoingLine
) -> Callable[[transaction.Transaction], Awaitable[None]]:
    """Plain code as the work of an asyncio transaction."""

    check_plain(work)

    async def called(transaction: transaction.Transaction) -> None:
        wrapped = BlockingTransaction(loop, transaction, sent)
        await call_in_thread(None, work, wrapped)
        await wrapped.hand_over()

    return called


def function_in_thread(function: Function) -> transform.Function:
    """A plain function that may take its time, beside the loop."""

    check_plain(function)

    async def called(message: Message) -> Made:
        return await call_in_thread(None, function, message)

    return called
