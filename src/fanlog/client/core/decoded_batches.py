"""The batches that a client decoded last. Each is decoded once for all followers that get it."""

from __future__ import annotations

from collections import OrderedDict

from fanlog.client.message import MessageBatch
from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch

_DECODED_BYTES_MAX = 4 * 1024 * 1024


class DecodedBatches:
    """At most `_DECODED_BYTES_MAX` of them stay, and the last one whatever its size."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[int, int, int], MessageBatch] = OrderedDict()
        self._bytes = 0

    def get(self, batch: Batch) -> MessageBatch:
        """The batch as its followers share it."""
        header = batch.header
        tp = (header.topic, header.partition, header.base_offset)
        shared = self._batches.get(tp)
        # Compaction may have left less of it since.
        if shared is None or _checksums(shared.batch) != _checksums(batch):
            if shared is not None:
                self._bytes -= _size(shared.batch)
            shared = self._batches[tp] = MessageBatch(batch)
            self._bytes += _size(batch)
            while self._bytes > _DECODED_BYTES_MAX and len(self._batches) > 1:
                _, oldest = self._batches.popitem(last=False)
                self._bytes -= _size(oldest.batch)
        return shared


def _size(batch: Batch) -> int:
    """The size of a batch when decoded; its own size if it can't be decoded."""
    try:
        return batch.unpacked_bytes
    except UnreadableError:
        return batch.header.length


def _checksums(batch: Batch) -> tuple[int, int]:
    return batch.header.header_crc, batch.header.body_crc
