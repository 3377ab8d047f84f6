"""Frames of the native protocol: how bytes on a connection are cut, and the frames with a fixed
layout. A batch is a frame by itself (`batch.py`); every other frame has this header of 16 bytes.

| at | bytes | field   | meaning                                                             |
| -- | ----- | ------- | ------------------------------------------------------------------- |
|  0 | 4     | length  | of the whole frame                                                  |
|  4 | 1     | kind    | `FrameKind`                                                         |
|  5 | 1     | version | of the protocol: 1                                                  |
|  6 | 2     | zero    |                                                                     |
|  8 | 4     | request | chosen by who asks, repeated in the answer; 0 where nobody answers  |
| 12 | 4     | aux     | the subscription's number; in HELLO the magic "FLOG"                |
| 16 |       | payload | MessagePack (`messages.py`), or the layouts below                   |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

from fanlog.config import NATIVE_PORT, REDIS_PORT
from fanlog.errors import BadMagicError, ProtocolError, UnknownCommandError, UnsupportedVersionError
from fanlog.format.foreign import maybe_protocol
from fanlog.format.header import BATCH_BYTES_MIN, KIND_BATCH

PROTOCOL_VERSION = 1
MAGIC = 0x474F4C46
FRAME_HEADER = Struct("<IBBHII")
FRAME_HEADER_BYTES = FRAME_HEADER.size
PREFIX = Struct("<IB")
PREFIX_BYTES = PREFIX.size
ACK_ENTRY = Struct("<IHBBQQq")
FETCHED_HEAD = Struct("<QQQ")
LEASE_ENTRY = Struct("<IHHQQQBxxx")
_CREDIT = Struct("<Q")
NATIVE_PORT_HINT = (
    f"Fanlog's own clients connect to port {NATIVE_PORT}, unless the broker was started with "
    f"another --port; port {REDIS_PORT} is for Redis clients."
)
_NO_CLIENTS = "Use one of them."
_OTHER_CLIENTS: dict[str | None, str] = {
    "Redis": f"Redis clients connect to port {REDIS_PORT}, unless redis.port is another.",
    "TLS": "It has no TLS: use an address that begins with fanlog://, or turn TLS on "
    "(tls.certificate_file).",
}
# A frame that drips in costs its bytes, not an object for each of them.
_KEPT_PIECES_MAX = 1024


class FrameKind(IntEnum):
    # from the client
    HELLO = 0x01
    OPEN_TOPIC = 0x02
    CREATE_TOPIC = 0x03
    LIST_TOPICS = 0x04
    DESCRIBE_TOPIC = 0x05
    DELETE_TOPIC = 0x06
    SUBSCRIBE = 0x07
    UNSUBSCRIBE = 0x08
    FETCH = 0x09
    COMMIT = 0x0A
    COMMITTED = 0x0B
    FIND_OFFSETS = 0x0C
    CREDIT = 0x0D
    PING = 0x0E
    GOODBYE = 0x0F
    STATUS = 0x10
    JOIN_GROUP = 0x11
    RELEASE = 0x12
    SEEK = 0x13
    LIST_GROUPS = 0x14
    DESCRIBE_GROUP = 0x15
    RESET_GROUP = 0x16
    DELETE_GROUP = 0x17
    REGISTER_PRODUCER = 0x18
    WORK = 0x19
    SETTLE = 0x1A
    BEGIN_TRANSACTION = 0x20
    STAGE = 0x21
    COMMIT_TRANSACTION = 0x22
    ABORT_TRANSACTION = 0x23
    DELETE_RECORDS = 0x29
    COMPACT_TOPIC = 0x2A
    GROW_TOPIC = 0x2B
    ALTER_TOPIC = 0x2C
    CANCEL_SCHEDULED = 0x30
    LIST_SCHEDULED = 0x31
    ADD_SCHEDULE = 0x32
    LIST_SCHEDULES = 0x33
    REMOVE_SCHEDULE = 0x34
    LOGIN = 0x35
    ACCOUNTS = 0x36
    CONFIG = 0x37
    CONNECTIONS = 0x39
    METRICS = 0x3A
    BACKUP = 0x3B
    TRACES = 0x3C
    PIPELINE_RUN = 0x3D
    TRACED = 0x3E
    VOUCH = 0x3F
    FOLLOW = 0x40
    REPLICA_ENDS = 0x41
    APPLIED = 0x43
    # both ways
    BATCH = KIND_BATCH
    # from the broker
    WELCOME = 0x81
    OK = 0x82
    ERROR = 0x83
    ACK = 0x84
    REFUSED = 0x85
    FEED = 0x86
    GAP = 0x87
    JOINED = 0x88
    LEFT = 0x89
    FETCHED = 0x8A
    PONG = 0x8B
    DRAINING = 0x8C
    REVOKE = 0x8D
    LEASE = 0x8E
    ENDED = 0x8F
    GREW = 0x90
    NOTICE = 0x91
    REPLICA_TOPICS = 0x92
    REPLICATE = 0x93


_KINDS = frozenset((KIND_BATCH, *FrameKind))


class FrameHeader(NamedTuple):
    length: int
    kind: int
    version: int
    zero: int
    request: int
    aux: int


class Ack(NamedTuple):
    """One batch stored: which one, where, how safely, when, and whether it was there before."""

    topic: int
    partition: int
    durability: int
    duplicate: int
    first_sequence: int
    base_offset: int
    append_time_us: int


class Lease(NamedTuple):
    """Jobs `first` up to, not including, `next` of the batch at `base_offset`, for one worker.

    `fresh`: the batch follows; otherwise it is one that this worker was sent and still has.
    """

    number: int
    partition: int
    deliveries: int
    base_offset: int
    first: int
    next: int
    fresh: bool


def read_frame_header(data: bytes, at: int = 0) -> FrameHeader:
    header = FrameHeader(*FRAME_HEADER.unpack_from(data, at))
    if header.version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"The frame has protocol version {header.version}; this side speaks "
            f"{PROTOCOL_VERSION}. Install the same release of fanlog on both sides."
        )
    return header


def check_hello(data: bytes) -> None:
    """Checks that a connection's first bytes (16 at least) begin our protocol and no other."""
    if not is_hello(data):
        raise wrong_port(data)


