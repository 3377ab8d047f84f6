"""Messages of a bus without batches: their bodies on the bus, and the batches that an edge makes of
them. Each is its own batch, so that all edges make the same bytes of the same message."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fanlog.errors import FormatError
from fanlog.format.batch import encode_batch, stamp
from fanlog.listeners.web.ports import MessageToPublish


class Body(msgspec.Struct, frozen=True, array_like=True):
    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] = {}


class Envelope(NamedTuple):
    """An announced message: its position, and whether its value alone is announced too."""

    offset: int
    epoch: int
    number: int
    time_us: int
    echoed: bool
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Body)


def body_of(message: MessageToPublish) -> bytes:
    return _encode(Body(message.value, message.key, message.headers))


def read_body(data: bytes) -> Body:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise FormatError(f"A message on the bus does not come from an edge: {fault}.") from fault


def read_envelope(data: bytes) -> Envelope:
    head, _, body = data.partition(b"\n")
    try:
        offset, epoch, number, time_us, flag = head.split(b" ")
        return Envelope(int(offset), int(epoch), int(number), int(time_us), flag == b"e", body)
    except ValueError as fault:
        raise FormatError(
            f"An announcement on the bus does not come from an edge: {fault}."
        ) from fault


def make_batch(body: Body, *, number: int, epoch: int, offset: int, time_us: int) -> bytes:
    """The message as a stamped batch of one record."""
    batch = encode_batch(
        [body.value],
        keys=None if body.key is None else [body.key],
        headers=[body.headers] if body.headers else None,
        topic=number,
    )
    return stamp(
        batch, base_offset=offset, append_time_us=time_us, leader_epoch=epoch, topic=number
    )
