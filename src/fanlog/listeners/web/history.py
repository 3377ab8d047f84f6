"""Messages before an offset, which a page shows when a user scrolls up. It looks for the newest,
and answers with the oldest first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
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
from fanlog.format.web import RenderedRecords
from fanlog.format.web_positions import print_positions
from fanlog.listeners.web.operations import HistoryPage

if TYPE_CHECKING:
    from fanlog.listeners.web.ports import Bus

# Offset, epoch, and the message as JSON.
_Message = tuple[int, int, bytes]
_FETCH_BYTES = 1 << 20
# What takes longer to render than the loop can wait for others.
_LOOP_BYTES_MAX = 256 * 1024
# Offsets that one step back covers at most: compaction may have left few messages in many.
_STEP_MAX = 65_536
# And steps back in all. Who wants more asks again.
_STEPS_MAX = 8


async def read_history(
    bus: Bus, tp: tuple[str, int], before: int | None, limit: int, bytes_max: int
) -> HistoryPage:
    """Up to `limit` messages of a topic partition before an offset, or before the end."""
    topic, partition = tp
    reader = _Backwards(bus, topic, partition)
    start, end = await reader.bounds()
    high = end if before is None else min(before, end)
    found = _Newest(limit, bytes_max)
    step, low = limit, high
    for _ in range(_STEPS_MAX):
        if len(found.messages) >= limit or low <= start or found.cut:
            break
        high, low = low, max(start, low - step)
        newer, found = found, _Newest(limit, bytes_max)
        await reader.between(low, high, found)
        found.add(newer.messages)
        step = min(2 * step, _STEP_MAX)
    shown = list(found.messages)
    # The position of the first message, so that a client can request the messages before it.
    next_before = shown[0][0] if found.cut else low
    positions = [
        Position(topic, partition, offset, epoch, reader.number) for offset, epoch, _ in shown[:1]
    ]
    return HistoryPage(
        messages=[msgspec.Raw(message) for _, _, message in shown],
        positions=print_positions(positions),
        before=next_before if next_before > start else None,
    )


class _Newest:
    """The newest messages that fit into an answer, of those that are added in their order. `cut`:
    older ones were left out."""

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit = limit
        self._bytes_max = bytes_max
        self._bytes = 0
        self.messages: deque[_Message] = deque()
        self.cut = False

    def add(self, messages: Iterable[_Message]) -> None:
        for message in messages:
            self.messages.append(message)
            self._bytes += len(message[2])
            while len(self.messages) > self._limit or (
                self._bytes > self._bytes_max and len(self.messages) > 1
            ):
                self._bytes -= len(self.messages.popleft()[2])
                self.cut = True


class _Backwards:
    """One partition. With a Fanlog bus, its client fetches them, because an edge mirrors only the
    newest messages. With another bus, the mirror has all that exist."""

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

    async def between(self, low: int, high: int, found: _Newest) -> None:
        """Adds the messages from an offset up to another."""
        at = low
        while at < high:
            try:
                batches = await self._fetch(at)
            except DamagedError as fault:
                at = max(at + 1, fault.next)
                continue
            except OffsetOutOfRangeError:
                # Retention has deleted it meanwhile.
                start, _ = await self.bounds()
                if start <= at:
                    return
                at = start
                continue
            if not batches:
                return
            for batch in batches:
                at = max(at, batch.header.next_offset)
                found.add(one for one in await _rendered(batch) if low <= one[0] < high)

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
        self._bus.core.reading.fetch(
            known.partitions[self._index], offset, _FETCH_BYTES, got.set_result
        )
        pieces = await got
        if isinstance(pieces, FanlogError):
            raise pieces
        return [
            Batch(piece[at : at + header.length], header, topic)
            for piece in pieces
            for at, header in split_batches(piece)
        ]


async def _rendered(batch: Batch) -> list[_Message]:
    try:
        is_small = batch.unpacked_bytes <= _LOOP_BYTES_MAX
    except UnreadableError:
        return []
    return _messages(batch) if is_small else await asyncio.to_thread(_messages, batch)


def _messages(batch: Batch) -> list[_Message]:
    """Each message with its offset and epoch; none of a batch that its producer made wrong."""
    try:
        records = RenderedRecords(batch)
    except UnreadableError:
        return []
    epoch = batch.header.leader_epoch
    return [
        (offset, epoch, message.encode())
        for offset, message in zip(records.offsets, records.messages, strict=True)
    ]
