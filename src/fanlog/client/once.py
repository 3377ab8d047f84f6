"""Publishing once: messages with an idempotency key, which a retry does not store a second time.

The key makes up the producer of a batch, and its messages are that producer's first. The broker
answers a repeat with the offsets of the first time, as it does for every producer: so it holds
after a restart, and whichever process the retry comes to. Nothing is kept but the log. Whether a
repeat is the same request is found out by reading what was stored.

An acknowledgement does not name its producer. So each connection has one such request at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.client.core.topic_outbox import TopicOutbox
from fanlog.client.link import Dial
from fanlog.client.publishing import Publisher
from fanlog.client.topics import TopicCalls
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    DamagedError,
    FanlogError,
    FormatError,
    InvalidArgumentError,
    KeyReusedError,
    OffsetOutOfRangeError,
    OutOfSequenceError,
)
from fanlog.format.batch import Batch
from fanlog.format.trace_context import TRACE_HEADERS
from fanlog.model import PRODUCER_ID_MAX, Receipt

ONCE_KEY_BYTES_MAX = 255
# All messages of a request for one partition are one batch, where a frame holds them.
_BATCH_BYTES = 1 << 30
_BATCH_RECORDS = 1 << 20
# Requests under way at the same time; others wait.
_CONNECTIONS_MAX = 32


class OnceRecord(NamedTuple):
    """A message to publish. Without a key and a partition, the caller's key chooses one."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    partition: int | None = None


class OnceReceipt(NamedTuple):
    """Where a message is stored. For a repeat, that is the first message with this key."""

    receipt: Receipt
    number: int
    epoch: int


def producer_of(key: str) -> ProducerIdentity:
    """The producer that a key makes up."""
    size = len(key.encode(errors="replace"))
    if not 1 <= size <= ONCE_KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"An idempotency key has 1 to {ONCE_KEY_BYTES_MAX} bytes, not {size}. A UUID is a good "
            "one."
        )
    digest = blake2b(key.encode(errors="replace"), digest_size=8, person=b"fanlog-once").digest()
    return ProducerIdentity(int.from_bytes(digest, "big") & PRODUCER_ID_MAX or 1)


class OncePublisher:
    """Publishes under keys, over connections that are opened as they are needed."""

    def __init__(self, dial: Dial, options: ClientOptions, *, verify: bool = True) -> None:
        self._dial = dial
        self._options = msgspec.structs.replace(
            options,
            producer="",
            idempotent=True,
            linger_ms=0,
            batch_bytes=_BATCH_BYTES,
            batch_records=_BATCH_RECORDS,
        )
        self._verify = verify
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._under_way: set[asyncio.Task[list[OnceReceipt]]] = set()
        self._closed = False

    async def publish(
        self, key: str, topic: str, records: Sequence[OnceRecord]
    ) -> list[OnceReceipt]:
        """Returns when all are stored, now or earlier. Raises `KeyReusedError` if this key was used
        for other messages."""
        if self._closed:
            raise ClosedError("The publisher is closed.")
        producer = producer_of(key)
        # A caller that is cancelled leaves it to itself: the connection has to hear the answer.
        task = asyncio.ensure_future(self._publish(producer, topic, records))
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[list[OnceReceipt]]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Nobody may be left to hear of it.

    async def _publish(
        self, producer: ProducerIdentity, topic: str, records: Sequence[OnceRecord]
    ) -> list[OnceReceipt]:
        async with self._room:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                found = await connection.publish(producer, topic, records)
            except BaseException:
                if connection.is_clean() and not self._closed:
                    self._idle.append(connection)
                else:
                    await connection.close(flush=False)
                raise
            self._idle.append(connection)
            return found

    async def _connect(self) -> _Connection:
        connection = _Connection(self._dial, self._options, verify=self._verify)
        await connection.open()
        return connection

    async def close(self) -> None:
        self._closed = True
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(FanlogError):
                await connection.close(flush=False)


