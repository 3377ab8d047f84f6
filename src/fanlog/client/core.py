"""The client's side of the native protocol, without I/O: bytes in, events out. The asyncio and
the blocking client, and the embedded one, all stand on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fanlog.errors import FanlogError, FormatError, from_wire
from fanlog.format import messages
from fanlog.format.batch import Batch, check_batch
from fanlog.format.codecs import FORMAT_LIMITS, UnpackLimits
from fanlog.format.frames import (
    FETCHED_HEAD,
    FRAME_HEADER_BYTES,
    MAGIC,
    PROTOCOL_VERSION,
    Ack,
    FrameCutter,
    FrameKind,
    Lease,
    check_welcome,
    known_kind,
    message_frame,
    read_acks,
    read_frame_header,
    read_lease,
)
from fanlog.format.header import KIND_BATCH, read_header
from fanlog.format.messages import decode
from fanlog.identity import Login
from fanlog.model import SlowPolicy


class Welcomed(NamedTuple):
    welcome: messages.Welcome


class Answered(NamedTuple):
    request: int
    payload: bytes


class RequestFailed(NamedTuple):
    """A request that failed, or with request 0 the connection's end, and then perhaps the
    subscription that is to blame."""

    request: int
    error: FanlogError
    subscription: int = 0


class Acked(NamedTuple):
    acks: list[Ack]


class BatchRefused(NamedTuple):
    refused: messages.Refused


class Delivered(NamedTuple):
    subscription: int
    batch: Batch


class MessagesMissed(NamedTuple):
    subscription: int
    gap: messages.GapNotice


class TopicJoined(NamedTuple):
    subscription: int
    joined: messages.Joined


class TopicLeft(NamedTuple):
    subscription: int
    left: messages.Left


class Noticed(NamedTuple):
    subscription: int
    notice: messages.Notice


class Revoked(NamedTuple):
    subscription: int
    revoke: messages.Revoke


class Leased(NamedTuple):
    subscription: int
    lease: Lease


class Ended(NamedTuple):
    """The broker has ended a follower; the connection goes on."""

    subscription: int
    error: FanlogError


class TopicGrew(NamedTuple):
    grew: messages.Grew


class Draining(NamedTuple):
    reason: str


Event = (
    Welcomed
    | Answered
    | RequestFailed
    | Acked
    | BatchRefused
    | Delivered
    | MessagesMissed
    | TopicJoined
    | TopicLeft
    | Noticed
    | Revoked
    | Leased
    | Ended
    | TopicGrew
    | Draining
)


def hello(client: str, login: Login | None = None) -> bytes:
    greeting = messages.Hello((PROTOCOL_VERSION,), client, login)
    return message_frame(FrameKind.HELLO, greeting, aux=MAGIC)


class ClientCore:
    """One connection's conversation. No batch is unpacked past `limits`. `verify` checks every
    batch's checksums, which is only left out where the bytes never left the process."""

    def __init__(self, *, verify: bool = True, limits: UnpackLimits = FORMAT_LIMITS) -> None:
        self._cutter = FrameCutter(1 << 31)
        self._verify = verify
        self._limits = limits
        self._feed = 0
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events in what the broker sent. Raises FormatError if it is damaged."""
        if not self._begun:
            check_welcome(data)
            self._begun = True
        for kind, buffer, at, end in self._cutter.cut(data):
            if kind == KIND_BATCH:
                header = check_batch(buffer, at) if self._verify else read_header(buffer, at)
                yield Delivered(self._feed, Batch(buffer[at:end], header, "", self._limits))
                continue
            event = self._control(kind, buffer, at, end)
            if event is not None:
                yield event

    def _control(self, kind: int, data: bytes, at: int, end: int) -> Event | None:
        header = read_frame_header(data, at)
        payload = memoryview(data)[at + FRAME_HEADER_BYTES : end]
        match known_kind(kind):
            case FrameKind.FEED:
                self._feed = header.aux
                return None
            case FrameKind.ACK:
                return Acked(list(read_acks(payload)))
            case FrameKind.OK | FrameKind.FETCHED | FrameKind.PONG:
                return Answered(header.request, bytes(payload))
            case FrameKind.ERROR:
                return RequestFailed(header.request, _error(payload), header.aux)
            case other:
                return _rare(other, header.aux, payload)


def _error(payload: memoryview) -> FanlogError:
    failure = decode(messages.ErrorAnswer, payload)
    return from_wire(
        failure.code, failure.message, failure.first, failure.next, failure.retry_after_seconds
    )


def _rare(kind: FrameKind, aux: int, payload: memoryview) -> Event:
    make = _RARE.get(kind)
    if make is None:
        raise FormatError(f"A frame of kind {kind.name} is not for a client.")
    return make(aux, payload)


_RARE: dict[FrameKind, Callable[[int, memoryview], Event]] = {
    FrameKind.WELCOME: lambda aux, data: Welcomed(decode(messages.Welcome, data)),
    FrameKind.REFUSED: lambda aux, data: BatchRefused(decode(messages.Refused, data)),
    FrameKind.GAP: lambda aux, data: MessagesMissed(aux, decode(messages.GapNotice, data)),
    FrameKind.JOINED: lambda aux, data: TopicJoined(aux, decode(messages.Joined, data)),
    FrameKind.LEFT: lambda aux, data: TopicLeft(aux, decode(messages.Left, data)),
    FrameKind.NOTICE: lambda aux, data: Noticed(aux, decode(messages.Notice, data)),
    FrameKind.REVOKE: lambda aux, data: Revoked(aux, decode(messages.Revoke, data)),
    FrameKind.LEASE: lambda aux, data: Leased(aux, read_lease(data)),
    FrameKind.ENDED: lambda aux, data: Ended(aux, _error(data)),
    FrameKind.GREW: lambda aux, data: TopicGrew(decode(messages.Grew, data)),
    FrameKind.DRAINING: lambda aux, data: Draining(decode(messages.Goodbye, data).reason),
}


class Fetched(NamedTuple):
    visible_end: int
    start_offset: int
    batches: list[Batch]


def read_fetched(
    payload: bytes, topic_name: str, *, verify: bool = True, limits: UnpackLimits = FORMAT_LIMITS
) -> Fetched:
    visible_end, start_offset, _ = FETCHED_HEAD.unpack_from(payload)
    batches: list[Batch] = []
    view = memoryview(payload)
    at = FETCHED_HEAD.size
    while at < len(payload):
        header = check_batch(payload, at) if verify else read_header(payload, at)
        batches.append(Batch(view[at : at + header.length], header, topic_name, limits))
        at += header.length
    return Fetched(visible_end, start_offset, batches)


POLICIES = {policy.value: policy for policy in SlowPolicy}
