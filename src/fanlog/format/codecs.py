"""Compression of a batch's columns. A codec's number is part of the format; users write its name. A
batch states its unpacked size, and `UnpackLimits` checks that before a byte is unpacked. Unpacking
never makes more bytes than stated."""

from __future__ import annotations

import threading
import zlib
from enum import IntEnum
from typing import NamedTuple

import lz4.block
import zstandard

from fanlog.errors import FormatError
from fanlog.model import MIB

# The format's limits. A reader may allow less.
UNPACKED_BYTES_MAX = 256 * MIB
# A batch may unpack to this many times its packed bytes. Real data stays far below it; a bomb, or a
# batch with a false size, does not. Data past it is sent without compression.
RATIO_MAX = 1000
# Up to this size the ratio does not matter: such a batch is cheap to unpack.
RATIO_FREE_BYTES = 1 * MIB
_ZSTD_LEVEL = 3
_ZLIB_LEVEL = 6


class Codec(IntEnum):
    NONE = 0
    ZLIB = 1
    ZSTD = 2
    LZ4 = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class UnpackLimits(NamedTuple):
    """Limits of a batch's stated unpacked size."""

    bytes_max: int = UNPACKED_BYTES_MAX
    ratio_max: int = RATIO_MAX

    def check(self, unpacked_bytes: int, packed_bytes: int) -> None:
        """Raises FormatError if the batch must not be unpacked."""
        if unpacked_bytes > self.bytes_max:
            raise FormatError(
                f"it unpacks to {unpacked_bytes} bytes, and the limit is {self.bytes_max}"
            )
        if unpacked_bytes > RATIO_FREE_BYTES and unpacked_bytes > self.ratio_max * packed_bytes:
            raise FormatError(
                f"its {packed_bytes} packed bytes claim to unpack to {unpacked_bytes}, and the "
                f"limit is {self.ratio_max} to 1"
            )


FORMAT_LIMITS = UnpackLimits()


class _Zstd(threading.local):
    """One compressor a thread: zstandard's objects must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def codec_named(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        names = ", ".join(codec.label for codec in Codec)
        raise FormatError(f"There is no codec {name!r}: use one of {names}.") from None


def pack(codec: Codec, data: bytes) -> tuple[Codec, bytes]:
    """The data for a batch: packed, or as it is if the packed form would look like a bomb. Returns
    which."""
    if codec is Codec.ZLIB:
        packed = zlib.compress(data, _ZLIB_LEVEL)
    elif codec is Codec.ZSTD:
        packed = _zstd.compressor.compress(data)
    elif codec is Codec.LZ4:
        packed = lz4.block.compress(data, store_size=False)
    else:
        return codec, data
    if len(data) > RATIO_FREE_BYTES and len(data) > RATIO_MAX * len(packed):
        return Codec.NONE, data
    return codec, packed


def unpack(codec: int, data: bytes, unpacked_bytes: int, limits: UnpackLimits) -> bytes:
    """Unpacks columns to exactly `unpacked_bytes`, or raises FormatError."""
    limits.check(unpacked_bytes, len(data))
    try:
        if codec == Codec.ZLIB:
            out = _unzlib(data, unpacked_bytes)
        elif codec == Codec.ZSTD:
            if zstandard.frame_content_size(data) != unpacked_bytes:
                raise FormatError("the zstd frame's size is not the one that the batch names")
            out = _zstd.decompressor.decompress(
                data, max_output_size=unpacked_bytes, allow_extra_data=False
            )
        elif codec == Codec.LZ4:
            out = lz4.block.decompress(data, uncompressed_size=unpacked_bytes)
        else:
            raise FormatError(f"it names codec {codec}, which this version does not know")
    except (zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError, ValueError) as fault:
        raise FormatError(f"its columns can't be unpacked: {fault}") from fault
    if len(out) != unpacked_bytes:
        raise FormatError(f"its columns unpack to {len(out)} bytes, not {unpacked_bytes}")
    return out


def _unzlib(data: bytes, unpacked_bytes: int) -> bytes:
    engine = zlib.decompressobj()
    out = engine.decompress(data, unpacked_bytes + 1)
    if not engine.eof or engine.unused_data:
        raise FormatError("the zlib stream does not end where the batch says")
    return out
