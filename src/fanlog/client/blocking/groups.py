"""Members of groups for the blocking client. Callbacks and handlers run in threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from fanlog.client.blocking.front import blocking
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.blocking.subscription import BlockingSubscription
from fanlog.client.blocking.threads import (
    HandlerThreads,
    call_in_thread,
    check_plain,
    check_plain_handler,
)
from fanlog.client.forwarding import passed, shown
from fanlog.client.groups import attendant
from fanlog.client.groups import options as async_
from fanlog.client.groups.member import GroupMember
from fanlog.client.groups.options import HandlerOptions, SharedOptions
from fanlog.client.message import Message
from fanlog.model import TopicPartition

BlockingOnPartitions = Callable[[tuple[TopicPartition, ...]], None]
BlockingMessageHandler = Callable[[Message], object]


class BlockingConsumeOptions(SharedOptions, total=False):
    """Options as in the asyncio client. `on_assign` and `on_revoke` are called in threads."""

    on_assign: BlockingOnPartitions | None
    on_revoke: BlockingOnPartitions | None


class BlockingHandledOptions(BlockingConsumeOptions, HandlerOptions, total=False):
    """The same, with the options of handlers."""


def async_options(options: BlockingHandledOptions) -> async_.HandledOptions:
    """Options for the asyncio client."""
    given: dict[str, Any] = {**options}
    for name in ("on_assign", "on_revoke"):
        if name in given:
            given[name] = in_thread(given[name])
    return cast("async_.HandledOptions", given)


def message_handler_in_thread(
    threads: HandlerThreads, handler: BlockingMessageHandler
) -> Callable[[Message], Awaitable[object]]:
    """Runs the handler in its own thread, where it may use the client as usual."""
    check_plain_handler(handler, "a message")

    async def handle(message: Message) -> object:
        return await threads.call(handler, message)

    return handle


def in_thread(callback: BlockingOnPartitions | None) -> attendant.OnPartitions | None:
    """Runs the callback in its own thread, where it may use the member as usual."""
    if callback is None:
        return None
    check_plain(callback)

    async def called(tps: tuple[TopicPartition, ...]) -> None:
        await call_in_thread(None, callback, tps)

    return called


class BlockingGroupMember(BlockingSubscription):
    """Made by `client.consume(...)`; use it with `with`, then iterate.

    >>> with client.consume("orders", group="billing") as orders:  # doctest: +SKIP
    ...     for message in orders:
    ...         bill(message.json())
    """

    def __init__(self, loop: LoopThread, behind: GroupMember) -> None:
        super().__init__(loop, behind)
        self._member = behind

    group = shown(GroupMember, lambda member: member.group)
    member = shown(GroupMember, lambda member: member.member)
    partitions = shown(GroupMember, lambda member: member.partitions)
    start = blocking(GroupMember.start)
    close = blocking(GroupMember.close)
    commit = blocking(GroupMember.commit)
    seek = blocking(GroupMember.seek)
    offsets_for_commit = passed(GroupMember.offsets_for_commit)

    def commit_soon(self, message: Message | None = None) -> None:
        """Commits offsets in the background; see the asyncio client."""
        # Looked up now: the program may take the next message before the loop runs this.
        reached = self._member.reached(message)
        self._loop.post(lambda: self._member.commit_reached_soon(reached))
