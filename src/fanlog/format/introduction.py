"""The first bytes of a connection on the socket between a broker and its workers: who it is for,
and a secret that only they know. What follows is as on a port of the broker.

| bytes | content                                                  |
| ----- | -------------------------------------------------------- |
| 4     | `FLWK`                                                   |
| 2     | length of the last part, little-endian                   |
| 32    | the secret                                               |
| 0-64K | `Introduction` as MessagePack                            |
"""

from __future__ import annotations

import hmac
import struct
from typing import Literal

import msgspec

from fanlog.errors import FormatError, UnauthenticatedError

SECRET_BYTES = 32
INTRODUCTION_HEAD = struct.Struct(f"<4sH{SECRET_BYTES}s")
_MAGIC = b"FLWK"


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """`worker`: the worker's own connection. `native` and `web`: a client's, which came to that
    port of the worker. `address` is the client's, or the worker's name."""

    kind: Literal["worker", "native", "web"]
    address: str


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Introduction)


def write_introduction(introduction: Introduction, secret: bytes) -> bytes:
    """The first bytes of a connection."""
    rest = _encode(introduction)
    return INTRODUCTION_HEAD.pack(_MAGIC, len(rest), secret) + rest


def introduction_rest(head: bytes, secret: bytes) -> int:
    """How many bytes follow the head. Raises FormatError if it is no head, and
    UnauthenticatedError if the secret is wrong."""
    magic, length, shown = INTRODUCTION_HEAD.unpack(head)
    if magic != _MAGIC:
        raise FormatError("This is no introduction of a worker.")
    if not hmac.compare_digest(shown, secret):
        raise UnauthenticatedError("Only workers of this broker may connect here.")
    return length


def read_introduction(rest: bytes) -> Introduction:
    """What follows the head. Raises FormatError."""
    try:
        return _decoder.decode(rest)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise FormatError(f"This is no introduction of a worker: {fault}.") from fault
