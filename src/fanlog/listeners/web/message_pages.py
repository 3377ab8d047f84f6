"""Pages of messages: where a request starts, what it finds, and where the next one resumes.

A page of several partitions is in the order of time. Messages that can't be read are a gap in the
page. They are never an error, and never left out silently.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from fanlog.errors import (
    DamagedError,
    OffsetOutOfRangeError,
    TopicDeletedError,
    UnreadableError,
)
from fanlog.format.messages import Position
from fanlog.format.web import messages_json
from fanlog.model import Durability, PartitionInfo, TopicInfo

if TYPE_CHECKING:
    from fanlog.client.aio import Client
    from fanlog.format.batch import Batch

# Fetches of one page that are under way at the same time.
_FETCHES_MAX = 8
# A message is guessed to take this much of the log, so that a small page does not read much.
_MESSAGE_BYTES = 512
_FETCH_BYTES_MIN = 16 * 1024
# What takes longer to render than the loop can wait for others.
_LOOP_BYTES_MAX = 256 * 1024


class GapAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets `from` up to, not including, `to` that can't be read."""

    partition: int
    first: Annotated[int, Meta(description="The first offset of the gap.")] = msgspec.field(
        name="from"
    )
    to: Annotated[int, Meta(description="The first offset after the gap.")]
    reason: Annotated[
        str,
        Meta(
            description="retention: deleted by age or size. damaged: lost on disk. unreadable: its "
            "producer made it wrong. reset: the topic was made again, or a crash took its end."
        ),
    ]


class RenderedBatches:
    """Recently rendered batches, up to a number of bytes. Reading a large batch page by page, or
    the same history by many clients, renders it once."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[int, ...], list[bytes]] = OrderedDict()

    async def messages(self, batch: Batch, topic: str) -> list[bytes]:
        """All messages of a batch as JSON. Raises `UnreadableError`."""
        header = batch.header
        key = (
            header.topic,
            header.partition,
            header.base_offset,
            header.header_crc,
            header.body_crc,
        )
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        if batch.unpacked_bytes > _LOOP_BYTES_MAX:
            found = await asyncio.to_thread(messages_json, batch, topic=topic)
        else:
            found = messages_json(batch, topic=topic)
        self._keep(key, found)
        return found

    def _keep(self, key: tuple[int, ...], messages: list[bytes]) -> None:
        size = _size(messages)
        if key in self._kept or size > self._bytes_max:
            return
        self._kept[key] = messages
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(messages: list[bytes]) -> int:
    return sum(map(len, messages)) + 64 * len(messages)


class MessagePage:
    """What was found: messages as JSON, in the order of time, and what is behind them."""

    def __init__(self, info: TopicInfo, epoch: int) -> None:
        self.info = info
        self.epoch = epoch
        self.messages: list[bytes] = []
        self.bytes = 0
        self.gaps: list[GapAnswer] = []
        self.next: dict[int, int] = {}
        # The newest epoch that a message of it was written in.
        self.newest_epoch = 0
        self.at_end = True

    @property
    def positions(self) -> tuple[Position, ...]:
        info = self.info
        return tuple(
            Position(info.name, partition, offset, self.epoch, info.number)
            for partition, offset in sorted(self.next.items())
        )


def continue_at(info: TopicInfo, epoch: int, position: Position) -> int:
    """Where a reader resumes: at its position, or where the log parted from the one that it knew.
    As `broker.positions` decides it, from what a topic's description says."""
    partition = info.partitions[position.partition]
    start = min(partition.start_offset, partition.visible_end)
    if position.number not in (0, info.number):
        return start
    known = _known_until(info, partition, position.epoch, epoch)
    if position.offset <= known:
        return position.offset
    return max(start, known) if position.epoch else start


def _known_until(info: TopicInfo, partition: PartitionInfo, epoch: int, now: int) -> int:
    if info.settings.level is Durability.MEMORY:
        return partition.visible_end if epoch in (0, now) else -1
    parted = (start.first for start in partition.epochs if epoch and start.epoch > epoch)
    return min(next(parted, partition.visible_end), partition.visible_end)


class _PageItem(NamedTuple):
    """A message of a page, or a gap."""

    time_us: int
    offset: int
    epoch: int
    content: bytes | GapAnswer


class _Partition:
    """A partition of a page: what was fetched and not taken yet."""

    def __init__(self, info: PartitionInfo, offset: int) -> None:
        self.index = info.partition
        self.end = info.visible_end
        self.offset = offset
        self.fetched: deque[_PageItem] = deque()
        self.time_us = 0

    @property
    def is_behind(self) -> bool:
        return not self.fetched and self.offset < self.end


