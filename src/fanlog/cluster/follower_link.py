"""The primary's end of the connection to one follower.

A follower is one more reader of the logs. Partitions that it has completely are level: they get the
pieces of each turn as they are appended. The others are behind, and are read block by block from
the tail or the files until they are level. A follower that takes less than there is falls behind
again, so that what waits for it in memory is bounded. Its positions count while all partitions are
level.

Compaction takes away what a follower could learn from batches alone. So tombstones stay until the
follower has them (`tombstones_end`). If the batches of a log do not show all of its producers any
more, the producers are sent before the partition is level.

It is long because a partition moves between level and behind at any step, so that both ways of
sending share one state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from fanlog.broker.messages.stream import StreamTurn
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime, SendBuffer
from fanlog.errors import DamagedError, FanlogError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.header import read_header
from fanlog.format.replication import (
    Applied,
    ReplicaEnd,
    ReplicaEnds,
    ReplicaEvent,
    ReplicaPartition,
    ReplicaPiece,
    Replicated,
    ReplicaTopic,
    ReplicaTopics,
    replicate_frame,
)
from fanlog.format.sparse import begun_at, placeholder
from fanlog.log.partition import Block
from fanlog.log.producers import ProducerHistory, encode_producers
from fanlog.model import MIB

logger = logging.getLogger("fanlog.cluster")

# Bytes that may wait for the follower's socket before it falls behind.
_BACKLOG_BYTES_MAX = 8 * MIB
# Pieces of one frame, as far as they can be parted.
_FRAME_BYTES = 4 * MIB
_BLOCK_BYTES = MIB
# Partitions of one page of topics: about a millisecond of the loop.
_PAGE_PARTITIONS = 500
_BLOCKS_A_TURN = 8
_HISTORIES_A_TURN = 100


class ReignState(NamedTuple):
    """The numbers of a reign that go into each frame."""

    epoch: int
    position: int
    written: int
    synced: int
    beat: int


class FollowerOutlet(Protocol):
    """The connection, as far as a link needs it."""

    @property
    def kept_bytes(self) -> int: ...
    def stream(self, buffers: list[SendBuffer]) -> None:
        """Sends buffers in order with everything else."""
        ...

    def evict(self, error: FanlogError, subscription: None = None) -> None: ...


class FollowedLogs(Protocol):
    """The broker's topics and positions, as far as a link needs them."""

    @property
    def runtime(self) -> Runtime: ...
    @property
    def state(self) -> ReignState: ...
    def topics(self) -> list[BrokerTopic]:
        """The topics that are kept on disk."""
        ...

    def find_partition(self, topic: int, partition: int) -> Partition | None: ...
    def heard(self, link: FollowerLink) -> None:
        """The follower has more than before, or answered a heartbeat."""
        ...

    def gone(self, link: FollowerLink) -> None: ...


