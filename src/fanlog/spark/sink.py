"""The sinks: rows become visible exactly once, whatever Spark retries, speculates or restarts.

Each attempt of a task stages its rows in a transaction of its own, and tells the driver its ticket
when it is done. The driver commits the tickets of the attempts that count, all of them under one
id, in one step. What other attempts have staged is never committed: it is aborted, or runs out of
time. A stream's id is made of its query's id and the batch's, which are the same after a restart;
to commit an id again does nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.client.core.staging import StagedBatches
from fanlog.client.core.topic_directory import codec_for
from fanlog.client.request_connection import RequestConnection
from fanlog.errors import (
    ConnectionLostError,
    FanlogError,
    InvalidArgumentError,
    MessageTooLargeError,
    RequestTimeoutError,
)
from fanlog.format import messages
from fanlog.format.buffers import encode_buffers
from fanlog.format.codecs import Codec
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind
from fanlog.spark.connecting import open_broker
from fanlog.spark.options import WriteOptions
from fanlog.spark.row_batches import Cut, TargetTopic, buffers_of, cut_rows

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("fanlog.spark")

# Where Spark tells its tasks which query and which of its batches they belong to.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_STAGE_HEAD_BYTES = FRAME_HEADER_BYTES + 16


class StagedAttempt(WriterCommitMessage):
    """What an attempt has staged. Without a ticket it had no rows, or its id was `committed`
    before."""

    def __init__(self, ticket: str, rows: int, *, committed: bool = False) -> None:
        self.ticket = ticket
        self.rows = rows
        self.committed = committed
        self.query = ""


def stream_id(query: str, batch: int | str) -> str:
    """The id under which a stream's batch is committed."""
    return f"spark/{query}/{batch}"


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        _check_mode(overwrite, 'mode("append")')
        self._options = options
        self._id = options.transaction_id or f"spark/{secrets.token_hex(16)}"
        _prepare_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        # In a stream's foreachBatch, tasks know their query: the id is one of its own there, so
        # that a new checkpoint, which counts its batches anew, is no repetition.
        query = _property(_QUERY_ID) if self._options.transaction_id else ""
        staged = _stage(self._options, self._id_in(query), iterator)
        staged.query = query
        return staged

    def _id_in(self, query: str) -> str:
        return stream_id(query, self._id) if query else self._id

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        id = self._id_in(_query_of(messages))
        if _commit(self._options, id, messages):
            logger.warning(
                "%s was committed before: nothing was written now. To write new rows, give "
                "another transactionId.",
                id,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        _check_mode(overwrite, 'outputMode("append"), or from foreachBatch')
        self._options = options
        _prepare_topic(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
        query, batch = _task_property(_QUERY_ID), _task_property(_BATCH_ID)
        staged = _stage(self._options, stream_id(query, batch), iterator)
        staged.query = query
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        id = stream_id(_query_of(messages), batchId)
        if _commit(self._options, id, messages):
            logger.info("%s was committed before: nothing was written now.", id)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._options, messages)


def _check_mode(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidArgumentError(f"Nothing in a log can be overwritten: write with {instead}.")


def _property(name: str) -> str:
    """A property of this task that Spark sets; empty if it is not set."""
    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(name) or ""


def _task_property(name: str) -> str:
    value = _property(name)
    if not value:
        raise InvalidArgumentError(
            f"Spark does not give this task its {name!r}, which exactly-once writes of a stream "
            "need: use Spark 4.3, or write from foreachBatch with the option transactionId."
        )
    return value


# On the driver


def _prepare_topic(options: WriteOptions) -> None:
    """Checks that the topic of the option exists, or creates it if that is wanted."""
    with open_broker(options) as broker:
        if options.topic:
            _open_topic(broker, options, options.topic)


def _open_topic(
    broker: RequestConnection, options: WriteOptions, name: str
) -> messages.TopicOpened:
    if options.create_topics and options.partitions:
        settings: dict[str, int | str] = {"partitions": options.partitions}
        wanted = messages.OpenTopic(name, create=False)
        try:
            return broker.ask(FrameKind.OPEN_TOPIC, wanted, messages.TopicOpened)
        except FanlogError:
            made = messages.CreateTopic(name, settings, exist_ok=True, compare=())
            broker.ask(FrameKind.CREATE_TOPIC, made, msgspec.Raw)
    opened = messages.OpenTopic(name, create=options.create_topics)
    return broker.ask(FrameKind.OPEN_TOPIC, opened, messages.TopicOpened)


def _staged(given: Sequence[WriterCommitMessage | None]) -> list[StagedAttempt]:
    return [some for some in given if isinstance(some, StagedAttempt)]


def _query_of(given: Sequence[WriterCommitMessage | None]) -> str:
    return next((some.query for some in _staged(given) if some.query), "")


def _commit(options: WriteOptions, id: str, given: Sequence[WriterCommitMessage | None]) -> bool:
    """Commits, and waits until all is stored; True if the id was committed before. That is waited
    for, too: who comes next must not land in the middle of it."""
    staged = _staged(given)
    # No broker has a ticket that is empty: it asks for what must be committed, and commits nothing.
    tickets = tuple(some.ticket for some in staged if some.ticket or some.committed)
    if not tickets:
        return False
    wanted = messages.CommitTransaction(tickets[0], id, tickets=tickets[1:])
    with open_broker(options, patient=True) as broker:
        greeted = broker.welcome
        done = broker.ask_at_length(
            FrameKind.COMMIT_TRANSACTION,
            wanted,
            messages.TransactionCommitted,
            options.limits.commit_timeout_seconds,
        )
        # A request that was repeated on a second connection may get the result of its own first
        # commit.
        once = broker.welcome is greeted
    return done.already and (once or any(some.committed for some in staged))


def _abort(options: WriteOptions, given: Sequence[WriterCommitMessage | None]) -> None:
    """Aborts the transaction, if the broker can be reached; otherwise it times out."""
    tickets = [some.ticket for some in _staged(given) if some.ticket]
    if tickets:
        with suppress(FanlogError), open_broker(options) as broker:
            for ticket in tickets:
                _abort_ticket(broker, ticket)


def _abort_ticket(broker: RequestConnection, ticket: str) -> None:
    wanted = messages.AbortTransaction(ticket)
    broker.take(broker.post(FrameKind.ABORT_TRANSACTION, wanted))


# In a task


def _stage(options: WriteOptions, id: str, iterator: Iterator[pa.RecordBatch]) -> StagedAttempt:
    """Stages all rows of one attempt."""
    if options.in_time_order:
        iterator = _in_time_order(iterator)
    rows = _chunks(iterator, options.limits.rows_bytes)
    first = next(rows, None)
    if first is None:
        return StagedAttempt("", 0)
    with open_broker(options, patient=True) as broker:
        stager = SinkStager(broker, options, id)
        if stager.committed:
            stager.abort()
            # Every row is taken, or Spark would wait for somebody to do it.
            for _ in rows:
                pass
            return StagedAttempt("", 0, committed=True)
        try:
            stager.add(first)
            for some in rows:
                stager.add(some)
            stager.flush()
        except BaseException:
            stager.abort()
            raise
    return StagedAttempt(stager.ticket, stager.rows)


def _in_time_order(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of the attempt, by their event times; those of one time by their keys."""
    import pyarrow as pa  # noqa: PLC0415

    kept = [some for some in iterator if len(some)]
    if kept:
        rows = pa.concat_batches(kept)
        names = [name for name in ("event_time", "key") if name in rows.schema.names]
        yield rows.sort_by([(name, "ascending") for name in names])


def _chunks(iterator: Iterator[pa.RecordBatch], bytes_min: int) -> Iterator[pa.RecordBatch]:
    """What Spark brings, put together until it is worth a batch for each partition."""
    import pyarrow as pa  # noqa: PLC0415

    waiting: list[pa.RecordBatch] = []
    size = 0
    for some in iterator:
        if len(some):
            waiting.append(some)
            size += some.nbytes
        if size >= bytes_min:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


class SinkStager:
    """One attempt's transaction. Batches are numbered, so that what is sent again after a lost
    connection is staged once."""

    def __init__(self, broker: RequestConnection, options: WriteOptions, id: str) -> None:
        self._broker = broker
        self._options = options
        begin = messages.BeginTransaction(id, options.transaction_timeout_seconds)
        begun = broker.ask(FrameKind.BEGIN_TRANSACTION, begin, messages.TransactionBegun)
        self.ticket = begun.ticket
        self.committed = begun.committed
        self.rows = 0
        self._staged = StagedBatches(
            ProducerIdentity(secrets.randbits(63) | 1),
            frame_bytes=options.limits.stage_bytes,
            frames_max=options.limits.stages_in_flight,
            rounds_max=options.limits.stage_rounds_max,
            ticket=bytes.fromhex(begun.ticket),
        )
        self._turn = secrets.randbelow(1 << 16)
        self._targets: dict[str, tuple[TargetTopic, Codec]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        self._turn += 1
        for cut in cut_rows(rows, self._options.topic, self._find, self._turn):
            for some in self._pieces(cut):
                self._send(some)
        self.rows += len(rows)

    def _find(self, name: str) -> TargetTopic:
        return self._target(name)[0]

    def _target(self, name: str) -> tuple[TargetTopic, Codec]:
        known = self._targets.get(name)
        if known is None:
            # To ask may take a new connection, on which nothing of the old one is answered.
            self.flush()
            opened = _open_topic(self._broker, self._options, name)
            settings = opened.settings
            target = TargetTopic(
                opened.name, opened.number, settings.partitions, settings.message_bytes_max
            )
            codec = codec_for(opened, self._options.codec or Codec.NONE)
            known = self._targets[name] = (target, codec)
        return known

    def _pieces(self, cut: Cut) -> Iterator[Cut]:
        """The rows in batches of about the size that is wanted."""
        size = cut.rows.nbytes
        count = len(cut.rows)
        step = max(1, count * self._options.limits.stage_bytes // max(1, size))
        if step >= count:
            yield cut
            return
        for first in range(0, count, step):
            yield cut._replace(rows=cut.rows.slice(first, step))

    def _send(self, cut: Cut) -> None:
        data = encode_buffers(
            buffers_of(cut.rows, time.time_ns() // 1000),
            codec=self._target(cut.target.name)[1],
            topic=cut.target.number,
            partition=cut.partition,
            producer_id=self._staged.identity.id,
            first_sequence=self._staged.number,
        )
        frame_bytes_max = self._broker.welcome.frame_bytes_max
        if len(data) + _STAGE_HEAD_BYTES > frame_bytes_max:
            if len(cut.rows) == 1:
                raise MessageTooLargeError(
                    f"A row has {len(data)} bytes as a batch of its own, headers included; this "
                    f"broker takes {frame_bytes_max} in a frame (listener.frame_bytes_max)."
                )
            # A few rows are far larger than the rest.
            half = len(cut.rows) // 2
            self._send(cut._replace(rows=cut.rows.slice(0, half)))
            self._send(cut._replace(rows=cut.rows.slice(half)))
            return
        while self._staged.is_full():
            self._await_oldest()
        self._staged.add(data)
        self._send_due()

    def _send_due(self) -> None:
        """Sends frames, over as many connections as it takes."""
        while due := self._staged.frames_due():
            try:
                for frame in due:
                    frame.request = self._broker.post_parts(FrameKind.STAGE, *frame.parts)
            except ConnectionLostError as fault:
                self._lost(fault)

    def _await_oldest(self) -> None:
        """Waits for the oldest frame's answer."""
        oldest = self._staged.oldest
        try:
            self._broker.take(oldest.request)
        except (ConnectionLostError, RequestTimeoutError) as fault:
            self._lost(fault)
            self._send_due()
        else:
            self._staged.answered(oldest)

    def _lost(self, fault: FanlogError) -> None:
        self._staged.lost(fault)
        self._broker.reconnect()

    def flush(self) -> None:
        while self._staged:
            self._await_oldest()

    def abort(self) -> None:
        """Aborts the transaction. If the broker can't be reached, it times out."""
        with suppress(FanlogError):
            _abort_ticket(self._broker, self.ticket)
