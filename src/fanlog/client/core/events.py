"""Frames of the broker as events: bytes in, events out. Bytes may be cut anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fanlog.errors import FanlogError, FormatError, ProtocolError, from_wire
from fanlog.format import messages
from fanlog.format.batch import Batch, check_batch
from fanlog.format.codecs import FORMAT_LIMITS, UnpackLimits
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    Ack,
    FrameCutter,
    FrameHeader,
    FrameKind,
    Lease,
    check_welcome,
    known_kind,
    read_acks,
    read_frame_header,
    read_lease,
)
from fanlog.format.header import KIND_BATCH, read_header
from fanlog.format.messages import decode


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
    """The broker has ended a follower; the connection continues."""

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


class BrokerEventReader:
    """Reads one connection. No batch is unpacked past `limits`. `verify` checks every batch's
    checksums, which is only left out where the bytes never left the process."""

    __slots__ = ("_begun", "_cutter", "_feed", "_limits", "_verify")

    def __init__(self, *, verify: bool = True, limits: UnpackLimits = FORMAT_LIMITS) -> None:
        self._cutter = FrameCutter(1 << 31)
        self._verify = verify
        self._limits = limits
        self._feed = 0
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events in received bytes. Raises FormatError if they are damaged."""
        if not self._begun:
            check_welcome(data)
            self._begun = True
        for kind, buffer, at, end in self._cutter.cut(data):
            if kind == KIND_BATCH:
                header = check_batch(buffer, at) if self._verify else read_header(buffer, at)
                yield Delivered(self._feed, Batch(buffer[at:end], header, "", self._limits))
                continue
            payload = memoryview(buffer)[at + FRAME_HEADER_BYTES : end]
            event = self._control(read_frame_header(buffer, at), payload)
            if event is not None:
                yield event

    def payload_bytes(self, head: bytes) -> int:
        """How many bytes follow the first 16 of a frame, for a reader that takes whole frames."""
        if not self._begun:
            check_welcome(head)
            self._begun = True
        header = read_frame_header(head)
        if header.kind == KIND_BATCH:
            raise ProtocolError("A batch came on a connection that has no subscription.")
        self._cutter.check_length(header.length, header.kind)
        return header.length - FRAME_HEADER_BYTES

    def read_frame(self, head: bytes, payload: bytes) -> Event | None:
        """The event of a whole frame. The payload is not copied."""
        return self._control(read_frame_header(head), payload)

    def _control(self, header: FrameHeader, payload: bytes | memoryview) -> Event | None:
        match known_kind(header.kind):
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


def _error(payload: bytes | memoryview) -> FanlogError:
    failure = decode(messages.ErrorAnswer, payload)
    return from_wire(
        failure.code, failure.message, failure.first, failure.next, failure.retry_after_seconds
    )


def _rare(kind: FrameKind, aux: int, payload: bytes | memoryview) -> Event:
    make = _RARE.get(kind)
    if make is None:
        raise FormatError(f"A client can't receive a frame of kind {kind.name}.")
    return make(aux, payload)


_RARE: dict[FrameKind, Callable[[int, bytes | memoryview], Event]] = {
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
