"""Groups for the blocking client: what `client.groups` does, each call on the
client's own loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, cast

from fanlog.client.arguments import StartLike
from fanlog.client.blocking.loop import BlockingSubscription, LoopThread
from fanlog.client.blocking.threads import (
    HandlerThreads,
    call_in_thread,
    check_plain,
    check_plain_handler,
)
from fanlog.client.groups import member, operators
from fanlog.client.groups import options as async_
from fanlog.client.groups.operators import GroupInfos, ResetSteps
from fanlog.client.groups.options import HandlerOptions, SharedOptions
from fanlog.client.message import Message
from fanlog.format.messages import GroupOffsets, Position
from fanlog.model import GroupInfo, TopicPartition

OnPartitions = Callable[[tuple[TopicPartition, ...]], None]
MessageHandler = Callable[[Message], object]


class BlockingConsumeOptions(SharedOptions, total=False):
    """Those of the asyncio client. `on_assign` and `on_revoke` are called in threads."""

    on_assign: OnPartitions | None
    on_revoke: OnPartitions | None


class BlockingHandledOptions(BlockingConsumeOptions, HandlerOptions, total=False):
    """The same with those of handlers."""


def async_options(options: BlockingHandledOptions) -> async_.HandledOptions:
    """Options for the asyncio client."""
    given: dict[str, Any] = {**options}
    for name in ("on_assign", "on_revoke"):
        if name in given:
            given[name] = in_thread(given[name])
    return cast("async_.HandledOptions", given)


def message_handler_in_thread(
    threads: HandlerThreads, handler: MessageHandler
) -> Callable[[Message], Awaitable[object]]:
    """The handler in a thread of its own, where it may use the client as anywhere else."""
    check_plain_handler(handler, "a message")

    async def handle(message: Message) -> object:
        return await threads.call(handler, message)

    return handle


def in_thread(callback: OnPartitions | None) -> member.OnPartitions | None:
    """The callback in a thread of its own, where it may use the member as anywhere else."""
    if callback is None:
        return None
    check_plain(callback)

    async def called(places: tuple[TopicPartition, ...]) -> None:
        await call_in_thread(None, callback, places)

    return called


class BlockingGroupMember(BlockingSubscription):
    """Made by `client.consume(...)`; use it with `with`, then iterate.

    >>> with client.consume("orders", group="billing") as orders:  # doctest: +SKIP
    ...     for message in orders:
    ...         bill(message.json())
    """

    def __init__(self, loop: LoopThread, joined: member.GroupMember) -> None:
        super().__init__(loop, joined)
        self._member = joined

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._member.__aexit__(kind, error, trace))

    def _next_run(self, timeout_seconds: float | None) -> Iterator[Message]:
        return self._loop.call(self._member.next_run(timeout_seconds))

    @property
    def group(self) -> str:
        return self._member.group

    @property
    def member(self) -> str:
        return self._member.member

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What this member reads now, as topics and partitions."""
        return self._member.partitions

    def commit_soon(self, message: Message | None = None) -> None:
        """Commits in the background; see the asyncio client."""
        # Looked up here: the next message may be in hand before the loop comes to it.
        reached = self._member.reached(message)
        self._loop.post(lambda: self._member.commit_reached_soon(reached))

    def offsets_for_commit(self, positions: tuple[Position, ...] | None = None) -> GroupOffsets:
        return self._member.offsets_for_commit(positions)

    def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[Position, ...]:
        """Moves in this member's partitions; see the asyncio client."""
        return self._loop.call(self._member.seek(start, topic, partition))


class BlockingGroups:
    """What operators ask about groups. It is `client.groups`."""

    def __init__(self, loop: LoopThread, asked: operators.Groups) -> None:
        self._loop = loop
        self._groups = asked

    def list(self, pattern: str = ">") -> GroupInfos:
        return self._loop.call(self._groups.list(pattern))

    def describe(self, name: str) -> GroupInfo:
        return self._loop.call(self._groups.describe(name))

    def reset(
        self,
        name: str,
        start: StartLike,
        topic: str = "",
        partitions: tuple[int, ...] | None = None,
        *,
        dry_run: bool = False,
    ) -> ResetSteps:
        return self._loop.call(self._groups.reset(name, start, topic, partitions, dry_run=dry_run))

    def delete(self, name: str) -> None:
        self._loop.call(self._groups.delete(name))
