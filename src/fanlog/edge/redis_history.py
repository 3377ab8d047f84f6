"""History of topics, read from the streams that edges keep in Redis."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right

from fanlog.broker.messages.topics import Partition
from fanlog.edge import redis_scripts as scripts
from fanlog.edge.envelopes import Body, make_batch, read_body
from fanlog.edge.mirror import mirror_log
from fanlog.edge.redis_connections import RedisConnections
from fanlog.errors import FanlogError, FormatError, OffsetOutOfRangeError
from fanlog.log.partition import Block

logger = logging.getLogger("fanlog.edge")

_ENTRIES_A_READ = 500
_PAUSE_SECONDS = 0.2


class RedisHistory:
    """Reads entries, and makes batches of them."""

    def __init__(self, line: RedisConnections) -> None:
        self._line = line

    async def find_time(self, partition: Partition, time_us: int, first: int) -> int:
        """The first offset of a message that was published at a time or after it."""
        low, high = first, partition.visible_end
        while low < high:
            middle = (low + high) // 2
            found = await self._range(partition.topic.name, middle, 1)
            if found and int(found[0][1][b"t"]) < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    async def _range(
        self, name: str, offset: int, count: int
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return await self._line.ask(
            lambda: self._line.redis.xrange(
                scripts.STREAM + name, min=f"{offset + 1}-0", max="+", count=count
            )
        )

    async def read(self, partition: Partition, offset: int) -> Block | Exception:
        """The stream's messages from an offset on; waits for Redis as long as needed."""
        while True:
            try:
                entries = await self._range(partition.topic.name, offset, _ENTRIES_A_READ)
                break
            except FanlogError as fault:
                if partition.topic.deleted:
                    return fault
                logger.info("history of %s is requested again: %s", partition.name, fault)
                await asyncio.sleep(_PAUSE_SECONDS)
        log = mirror_log(partition)
        first = int(entries[0][0].split(b"-")[0]) - 1 if entries else partition.visible_end
        if first > offset:
            # It was deleted from the stream: readers are notified.
            log.begins_at = max(log.begins_at, min(first, partition.visible_end))
            return OffsetOutOfRangeError(f"{partition.name} begins at {first} upstream.")
        batches = [
            batch
            for identity, fields in entries
            if (batch := _stored_batch(partition, identity, fields)) is not None
        ]
        data = b"".join(batches)
        last = min(int(entries[-1][0].split(b"-")[0]), partition.visible_end)
        return Block(memoryview(data), offset, last)


def _stored_batch(
    partition: Partition, identity: bytes, fields: dict[bytes, bytes]
) -> bytes | None:
    """An entry of the stream as a batch; None if it is past the visible end."""
    offset = int(identity.split(b"-")[0]) - 1
    if offset >= partition.visible_end:
        return None
    epochs = mirror_log(partition).epochs
    at = bisect_right(epochs, offset, key=lambda start: start.base) - 1
    try:
        body = read_body(fields[b"b"])
    except (FormatError, KeyError):
        body = Body(None)
    return make_batch(
        body,
        number=partition.topic.number,
        epoch=epochs[at].epoch if at >= 0 else 0,
        offset=offset,
        time_us=int(fields.get(b"t", b"0")),
    )