class FollowerLink:
    """Sends everything to one follower. `node` and `incarnation` are who it says it is."""

    def __init__(
        self, host: FollowedLogs, outlet: FollowerOutlet, node: str, incarnation: str
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.applied = Applied(0, 0, 0, 0)
        self.closed = False
        self._host = host
        self._outlet = outlet
        self._pages: Iterator[ReplicaTopics] | None = iter(())
        # Events since the pages began. They follow when the follower has taken in the pages.
        self._events: list[ReplicaEvent] = []
        self._ends: dict[tuple[int, int], ReplicaEnd] = {}
        self._started = False
        # Partitions that are behind: the offset that comes next.
        self._behind: dict[Partition, int] = {}
        # Partitions that were read up to here, with pieces of the turn that has not ended: those
        # are not sent again when it ends.
        self._sent_to: dict[Partition, int] = {}
        # Partitions whose producers have to be sent.
        self._unproven: set[Partition] = set()
        # The one that is read from disk, or whose producers are collected.
        self._loading: Partition | None = None

    # The begin: the primary's topics, the follower's ends

    def begin(self) -> None:
        """After the answer to FOLLOW."""
        self._pages = _pages(self._host.topics())
        self._send_pages()

    def _send_pages(self) -> None:
        if self.closed or self._pages is None:
            return
        page = next(self._pages, None)
        if page is None:
            self._pages = None
            page = ReplicaTopics((), last=True)
        self._outlet.stream([message_frame(FrameKind.REPLICA_TOPICS, page)])
        if self._pages is not None and self._outlet.kept_bytes < _BACKLOG_BYTES_MAX:
            self._host.runtime.soon(self._send_pages)

    def ends(self, page: ReplicaEnds) -> None:
        """Where the follower's logs end."""
        if self._started:
            return
        for end in page.ends:
            self._ends[end.topic, end.partition] = end
        if page.last:
            self._start()

    def _start(self) -> None:
        self._started = True
        for topic in self._host.topics():
            for partition in topic.partitions:
                key = topic.number, partition.index
                self._compare(partition, self._ends.pop(key, None))
        self._ends.clear()
        events, self._events = self._events, []
        self._send(0, events, [])
        self._pump()

    def _compare(self, partition: Partition, found: ReplicaEnd | None) -> None:
        log = partition.log
        at = 0 if found is None else found.end
        if found is not None and found.producers:
            self._unproven.add(partition)
        if at < log.end_offset or partition in self._unproven:
            self._behind[partition] = at

    def tombstones_end(self, partition: Partition) -> int:
        """The offset before which the follower has had the partition's tombstones."""
        if not self._started:
            # It decides by what it knows about the logs.
            return 0
        return self._behind.get(partition, sys.maxsize)

    # What is appended

    @property
    def is_level(self) -> bool:
        return self._started and not self._behind

    def send(self, turn: StreamTurn) -> None:
        """Sends a turn, as far as its partitions are level."""
        if self.closed:
            return
        if not self._started:
            self._events += turn.events
            return
        crowded = self._outlet.kept_bytes > _BACKLOG_BYTES_MAX
        pieces: list[ReplicaPiece] = []
        for piece in turn.pieces:
            partition = self._host.find_partition(piece.topic, piece.partition)
            if partition is None or partition in self._behind:
                continue
            if piece.base < self._sent_to.get(partition, 0):
                continue
            if crowded:
                self._behind[partition] = piece.base
            else:
                pieces.append(piece)
        self._sent_to.clear()
        self._send(turn.position, turn.events, pieces)

    def _send(
        self, position: int, events: Sequence[ReplicaEvent], pieces: Sequence[ReplicaPiece]
    ) -> None:
        """Sends frames of a limited size. Only the last one has the position."""
        state = self._host.state
        begin, size = 0, 0
        for i, piece in enumerate(pieces):
            size += len(piece.data)
            if size >= _FRAME_BYTES and i + 1 < len(pieces):
                self._send_frame(state, 0, events, pieces[begin : i + 1])
                events, begin, size = (), i + 1, 0
        last = position if self.is_level else 0
        self._send_frame(state, last, events, pieces[begin:])

    def _send_frame(
        self,
        state: ReignState,
        position: int,
        events: Sequence[ReplicaEvent],
        pieces: Sequence[ReplicaPiece],
    ) -> None:
        sent = Replicated(
            state.epoch, position, state.written, state.synced, state.beat, events, pieces
        )
        self._outlet.stream(replicate_frame(sent))

    def beat(self) -> None:
        """Sends a heartbeat, with the committed positions."""
        if self._started and not self.closed:
            self._send(self._host.state.position, (), ())

    # Catching up

    def resume(self) -> None:
        """The connection takes more."""
        if self._pages is not None:
            self._send_pages()
        self._pump()

    def _pump(self) -> None:
        """Sends blocks of partitions that are behind, until the connection takes no more."""
        if not self._started:
            return
        for _ in range(_BLOCKS_A_TURN):
            if self.closed or self._loading is not None or not self._behind:
                return
            if self._outlet.kept_bytes > _BACKLOG_BYTES_MAX:
                return
            partition, offset = next(iter(self._behind.items()))
            log = partition.log
            if partition.topic.deleted or offset >= log.end_offset:
                self._level(partition, offset)
            elif offset < log.start_offset:
                # Its oldest records are deleted meanwhile.
                self._begin_later(partition, log.start_offset)
            elif offset >= log.tail.start_offset:
                views, after = log.tail.read(offset, log.end_offset, _BLOCK_BYTES)
                self._send_block(partition, offset, after, b"".join(views))
            else:
                self._load(partition, offset)
                return
        self._host.runtime.soon(self._pump)

    def _load(self, partition: Partition, offset: int) -> None:
        log, end = partition.log, partition.log.tail.start_offset
        self._loading = partition
        self._host.runtime.in_thread(
            lambda: log.read(offset, end, _BLOCK_BYTES),
            lambda block: self._loaded(partition, offset, block),
        )

    def _loaded(self, partition: Partition, offset: int, block: Block | Exception) -> None:
        self._loading = None
        if self.closed:
            return
        if isinstance(block, Block):
            if block.base_offset < max(offset, partition.log.compacted_until):
                self._unproven.add(partition)
            base, data = max(offset, block.base_offset), beginning_at(offset, block)
            # A compaction may have left a hole before the block.
            self._send_block(partition, base, block.next_offset, data)
        elif isinstance(block, DamagedError):
            # Nobody has these records.
            self._leave_out(partition, max(offset, block.next))
        elif not partition.topic.deleted and offset >= partition.log.start_offset:
            # What another node can repair is never passed on. The follower stays behind, and
            # status says why.
            logger.error("%s can't be replicated to %s: %s", partition.name, self.node, block)
            self._outlet.evict(FanlogError(f"{partition.name} can't be read: {block}"))
            return
        # Otherwise the topic is gone meanwhile, or its oldest records are.
        self._host.runtime.soon(self._pump)

    def _leave_out(self, partition: Partition, until: int) -> None:
        """The follower's log continues at `until`. The next block says that, if there is one: many
        such ranges in a row are one hole there."""
        self._unproven.add(partition)
        self._behind[partition] = until
        if until >= partition.log.end_offset and not partition.topic.deleted:
            number, index = partition.topic.number, partition.index
            self._send(0, (), [ReplicaPiece(number, index, until, until, b"")])

    def _begin_later(self, partition: Partition, start: int) -> None:
        """The follower's log begins anew there. It must not have a hole: another primary may have
        what this one has deleted, and is asked for nothing that is before a log's end."""
        self._unproven.add(partition)
        self._behind[partition] = start
        if not partition.topic.deleted:
            number, index = partition.topic.number, partition.index
            self._send(0, [ReplicaEvent(number, partition=index, start=start)], ())

    def _send_block(self, partition: Partition, base: int, after: int, data: SendBuffer) -> None:
        piece = ReplicaPiece(partition.topic.number, partition.index, base, after, data)
        self._send(0, (), [piece])
        if after >= partition.log.end_offset:
            self._level(partition, after)
        else:
            # Behind the others, so that each has its turn.
            del self._behind[partition]
            self._behind[partition] = after

    def _level(self, partition: Partition, offset: int) -> None:
        if partition in self._unproven and not partition.topic.deleted:
            self._behind[partition] = offset
            self._loading = partition
            self._collect(partition, offset, iter(partition.log.producer_histories()), [])
            return
        del self._behind[partition]
        self._sent_to[partition] = offset
        if not self._behind:
            # Everything of the turns that have ended is sent.
            self._send(self._host.state.position, (), ())

    def _collect(
        self,
        partition: Partition,
        offset: int,
        histories: Iterator[ProducerHistory],
        found: list[ProducerHistory],
    ) -> None:
        """Sends the producers of what is before the offset. There may be thousands."""
        if self.closed:
            return
        more = list(islice(histories, _HISTORIES_A_TURN))
        if more and not partition.topic.deleted:
            found += more
            self._host.runtime.soon(lambda: self._collect(partition, offset, histories, found))
            return
        self._loading = None
        self._unproven.discard(partition)
        if not partition.topic.deleted:
            producers = encode_producers(offset, found)
            number, index = partition.topic.number, partition.index
            event = ReplicaEvent(number, partition=index, producers=producers)
            self._send(0, [event], ())
        self._host.runtime.soon(self._pump)

    # What comes back

    def take_applied(self, applied: Applied) -> None:
        """The follower says how far it is. Positions of a reign only grow. Those of another count
        for nothing."""
        known = self.applied
        if applied.epoch < known.epoch:
            return
        if applied.epoch > known.epoch:
            known = Applied(0, 0, 0, 0)
        self.applied = Applied(
            applied.epoch,
            max(applied.written, known.written),
            max(applied.synced, known.synced),
            max(applied.beat, known.beat),
        )
        self._host.heard(self)

    def gone(self) -> None:
        """The connection is lost."""
        self.closed = True
        self._behind.clear()
        self._host.gone(self)

    @property
    def behind_bytes(self) -> int:
        """About how much the follower lacks, for people."""
        return self._outlet.kept_bytes + sum(
            partition.log.bytes for partition in self._behind if not partition.topic.deleted
        )

    def evict(self, error: FanlogError) -> None:
        if not self.closed:
            self._outlet.evict(error)


def beginning_at(offset: int, block: Block) -> SendBuffer:
    """The block's batches from an offset on. The first one may begin before it: its first records
    are deleted, or compaction has stretched it over the offset."""
    if block.base_offset >= offset:
        return block.data
    header = read_header(block.data)
    first = Batch(bytes(block.data[: header.length]))
    try:
        rest = begun_at(first, offset)
    except UnreadableError:
        # Its producer has sent garbage: nobody can read what is in it.
        rest = placeholder(header._replace(base_offset=offset), header.next_offset)
    return b"".join((rest, block.data[header.length :]))


def _pages(topics: Sequence[BrokerTopic]) -> Iterator[ReplicaTopics]:
    page: list[ReplicaTopic] = []
    count = 0
    for topic in topics:
        if topic.deleted:
            continue
        page.append(_describe(topic))
        count += len(topic.partitions)
        if count >= _PAGE_PARTITIONS:
            yield ReplicaTopics(tuple(page))
            page, count = [], 0
    if page:
        yield ReplicaTopics(tuple(page))


def _describe(topic: BrokerTopic) -> ReplicaTopic:
    partitions = tuple(
        ReplicaPartition(
            partition.log.start_offset,
            partition.log.end_offset,
            tuple((start.epoch, start.base) for start in partition.log.epochs),
            partition.log.compacted_until,
            partition.log.compacted_us,
            lost_until=partition.log.lost_until,
        )
        for partition in topic.partitions
    )
    return ReplicaTopic(topic.number, topic.name, topic.settings, partitions)
