"""A batch of keyed records that is made some records at a time, because all of them at once would
hold up the event loop. It is the same as one of `encode_batch`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from fanlog.format.codecs import Codec
from fanlog.format.columns import KEYS, VALUE_NULLS, pack_binary
from fanlog.format.header import CLIENT_PART, HEADER_BYTES, pack_stamped, seal


class LargeBatch:
    """Records are added some at a time; `encode` gives the batch.

    >>> batch = LargeBatch()
    >>> batch.add([b"key"], [b"value"])
    >>> len(batch.encode())
    112
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys = _Column()
        self._values = _Column()
        self._there = bytearray()
        self._nulls = False

    def add(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Adds records. A value of None deletes its key."""
        there = self._there
        for i, value in enumerate(values, self.count):
            if not i & 63:
                there += bytes(8)
            if value is None:
                self._nulls = True
            else:
                there[i >> 3] |= 1 << (i & 7)
        self._keys.add(keys)
        self._values.add([value or b"" for value in values])
        self.count += len(keys)

    def encode(self) -> bytes:
        parts = [bytes(self._there)] if self._nulls else []
        parts += self._values.pack()
        parts += self._keys.pack()
        flags = KEYS | VALUE_NULLS if self._nulls else KEYS
        client_part = b"".join((CLIENT_PART.pack(0, Codec.NONE, flags, self.count), *parts))
        length = HEADER_BYTES - CLIENT_PART.size + len(client_part)
        return seal(pack_stamped(length, topic=0), client_part, stamped=False)


class _Column:
    def __init__(self) -> None:
        self._offsets = array("i", [0])
        self._data: list[bytes] = []

    def add(self, items: Sequence[bytes]) -> None:
        offsets = accumulate(map(len, items), initial=self._offsets.pop())
        self._offsets.extend(offsets)
        self._data.append(b"".join(items))

    def pack(self) -> tuple[bytes, ...]:
        return pack_binary(self._offsets, b"".join(self._data))
