"""Messages with very many items, which are encoded some at a time, because all of them at once
would hold up the event loop. Nor are the parts joined: a copy of some megabytes would do the same.
The bytes are those of `message_frame`."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from itertools import islice

import msgspec

# Items encoded in one step.
_ITEMS_A_STEP = 128
# A system call takes 1,024 parts at most. Parts are this large, so that a message has far fewer.
_PART_BYTES = 64 * 1024
_PARTS_MAX = 1000
# Stands for the items while the message around them is encoded. No text has these bytes.
_HERE = b"\xc1" * 16
_ENCODE = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message, or an array of them, as it is sent."""

    parts: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def encode_items(items: Iterable[msgspec.Struct]) -> Generator[None, None, EncodedMessage]:
    """Encodes an array in steps, and returns it.

    >>> from fanlog.format.messages import NamedTopic
    >>> steps = encode_items([NamedTopic("orders")])
    >>> while True:
    ...     try:
    ...         next(steps)
    ...     except StopIteration as ended:
    ...         print(msgspec.msgpack.decode(b"".join(ended.value.parts)))
    ...         break
    [{'name': 'orders'}]
    """
    rest = iter(items)
    parts: list[bytes] = []
    small: list[bytes] = []
    count = size = 0
    while some := list(islice(rest, _ITEMS_A_STEP)):
        encoded = _ENCODE(some)[len(_array_head(len(some))) :]
        small.append(encoded)
        size += len(encoded)
        count += len(some)
        if size >= _PART_BYTES:
            parts.append(b"".join(small))
            small, size = [], 0
        yield
    if small:
        parts.append(b"".join(small))
    return _few([_array_head(count), *parts])


def encode_around(message: msgspec.Struct, field: str, items: EncodedMessage) -> EncodedMessage:
    """Encodes a message whose field is encoded already."""
    around = _ENCODE(msgspec.structs.replace(message, **{field: msgspec.Raw(_HERE)}))
    before, _, behind = around.partition(_HERE)
    return _few([before, *items.parts, behind])


def _few(parts: list[bytes]) -> EncodedMessage:
    return EncodedMessage(parts if len(parts) <= _PARTS_MAX else [b"".join(parts)])


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)
