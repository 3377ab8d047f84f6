"""Dead letters as the log of this broker holds them. Small batches are decoded on the loop, others
in threads."""

from __future__ import annotations

import asyncio
import datetime as dt
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fanlog.client.dead_letters import DeadLetter, letter_of
from fanlog.client.message import Message
from fanlog.errors import DamagedError, FanlogError, OffsetOutOfRangeError, UnreadableError
from fanlog.format.batch import Batch, split_batches
from fanlog.format.dead_letters import read_death
from fanlog.listeners.web.dead_reasons import group_of
from fanlog.listeners.web.dead_table import DeadLetterFacts, Record

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic, Partition

T = TypeVar("T")

# Bytes of one read: to check all records, and to check some.
_SCAN_BYTES = 256 * 1024
# A few compressed bytes may hold millions of records: reading stops after this number of records
# and one batch.
_SCAN_RECORDS = 20_000
_READ_BYTES = 64 * 1024
# Larger batches are decoded in a thread, so that the loop does not wait.
_LOOP_BYTES_MAX = 8 * 1024
# Whole dead letters in memory at once.
TOGETHER = 100
TOGETHER_BYTES = 4 << 20


class RecordRange(NamedTuple):
    """Records of a partition, and the offset behind them."""

    records: list[Record]
    next_offset: int


async def read_stretch(broker: BrokerCore, partition: Partition, offset: int) -> RecordRange:
    """The next records from an offset, as rows for a table of dead letters."""
    try:
        pieces = await _fetch(broker, partition, offset, _SCAN_BYTES)
    except DamagedError as fault:
        return RecordRange([], max(offset + 1, fault.next))
    except OffsetOutOfRangeError:
        return RecordRange([], max(offset + 1, partition.log.start_offset))
    if not pieces:
        return RecordRange([], partition.visible_end)
    end = partition.visible_end

    def decode() -> RecordRange:
        records: list[Record] = []
        next_offset = offset
        # One by one, so that only one is unpacked at a time.
        for batch in _each_batch(broker, partition, pieces):
            records += [record for record in _records(batch) if offset <= record[1] < end]
            next_offset = batch.next_offset
            if len(records) >= _SCAN_RECORDS:
                break
        return RecordRange(records, next_offset)

    size = sum(map(len, pieces))
    if size <= _LOOP_BYTES_MAX and broker.unpacker.is_small(_unpacked(broker, pieces)):
        return decode()
    return await _in_thread(broker, size, decode)


def _unpacked(broker: BrokerCore, pieces: list[memoryview]) -> int:
    return sum(broker.unpacker.decoding_bytes(piece) for piece in pieces)


def _records(batch: Batch) -> list[Record]:
    try:
        batch.check()
        keys, offsets, columns = batch.keys, batch.offsets, batch.columns
        headers = columns.header_columns
        if headers is None:
            return [(key, offset, None) for key, offset in zip(keys, offsets, strict=False)]
        slots = headers[0].tolist()
        raw = headers[1].to_bytes_list()
        known = {name: name.decode(errors="replace") for name in set(raw)}
        names = [known[name] for name in raw]
        contents = headers[2].to_bytes_list()
    except UnreadableError:
        # Its damage was logged when it was found. Reading continues.
        return []
    values = columns.value_column
    found: list[Record] = []
    for i, offset in enumerate(offsets):
        what = None
        if not values.is_null(i):
            begin, end = slots[i], slots[i + 1]
            what = _found(dict(zip(names[begin:end], contents[begin:end], strict=True)))
        found.append((keys[i], offset, what))
    return found


def _found(headers: dict[str, bytes]) -> DeadLetterFacts | None:
    death = read_death(headers)
    if death is None:
        return None
    return DeadLetterFacts(
        microseconds(death.time),
        death.reason,
        group_of(death.reason),
        death.topic,
        death.queue,
        hash(death.key),
    )


