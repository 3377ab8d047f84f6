"""Publishing under an idempotency key, without I/O: the producer that a key makes up, and whether a
repeat is the same request as the first one. `client/once.py` publishes, and reads.

Law: a key stands for one request. A repeat with other messages is refused, as far as the first ones
still exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.errors import FormatError, InvalidArgumentError, KeyReusedError, OutOfSequenceError
from fanlog.format.batch import Batch
from fanlog.format.trace_context import TRACE_HEADERS
from fanlog.model import PRODUCER_ID_MAX, Receipt

ONCE_KEY_BYTES_MAX = 255


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


def partition_for(record: OnceRecord, producer: ProducerIdentity, spread: int) -> int | None:
    """The partition of a message; None if its key decides. A repeat has to choose the same one, so
    nothing takes turns. New messages go to `spread` partitions."""
    if record.partition is None and record.key is None:
        return producer.id % spread
    return record.partition


def receipts_of(topic: str, answers: Iterable[Receipt | BaseException]) -> list[Receipt]:
    """The receipts of all messages of a request, or the first error. Batches that do not fit the
    first ones of their producer are another request under the same key."""
    receipts: list[Receipt] = []
    for answer in answers:
        if isinstance(answer, OutOfSequenceError):
            raise _reused(topic)
        if isinstance(answer, BaseException):
            raise answer
        receipts.append(answer)
    return receipts


class RepeatCheck:
    """Compares a repeat with the first messages, as far as they still exist. Its shell reads what
    is `wanted` until nothing is, and hands in what it finds."""

    __slots__ = ("_counts", "_epochs", "_left", "_producer", "_receipts", "_topic")

    def __init__(
        self,
        producer: ProducerIdentity,
        topic: str,
        records: Sequence[OnceRecord],
        receipts: Sequence[Receipt],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._receipts = receipts
        # Of each partition, the messages that are still to be compared, by offset.
        self._left: dict[int, dict[int, OnceRecord]] = {}
        for record, receipt in zip(records, receipts, strict=True):
            if receipt.duplicate:
                self._left.setdefault(receipt.partition, {})[receipt.offset] = record
        self._counts = {partition: len(left) for partition, left in self._left.items()}
        self._epochs: dict[tuple[int, int], int] = {}

    @property
    def wanted(self) -> tuple[int, int] | None:
        """The partition and the offset to read next; None when everything is compared."""
        for partition, left in self._left.items():
            return partition, min(left)
        return None

    def take(self, batches: Iterable[Batch]) -> None:
        """What was read at `wanted`: nothing, if retention, a compaction or damage took it. Raises
        `KeyReusedError` if the first request had other messages."""
        wanted = self.wanted
        assert wanted is not None
        partition, offset = wanted
        batch = _maybe_batch_at(batches, offset)
        if batch is None or batch.header.producer_id != self._producer.id:
            # What follows is gone, too.
            del self._left[partition]
            return
        header, left = batch.header, self._left[partition]
        covered = {at: left.pop(at) for at in list(left) if at < header.next_offset}
        if header.record_count > self._counts[partition] or not _holds(batch, covered):
            raise _reused(self._topic)
        self._epochs.update({(partition, at): header.leader_epoch for at in covered})
        if not left:
            del self._left[partition]

    def receipts(self, number: int, epoch: int) -> list[OnceReceipt]:
        """The result: `number` is the topic's, and `epoch` the broker's, in which everything is
        stored that was not found to be older."""
        return [
            OnceReceipt(one, number, self._epochs.get((one.partition, one.offset), epoch))
            for one in self._receipts
        ]


def _maybe_batch_at(batches: Iterable[Batch], offset: int) -> Batch | None:
    """The batch that holds an offset; None if there is none that can be read."""
    for batch in batches:
        if batch.header.base_offset <= offset < batch.header.next_offset:
            try:
                batch.check()
            except FormatError:
                return None
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
