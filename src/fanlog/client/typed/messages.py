"""Readers of a typed topic: what they give is decoded, and a message that does not decode is
raised, left out, or handed to a function of the application's."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from fanlog.client.forwarding import Front, passed, shown
from fanlog.client.groups.member import GroupMember
from fanlog.client.message import Message
from fanlog.client.subscription import Subscription
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.options import OnUndecodable
from fanlog.errors import DecodeError, InvalidArgumentError

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
S = TypeVar("S", bound=Subscription)


class TypedMessage(Message, Generic[T], frozen=True, gc=True, eq=False):
    """A message with its value decoded, as `data`. `value` is its bytes, as always."""

    data: T


class MessageDecoding(Generic[T]):
    """How the messages of one reader are decoded, and what happens to those that are not."""

    def __init__(self, kind: MessageType[T], on_undecodable: OnUndecodable) -> None:
        if on_undecodable not in ("raise", "skip") and not callable(on_undecodable):
            raise InvalidArgumentError(
                f"on_undecodable is 'raise', 'skip', or a function of a message and its error, not "
                f"{on_undecodable!r}."
            )
        self._kind = kind
        self._on_undecodable: OnUndecodable = on_undecodable

    def typed(self, message: Message) -> TypedMessage[T]:
        """Raises DecodeError."""
        data = self._kind.decode(message)
        return TypedMessage(message.value, message.offset, message.batch, message.index, data)

    def pass_over(self, message: Message, fault: DecodeError) -> object:
        """Raises the fault, or says what to do next: await it, if it can be awaited."""
        if self._on_undecodable == "raise":
            raise fault
        if self._on_undecodable == "skip":
            logger.warning("A message is skipped. %s", fault)
            return None
        return self._on_undecodable(message, fault)


class _Typed(Front[S], Generic[T, S]):
    """A subscription whose messages are decoded. Whatever else it does, the plain one does."""

    def __init__(self, behind: S, reading: MessageDecoding[T]) -> None:
        super().__init__(behind)
        self._reading = reading

    target = shown(Subscription, lambda subscription: subscription.target)
    gaps = shown(Subscription, lambda subscription: subscription.gaps)
    missed = shown(Subscription, lambda subscription: subscription.missed)
    positions = shown(Subscription, lambda subscription: subscription.positions)
    start = passed(Subscription.start)
    close = passed(Subscription.close)

    async def __aenter__(self) -> Self:
        await self._behind.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._behind.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        async for message in self._behind:
            try:
                typed = self._reading.typed(message)
            except DecodeError as fault:
                await self._pass_over(message, fault)
                continue
            yield typed

    async def next(self, timeout_seconds: float | None = None) -> TypedMessage[T]:
        """The next message. Raises TimeoutError when none comes in time."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                message = await self._behind.next()
                try:
                    return self._reading.typed(message)
                except DecodeError as fault:
                    await self._pass_over(message, fault)

    async def _pass_over(self, message: Message, fault: DecodeError) -> None:
        asked = self._reading.pass_over(message, fault)
        if inspect.isawaitable(asked):
            await asked
        # However many they are: a time-out may be over, and others want a turn.
        await asyncio.sleep(0)

    async def commit(self, message: Message | None = None) -> None:
        """Commits up to this message, or all that were taken, also those that were skipped."""
        await self._behind.commit(message)


class TypedSubscription(_Typed[T, Subscription]):
    """Made by `topic.subscribe(...)`; use it with `async with`, then iterate.

    >>> async with orders.subscribe(start="earliest") as messages:  # doctest: +SKIP
    ...     async for message in messages:
    ...         print(message.offset, message.data.tea)
    """


class TypedGroupMember(_Typed[T, GroupMember]):
    """Made by `topic.consume(...)`; use it with `async with`, then iterate."""

    group = shown(GroupMember, lambda member: member.group)
    member = shown(GroupMember, lambda member: member.member)
    partitions = shown(GroupMember, lambda member: member.partitions)
    commit_soon = passed(GroupMember.commit_soon)
    offsets_for_commit = passed(GroupMember.offsets_for_commit)
    seek = passed(GroupMember.seek)
