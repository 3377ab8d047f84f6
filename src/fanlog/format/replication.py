"""What a primary and its followers say to each other, in frames of the native protocol.

A follower asks with FOLLOW. The primary sends REPLICA_TOPICS (all topics, with the history of their
logs), the follower answers with REPLICA_ENDS (what it has of them), and from then on the primary
sends REPLICATE frames, which the follower acknowledges with APPLIED. The payload of REPLICATE:

| at | bytes | field     | meaning                                                               |
| -- | ----- | --------- | --------------------------------------------------------------------- |
|  0 | 4     | crc       | CRC-32C of bytes 4 up to the pieces, which have checksums of their own |
|  4 | 4     | events    | bytes of the events                                                   |
|  8 | 8     | epoch     | of the reign                                                          |
| 16 | 8     | position  | everything up to it has been sent; 0: the follower is not level       |
| 24 | 8     | written   | committed position of what need not be synced                         |
| 32 | 8     | synced    | committed position of what must be synced                             |
| 40 | 8     | beat      | number of the newest heartbeat                                        |
| 48 | 4     | pieces    | n                                                                     |
| 52 | 4     | zero      |                                                                       |
| 56 | 32n   | entries   | topic (4), partition (4), base (8), next offset (8), bytes (8)        |
|    |       | events    | MessagePack: a list of `ReplicaEvent`                                 |
|    |       | pieces    | whole stamped batches, one piece after the other                      |

APPLIED has four numbers of 8 bytes: epoch, written position, synced position, beat."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from fanlog.errors import ChecksumError, ProtocolError
from fanlog.format.checksum import crc32c
from fanlog.format.frames import FrameKind, frame, frame_head
from fanlog.model import TopicSettings

# How the name of a follower's connection begins.
FOLLOWER_CLIENT = "fanlog-follower "
_HEAD = Struct("<IIQQQQQII")
_ENTRY = Struct("<IIQQQ")
_APPLIED = Struct("<QQQQ")
_CRC_FROM = 4


class Follow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A follower asks to be sent everything. `epoch` is the highest that it has heard of."""

    cluster: str
    node: str
    incarnation: str
    epoch: int = 0
    release: str = ""


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The primary agrees. `history` and `restored_from` identify the data folder for backups."""

    epoch: int
    history: str = ""
    restored_from: str = ""


class ReplicaPartition(msgspec.Struct, frozen=True, array_like=True):
    """One log of the primary. `epochs` has the epoch and the first offset of each range. Compaction
    has looked at what is before `compacted_until`, at the time `compacted_us`, and knew the records
    before `read_until`. Nobody has the records before `lost_until`."""

    start: int
    end: int
    epochs: tuple[tuple[int, int], ...] = ()
    compacted_until: int = 0
    compacted_us: int = 0
    read_until: int = 0
    lost_until: int = 0


class ReplicaTopic(msgspec.Struct, frozen=True):
    """A topic of the primary that is kept on disk."""

    number: int
    name: str
    settings: TopicSettings
    partitions: tuple[ReplicaPartition, ...] = ()


class ReplicaTopics(msgspec.Struct, frozen=True):
    """Topics of the primary, in pages."""

    topics: tuple[ReplicaTopic, ...]
    last: bool = False


class ReplicaEnd(msgspec.Struct, frozen=True, array_like=True):
    """Where a log of the follower ends. `producers`: its batches do not tell its producers."""

    topic: int
    partition: int
    end: int
    producers: bool = False


class ReplicaEnds(msgspec.Struct, frozen=True):
    """Where the follower's logs end, in pages. Logs that are not named are empty, from the
    primary's start on."""

    ends: tuple[ReplicaEnd, ...]
    last: bool = False


class ReplicaEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change to a topic, which comes before the pieces of its frame. With `settings` the topic
    exists, has this name, and these settings. `deleted`: it is gone. All else is about the log of
    `partition`: `producers` are the producers of the batches that the follower has of it
    (`log/producers.py`). It was compacted up to `compacted_until`, at the time `compacted_us`. Or
    it begins at `start`."""

    number: int
    name: str = ""
    settings: TopicSettings | None = None
    deleted: bool = False
    partition: int = 0
    start: int = 0
    producers: bytes = b""
    compacted_until: int = 0
    compacted_us: int = 0


class ReplicaPiece(NamedTuple):
    """Whole batches of one partition, in the bytes in which they are stored."""

    topic: int
    partition: int
    base: int
    next: int
    data: bytes | memoryview


class Replicated(NamedTuple):
    """One REPLICATE frame."""

    epoch: int
    position: int
    written: int
    synced: int
    beat: int
    events: Sequence[ReplicaEvent]
    pieces: Sequence[ReplicaPiece]


class Applied(NamedTuple):
    """How far a follower is."""

    epoch: int
    written: int
    synced: int
    beat: int


_encode = msgspec.msgpack.Encoder().encode
_decode_events = msgspec.msgpack.Decoder(list[ReplicaEvent]).decode


def replicate_frame(sent: Replicated) -> list[bytes | memoryview]:
    """The frame in parts: its head, and the pieces as they are."""
    pieces = sent.pieces
    entries = b"".join(_ENTRY.pack(*piece[:4], len(piece.data)) for piece in pieces)
    events = _encode(sent.events) if sent.events else b""
    numbers = sent.epoch, sent.position, sent.written, sent.synced, sent.beat
    body = _HEAD.pack(0, len(events), *numbers, len(pieces), 0)[_CRC_FROM:] + entries + events
    size = _CRC_FROM + len(body) + sum(len(piece.data) for piece in pieces)
    head = frame_head(FrameKind.REPLICATE, size) + crc32c(body).to_bytes(4, "little") + body
    return [head, *(piece.data for piece in pieces)]


def read_replicated(payload: memoryview) -> Replicated:
    """A REPLICATE frame's payload. The pieces point into it. Raises ProtocolError or
    ChecksumError."""
    if len(payload) < _HEAD.size:
        raise ProtocolError(f"A REPLICATE frame has {len(payload)} bytes: too few.")
    crc, event_bytes, epoch, position, written, synced, beat, count, _ = _HEAD.unpack_from(payload)
    events_at = _HEAD.size + count * _ENTRY.size
    at = events_at + event_bytes
    if at > len(payload):
        raise ProtocolError("A REPLICATE frame ends before its pieces.")
    if crc32c(payload[_CRC_FROM:at]) != crc:
        raise ChecksumError("The head of a REPLICATE frame does not have its checksum.")
    events: list[ReplicaEvent] = []
    if event_bytes:
        try:
            events = _decode_events(payload[events_at:at])
        except msgspec.DecodeError as fault:
            raise ProtocolError(f"The events of a REPLICATE frame do not decode: {fault}") from None
    pieces: list[ReplicaPiece] = []
    for topic, partition, base, after, size in _ENTRY.iter_unpack(payload[_HEAD.size : events_at]):
        if size > len(payload) - at:
            raise ProtocolError("A REPLICATE frame ends within a piece.")
        pieces.append(ReplicaPiece(topic, partition, base, after, payload[at : at + size]))
        at += size
    if at != len(payload):
        raise ProtocolError("A REPLICATE frame has bytes after its last piece.")
    return Replicated(epoch, position, written, synced, beat, events, pieces)


def applied_frame(applied: Applied) -> bytes:
    return frame(FrameKind.APPLIED, _APPLIED.pack(*applied))


def read_applied(payload: bytes | memoryview) -> Applied:
    if len(payload) != _APPLIED.size:
        raise ProtocolError(f"An APPLIED frame carries {_APPLIED.size} bytes, not {len(payload)}.")
    return Applied._make(_APPLIED.unpack(payload))
