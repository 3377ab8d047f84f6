"""Readers of a typed topic: what they give is decoded, and a message that does not decode is
raised, left out, or handed to a function of the application's."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from fanlog.client.arguments import StartLike
from fanlog.client.groups.member import GroupMember
from fanlog.client.message import Message
from fanlog.client.subscription import Subscription
from fanlog.client.typed.kind import MessageType
from fanlog.client.typed.options import OnUndecodable
from fanlog.errors import DecodeError, InvalidArgumentError
from fanlog.format.messages import GroupOffsets, Position
from fanlog.model import TopicPartition

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


class _Typed(Generic[T, S]):
    """A subscription whose messages are decoded. Whatever else it does, the plain one does."""

    def __init__(self, subscription: S, reading: MessageDecoding[T]) -> None:
        self._subscription = subscription
        self._reading = reading

    async def start(self) -> None:
        """Begins to receive; `async with` and iterating do it by themselves."""
        await self._subscription.start()

    async def close(self) -> None:
        await self._subscription.close()

    async def __aenter__(self) -> Self:
        await self._subscription.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._subscription.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        async for message in self._subscription:
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
                message = await self._subscription.next()
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

    @property
    def target(self) -> str:
        return self._subscription.target

    @property
    def gaps(self) -> int:
        return self._subscription.gaps

    @property
    def missed(self) -> int:
        return self._subscription.missed

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._subscription.positions

    async def commit(self, message: Message | None = None) -> None:
        """Commits up to this message, or all that were taken, also those that were skipped."""
        await self._subscription.commit(message)


class TypedSubscription(_Typed[T, Subscription]):
    """Made by `topic.subscribe(...)`; use it with `async with`, then iterate.

    >>> async with orders.subscribe(start="earliest") as messages:  # doctest: +SKIP
    ...     async for message in messages:
    ...         print(message.offset, message.data.tea)
    """


class TypedGroupMember(_Typed[T, GroupMember]):
    """Made by `topic.consume(...)`; use it with `async with`, then iterate."""

    @property
    def group(self) -> str:
        return self._subscription.group

    @property
    def member(self) -> str:
        return self._subscription.member

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What this member reads now, as topics and partitions."""
        return self._subscription.partitions

    def commit_soon(self, message: Message | None = None) -> None:
        """Commits in the background. The next commit or close raises what goes wrong."""
        self._subscription.commit_soon(message)

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        return self._subscription.offsets_for_commit(positions)

    async def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[Position, ...]:
        """Moves in this member's partitions; see `GroupMember.seek`."""
        return await self._subscription.seek(start, topic, partition)
