"""Messages before an offset, newest first in thought and oldest first in the answer: what a page
shows when somebody scrolls up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from fanlog.errors import (
    DamagedError,
    FanlogError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnreadableError,
    no_partition,
)
from fanlog.format.batch import Batch, split_batches
from fanlog.format.messages import Position
from fanlog.format.web import Records
from fanlog.format.web_positions import print_positions
from fanlog.listeners.web.operations import History

if TYPE_CHECKING:
    from fanlog.listeners.web.ports import Bus

_FETCH_BYTES = 1 << 20
# Offsets that one step back covers at most: compaction may have left few messages in many.
_STEP_MAX = 65_536
# And steps back in all. Who wants more asks again.
_STEPS_MAX = 8


async def read_history(
    bus: Bus, place: tuple[str, int], before: int | None, limit: int, bytes_max: int
) -> History:
    """Up to `limit` messages of a topic partition before an offset, or before the end."""
    topic, partition = place
    reader = _Backwards(bus, topic, partition)
    start, end = await reader.bounds()
    high = end if before is None else min(before, end)
    found: list[tuple[int, int, bytes]] = []
    step, low = limit, high
    for _ in range(_STEPS_MAX):
        if len(found) >= limit or low <= start or sum(len(one[2]) for one in found) > bytes_max:
            break
        high, low = low, max(start, low - step)
        found = await reader.between(low, high) + found
        step = min(2 * step, _STEP_MAX)
    cut = len(found) > limit
    found = found[-limit:]
    # Of the first message, so that what lies before it can be asked for.
    next_before = found[0][0] if cut else low
    positions = [
        Position(topic, partition, offset, epoch, reader.number) for offset, epoch, _ in found[:1]
    ]
    return History(
        messages=[msgspec.Raw(message) for _, _, message in found],
        positions=print_positions(positions),
        before=next_before if next_before > start else None,
    )


class _Backwards:
    """One partition. A Fanlog bus is asked by its client, since an edge mirrors only the newest
    messages; of another bus the mirror is all that there is."""

    def __init__(self, bus: Bus, topic: str, partition: int) -> None:
        self._bus = bus
        self._topic = topic
        self._index = partition
        self.number = 0

    async def bounds(self) -> tuple[int, int]:
        """The first offset, and the one behind the last."""
        client, topic = self._bus.client, self._topic
        if client is not None:
            info = await client.describe_topic(topic)
            self.number = info.number
            if self._index >= len(info.partitions):
                raise no_partition(topic, len(info.partitions), self._index)
            found = info.partitions[self._index]
            return found.start_offset, found.visible_end
        known = self._bus.core.catalog.find(topic)
        if known is None:
            raise TopicNotFoundError(f"Nobody follows {topic!r} here, so there is no history.")
        self.number = known.number
        if self._index >= len(known.partitions):
            raise no_partition(topic, len(known.partitions), self._index)
        partition = known.partitions[self._index]
        return partition.log.start_offset, partition.visible_end

    async def between(self, low: int, high: int) -> list[tuple[int, int, bytes]]:
        """Messages from an offset up to another, with their offsets and epochs."""
        found: list[tuple[int, int, bytes]] = []
        at = low
        while at < high:
            try:
                batches = await self._fetch(at)
            except DamagedError as fault:
                at = max(at + 1, fault.next)
                continue
            except OffsetOutOfRangeError:
                # Retention was faster.
                start, _ = await self.bounds()
                if start <= at:
                    return found
                at = start
                continue
            if not batches:
                return found
            for batch in batches:
                at = max(at, batch.header.next_offset)
                found += [one for one in _messages(batch) if low <= one[0] < high]
        return found

    async def _fetch(self, offset: int) -> list[Batch]:
        client, topic = self._bus.client, self._topic
        if client is not None:
            fetched = await client.fetch(topic, self._index, offset, bytes_max=_FETCH_BYTES)
            return fetched.batches
        known = self._bus.core.catalog.find(topic)
        if known is None:
            return []
        got: asyncio.Future[list[memoryview] | FanlogError] = (
            asyncio.get_running_loop().create_future()
        )
        self._bus.core.fetch(known.partitions[self._index], offset, _FETCH_BYTES, got.set_result)
        pieces = await got
        if isinstance(pieces, FanlogError):
            raise pieces
        return [
            Batch(piece[at : at + header.length], header, topic)
            for piece in pieces
            for at, header in split_batches(piece)
        ]


def _messages(batch: Batch) -> list[tuple[int, int, bytes]]:
    """Each message with its offset and epoch; none of a batch that its producer made wrong."""
    try:
        records = Records(batch)
    except UnreadableError:
        return []
    epoch = batch.header.leader_epoch
    return [
        (offset, epoch, message.encode())
        for offset, message in zip(records.offsets, records.messages, strict=True)
    ]
