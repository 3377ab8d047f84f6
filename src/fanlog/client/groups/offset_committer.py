"""A member's offset commits under asyncio: `core/offset_commits.py` says what is committed; at most
one commit is pending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from fanlog.client.core.offset_commits import ReachedPositions
from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.errors import FanlogError
from fanlog.format.frames import FrameKind


class GroupHost(Protocol):
    """The client, as far as the requests of a member need it."""

    @property
    def connected(self) -> bool: ...
    async def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        on_answer: Callable[[bytes], None] | None = None,
    ) -> bytes: ...


class OffsetCommitter:
    """Sends the offset commits of one member."""

    def __init__(self, host: GroupHost, owned: OwnedPartitions) -> None:
        self._host = host
        self._owned = owned
        self._core = owned.commits
        self._one = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Notes the loop that commits run on."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake)

        self._core.on_due = wake

    def soon(self, positions: ReachedPositions) -> None:
        """Commits these in the background."""
        self._core.give(positions)
        self._wake()

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._core.is_due:
            async with self._one:
                await self._commit_due()

    async def flush(self, *, done: bool) -> None:
        """Commits waiting positions, and if wanted finished ones; a failure is kept."""
        if done:
            self._core.want_done()
        async with self._one:
            await self._commit_due()

    async def _commit_due(self) -> None:
        while wanted := self._core.next():
            try:
                await self._send(wanted)
            except FanlogError as error:
                if self._core.failed(wanted, error):
                    continue
            return

    async def now(self, positions: ReachedPositions) -> None:
        """Commits these, and returns when they are."""
        self._core.raise_error()
        async with self._one:
            self._core.begin(positions)
            if positions:
                await self._send(positions)

    async def _send(self, positions: ReachedPositions) -> None:
        def stored(_: bytes) -> None:
            self._owned.committed(positions)

        wanted = self._owned.commit_request(positions)
        await self._host.ask(FrameKind.COMMIT, wanted, aux=self._owned.key, on_answer=stored)
