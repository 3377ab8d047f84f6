"""Sparse batches: what compaction leaves of a batch. Offsets never change, so that a batch says
itself which of them it still has, and how far it reaches.

A batch that lost records is `thinned`; one behind which whole batches went is `widened` over
their offsets; if there is no batch before those, a `placeholder` without records covers them.
Producer, times, codec and priority stay the batch's own; both checksums are made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanlog.errors import FormatError
from fanlog.format.batch import Batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import SPARSE, offsets_bytes, pack_columns, pack_offsets
from fanlog.format.header import CLIENT_PART, HEADER_BYTES, BatchHeader, repack, seal


def thinned(batch: Batch, kept: Sequence[int]) -> bytes:
    """The batch with only the records at these indexes, over the same offsets."""
    header = batch.header
    if not kept:
        return placeholder(header, header.next_offset)
    offsets = batch.offsets
    codec, flags, body = batch.columns.pack_some(kept, Codec(header.codec))
    deltas = [offsets[i] - header.base_offset for i in kept]
    packed = pack_offsets(header.span, deltas)
    return _sealed(header, codec, flags | SPARSE, len(kept), packed + body)


def widened(batch: Batch, next_offset: int) -> bytes:
    """The batch with all its records, and with the offsets up to `next_offset`.

    Nothing is unpacked for it: the offsets of the records are in front of the columns.
    """
    header = batch.header
    if next_offset < header.next_offset:
        raise FormatError(f"A batch that ends at {header.next_offset} can't end at {next_offset}.")
    base = header.base_offset
    columns = batch.data[HEADER_BYTES + offsets_bytes(header.flags, header.record_count) :]
    packed = pack_offsets(next_offset - base, [offset - base for offset in batch.offsets])
    count = header.record_count
    return _sealed(header, header.codec, header.flags | SPARSE, count, packed + bytes(columns))


def placeholder(header: BatchHeader, next_offset: int) -> bytes:
    """A batch without records that covers the offsets of one, and those up to `next_offset`."""
    _, flags, columns = pack_columns([], None, None, None, Codec.NONE)
    packed = pack_offsets(next_offset - header.base_offset, [])
    return _sealed(header, Codec.NONE, flags | SPARSE, 0, packed + columns)


def begun_at(batch: Batch, offset: int) -> bytes:
    """The batch with only the records at `offset` and after it, and with the offsets from there on.

    >>> from fanlog.format.batch import encode_batch
    >>> rest = Batch(begun_at(Batch(encode_batch([b"a", b"b", b"c"])), 1))
    >>> rest.values, list(rest.offsets)
    ([b'b', b'c'], [1, 2])
    """
    header, offsets = batch.header, batch.offsets
    moved = header._replace(base_offset=offset)
    kept = [i for i, own in enumerate(offsets) if own >= offset]
    if not kept:
        return placeholder(moved, header.next_offset)
    codec, flags, body = batch.columns.pack_some(kept, Codec(header.codec))
    packed = pack_offsets(header.next_offset - offset, [offsets[i] - offset for i in kept])
    return _sealed(moved, codec, flags | SPARSE, len(kept), packed + body)


def at_offset(batch: Batch, base_offset: int) -> bytes:
    """The batch with all its records, and with the offsets from `base_offset` on, in front."""
    header = batch.header
    if base_offset > header.base_offset:
        raise FormatError(f"A batch at {header.base_offset} can't begin at {base_offset}.")
    columns = batch.data[HEADER_BYTES + offsets_bytes(header.flags, header.record_count) :]
    deltas = [offset - base_offset for offset in batch.offsets]
    packed = pack_offsets(header.next_offset - base_offset, deltas)
    moved = header._replace(base_offset=base_offset)
    return _sealed(
        moved, header.codec, header.flags | SPARSE, header.record_count, packed + bytes(columns)
    )


def _sealed(header: BatchHeader, codec: int, flags: int, count: int, body: bytes) -> bytes:
    """A stamped batch of this body; all else is as the header has it."""
    packing = codec | header.priority << 4
    client_part = CLIENT_PART.pack(header.partition, packing, flags, count) + body
    head = repack(header, length=HEADER_BYTES + len(body))
    return seal(head, client_part, stamped=True)
