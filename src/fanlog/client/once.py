"""Publishing once: messages with an idempotency key, which a retry does not store a second time.

The key makes up the producer of a batch, and its messages are that producer's first. The broker
answers a repeat with the offsets of the first time, as it does for every producer: so it holds
after a restart, and whichever process the retry comes to. Nothing is kept but the log. Whether a
repeat is the same request is found out by reading what was stored (`core/once_core.py`).

An acknowledgement does not name its producer. So each connection has one such request at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence

import msgspec

from fanlog.client.core.once_core import (
    OnceReceipt,
    OnceRecord,
    RepeatCheck,
    partition_for,
    producer_of,
    receipts_of,
)
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
    OffsetOutOfRangeError,
)
from fanlog.format.batch import Batch
from fanlog.model import Receipt

# All messages of a request for one partition are one batch, where a frame holds them.
_BATCH_BYTES = 1 << 30
_BATCH_RECORDS = 1 << 20
# Requests under way at the same time; others wait.
_CONNECTIONS_MAX = 32


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
        receipts = receipts_of(topic, await asyncio.gather(*waiting, return_exceptions=True))
        check = RepeatCheck(producer, topic, records, receipts)
        while (wanted := check.wanted) is not None:
            check.take(await self._batches(topic, *wanted))
        return check.receipts(outbox.number, 0 if self.welcome is None else self.welcome.epoch)

    @staticmethod
    def _put(publisher: Publisher, outbox: TopicOutbox, record: OnceRecord) -> Awaitable[Receipt]:
        partition = partition_for(record, publisher.identity, outbox.spread)
        return publisher.publish(
            outbox, record.value, record.key, record.headers, partition=partition
        )

    async def _batches(self, topic: str, partition: int, offset: int) -> list[Batch]:
        """The batches at an offset; none if retention, a compaction or damage took them."""
        with contextlib.suppress(OffsetOutOfRangeError, DamagedError, FormatError):
            return (await self.fetch(topic, partition, offset, bytes_max=1)).batches
        return []
