"""The batches that a worker received last. The broker and the worker's client each keep such a
cache by the same rule, so that the broker knows what the client still has, and sends a batch with
several leases only once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from fanlog.model import MIB

T = TypeVar("T")
# A batch's position: the topic's number, the partition and the base offset.
BatchKey = tuple[int, int, int]

BATCHES_MAX = 256
BYTES_MAX = 8 * MIB


class BatchCache(Generic[T]):
    """The last used stays; one batch always does, whatever its size."""

    def __init__(self) -> None:
        self._items: OrderedDict[BatchKey, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: BatchKey) -> T | None:
        """The cached batch, which becomes the most recently used."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: BatchKey, item: T, size: int) -> None:
        """Puts a batch of `size` bytes onto the cache. Those used longest ago make room."""
        before = self._items.pop(key, None)
        if before is not None:
            self._bytes -= before[1]
        self._items[key] = item, size
        self._bytes += size
        while len(self._items) > BATCHES_MAX or (self._bytes > BYTES_MAX and len(self._items) > 1):
            _, (_, gone) = self._items.popitem(last=False)
            self._bytes -= gone
