"""History of subjects, read from streams of JetStream: the messages, and the offsets between them,
which are other subjects'."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable
from typing import Any

from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import api
from nats.js.errors import NotFoundError

from fanlog.broker.messages.loader import BlockDone
from fanlog.broker.messages.topics import Partition
from fanlog.edge.core import EdgeCore
from fanlog.edge.envelopes import make_batch
from fanlog.edge.mirror import mirror_log
from fanlog.edge.nats_connection import NatsConnection
from fanlog.edge.nats_messages import begun_at, body_of, nothing
from fanlog.errors import ConnectionLostError, FanlogError, OffsetOutOfRangeError
from fanlog.log.partition import Block
from fanlog.model import Start

_MESSAGES_A_READ = 500
_PAUSE_SECONDS = 0.2
_PULL_SECONDS = 1.0
# NATS removes a consumer that the edge did not remove.
_IDLE_SECONDS = 30.0


class NatsHistory:
    """`stream_of` returns the stream of a topic, or None."""

    def __init__(
        self, core: EdgeCore, line: NatsConnection, stream_of: Callable[[Partition], str | None]
    ) -> None:
        self._core = core
        self._line = line
        self._stream_of = stream_of

    async def find_offset(self, partition: Partition, start: Start) -> int:
        stream = self._stream_of(partition)
        log = mirror_log(partition)
        if stream is None:
            return start.value if start.kind == "offset" else partition.visible_end
        info = await self._line.ask(self._line.jetstream.stream_info(stream))
        if start.kind == "time":
            return await self._find_time(partition, stream, start.value)
        if start.kind == "offset":
            if start.value <= int(info.state.last_seq):
                self._core.mirror.skip(partition, start.value)
            return start.value
        log.begins_at = max(log.begins_at, int(info.state.first_seq) - 1, 0)
        return log.start_offset

    async def _find_time(self, partition: Partition, stream: str, time_us: int) -> int:
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_TIME,
            opt_start_time=dt.datetime.fromtimestamp(time_us / 1e6, tz=dt.UTC),
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=_IDLE_SECONDS,
        )
        found, _ = await self._pull(partition, stream, config, 1)
        first = found[0].metadata.sequence.stream - 1 if found else partition.visible_end
        return min(int(first), partition.visible_end)

    async def _pull(
        self, partition: Partition, stream: str, config: Any, count: int
    ) -> tuple[list[Any], bool]:
        """Messages of a stream, and whether they are complete. NATS states that: a timeout does not
        mean that there are no more."""
        puller = await self._line.ask(
            self._line.jetstream.pull_subscribe(partition.topic.name, stream=stream, config=config)
        )
        try:
            found: list[Any] = []
            with contextlib.suppress(TimeoutError, NatsTimeoutError):
                found += await puller.fetch(count, timeout=_PULL_SECONDS)
            if found:
                return found, not found[-1].metadata.num_pending
            info = await self._line.ask(puller.consumer_info())
            if info.num_pending or (info.delivered is not None and info.delivered.consumer_seq):
                raise ConnectionLostError("NATS did not send its stored messages in time.")
            return [], True
        except (NatsError, OSError) as fault:
            raise ConnectionLostError(f"NATS did not answer: {fault!r}.") from fault
        finally:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await puller.unsubscribe()

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        async def read() -> None:
            done(await self._read(partition, offset))

        self._line.in_task(read())

    async def _read(self, partition: Partition, offset: int) -> Block | Exception:
        while True:
            stream = self._stream_of(partition)
            if stream is None:
                log = mirror_log(partition)
                log.begins_at = log.tail.start_offset
                return OffsetOutOfRangeError(f"{partition.name} is not stored.")
            config = api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=offset + 1,
                ack_policy=api.AckPolicy.NONE,
                inactive_threshold=_IDLE_SECONDS,
            )
            # Before the request: messages that arrive meanwhile would be dropped.
            end = partition.visible_end
            try:
                info = await self._line.ask(self._line.jetstream.stream_info(stream))
                found, is_all = await self._pull(partition, stream, config, _MESSAGES_A_READ)
            except (FanlogError, NotFoundError) as fault:
                if partition.topic.deleted:
                    return OffsetOutOfRangeError(str(fault))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            first = int(info.state.first_seq) - 1
            if first > offset:
                log = mirror_log(partition)
                log.begins_at = max(log.begins_at, min(first, partition.visible_end))
                return OffsetOutOfRangeError(f"{partition.name} begins at {first} upstream.")
            return self._block(partition, offset, end, found, is_all=is_all)

    def _block(
        self, partition: Partition, offset: int, end: int, found: list[Any], *, is_all: bool
    ) -> Block:
        """The messages that were found, and the offsets of others between them; those behind too,
        if there are no more messages."""
        topic, at = partition.topic, offset
        known = self._core.mirror.find(topic.name)
        epoch = 0 if known is None else known.epoch
        batches: list[bytes] = []
        empty = make_batch(
            body_of(b"", None), number=topic.number, epoch=epoch, offset=offset, time_us=0
        )
        for message in found:
            sequence = int(message.metadata.sequence.stream)
            if sequence > end:
                is_all = True
                break
            batch = make_batch(
                body_of(message.data, message.headers),
                number=topic.number,
                epoch=epoch,
                offset=sequence - 1,
                time_us=int(message.metadata.timestamp.timestamp() * 1e6),
            )
            batches.append(begun_at(batch, at))
            at = sequence
        if at < end and is_all:
            batches.append(nothing(empty, at, end))
            at = end
        return Block(memoryview(b"".join(batches)), offset, at)