def wrong_port(data: bytes) -> BadMagicError:
    """The error for a server whose first bytes are not of our protocol."""
    spoken = maybe_protocol(data)
    what = f"{spoken}" if spoken else f"{data[:16]!r}"
    return BadMagicError(
        f"The connection began with {what}, but this is a port for Fanlog's own clients. "
        f"{_OTHER_CLIENTS.get(spoken, _NO_CLIENTS)}"
    )


def check_welcome(data: bytes) -> None:
    """Checks that the first bytes came from a broker."""
    spoken = maybe_protocol(data)
    if not spoken and (len(data) < PREFIX_BYTES or data[4] in _KINDS):
        return
    what = f"it speaks {spoken}" if spoken else f"it sent {data[:16]!r}"
    raise BadMagicError(f"This is not a Fanlog broker's native port: {what}. {NATIVE_PORT_HINT}")


def is_hello(data: bytes) -> bool:
    """Whether a connection begins as one of Fanlog's own clients begins it."""
    if len(data) < FRAME_HEADER_BYTES:
        return False
    _, kind, _, _, _, aux = FRAME_HEADER.unpack_from(data, 0)
    return kind == FrameKind.HELLO and aux == MAGIC


def frame(kind: int, payload: bytes = b"", *, request: int = 0, aux: int = 0) -> bytes:
    header = FRAME_HEADER.pack(
        FRAME_HEADER_BYTES + len(payload), kind, PROTOCOL_VERSION, 0, request, aux
    )
    return header + payload


def frame_head(kind: int, payload_bytes: int, *, request: int = 0, aux: int = 0) -> bytes:
    """The header of a frame whose payload is sent separately."""
    return FRAME_HEADER.pack(
        FRAME_HEADER_BYTES + payload_bytes, kind, PROTOCOL_VERSION, 0, request, aux
    )


def message_frame(
    kind: int, message: msgspec.Struct | Sequence[msgspec.Struct], *, request: int = 0, aux: int = 0
) -> bytes:
    return frame(kind, _encode(message), request=request, aux=aux)


def ack_frame(entries: Sequence[bytes]) -> bytes:
    """One frame for many batches; each entry is an `ACK_ENTRY`."""
    if len(entries) == 1:
        return _ONE_ACK_HEADER + entries[0]
    return frame(FrameKind.ACK, b"".join(entries))


# All frames that acknowledge one batch begin alike.
_ONE_ACK_HEADER = frame(FrameKind.ACK, bytes(ACK_ENTRY.size))[:FRAME_HEADER_BYTES]


