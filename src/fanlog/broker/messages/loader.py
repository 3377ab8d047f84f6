"""Blocks of the log for readers that fell behind the tail: from disk, or from another source. A
block is read once for all readers that wait for it, and is cached for those that follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.broker.ports import Runtime
from fanlog.log.partition import Block
from fanlog.log.retrying import retry_briefly

BlockDone = Callable[[Block | Exception], None]
# Topic, partition, offset, and how much is wanted.
_BlockKey = tuple[int, int, int, int]


class BlockSource(Protocol):
    """The source of blocks that are not cached."""

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None: ...


class _Files:
    """The partition's own log."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        log, end = partition.log, partition.visible_end
        self._runtime.in_thread(
            lambda: retry_briefly(lambda: log.read(offset, end, bytes_wanted), "A reader"), done
        )


class Loader:
    def __init__(
        self, runtime: Runtime, cache_bytes_max: int, source: BlockSource | None = None
    ) -> None:
        self._source = source or _Files(runtime)
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[_BlockKey, Block] = OrderedDict()
        self._cache_bytes = 0
        self._loading: dict[_BlockKey, list[BlockDone]] = {}

    def load(
        self, partition: Partition, offset: int, done: BlockDone, bytes_wanted: int = 0
    ) -> None:
        """Hands the block that begins with the batch of `offset`, or the error, to `done`."""
        key = (partition.topic.number, partition.index, offset, bytes_wanted)
        block = self._cache.get(key)
        if block is not None:
            self._cache.move_to_end(key)
            done(block)
            return
        waiting = self._loading.get(key)
        if waiting is not None:
            waiting.append(done)
            return
        self._loading[key] = [done]
        self._source.read_block(
            partition, offset, bytes_wanted, lambda result: self._loaded(key, result)
        )

    def forget(self, partition: Partition) -> None:
        """Drops a partition's cached blocks, because its files have changed."""
        partition_key = (partition.topic.number, partition.index)
        for key in [key for key in self._cache if key[:2] == partition_key]:
            self._cache_bytes -= len(self._cache.pop(key).data)

    def _loaded(self, key: _BlockKey, result: Block | Exception) -> None:
        if isinstance(result, Block):
            self._cache[key] = result
            self._cache_bytes += len(result.data)
            while self._cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
                _, oldest = self._cache.popitem(last=False)
                self._cache_bytes -= len(oldest.data)
        for done in self._loading.pop(key):
            done(result)
