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

from fanlog.client.arguments import checked, checked_priority, event_time_us
from fanlog.client.core.reached import reached
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.message import Message
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
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    GroupOffsets,
    Position,
    TransactionBegun,
    TransactionCommitted,
    Welcome,
    decode,
)

Taken = Message | Iterable[Message | Position] | None


class TransactionHost(Protocol):
    """The client's session, as far as a transaction needs it."""

    @property
    def ready(self) -> bool: ...
    @property
    def welcome(self) -> Welcome | None: ...
    async def request(
        self, kind: FrameKind, message: msgspec.Struct, *, timeout_seconds: float | None = None
    ) -> bytes: ...


class CommittingMember(Protocol):
    """A group's member, whose positions a transaction can commit."""

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets: ...


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
        self._wanted = wanted
        self._commit_timeout_seconds = commit_timeout_seconds
        self._begun: TransactionBegun | None = None
        self._offsets: dict[tuple[str, str], GroupOffsets] = {}
        self._members: dict[tuple[str, str], CommittingMember] = {}
        self._result: TransactionCommitted | None = None
        self._aborted = False
        self._delayed = DelayedRecords(stager, self._ready_outbox)

    # The life of it

    @property
    def encoding(self) -> Encoding:
        """How objects are published here, where a message does not say."""
        return self._stager.encoding

    @property
    def ticket(self) -> str:
        """What another process needs to stage into this one: `client.join_transaction(ticket)`."""
        return self._open().ticket

    @property
    def id(self) -> str:
        """The name under which this happens once."""
        return self._open().id

    @property
    def committed_before(self) -> bool:
        """Whether its id was committed before this one began: whatever it does will be dropped."""
        return self._open().committed

    async def begin(self) -> None:
        """Asks for a ticket; `async with` does it by itself.

        >>> tx = client.transaction()
        >>> await tx.begin()
        """
        if self._begun is None:
            answer = await self._host.request(FrameKind.BEGIN_TRANSACTION, self._wanted)
            self._begun = decode(TransactionBegun, answer)
            welcome = self._host.welcome
            self._stager.begin(self._begun.ticket, welcome.frame_bytes_max if welcome else 0)

    def _open(self) -> TransactionBegun:
        if self._begun is None:
            raise InvalidArgumentError(
                "The transaction has not begun: open it in a `with` block, or call begin()."
            )
        return self._begun

    def _unfinished(self) -> TransactionBegun:
        if self._aborted or self._result is not None:
            done = "aborted" if self._aborted else "committed"
            raise InvalidArgumentError(f"The transaction was {done}: begin another.")
        return self._open()

    def check_unfinished(self) -> None:
        """Raises if nothing can be staged: before the beginning, and after the end."""
        self._unfinished()

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._aborted or self._result is not None:
            return
        if self._wanted.ticket:
            # Others have it too: it ends when one of them says so.
            if error is None:
                await self.flush()
            else:
                self._stager.stop(ClosedError("The block was left."))
            return
        try:
            if error is None:
                await self.commit()
        finally:
            if self._result is None:
                await self._give_up()

    async def _give_up(self) -> None:
        """Aborts, if that is possible now; otherwise its time runs out."""
        if self._host.ready:
            with contextlib.suppress(FanlogError):
                await self.abort()
        else:
            self._drop()

    def _drop(self) -> None:
        self._aborted = True
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
        self._unfinished()
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
        """Commits a group's positions with the transaction: all that the member has taken, the
        message in hand included, or after these messages, or these positions.

        >>> tx.commit_offsets(member)
        """
        self._unfinished()
        if not callable(getattr(member, "offsets_for_commit", None)):
            raise InvalidArgumentError(
                "commit_offsets takes a member of a group, as client.consume(...) makes it, not "
                f"{type(member).__name__}."
            )
        offsets = member.offsets_for_commit(_positions(taken))
        key = (offsets.group, offsets.member)
        before = () if key not in self._offsets else self._offsets[key].positions
        places = {(p.topic, p.partition): p for p in (*before, *offsets.positions)}
        self._offsets[key] = msgspec.structs.replace(offsets, positions=tuple(places.values()))
        self._members[key] = member

    async def flush(self) -> None:
        """Waits until everything so far is staged: then another may commit it.

        >>> await tx.flush()
        """
        self._unfinished()
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
        if self._result is not None:
            return self._result
        begun = self._unfinished()
        await self._stager.flush()
        offsets = tuple(self._offsets.values())
        for key, member in self._members.items():
            # Once more: a partition may have been lost, and have come back, since.
            member.offsets_for_commit(self._offsets[key].positions)
        wanted = checked(CommitTransaction(begun.ticket, id or begun.id, offsets, tuple(tickets)))
        answer = await self._host.request(
            FrameKind.COMMIT_TRANSACTION, wanted, timeout_seconds=self._commit_timeout_seconds
        )
        self._result = decode(TransactionCommitted, answer)
        return self._result

    async def abort(self) -> None:
        """Takes everything back.

        >>> await tx.abort()
        """
        if not self._aborted:
            begun = self._unfinished()
            self._drop()
            await self._host.request(FrameKind.ABORT_TRANSACTION, AbortTransaction(begun.ticket))


def _positions(taken: Taken) -> tuple[Position, ...] | None:
    """The furthest of each partition."""
    if taken is None:
        return None
    furthest: dict[tuple[str, int], Position] = {}
    for one in (taken,) if isinstance(taken, Message) else taken:
        position = one if isinstance(one, Position) else position_after(one)
        place = (position.topic, position.partition)
        if place not in furthest or furthest[place].offset < position.offset:
            furthest[place] = position
    return tuple(furthest.values())


def position_after(message: Message) -> Position:
    after = reached(message.batch, message.offset + 1)
    return Position(message.topic, message.partition, *after)


async def run_transaction(
    begin: Callable[[str], Transaction],
    work: Callable[[Transaction], Awaitable[None]],
    id: str,
    attempts: int,
) -> TransactionCommitted:
    """Does the work in a transaction, and again in another of the same id where the broker has
    lost it: whatever became of those before, it happens once."""
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