def read_acks(payload: bytes | memoryview) -> Iterator[Ack]:
    if len(payload) % ACK_ENTRY.size:
        raise ProtocolError(f"An ACK of {len(payload)} bytes is not a whole number of entries.")
    return map(Ack._make, ACK_ENTRY.iter_unpack(payload))


def credit_frame(subscription: int, limit_bytes: int) -> bytes:
    return frame(FrameKind.CREDIT, _CREDIT.pack(limit_bytes), aux=subscription)


def read_credit(payload: memoryview) -> int:
    if len(payload) != _CREDIT.size:
        raise ProtocolError("A CREDIT frame carries one 64-bit number.")
    return _CREDIT.unpack(payload)[0]


def feed_frame(subscription: int) -> bytes:
    """All batches after this frame belong to that subscription, until the next such frame."""
    return frame(FrameKind.FEED, aux=subscription)


def lease_frame(subscription: int, lease: Lease) -> bytes:
    return frame(FrameKind.LEASE, LEASE_ENTRY.pack(*lease), aux=subscription)


def read_lease(payload: bytes | memoryview) -> Lease:
    if len(payload) != LEASE_ENTRY.size:
        raise ProtocolError(f"A LEASE carries {LEASE_ENTRY.size} bytes, not {len(payload)}.")
    *numbers, fresh = LEASE_ENTRY.unpack(payload)
    return Lease(*numbers, fresh=bool(fresh))


def fetched_head(request: int, batch_bytes: int, visible_end: int, start_offset: int) -> bytes:
    """The part before the batches in an answer to FETCH."""
    length = FRAME_HEADER_BYTES + FETCHED_HEAD.size + batch_bytes
    header = FRAME_HEADER.pack(length, FrameKind.FETCHED, PROTOCOL_VERSION, 0, request, 0)
    return header + FETCHED_HEAD.pack(visible_end, start_offset, 0)


_encode = msgspec.msgpack.Encoder().encode


class FrameCutter:
    """Splits received bytes into whole frames. An incomplete frame is kept until the rest has come;
    a length outside the limits is an error as soon as it can be read."""

    __slots__ = ("_kept", "_kept_bytes", "_need", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._need = PREFIX_BYTES

    @property
    def kept_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._kept_bytes

    def join(self, data: bytes) -> bytes:
        """`data` after the kept bytes; empty while there can't be a whole frame."""
        if not self._kept_bytes:
            return data
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes < self._need:
            if len(self._kept) > _KEPT_PIECES_MAX:
                self._kept = [b"".join(self._kept)]
            return b""
        joined = b"".join(self._kept)
        self._kept = []
        self._kept_bytes = 0
        return joined

    def keep(self, data: bytes, at: int) -> None:
        """Keeps the frame that begins at `at` for `join`."""
        rest = data[at:]
        self._kept = [rest]
        self._kept_bytes = len(rest)
        self._need = PREFIX_BYTES
        if len(rest) >= PREFIX_BYTES:
            length, kind = PREFIX.unpack_from(rest)
            self.check_length(length, kind)
            self._need = length

    def check_length(self, length: int, kind: int) -> None:
        least = BATCH_BYTES_MIN if kind == KIND_BATCH else FRAME_HEADER_BYTES
        if not least <= length <= self.frame_bytes_max:
            raise ProtocolError(
                f"A frame of kind {kind:#04x} claims {length} bytes; it must have {least} to "
                f"{self.frame_bytes_max} (listener.frame_bytes_max)."
            )

    def cut(self, data: bytes) -> Iterator[tuple[int, bytes, int, int]]:
        """Kind, buffer, begin and end of each whole frame; the rest is kept."""
        data = self.join(data)
        at, size = 0, len(data)
        while size - at >= PREFIX_BYTES:
            length, kind = PREFIX.unpack_from(data, at)
            self.check_length(length, kind)
            if at + length > size:
                break
            yield kind, data, at, at + length
            at += length
        if at < size:
            self.keep(data, at)


_KIND_BY_NUMBER: dict[int, FrameKind] = {kind.value: kind for kind in FrameKind}


def known_kind(kind: int) -> FrameKind:
    # Not `FrameKind(kind)`: it is two calls, and each frame comes by here.
    known = _KIND_BY_NUMBER.get(kind)
    if known is None:
        raise UnknownCommandError(
            f"There is no frame of kind {kind:#04x} in protocol version {PROTOCOL_VERSION}. "
            "Install the same release of fanlog on both sides."
        )
    return known
