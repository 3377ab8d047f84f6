"""Which partition a key belongs to. The hash is part of the contract: all clients must agree."""

from __future__ import annotations

from functools import lru_cache

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_CACHED_KEYS_MAX = 65536


def fnv1a_32(data: bytes) -> int:
    """FNV-1a, 32 bit.

    >>> hex(fnv1a_32(b"foobar"))
    '0xbf9cf968'
    """
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=_CACHED_KEYS_MAX)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: the same for every client, as long as the count stays."""
    return fnv1a_32(key) % partitions