class _Connection(TopicCalls):
    """A connection with one request at a time."""

    def is_clean(self) -> bool:
        """Whether everything that was sent is answered: an answer that came later would be taken
        for the next request's."""
        return self.connected and self._publisher.buffered_bytes <= 0

    async def publish(
        self, producer: ProducerIdentity, topic: str, records: Sequence[OnceRecord]
    ) -> list[OnceReceipt]:
        publisher = Publisher(self._session, self._options, self.open_topic, self._find_topic)
        publisher.identity = producer
        self._publisher = publisher
        if self.welcome is not None:
            publisher.greeted(self.welcome)
        outbox = await publisher.topic(topic)
        for record in records:
            publisher.check(outbox, record.value, record.key, record.headers, record.partition)
        waiting = [self._put(publisher, outbox, record) for record in records]
        publisher.flush_soon()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        receipts: list[Receipt] = []
        for answer in answers:
            if isinstance(answer, OutOfSequenceError):
                raise _reused(topic)
            if isinstance(answer, BaseException):
                raise answer
            receipts.append(answer)
        epochs = await self._compare(producer, topic, records, receipts)
        epoch = 0 if self.welcome is None else self.welcome.epoch
        return [
            OnceReceipt(one, outbox.number, epochs.get((one.partition, one.offset), epoch))
            for one in receipts
        ]

    @staticmethod
    def _put(publisher: Publisher, outbox: TopicOutbox, record: OnceRecord) -> Awaitable[Receipt]:
        partition = record.partition
        if partition is None and record.key is None:
            partition = publisher.identity.id % outbox.spread
        return publisher.publish(
            outbox, record.value, record.key, record.headers, partition=partition
        )

    async def _compare(
        self,
        producer: ProducerIdentity,
        topic: str,
        records: Sequence[OnceRecord],
        receipts: Sequence[Receipt],
    ) -> dict[tuple[int, int], int]:
        """Compares a repeat with the first messages, as far as they still exist, and returns their
        epochs."""
        found: dict[tuple[int, int], int] = {}
        repeated: dict[int, dict[int, OnceRecord]] = {}
        for record, receipt in zip(records, receipts, strict=True):
            if receipt.duplicate:
                repeated.setdefault(receipt.partition, {})[receipt.offset] = record
        for partition, wanted in repeated.items():
            left = dict(wanted)
            while left:
                offset = min(left)
                batch = await self._maybe_batch(topic, partition, offset)
                if batch is None or batch.header.producer_id != producer.id:
                    break
                header = batch.header
                covered = {at: left.pop(at) for at in list(left) if at < header.next_offset}
                if header.record_count > len(wanted) or not _holds(batch, covered):
                    raise _reused(topic)
                found.update({(partition, at): header.leader_epoch for at in covered})
        return found

    async def _maybe_batch(self, topic: str, partition: int, offset: int) -> Batch | None:
        """The batch that holds an offset; None if retention, a compaction or damage took it."""
        with contextlib.suppress(OffsetOutOfRangeError, DamagedError, FormatError):
            fetched = await self.fetch(topic, partition, offset, bytes_max=1)
            for batch in fetched.batches:
                if batch.header.base_offset <= offset < batch.header.next_offset:
                    batch.check()
                    return batch
        return None


def _holds(batch: Batch, records: dict[int, OnceRecord]) -> bool:
    """Whether a batch has these records, by their offsets. One that was compacted away may have
    been the same."""
    stored = zip(batch.offsets, batch.values, batch.keys, strict=True)
    for index, (offset, value, key) in enumerate(stored):
        record = records.get(offset)
        if record is not None and (value, key, _untraced(batch.columns.headers(index))) != (
            record.value,
            record.key,
            _untraced(record.headers or {}),
        ):
            return False
    return True


def _untraced(headers: dict[str, bytes]) -> dict[str, bytes]:
    """A retry has another span in its headers, but it is still the same message."""
    return {name: value for name, value in headers.items() if name not in TRACE_HEADERS}


def _reused(topic: str) -> KeyReusedError:
    return KeyReusedError(
        f"This idempotency key was used before for other messages to {topic!r}. Nothing was stored "
        "this time. Use a new key for each request, and the same one only to repeat a request."
    )