class PageReader:
    """Reads one page."""

    def __init__(
        self,
        client: Client,
        rendered: RenderedBatches,
        info: TopicInfo,
        starts: Mapping[int, int],
        limits: tuple[int, int],
    ) -> None:
        self._client = client
        self._rendered = rendered
        self._limit, self._bytes_max = limits
        epoch = 0 if client.welcome is None else client.welcome.epoch
        self.page = MessagePage(info, epoch)
        self._partitions = [
            _Partition(info.partitions[index], offset) for index, offset in starts.items()
        ]

    async def read(self) -> MessagePage:
        page = self.page
        for partition in self._partitions:
            first = page.info.partitions[partition.index].start_offset
            self._skip(partition, first, "retention")
        while len(page.messages) < self._limit and page.bytes < self._bytes_max:
            await self._fetch([p for p in self._partitions if p.is_behind])
            ready = [p for p in self._partitions if p.fetched]
            if not ready:
                break
            self._take(min(ready, key=lambda p: (p.fetched[0].time_us, p.index)).fetched)
        for partition in self._partitions:
            behind = partition.fetched[0].offset if partition.fetched else partition.offset
            page.next[partition.index] = behind
            page.at_end = page.at_end and not partition.fetched and not partition.is_behind
        return page

    def _take(self, fetched: deque[_PageItem]) -> None:
        """The oldest messages of a partition, as many as are of the same time."""
        page = self.page
        time_us = fetched[0].time_us
        while fetched and fetched[0].time_us == time_us and len(page.messages) < self._limit:
            found = fetched.popleft()
            if isinstance(found.content, GapAnswer):
                page.gaps.append(found.content)
                continue
            page.messages.append(found.content)
            page.bytes += len(found.content)
            page.newest_epoch = max(page.newest_epoch, found.epoch)

    async def _fetch(self, behind: list[_Partition]) -> None:
        if not behind:
            return
        wanted = (self._limit - len(self.page.messages)) * _MESSAGE_BYTES
        size = min(max(wanted, _FETCH_BYTES_MIN), max(1, self._bytes_max // len(behind)))
        room = asyncio.Semaphore(_FETCHES_MAX)

        async def fetch(partition: _Partition) -> None:
            async with room:
                while partition.is_behind:
                    await self._fetch_one(partition, size)

        await asyncio.gather(*map(fetch, behind))

    async def _fetch_one(self, partition: _Partition, size: int) -> None:
        topic, index = self.page.info.name, partition.index
        try:
            found = await self._client.fetch(topic, index, partition.offset, bytes_max=size)
        except OffsetOutOfRangeError:
            # Retention has deleted it meanwhile.
            info = await self._client.describe_topic(topic)
            self._check_same(info.number)
            start = info.partitions[index].start_offset
            if start <= partition.offset:
                raise
            self._skip(partition, start, "retention")
            return
        except DamagedError as fault:
            if fault.next <= partition.offset:
                raise
            self._skip(partition, fault.next, "damaged")
            return
        if not found.batches:
            # It was truncated or deleted meanwhile.
            partition.end = partition.offset
            return
        for batch in found.batches:
            self._check_same(batch.header.topic)
            await self._render(partition, batch)

    def _check_same(self, number: int) -> None:
        if number != self.page.info.number:
            raise TopicDeletedError(
                f"Topic {self.page.info.name!r} was deleted and made again while it was read. Read "
                "it again."
            )

    async def _render(self, partition: _Partition, batch: Batch) -> None:
        header = batch.header
        if len(partition.fetched) >= self._limit or header.next_offset <= partition.offset:
            return
        try:
            messages = await self._rendered.messages(batch, self.page.info.name)
        except UnreadableError:
            self._skip(partition, header.next_offset, "unreadable")
            return
        offsets = batch.offsets
        first = bisect_left(offsets, partition.offset)
        last = first + self._limit - len(partition.fetched)
        partition.time_us = time_us = header.append_time_us
        for offset, message in zip(offsets[first:last], messages[first:last], strict=True):
            partition.fetched.append(_PageItem(time_us, offset, header.leader_epoch, message))
        # What is past the limit is not for this page.
        partition.offset = offsets[last] if last < len(offsets) else header.next_offset

    def _skip(self, partition: _Partition, to: int, reason: str) -> None:
        """Continues behind what can't be read."""
        first = partition.offset
        if to > first:
            gap = GapAnswer(partition=partition.index, first=first, to=to, reason=reason)
            partition.fetched.append(_PageItem(partition.time_us, first, 0, gap))
            partition.offset = to
