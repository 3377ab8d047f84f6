"""A follower without files: it keeps what it was sent, byte by byte, and answers when it is told
to."""

from __future__ import annotations

from fanlog.broker.ports import FollowerPort, SendBuffer
from fanlog.errors import FanlogError
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, read_frame_header
from fanlog.format.messages import decode
from fanlog.format.replication import (
    Applied,
    ReplicaEnd,
    ReplicaEnds,
    Replicated,
    ReplicaTopic,
    ReplicaTopics,
    read_replicated,
)

Key = tuple[int, int]


class ModelFollower:
    """The outlet of a link, and what is behind it. Nothing is taken while `stuck`."""

    def __init__(self) -> None:
        self.stuck = False
        self.waiting: list[bytes] = []
        self.topics: dict[int, ReplicaTopic] = {}
        self.names: dict[int, str] = {}
        self.logs: dict[Key, bytes] = {}
        self.ends: dict[Key, int] = {}
        self.starts: dict[Key, int] = {}
        self.frames: list[Replicated] = []
        self.whole = False
        self.evicted: FanlogError | None = None
        self.link: FollowerPort | None = None

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self.waiting))

    def stream(self, buffers: list[SendBuffer]) -> None:
        self.waiting.append(b"".join(buffers))
        if not self.stuck:
            self.take()

    def evict(self, error: FanlogError, subscription: None = None) -> None:
        self.evicted = error

    def take(self) -> None:
        """Takes everything that waits."""
        waiting, self.waiting = b"".join(self.waiting), []
        at = 0
        while at < len(waiting):
            header = read_frame_header(waiting, at)
            self._take(
                header.kind, memoryview(waiting)[at + FRAME_HEADER_BYTES : at + header.length]
            )
            at += header.length

    def _take(self, kind: int, payload: memoryview) -> None:
        if kind == FrameKind.REPLICA_TOPICS:
            page = decode(ReplicaTopics, payload)
            for topic in page.topics:
                self.topics[topic.number] = topic
                self.names[topic.number] = topic.name
            self.whole = page.last
        else:
            assert kind == FrameKind.REPLICATE
            self._apply(read_replicated(payload))

    def answer_topics(self) -> None:
        """Keeps what the primary still has, and says where it ends."""
        assert self.whole
        assert self.link is not None
        for number, topic in self.topics.items():
            for i, partition in enumerate(topic.partitions):
                if self.ends.get((number, i), -1) < partition.start:
                    self.logs[number, i] = b""
                    self.ends[number, i] = self.starts[number, i] = partition.start
        found = tuple(ReplicaEnd(*key, end) for key, end in self.ends.items())
        self.link.ends(ReplicaEnds(found, last=True))

    def _apply(self, sent: Replicated) -> None:
        self.frames.append(sent)
        for event in sent.events:
            if event.settings is not None:
                self.names[event.number] = event.name
            elif event.deleted:
                self.names.pop(event.number, None)
            elif not event.producers and not event.compacted_until:
                self.starts[event.number, event.partition] = event.start
        for piece in sent.pieces:
            key = piece.topic, piece.partition
            assert piece.topic in self.names
            assert piece.base == self.ends.get(key, 0)
            self.logs[key] = self.logs.get(key, b"") + bytes(piece.data)
            self.ends[key] = piece.next

    def applied(self, epoch: int) -> None:
        """Says how far it is."""
        assert self.link is not None
        position = max((sent.position for sent in self.frames), default=0)
        beat = max((sent.beat for sent in self.frames), default=0)
        self.link.take_applied(Applied(epoch, position, position, beat))
