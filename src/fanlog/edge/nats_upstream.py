"""NATS as the upstream of an edge. A topic is a subject.

If a stream of JetStream covers the subject, the stream's sequence is the position: a message has
the offset `sequence - 1`, and the offsets between belong to other subjects. Readers recover on any
edge. Without a stream there are only live messages: each edge numbers them itself, and a reader
that was away, or comes from another edge, gets an explicit gap.

It is long because a topic is followed in two ways: as a stream of JetStream, or as a plain subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import zlib
from collections.abc import Sequence
from typing import Any

from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import NotFoundError

from fanlog.broker.messages.loader import BlockDone
from fanlog.broker.messages.topics import Partition
from fanlog.broker.names import check_name, check_target
from fanlog.config import EdgeOptions
from fanlog.edge.core import EdgeCore
from fanlog.edge.envelopes import make_batch
from fanlog.edge.mirror import mirror_log
from fanlog.edge.nats_connection import NatsConnection
from fanlog.edge.nats_history import NatsHistory
from fanlog.edge.nats_messages import SIGNAL, begun_at, body_of, check_subject, headers_of
from fanlog.edge.references import References, TopicReference
from fanlog.errors import (
    ConnectionLostError,
    FanlogError,
    InvalidNameError,
)
from fanlog.format.header import read_header
from fanlog.format.messages import Joined, PartitionOffset, Subscribe
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.model import DurabilityName, EpochInfo, PartitionInfo, Start, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.edge")

_PAUSE_SECONDS = 0.2
_LEVEL_SECONDS = 2.0


class _Feed:
    """The source of a target: a consumer of a stream, or a plain subscription."""

    __slots__ = ("epoch", "seen", "stream", "subscription")

    def __init__(self, stream: str, epoch: int, seen: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.seen = seen
        self.subscription: Any = None


class NatsUpstream:
    """Answers the requests of an edge's core, and publishes for its bus."""

    def __init__(
        self, core: EdgeCore, url: str, options: EdgeOptions, *, make_streams: bool = False
    ) -> None:
        self._core = core
        self._options = options
        self._make_streams = make_streams
        self.line = NatsConnection(url, self._back, options)
        self.history = NatsHistory(core, self.line, self._stream_of)
        self._references = References(self._begin, self._finish, options.linger_seconds)
        self._lines: dict[TopicReference, _Feed] = {}
        self._epoch = 1 + secrets.randbelow(0xFFFFFFFE)

    # Following

    async def follow(self, target: str, wildcard: bool) -> None:
        check_subject(check_target(target, wildcard=wildcard))
        if await self._references.follow(TopicReference(target, wildcard)):
            try:
                await self._level(TopicReference(target, wildcard))
            except BaseException:
                self.unfollow(target, wildcard)
                raise

    def unfollow(self, target: str, wildcard: bool) -> None:
        self._references.unfollow(TopicReference(target, wildcard))

    @property
    def subscriptions(self) -> int:
        return len(self._references)

    async def _begin(self, target: TopicReference) -> None:
        await self._open(target, None)

    def _finish(self, target: TopicReference) -> None:
        self._core.mirror.let_go(target)
        line = self._lines.pop(target, None)
        if line is not None:
            self.line.in_task(self._end(line))

    async def _end(self, line: _Feed) -> None:
        with contextlib.suppress(NatsError, OSError, TimeoutError, ValueError):
            await line.subscription.unsubscribe()

    async def _open(self, target: TopicReference, before: _Feed | None) -> None:
        stream = await self._find_stream(target.name)
        if stream is None:
            await self._open_plain(target)
            return
        info = await self.line.ask(
            self.line.jetstream.stream_info(stream, subjects_filter=target.name)
        )
        epoch = _epoch_of(info)
        last = int(info.state.last_seq)
        # The same stream continues: its consumer brings the missed messages.
        same = before is not None and (before.stream, before.epoch) == (stream, epoch)
        seen = min(before.seen, last) if before is not None and same else last
        line = self._lines[target] = _Feed(stream, epoch, seen)
        names = [target.name] if not target.wildcard else list(info.state.subjects or {})
        for name in names:
            self._join_stored(target, name, line, info, at=seen)
            if before is not None and same and last < before.seen:
                # It has lost its end: other messages will have those sequences.
                self._core.mirror.reset(self._number(name))
        await self._consume(target, line)

    async def _consume(self, target: TopicReference, line: _Feed) -> None:
        async def heard(message: Any) -> None:
            self._stored(target, line, message)

        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=line.seen + 1
        )
        line.subscription = await self.line.ask(
            self.line.jetstream.subscribe(
                target.name,
                stream=line.stream,
                ordered_consumer=True,
                config=config,
                cb=heard,
                pending_msgs_limit=-1,
                pending_bytes_limit=-1,
            )
        )

    async def _find_stream(self, subject: str) -> str | None:
        try:
            return str(
                await self.line.ask(self.line.jetstream.find_stream_name_by_subject(subject))
            )
        except NotFoundError:
            if not self._make_streams:
                return None
        except ConnectionLostError:
            # It may have a stream: stored messages must not become live-only ones.
            raise
        except FanlogError as fault:
            # A server without JetStream has none.
            if not self.line.up:
                raise
            logger.debug("%s has no stream: %s", subject, fault)
            return None
        return await self._make_stream(subject)

    async def _make_stream(self, subject: str) -> str:
        """A stream for the first part of its name: one for all rooms, one for all users, and so
        on."""
        first = subject.split(".", maxsplit=1)[0]
        if first in ("*", ">"):
            raise InvalidNameError(
                f"No stream covers {subject!r}, and the edge creates none for all subjects: create "
                "one, or follow a pattern with a first part of its own."
            )
        name = f"fanlog-{first}".translate(str.maketrans(" /\\", "---"))
        config = api.StreamConfig(
            name=name,
            subjects=[first, f"{first}.>"],
            max_age=float(self._options.history_seconds),
        )
        await self.line.ask(self.line.jetstream.add_stream(config))
        return name

    # Topics

    def _number(self, name: str) -> int:
        """The same on every edge; another one only if two names happen to have the same."""
        number = zlib.crc32(name.encode()) or 1
        while (known := self._core.mirror.by_number(number)) is not None and known != name:
            number = number % 0xFFFFFFFF + 1
        return number

    def _join_stored(
        self, target: TopicReference, name: str, line: _Feed, info: Any, *, at: int
    ) -> None:
        limit = int(info.config.max_msgs_per_subject or 0)
        counts: dict[str, int] = info.state.subjects or {}
        count = counts.get(name, 0)
        first = max(0, int(info.state.first_seq) - 1)
        if 0 < limit <= count:
            # Messages in between may be deleted: readers must be notified.
            self.line.in_task(self._learn_begin(line.stream, name))
        self._join(target, name, line.epoch, first=min(first, at), end=at, durability="os")

    def _join(
        self,
        target: TopicReference,
        name: str,
        epoch: int,
        *,
        first: int,
        end: int,
        durability: DurabilityName,
    ) -> None:
        number = self._number(name)
        epochs = (EpochInfo(epoch, 0),) if durability == "os" else ()
        known = self._core.mirror.find(name)
        partition = PartitionInfo(
            partition=0,
            start_offset=first,
            end_offset=end,
            visible_end=max(end, known.topic.partitions[0].next_offset if known else 0),
            bytes=0,
            segments=0,
            readers=0,
            epochs=epochs,
        )
        settings = TopicSettings(partitions=1, durability=durability)
        info = TopicInfo(name=name, number=number, settings=settings, partitions=(partition,))
        start = (PartitionOffset(0, end),)
        self._core.mirror.joined(Joined(number, name, epoch, start, info), target)

    async def _learn_begin(self, stream: str, name: str) -> None:
        with contextlib.suppress(FanlogError, NotFoundError):
            found = await self.line.ask(
                self.line.jetstream.get_msg(stream, seq=1, subject=name, next=True)
            )
            known = self._core.mirror.find(name)
            if known is not None:
                log = mirror_log(known.topic.partitions[0])
                log.begins_at = max(log.begins_at, int(found.seq) - 1)

    async def _open_plain(self, target: TopicReference) -> None:
        line = self._lines[target] = _Feed("", self._epoch, 0)
        if not target.wildcard:
            self._join_plain(target, target.name)

        async def heard(message: Any) -> None:
            self._plain(target, message)

        line.subscription = await self.line.ask(self.line.client.subscribe(target.name, cb=heard))
        await self.line.ask(self.line.client.flush())

    def _join_plain(self, target: TopicReference, name: str) -> None:
        known = self._core.mirror.find(name)
        end = 0 if known is None else known.topic.partitions[0].next_offset
        self._join(target, name, self._epoch, first=end, end=end, durability="memory")

    # Messages from NATS

    def _stored(self, target: TopicReference, line: _Feed, message: Any) -> None:
        if self._lines.get(target) is not line:
            return
        try:
            name = check_name(message.subject)
        except InvalidNameError:
            return
        metadata = message.metadata
        sequence = int(metadata.sequence.stream)
        known = self._core.mirror.find(name)
        if known is None:
            self._join(target, name, line.epoch, first=0, end=sequence - 1, durability="os")
            known = self._core.mirror.find(name)
        assert known is not None
        line.seen = max(line.seen, sequence)
        partition = known.topic.partitions[0]
        if sequence <= partition.next_offset:
            return
        batch = make_batch(
            body_of(message.data, message.headers),
            number=known.topic.number,
            epoch=known.epoch,
            offset=sequence - 1,
            time_us=int(metadata.timestamp.timestamp() * 1e6),
        )
        batch = begun_at(batch, partition.next_offset)
        self._core.mirror.take(batch, read_header(batch))

    def _plain(self, target: TopicReference, message: Any) -> None:
        try:
            name = check_name(message.subject)
        except InvalidNameError:
            return
        if message.subject.startswith((SIGNAL, "_INBOX.", "$")):
            return
        if not target.wildcard or TopicReference(name, False) not in self._references:
            known = self._core.mirror.find(name)
            if known is None:
                self._join_plain(target, name)
                known = self._core.mirror.find(name)
            if known is None or known.joined is None or known.epoch != self._epoch:
                return
            batch = make_batch(
                body_of(message.data, message.headers),
                number=known.topic.number,
                epoch=known.epoch,
                offset=known.topic.partitions[0].next_offset,
                time_us=self._core.now_us(),
            )
            self._core.mirror.take(batch, read_header(batch))

    async def _back(self) -> None:
        """Topics in streams continue. Others may have missed messages: a new epoch notifies their
        readers."""
        self._epoch = self._epoch % 0xFFFFFFFF + 1
        self._core.mirror.connection = object()
        for target in self._references.targets():
            self.line.in_task(self._again(target))

    async def _again(self, target: TopicReference) -> None:
        while target in self._references and self.line.client.is_connected:
            line = self._lines.pop(target, None)
            if line is not None:
                await self._end(line)
            try:
                await self._open(target, line)
                return
            except FanlogError as fault:
                logger.info("%s is not followed yet: %s", target.name, fault)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def close(self) -> None:
        await self._references.close()
        await self.line.close()

    # Publishing

    async def publish(
        self, name: str, messages: Sequence[MessageToPublish], dedupe: str
    ) -> list[Published]:
        check_subject(check_name(name))
        stream = await self._find_stream(name)
        if stream is None:
            for message in messages:
                headers = headers_of(message)
                await self.line.ask(
                    self.line.client.publish(name, message.value or b"", headers=headers)
                )
            await self.line.ask(self.line.client.flush())
            return [Published(name, 0, 0) for _ in messages]
        published: list[Published] = []
        for i, message in enumerate(messages):
            headers = headers_of(message) or {}
            if dedupe:
                headers["Nats-Msg-Id"] = f"{dedupe}/{i}"
            stored = await self.line.ask(
                self.line.jetstream.publish(name, message.value or b"", headers=headers or None)
            )
            sequence = int(stored.seq)
            epoch = await self._stream_epoch(stream)
            position = f"{sequence}.{epoch}.{self._number(name)}"
            published.append(Published(name, 0, sequence - 1, position))
        return published

    async def _stream_epoch(self, stream: str) -> int:
        for line in self._lines.values():
            if line.stream == stream:
                return line.epoch
        return _epoch_of(await self.line.ask(self.line.jetstream.stream_info(stream)))

    # History that the mirror does not have

    def _line_of(self, partition: Partition) -> _Feed | None:
        """The position of a topic in a stream; None if it is live only."""
        known = self._core.mirror.find(partition.topic.name)
        feeders = () if known is None else known.feeders
        lines = (
            self._lines.get(feeder) for feeder in feeders if isinstance(feeder, TopicReference)
        )
        return next((line for line in lines if line is not None and line.stream), None)

    def _stream_of(self, partition: Partition) -> str | None:
        line = self._line_of(partition)
        return None if line is None else line.stream

    async def find_offset(self, partition: Partition, start: Start) -> int:
        return await self.history.find_offset(partition, start)

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        self.history.read_block(partition, offset, bytes_wanted, done)

    async def _level(self, target: TopicReference) -> None:
        """Messages stored before a reader came are here before it starts."""
        known = None if target.wildcard else self._core.mirror.find(target.name)
        if known is None or not self.line.up:
            return
        partition = known.topic.partitions[0]
        line = self._line_of(partition)
        if line is None:
            with contextlib.suppress(FanlogError):
                await self.line.ask(self.line.client.flush())
            return
        with contextlib.suppress(FanlogError, NotFoundError):
            last = await self.line.ask(self.line.jetstream.get_last_msg(line.stream, target.name))
            await self._reach(partition, int(last.seq))

    async def _reach(self, partition: Partition, offset: int) -> None:
        try:
            async with asyncio.timeout(_LEVEL_SECONDS):
                await self._core.reading.until_visible(partition, offset)
        except TimeoutError:
            self._core.mirror.skip(partition, offset)

    async def catch_up(self, wanted: Subscribe) -> None:
        for position in wanted.resume or ():
            known = self._core.mirror.find(position.topic)
            if known is None or position.number not in (0, known.topic.number):
                continue
            partition = known.topic.partitions[0]
            line = self._line_of(partition)
            if line is None or position.offset <= partition.visible_end:
                continue
            info = await self.line.ask(self.line.jetstream.stream_info(line.stream))
            if position.offset <= int(info.state.last_seq):
                # The offsets between may be other subjects': there is nothing to wait for.
                self._core.mirror.skip(partition, position.offset)


def _epoch_of(info: Any) -> int:
    """When the stream was created: a recreated stream is another one."""
    return int(info.created.timestamp()) if info.created is not None else 1
