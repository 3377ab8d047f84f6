"""Compression of a batch's columns. A codec's number is part of the format; its name is what
people write. Unpacking never makes more bytes than the batch said it would."""

from __future__ import annotations

import threading
import zlib
from enum import IntEnum

import lz4.block
import zstandard

from fanlog.errors import FormatError

UNPACKED_BYTES_MAX = 256 * 1024 * 1024
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


def pack(codec: Codec, data: bytes) -> bytes:
    if codec is Codec.ZLIB:
        return zlib.compress(data, _ZLIB_LEVEL)
    if codec is Codec.ZSTD:
        return _zstd.compressor.compress(data)
    if codec is Codec.LZ4:
        return lz4.block.compress(data, store_size=False)
    return data


def unpack(codec: int, data: bytes, unpacked_bytes: int) -> bytes:
    """The columns behind `data`, exactly `unpacked_bytes` long, or a FormatError."""
    if unpacked_bytes > UNPACKED_BYTES_MAX:
        raise FormatError(
            f"The batch claims {unpacked_bytes} unpacked bytes; the limit is {UNPACKED_BYTES_MAX}."
        )
    try:
        if codec == Codec.ZLIB:
            out = _unzlib(data, unpacked_bytes)
        elif codec == Codec.ZSTD:
            if zstandard.frame_content_size(data) != unpacked_bytes:
                raise FormatError("The zstd frame's size is not the one that the batch names.")
            out = _zstd.decompressor.decompress(data, max_output_size=unpacked_bytes)
        elif codec == Codec.LZ4:
            out = lz4.block.decompress(data, uncompressed_size=unpacked_bytes)
        else:
            raise FormatError(f"The batch names codec {codec}, which this version does not know.")
    except (zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError, ValueError) as fault:
        raise FormatError(f"The batch's columns can't be unpacked: {fault}.") from fault
    if len(out) != unpacked_bytes:
        raise FormatError(f"The columns unpack to {len(out)} bytes, not {unpacked_bytes}.")
    return out


def _unzlib(data: bytes, unpacked_bytes: int) -> bytes:
    engine = zlib.decompressobj()
    out = engine.decompress(data, unpacked_bytes + 1)
    if not engine.eof or engine.unused_data:
        raise FormatError("The zlib stream does not end where the batch says.")
    return out
