"""Messages with very many items, which are encoded some at a time, because all of them at once
would hold up the event loop. The bytes are the same as those of `message_frame`."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from itertools import islice

import msgspec

# Items encoded in one step.
_ITEMS_A_STEP = 128
_ENCODE = msgspec.msgpack.Encoder().encode


def encode_items(items: Iterable[msgspec.Struct]) -> Generator[None, None, bytes]:
    """Encodes an array in steps, and returns it.

    >>> from fanlog.format.messages import NamedTopic
    >>> steps = encode_items([NamedTopic("orders")])
    >>> while True:
    ...     try:
    ...         next(steps)
    ...     except StopIteration as ended:
    ...         print(msgspec.msgpack.decode(ended.value))
    ...         break
    [{'name': 'orders'}]
    """
    rest = iter(items)
    parts: list[bytes] = []
    count = 0
    while some := list(islice(rest, _ITEMS_A_STEP)):
        parts.append(_ENCODE(some)[len(_array_head(len(some))) :])
        count += len(some)
        yield
    return b"".join((_array_head(count), *parts))


def encode_around(message: msgspec.Struct, field: str, items: bytes) -> bytes:
    """Encodes a message whose field is encoded already."""
    return _ENCODE(msgspec.structs.replace(message, **{field: msgspec.Raw(items)}))


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)
