"""Which partition a key belongs to, and keys that are held in memory. The hash is part of the
contract: all clients must agree."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_CACHED_KEYS_MAX = 65536
_DIGEST_BYTES = 32


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


def short_key(key: bytes) -> bytes:
    """The form of a key in memory: the key itself, or a digest of a long one. Short keys stay as
    they are, so that no key can look like another's digest."""
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
