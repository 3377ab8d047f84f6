"""Transactions from the client: messages for several topics, and a group's positions, that become
visible together or not at all."""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import secrets
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Protocol

import msgspec

from fanlog.client.arguments import checked_priority, event_time_us
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.core.transaction_core import (
    CommittingMember,
    Taken,
    TransactionCore,
    TransactionState,
    furthest_positions,
)
from fanlog.client.publishing import Headers, Value
from fanlog.client.schedules import DelayedRecords, Time
from fanlog.client.transactions.stager import TransactionStager
from fanlog.client.values import Encoding, encode_as
from fanlog.errors import (
    ClosedError,
    FanlogError,
    InvalidArgumentError,
    TransactionNotFoundError,
)
from fanlog.format.frames import FrameKind
from fanlog.format.messages import (
    BeginTransaction,
    TransactionCommitted,
    Welcome,
)


class TransactionHost(Protocol):
    """The client's session, as far as a transaction needs it."""

    @property
    def ready(self) -> bool: ...
    @property
    def welcome(self) -> Welcome | None: ...
    async def request(
        self, kind: FrameKind, message: msgspec.Struct, *, timeout_seconds: float | None = None
    ) -> bytes: ...


class Transaction:
    """Made by `client.transaction()`; use it with `async with`. It commits at the end of the
    block, and aborts when an exception leaves it.

    >>> async with client.transaction() as tx:  # doctest: +SKIP
    ...     await tx.publish("orders", b"one tea", key="alice")
    ...     await tx.publish("stock", b"-1", key="tea")
    """

    def __init__(
        self,
        host: TransactionHost,
        stager: TransactionStager,
        wanted: BeginTransaction,
        commit_timeout_seconds: float,
    ) -> None:
        self._host = host
        self._stager = stager
        self._core = TransactionCore(wanted)
        self._commit_timeout_seconds = commit_timeout_seconds
        self._delayed = DelayedRecords(stager, self._ready_outbox)

    # The life of it

    @property
    def encoding(self) -> Encoding:
        """How objects are published here, where a message does not say."""
        return self._stager.encoding

    @property
    def ticket(self) -> str:
        """What another process needs to stage into this one: `client.join_transaction(ticket)`."""
        return self._core.details().ticket

    @property
    def id(self) -> str:
        """The name under which this happens once."""
        return self._core.details().id

    @property
    def committed_before(self) -> bool:
        """Whether its id was committed before this one began: whatever it does will be dropped."""
        return self._core.details().committed

    async def begin(self) -> None:
        """Asks for a ticket; `async with` does it by itself.

        >>> tx = client.transaction()
        >>> await tx.begin()
        """
        if self._core.state is TransactionState.NEW:
            answer = await self._host.request(FrameKind.BEGIN_TRANSACTION, self._core.wanted)
            begun = self._core.begun(answer)
            welcome = self._host.welcome
            self._stager.begin(begun.ticket, welcome.frame_bytes_max if welcome else 0)

    def check_unfinished(self) -> None:
        """Raises if nothing can be staged: before the beginning, and after the end."""
        self._core.check_unfinished()

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._core.is_over:
            return
        if self._core.is_shared:
            if error is None:
                await self.flush()
            else:
                self._stager.stop(ClosedError("The block was left."))
            return
        try:
            if error is None:
                await self.commit()
        finally:
            if self._core.result is None:
                await self._give_up()

    async def _give_up(self) -> None:
        """Aborts, if that is possible now; otherwise its time runs out."""
        if self._host.ready:
            with contextlib.suppress(FanlogError):
                await self.abort()
        else:
            self._core.give_up()
            self._stop_staging()

    def _stop_staging(self) -> None:
        self._stager.stop(ClosedError("The transaction was aborted."))

    # What is in it

    async def publish(
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
        """Stages one message. It waits only while `buffer_bytes_max` is full; what goes wrong is
        raised by the next call, by `flush` or by `commit`. With `delay_seconds` or `at` the commit
        schedules it; a delay begins then.

        >>> await tx.publish("orders", "one tea", key="alice")
        """
        self._core.check_unfinished()
        if encoding is not None:
            value, headers = encode_as(value, headers, encoding)
        if not (delay_seconds is at is schedule_id is None):
            _, record = await self._delayed.make(
                topic,
                value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
                priority=priority,
                delay_seconds=delay_seconds,
                at=at,
                schedule_id=schedule_id,
            )
            self._stager.put(*record)
            return
        outbox = await self._ready_outbox(topic, partition)
        time_us = event_time_us(event_time)
        urgent = checked_priority(priority) if priority else 0
        self._stager.put(outbox, value, key, headers, time_us, partition=partition, priority=urgent)

    async def _ready_outbox(self, topic: str, partition: int | None = None) -> TopicOutbox:
        stager = self._stager
        stager.raise_error()
        outbox = stager.topics.get(topic)
        if outbox is None:
            outbox = await stager.topic(topic)
        if partition is not None and partition >= len(outbox.partitions):
            await stager.look_again(outbox)
        if stager.buffered_bytes >= stager.buffer_bytes_max:
            await stager.room()
            stager.raise_error()
        return outbox

    send = publish

    def commit_offsets(self, member: CommittingMember, taken: Taken = None) -> None:
        """Commits a group's positions with the transaction: those after all messages that the
        member has taken, including the one in hand, or after these messages, or these positions.

        >>> tx.commit_offsets(member)
        """
        self._core.check_unfinished()
        if not callable(getattr(member, "offsets_for_commit", None)):
            raise InvalidArgumentError(
                "commit_offsets takes a member of a group, as client.consume(...) makes it, not "
                f"{type(member).__name__}."
            )
        self._core.commit_offsets(member, furthest_positions(taken))

    async def flush(self) -> None:
        """Waits until everything so far is staged: then another may commit it.

        >>> await tx.flush()
        """
        self._core.check_unfinished()
        await self._stager.flush()

    # The end

    async def commit(self, id: str = "", *, tickets: Iterable[str] = ()) -> TransactionCommitted:
        """Commits, under its own id or another. The result says whether that id was committed
        `already`; then nothing was done now. Commit again if the outcome is unknown.

        `tickets` are those of other transactions, whose messages are committed with it: so a
        coordinator chooses which of its workers' attempts count.

        >>> result = await tx.commit()
        >>> result.already
        False
        """
        core = self._core
        if core.result is not None:
            return core.result
        core.check_unfinished()
        await self._stager.flush()
        answer = await self._host.request(
            FrameKind.COMMIT_TRANSACTION,
            core.committing(id, tickets),
            timeout_seconds=self._commit_timeout_seconds,
        )
        return core.committed(answer)

    async def abort(self) -> None:
        """Takes everything back.

        >>> await tx.abort()
        """
        if self._core.state is not TransactionState.ABORTED:
            wanted = self._core.aborting()
            self._stop_staging()
            await self._host.request(FrameKind.ABORT_TRANSACTION, wanted)


async def run_transaction(
    begin: Callable[[str], Transaction],
    work: Callable[[Transaction], Awaitable[None]],
    id: str,
    attempts: int,
) -> TransactionCommitted:
    """Does the work in a transaction, and repeats it in another one with the same id if the broker
    has lost the first. It takes effect once."""
    if not callable(work):
        raise InvalidArgumentError("run_transaction needs a function that takes a transaction.")
    id = id or secrets.token_hex(16)
    while True:
        attempts -= 1
        try:
            async with begin(id) as transaction:
                if transaction.committed_before:
                    await transaction.abort()
                    return TransactionCommitted(id, already=True)
                under_way = work(transaction)
                if not inspect.isawaitable(under_way):
                    raise InvalidArgumentError(
                        "run_transaction needs a coroutine function: write it with `async def`."
                    )
                await under_way
                return await transaction.commit()
        except TransactionNotFoundError:
            if attempts <= 0:
                raise