def microseconds(time: dt.datetime) -> int:
    """Since 1970. A time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    return (time - _EPOCH) // _MICROSECOND


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


async def read_letters(
    broker: BrokerCore, topic: BrokerTopic, positions: Sequence[tuple[int, int]]
) -> AsyncIterator[list[DeadLetter]]:
    """The dead letters at these positions, in groups. Those no longer in the log are left out. Fast
    if the positions are in log order."""
    some: list[DeadLetter] = []
    size = 0
    reader = _DeadLetterReader(broker, topic)
    for partition, offset in positions:
        letter = await reader.read(partition, offset)
        if letter is None:
            continue
        some.append(letter)
        size += len(letter.value or b"")
        if len(some) >= TOGETHER or size >= TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


class _DeadLetterReader:
    """Keeps the batches read last, since the next dead letter is usually in them. Only one is
    unpacked at a time."""

    def __init__(self, broker: BrokerCore, topic: BrokerTopic) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = -1
        self._batches: list[Batch] = []
        self._ends: list[int] = []
        self._unpacked = 0
        self._until = 0.0

    async def read(self, partition: int, offset: int) -> DeadLetter | None:
        if partition >= len(self._topic.partitions):
            return None
        await self._turn()
        batch = self._known(partition, offset)
        if batch is None:
            await self._load(partition, offset)
            batch = self._known(partition, offset)
        if batch is None or not await self._check(batch):
            return None
        offsets = batch.offsets
        index = bisect_left(offsets, offset)
        if index == len(offsets) or offsets[index] != offset:
            return None
        value = batch.columns.value_column[index]
        return None if value is None else letter_of(Message(value, offset, batch, index))

    async def _turn(self) -> None:
        """Yields to the loop when a slice is used up."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            await asyncio.sleep(0)
            self._until = loop.time() + 0.001

    def _known(self, partition: int, offset: int) -> Batch | None:
        if partition != self._partition:
            return None
        at = bisect_left(self._ends, offset + 1)
        if at == len(self._batches) or self._batches[at].base_offset > offset:
            return None
        if at != self._unpacked:
            packed = self._batches[self._unpacked]
            limits = self._broker.unpacker.limits
            fresh = Batch(packed.data, packed.header, self._topic.name, limits)
            self._batches[self._unpacked], self._unpacked = fresh, at
        return self._batches[at]

    async def _load(self, index: int, offset: int) -> None:
        partition = self._topic.partitions[index]
        self._partition, self._batches, self._ends, self._unpacked = index, [], [], 0
        try:
            pieces = await _fetch(self._broker, partition, offset, _READ_BYTES)
        except (DamagedError, OffsetOutOfRangeError):
            return
        self._batches = list(_each_batch(self._broker, partition, pieces))
        self._ends = [batch.next_offset for batch in self._batches]

    async def _check(self, batch: Batch) -> bool:
        """Decodes a batch, unless it is decoded. False if it is damaged."""
        broker = self._broker

        def check() -> bool:
            try:
                batch.check()
            except UnreadableError:
                return False
            return True

        work = broker.unpacker.decoding_bytes(batch.data)
        return check() if broker.unpacker.is_small(work) else await _in_thread(broker, work, check)


async def _fetch(
    broker: BrokerCore, partition: Partition, offset: int, bytes_max: int
) -> list[memoryview]:
    got: asyncio.Future[list[memoryview] | FanlogError] = asyncio.get_running_loop().create_future()

    def done(result: list[memoryview] | FanlogError) -> None:
        if not got.done():
            got.set_result(result)

    broker.reading.fetch(partition, offset, bytes_max, done)
    result = await got
    if isinstance(result, FanlogError):
        raise result
    return result


def _each_batch(
    broker: BrokerCore, partition: Partition, pieces: list[memoryview]
) -> Iterator[Batch]:
    limits, name = broker.unpacker.limits, partition.topic.name
    for piece in pieces:
        for at, header in split_batches(piece):
            yield Batch(piece[at : at + header.length], header, name, limits)


async def _in_thread(broker: BrokerCore, size: int, work: Callable[[], T]) -> T:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    broker.unpacker.in_thread(size, work, done)
    return await future
