"""Batches as no client of ours makes them: any body under checksums that fit."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import lz4.block
import zstandard

from fanlog.format.checksum import crc32c
from fanlog.format.codecs import Codec
from fanlog.format.columns import SIZES, padding
from fanlog.format.header import (
    CHECKSUMS,
    CLIENT_PART,
    CLIENT_PART_AT,
    HEADER_BYTES,
    KIND_BATCH,
    STAMPED,
    VERSION,
)


def crafted(
    body: bytes,
    *,
    count: int = 1,
    flags: int = 0,
    codec: int = Codec.NONE,
    topic: int = 0,
    partition: int = 0,
    producer_id: int = 0,
    first_sequence: int = 0,
) -> bytes:
    """A batch as a client sends it, with this body, whatever it is."""
    client_part = CLIENT_PART.pack(partition, codec, flags, count) + body + padding(len(body))
    length = CLIENT_PART_AT + len(client_part)
    head = STAMPED.pack(length, KIND_BATCH, VERSION, 0, topic, 0, 0, 0, producer_id, first_sequence)
    return b"".join((head, CHECKSUMS.pack(0, crc32c(client_part)), client_part))


def resealed(data: bytes) -> bytes:
    """The same bytes with checksums that fit them."""
    head, client_part = data[: STAMPED.size], data[CLIENT_PART_AT:]
    return b"".join((head, CHECKSUMS.pack(crc32c(head), crc32c(client_part)), client_part))


def flipped(data: bytes, flips: Sequence[tuple[int, int]]) -> bytes:
    """The batch with bytes of its body changed, under checksums that fit: each flip is a place in
    the body, taken round it, and what the byte there is xored with."""
    changed = bytearray(data)
    size = len(data) - HEADER_BYTES
    for place, mask in flips:
        changed[HEADER_BYTES + place % size] ^= mask
    return resealed(bytes(changed))


def column(offsets: Sequence[int], data: bytes = b"") -> bytes:
    """A binary column as it stands in a body, its offsets as given."""
    packed = array("i", offsets).tobytes()
    return b"".join((packed, padding(len(packed)), data, padding(len(data))))


def squeezed(codec: Codec, columns: bytes, *, claimed: int | None = None) -> bytes:
    """A body of packed columns, which claims to unpack to `claimed` bytes."""
    if codec is Codec.ZLIB:
        packed = zlib.compress(columns, 9)
    elif codec is Codec.ZSTD:
        packed = zstandard.ZstdCompressor(level=3).compress(columns)
    else:
        packed = lz4.block.compress(columns, store_size=False)
    size = len(columns) if claimed is None else claimed
    return SIZES.pack(size, len(packed)) + packed


def bomb(
    unpacked_bytes: int, *, codec: Codec = Codec.ZSTD, topic: int = 0, first_sequence: int = 0
) -> bytes:
    """A small batch of one record that unpacks to about so many bytes."""
    columns = column([0, unpacked_bytes], bytes(unpacked_bytes))
    return crafted(
        squeezed(codec, columns), codec=codec, topic=topic, first_sequence=first_sequence
    )
