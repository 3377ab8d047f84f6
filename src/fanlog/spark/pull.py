"""A task's reading: a range of one partition, from the broker or from the files beside it, as
Arrow record batches. While one stretch is turned into rows, the next is on its way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa

from fanlog.client.core.fetched import fetched_batches
from fanlog.client.request_connection import RequestConnection
from fanlog.errors import (
    ConnectionLostError,
    DamagedError,
    OffsetOutOfRangeError,
    TopicDeletedError,
    TopicNotFoundError,
    UnreadableError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.codecs import UnpackLimits
from fanlog.format.frames import FETCHED_HEAD, FrameKind
from fanlog.format.header import BatchHeader, read_header
from fanlog.format.messages import decode
from fanlog.log.read_only import find_partition, read_runs
from fanlog.log.scan import Owner
from fanlog.model import KIB
from fanlog.spark.arrow import RowsBuilder
from fanlog.spark.connecting import open_broker
from fanlog.spark.offsets import Range
from fanlog.spark.options import EARLIEST, ReadOptions
from fanlog.spark.planning import begun_anew, gone, log_of, lose, rewound

logger = logging.getLogger("fanlog.spark")

_FETCH_BYTES_MIN = 64 * KIB
# A record's size is only a guess: better to get a little more than to ask once more.
_FETCH_SPARE = 1.25


class PulledPiece(NamedTuple):
    """Bytes of a log, and the batches in them: where each begins, and its header. `first` is the
    requested offset: the first batch may begin before it."""

    first: int
    data: bytes
    batches: list[tuple[int, BatchHeader]]


def read_range(options: ReadOptions, wanted: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a range as Spark's rows."""
    limits = options.limits
    rows = RowsBuilder(
        schema,
        wanted.tp.topic,
        wanted.tp.partition,
        rows_max=limits.rows_max,
        bytes_max=limits.rows_bytes,
    )
    unpacking = UnpackLimits(limits.batch_unpacked_bytes_max)
    for piece in _pieces(options, wanted):
        view = memoryview(piece.data)
        for at, header in piece.batches:
            batch = Batch(view[at : at + header.length], header, wanted.tp.topic, unpacking)
            try:
                full = rows.add(batch, piece.first, wanted.end)
            except UnreadableError as fault:
                lose(options, str(fault), "They are left out.")
                continue
            yield from full
    if rows.rows:
        yield rows.take()


def _pieces(options: ReadOptions, wanted: Range) -> Iterator[PulledPiece]:
    """All of a range: from files as far as they go, the rest from the broker."""
    first = wanted.first
    if options.data:
        for piece in _file_pieces(options, wanted):
            yield piece
            first = piece.batches[-1][1].next_offset
    if first < wanted.end:
        yield from _Fetching(options, wanted, first).pieces()


def _file_pieces(options: ReadOptions, wanted: Range) -> Iterator[PulledPiece]:
    tp = wanted.tp
    if not tp.log.isdecimal():
        return  # a topic in memory has no files
    owner = Owner(int(tp.log), tp.partition)
    folder = find_partition(options.data, owner, tp.topic)
    if folder is None:
        logger.info("%s has no files of %r: the broker is asked.", options.data, tp.topic)
        return
    chunk_bytes = options.limits.fetch_bytes
    for run in read_runs(folder, owner, wanted.first, wanted.end, chunk_bytes=chunk_bytes):
        batches: list[tuple[int, BatchHeader]] = []
        at = 0
        while at < run.size:
            header = read_header(run.data, at)
            batches.append((at, header))
            at += header.length
        yield PulledPiece(wanted.first, run.data, batches)


def _turn_of(wanted: Range) -> int:
    """Spreads the tasks of a scan over the nodes of a cluster. A task that is tried again begins
    with the same node."""
    topic, _, partition = wanted.tp
    return crc32(f"{topic} {partition} {wanted.first}".encode())


class _Fetching:
    """A range over the network. After a lost connection it connects again, and continues where it
    was."""

    def __init__(self, options: ReadOptions, wanted: Range, first: int) -> None:
        self._options = options
        self._wanted = wanted
        self._next = first
        self._number = 0
        self._request = 0

    def pieces(self) -> Iterator[PulledPiece]:
        with open_broker(self._options, patient=True, turn=_turn_of(self._wanted)) as broker:
            self._begin(broker)
            while self._next < self._wanted.end:
                try:
                    piece = self._answer(broker)
                except ConnectionLostError as lost:
                    logger.info("%s Connecting again.", lost)
                    broker.reconnect()
                    self._begin(broker)
                    continue
                if piece is not None:
                    yield piece

    def _begin(self, broker: RequestConnection) -> None:
        tp = self._wanted.tp
        wanted = messages.OpenTopic(tp.topic, create=False)
        try:
            opened = decode(
                messages.TopicOpened, broker.take(broker.post(FrameKind.OPEN_TOPIC, wanted))
            )
        except TopicNotFoundError:
            self._end(begun_anew(tp.topic))
            return
        if log_of(opened, broker.welcome.epoch) != tp.log:
            self._end(begun_anew(tp.topic))
            return
        self._number = opened.number
        self._ask(broker)

    def _ask(self, broker: RequestConnection) -> None:
        wanted, limits = self._wanted, self._options.limits
        guess = int((wanted.end - self._next) * wanted.record_bytes * _FETCH_SPARE)
        bytes_max = min(limits.fetch_bytes, max(guess, _FETCH_BYTES_MIN))
        fetch = messages.Fetch(self._number, wanted.tp.partition, self._next, bytes_max)
        self._request = broker.post(FrameKind.FETCH, fetch)

    def _answer(self, broker: RequestConnection) -> PulledPiece | None:
        """The next stretch. The one behind it is requested before this one is processed."""
        tp = self._wanted.tp
        try:
            payload = broker.take(self._request)
        except OffsetOutOfRangeError:
            self._skip(broker)
            return None
        except DamagedError as damage:
            lose(self._options, str(damage))
            self._next = max(damage.next, self._next + 1)
            self._ask(broker)
            return None
        except TopicDeletedError:
            self._end(begun_anew(tp.topic))
            return None
        batches = list(fetched_batches(payload))
        if not batches:
            visible_end = FETCHED_HEAD.unpack_from(payload)[0]
            self._end(rewound(tp, self._next, visible_end))
            return None
        first, self._next = self._next, batches[-1][1].next_offset
        if self._next < self._wanted.end:
            # Received batches are returned in any case. If the connection is lost now, taking the
            # next answer notices it.
            with suppress(ConnectionLostError):
                self._ask(broker)
        return PulledPiece(first, payload, batches)

    def _skip(self, broker: RequestConnection) -> None:
        """Retention has come between the plan and the task."""
        tp = self._wanted.tp
        wanted = messages.FindOffsets(tp.topic, EARLIEST)
        found = broker.ask(FrameKind.FIND_OFFSETS, wanted, messages.Positions)
        starts = {position.partition: position.offset for position in found.positions}
        start = starts.get(tp.partition, self._wanted.end)
        lose(self._options, gone(tp, self._next, min(start, self._wanted.end), start))
        self._next = max(self._next, start)
        if self._next < self._wanted.end:
            self._ask(broker)

    def _end(self, sentence: str) -> None:
        lose(self._options, sentence)
        self._next = self._wanted.end
