"""The edge's own client: what the edge has in files of its own is not fetched from upstream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fanlog.broker.messages.reading import batches_within
from fanlog.client.aio import Client
from fanlog.client.core.fetched import Fetched
from fanlog.edge.own_copy import CopiedBlock
from fanlog.format.batch import Batch, split_batches

# Reads a topic's partition from an offset on. None: upstream has to answer.
ReadOwn = Callable[[str, int, int], Awaitable[CopiedBlock | None]]


class EdgeClient(Client):
    """`read_own` reads the edge's own copy, once there is one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.read_own: ReadOwn | None = None

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> Fetched:
        if self.read_own is not None:
            found = await self.read_own(topic, partition, offset)
            if found is not None:
                data = batches_within(found.block.data, bytes_max)
                batches = [
                    Batch(data[at : at + header.length], header, topic, self._limits)
                    for at, header in split_batches(data)
                ]
                return Fetched(found.visible_end, found.start_offset, batches)
        return await super().fetch(
            topic, partition, offset, bytes_max=bytes_max, wait_seconds=wait_seconds
        )
