"""Consume, transform, produce, exactly once: the results of a group's messages are committed
together with the group's offsets. After a failed transaction, the work is done again from the last
transaction commit."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from fanlog.client.core.offset_commits import CommitMode
from fanlog.client.core.receiving import OnGap
from fanlog.client.core.transform_core import (
    REPEATED,
    TransformAttempt,
    check_target,
    first_wait_seconds,
)
from fanlog.client.groups.attendant import OnPartitions
from fanlog.client.groups.member import GroupMember
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.tracing import maybe_tracer
from fanlog.client.transactions.transaction import Transaction
from fanlog.client.values import Encoding
from fanlog.errors import ClosedError, FencedError, InvalidArgumentError
from fanlog.model import ResetPolicy, TopicPartition

logger = logging.getLogger("fanlog.client")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that a transformation makes; without a topic it goes to the target."""

    topic: str
    value: Value
    key: bytes | str | None = None
    headers: Headers | None = None
    event_time: dt.datetime | int | None = None
    partition: int | None = None
    encoding: Encoding | None = None


Made = Value | Outgoing | list[Any] | tuple[Any, ...]
Function = Callable[[Message], Made | Awaitable[Made]]


class TransformHost(Protocol):
    """The client, as far as a transformation needs it."""

    def consume(
        self,
        topic: str,
        *,
        group: str,
        member: str = "",
        reset: ResetPolicy = "latest",
        commit: CommitMode = "auto",
        session_seconds: float = 10.0,
        on_revoke: OnPartitions | None = None,
        on_gap: OnGap | None = None,
    ) -> GroupMember: ...

    def transaction(self, id: str = "", *, timeout_seconds: float = 60.0) -> Transaction: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOptions:
    """Input topics, group, and batch size."""

    group: str
    member: str
    reset: ResetPolicy
    session_seconds: float
    batch_records: int
    batch_seconds: float
    until: Callable[[], bool] | None
    idle_seconds: float | None
    on_gap: OnGap | None


class Transform:
    def __init__(
        self,
        host: TransformHost,
        source: str,
        target: str,
        function: Function,
        options: TransformOptions,
    ) -> None:
        self._host = host
        self._source = source
        self._target = target
        self._function = function
        self._options = options
        self._current: TransformAttempt | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self._waiting: asyncio.Timeout | None = None
        self._count = 0

    async def run(self) -> int:
        """Runs until it is stopped or cancelled. Returns the number of messages done."""
        if not callable(self._function):
            raise InvalidArgumentError(
                "transform needs a function that takes a message and returns its results."
            )
        check_target(self._source, self._target)
        while True:
            member = self._join()
            try:
                async with member:
                    await self._follow(member)
                return self._count
            except REPEATED as fault:
                if isinstance(fault, FencedError) and self._options.member:
                    await _raise_if_over(member)
                logger.info(
                    "%s resumes from its last transaction commit: %s", self._options.group, fault
                )

    def _join(self) -> GroupMember:
        options = self._options
        return self._host.consume(
            self._source,
            group=options.group,
            member=options.member,
            reset=options.reset,
            commit="manual",
            session_seconds=options.session_seconds,
            on_revoke=self._revoked,
            on_gap=options.on_gap,
        )

    async def _revoked(self, tps: tuple[TopicPartition, ...]) -> None:
        """A partition goes to another member after its messages are committed."""
        if self._current is not None and self._current.hurry_for(tps):
            if self._waiting is not None and not self._waiting.expired():
                self._waiting.reschedule(asyncio.get_running_loop().time())
            await self._ended.wait()

    async def _follow(self, member: GroupMember) -> None:
        while (message := await self._first(member)) is not None:
            self._ended.clear()
            try:
                self._count += await self._attempt(member, message)
            finally:
                self._current = None
                self._ended.set()

    async def _first(self, member: GroupMember) -> Message | None:
        options, loop = self._options, asyncio.get_running_loop()
        idle_at = None if options.idle_seconds is None else loop.time() + options.idle_seconds
        while options.until is None or not options.until():
            looks = options.until is not None
            wait_seconds = first_wait_seconds(loop.time(), idle_at, looks=looks)
            if wait_seconds == 0:
                return None
            try:
                return await member.next(wait_seconds)
            except TimeoutError:
                continue
        return None

    async def _attempt(self, member: GroupMember, first: Message) -> int:
        """One transaction. Returns the number of its messages."""
        end_at = asyncio.get_running_loop().time() + self._options.batch_seconds
        attempt = TransformAttempt(member, first, self._options.batch_records)
        self._current = attempt
        message = first
        async with self._host.transaction() as transaction:
            while True:
                await self._transform(transaction, message)
                attempt.finish(message)
                following = None if attempt.is_full else await self._next(member, end_at)
                if following is None:
                    break
                message = following
                attempt.take(message)
            transaction.commit_offsets(attempt.member, attempt.positions)
        return attempt.count

    async def _next(self, member: GroupMember, end_at: float) -> Message | None:
        try:
            async with asyncio.timeout_at(end_at) as self._waiting:
                return await member.next()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    async def _transform(self, transaction: Transaction, message: Message) -> None:
        # The results of a message belong to its trace.
        tracer = maybe_tracer()
        if tracer is None:
            await self._publish_made(transaction, message)
        else:
            with tracer.processing(message, self._options.group):
                await self._publish_made(transaction, message)

    async def _publish_made(self, transaction: Transaction, message: Message) -> None:
        made = self._function(message)
        if inspect.isawaitable(made):
            made = await made
        if made is None:
            return
        several = isinstance(made, list | tuple)
        for one in cast("list[object]", made) if several else (made,):
            if isinstance(one, Outgoing):
                await transaction.publish(
                    one.topic or self._target,
                    one.value,
                    key=one.key,
                    headers=one.headers,
                    event_time=one.event_time,
                    partition=one.partition,
                    encoding=one.encoding,
                )
            else:
                await transaction.publish(
                    self._target, one, key=message.key, headers=message.headers
                )


async def _raise_if_over(member: GroupMember) -> None:
    """Raises if another client has taken over this member's name: this one must not take it
    back."""
    with contextlib.suppress(ClosedError, TimeoutError):
        await member.next(0)
