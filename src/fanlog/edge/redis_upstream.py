"""An existing Redis as the upstream of an edge. A topic is a channel, with a stream beside it that
keeps its messages: see `redis_scripts.py`.

Law: offsets are dense and the same on every edge, because one script gives them out. What an
application publishes by itself on a channel is taken in by the first edge that hears it. All edges
hear the same order, so that they agree on what they heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from bisect import bisect_right
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from fanlog.broker.loader import Done
from fanlog.broker.names import check_name, check_target
from fanlog.broker.topics import Partition
from fanlog.config import EdgeOptions
from fanlog.edge import redis_scripts as scripts
from fanlog.edge.core import EdgeCore
from fanlog.edge.envelopes import (
    Body,
    Envelope,
    body_of,
    make_batch,
    read_body,
    read_envelope,
)
from fanlog.edge.mirror import mirror_log
from fanlog.edge.redis_line import RedisLine
from fanlog.edge.references import References, Target
from fanlog.errors import FanlogError, FormatError, InvalidNameError, OffsetOutOfRangeError
from fanlog.format.batch import read_header
from fanlog.format.messages import Joined, PartitionOffset, Subscribe
from fanlog.format.patterns import fits
from fanlog.listeners.web.ports import Hear, Outgoing, Published
from fanlog.log.partition import Block
from fanlog.model import EpochInfo, PartitionInfo, Start, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.edge")

_ENTRIES_A_READ = 500
_PAUSE_SECONDS = 0.2
_ONCE_SECONDS = 3600
_HEARD_SECONDS = 60
# Messages of applications that wait to be taken in. More are counted as dropped.
_ADOPTING_MAX = 10_000
_MESSAGES_AT_ONCE_MAX = 1000
_SPECIAL = b"\\*?[]"


class _Kept(NamedTuple):
    """What Redis has of a topic."""

    number: int
    next_offset: int
    epochs: tuple[EpochInfo, ...]
    first_offset: int


class _Order:
    """Where a channel is: the last offset announced, echoes that are still to come, and how often
    which message of an application was heard since."""

    __slots__ = ("echoes", "heard", "last")

    def __init__(self) -> None:
        self.last = -1
        self.echoes = 0
        self.heard: dict[bytes, int] = {}


class RedisUpstream:
    """What the core of an edge asks, and what its bus publishes."""

    def __init__(self, core: EdgeCore, url: str, options: EdgeOptions) -> None:
        self._core = core
        self._options = options
        self.line = RedisLine(url, self._heard, self._back)
        self._references = References(self._begin, self._finish, options.linger_seconds)
        self._orders: dict[str, _Order] = {}
        # Announcements of topics that are being opened.
        self._holding: dict[str, list[Envelope]] = {}
        self._signals: dict[bytes, list[Hear]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopting: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue(_ADOPTING_MAX)
        self.dropped = 0

    def open(self) -> None:
        self.line.open()
        self._in_task(self._adopt_all())
        self._in_task(self._touch_all())

    async def close(self) -> None:
        await self._references.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.line.close()

    # Following

    async def follow(self, target: str, wildcard: bool) -> None:
        check_target(target, wildcard=wildcard)
        if await self._references.follow(Target(target, wildcard)):
            try:
                await self.line.level()
            except BaseException:
                self.unfollow(target, wildcard)
                raise

    def unfollow(self, target: str, wildcard: bool) -> None:
        self._references.unfollow(Target(target, wildcard))

    @property
    def subscriptions(self) -> int:
        return len(self._references)

    async def _begin(self, target: Target) -> None:
        await self.line.subscribe(*_channels(target))
        await self._open_target(target)

    async def _open_target(self, target: Target) -> None:
        """Mirrors what there is of a target. A topic that is named begins to exist with that, so
        that its readers have a position before its first message."""
        if not target.wildcard:
            await self._open_topic(target.name)
            return
        names: set[bytes] = await self.line.ask(lambda: self.line.redis.smembers(scripts.TOPICS))
        found = [name.decode(errors="replace") for name in names]
        await asyncio.gather(*(self._open_topic(name) for name in found if fits(name, target.name)))

    def _finish(self, target: Target) -> None:
        self._core.mirror.let_go(target)
        if not target.wildcard:
            self._orders.pop(target.name, None)
        self._in_task(self.line.unsubscribe(*_channels(target)))

    def _covering(self, name: str) -> list[Target]:
        """The targets that a topic is of: its own name first."""
        own = Target(name, False)
        found = [own] if own in self._references else []
        patterns = (t for t in self._references.targets() if t.wildcard)
        return found + [target for target in patterns if fits(name, target.name)]

    async def _back(self) -> None:
        """A new connection: what was missed is fetched, whatever order there was is gone."""
        self._orders.clear()
        self._core.mirror.connection = object()
        for target in self._references.targets():
            await self._open_target(target)

    # Topics

    async def _open_topic(self, name: str) -> None:
        """Asks Redis how far a topic is, and mirrors it from there. What is announced meanwhile is
        held back."""
        if name in self._holding:
            return
        held = self._holding[name] = []
        try:
            kept = await self._ask_kept(name)
        finally:
            self._holding.pop(name, None)
        self._joined(name, kept)
        for envelope in held:
            self._show(name, envelope)

    async def _ask_kept(self, name: str) -> _Kept:
        keys = [*_keys(name), scripts.STREAM + name]
        arguments = [name, self.line.run, secrets.randbelow(1 << 30) + 1, self._ttl]
        number, next_offset, epochs, first = await self.line.ask(
            lambda: self.line.redis.eval(scripts.OPEN, len(keys), *keys, *arguments)
        )
        starts = [part.split(b":") for part in epochs.split(b",")]
        infos = tuple(EpochInfo(int(epoch), int(base)) for epoch, base in starts)
        return _Kept(int(number), int(next_offset), infos, int(first))

    @property
    def _ttl(self) -> int:
        return max(1, int(self._options.history_seconds))

    def _joined(self, name: str, kept: _Kept) -> None:
        epoch = kept.epochs[-1].epoch
        self._core.take_over(max(self._core.epoch, epoch), self._core.release)
        partition = PartitionInfo(
            partition=0,
            start_offset=kept.first_offset,
            end_offset=kept.next_offset,
            visible_end=kept.next_offset,
            bytes=0,
            segments=0,
            readers=0,
            epochs=kept.epochs,
        )
        settings = TopicSettings(partitions=1, retention_seconds=self._ttl)
        info = TopicInfo(name=name, number=kept.number, settings=settings, partitions=(partition,))
        start = PartitionOffset(0, kept.next_offset)
        joined = Joined(kept.number, name, epoch, (start,), info)
        for target in self._covering(name):
            self._core.mirror.joined(joined, target)
        self._core.mirror.gap(kept.number, 0, kept.next_offset)

    # What Redis announces

    def _heard(self, pattern: bytes | None, channel: bytes, data: bytes) -> None:
        if channel in self._signals:
            for hear in self._signals[channel]:
                hear(data)
            return
        announced = channel.startswith(scripts.LIVE.encode())
        raw = channel.removeprefix(scripts.LIVE.encode()) if announced else channel
        try:
            name = check_name(raw.decode())
        except (UnicodeDecodeError, InvalidNameError):
            return
        covering = self._covering(name)
        if not covering or pattern != _source(covering[0], live=announced):
            return
        order = self._orders.setdefault(name, _Order())
        if announced:
            self._take(name, order, data)
        elif order.echoes:
            order.echoes -= 1
        elif not name.startswith(scripts.OWN_PREFIX):
            self._adopt(name, order, data)

    def _take(self, name: str, order: _Order, data: bytes) -> None:
        try:
            envelope = read_envelope(data)
        except FormatError as fault:
            logger.warning("%s", fault)
            return
        order.last = envelope.offset
        order.heard.clear()
        order.echoes += envelope.echoed
        held = self._holding.get(name)
        if held is not None:
            held.append(envelope)
            return
        known = self._core.mirror.find(name)
        if known is None or known.topic.number != envelope.number:
            self._in_task(self._open_topic(name))
        else:
            self._show(name, envelope)

    def _show(self, name: str, envelope: Envelope) -> None:
        known = self._core.mirror.find(name)
        if known is None or known.topic.number != envelope.number:
            return
        if envelope.epoch > self._core.epoch:
            self._core.take_over(envelope.epoch, self._core.release)
        try:
            batch = _batch(envelope.body, envelope)
        except FormatError as fault:
            logger.warning("%s", fault)
            return
        self._core.mirror.take(batch, read_header(batch))

    # What applications publish by themselves

    def _adopt(self, name: str, order: _Order, value: bytes) -> None:
        digest = hashlib.sha256(value).digest()[:16]
        times = order.heard[digest] = order.heard.get(digest, 0) + 1
        heard = f"{name}:{order.last}:{digest.hex()}:{times}"
        try:
            self._adopting.put_nowait((name, heard, value))
        except asyncio.QueueFull:
            self.dropped += 1
            logger.warning("%s: a message was dropped: too many wait to be taken in", name)

    async def _adopt_all(self) -> None:
        """One after the other, in the order in which they were heard."""
        while True:
            name, heard, value = await self._adopting.get()
            keys = [*_keys(name), scripts.STREAM + name, scripts.HEARD + heard]
            arguments = [
                *self._begin_arguments(name),
                _HEARD_SECONDS,
                body_of(Outgoing(value)),
            ]
            try:
                await self.line.ask(
                    lambda keys=keys, arguments=arguments: self.line.redis.eval(
                        scripts.ADOPT, len(keys), *keys, *arguments
                    )
                )
            except FanlogError as fault:
                self.dropped += 1
                logger.warning("%s: a message was dropped: %s", name, fault)

    def _begin_arguments(self, name: str) -> list[Any]:
        random = secrets.randbelow(1 << 30) + 1
        return [
            name,
            self.line.run,
            random,
            self._ttl,
            self._options.history_messages,
            scripts.LIVE + name,
        ]

    # Publishing

    async def publish(
        self, name: str, messages: Sequence[Outgoing], dedupe: str
    ) -> list[Published]:
        check_name(name)
        if name.startswith(scripts.OWN_PREFIX):
            raise InvalidNameError(f"The name {name!r} is the edges' own: choose another.")
        if len(messages) > _MESSAGES_AT_ONCE_MAX:
            raise FanlogError(f"Publish {_MESSAGES_AT_ONCE_MAX} messages at a time at most.")
        once = scripts.ONCE + f"{name}:{dedupe}" if dedupe else scripts.TOPIC + name
        keys = [*_keys(name), scripts.STREAM + name, once]
        arguments = [*self._begin_arguments(name), _ONCE_SECONDS if dedupe else 0]
        for message in messages:
            arguments += [body_of(message), message.value or b""]
        number, epoch, first, _ = await self.line.ask(
            lambda: self.line.redis.eval(scripts.PUBLISH, len(keys), *keys, *arguments)
        )
        number, epoch, first = int(number), int(epoch), int(first)
        return [
            Published(name, 0, offset, f"{offset + 1}.{epoch}.{number}")
            for offset in range(first, first + len(messages))
        ]

    def signal(self, channel: str, data: bytes) -> None:
        self._in_task(self._signal(scripts.SIGNAL + channel, data))

    async def _signal(self, channel: str, data: bytes) -> None:
        try:
            await self.line.ask(lambda: self.line.redis.publish(channel, data))
        except FanlogError as fault:
            logger.debug("a signal was not sent: %s", fault)

    def on_signal(self, channel: str, hear: Hear) -> None:
        name = (scripts.SIGNAL + channel).encode()
        self._signals.setdefault(name, []).append(hear)
        self._in_task(self._listen(name))

    async def _listen(self, name: bytes) -> None:
        with contextlib.suppress(FanlogError):
            await self.line.subscribe([name], [])

    # What readers want that the mirror does not have

    async def catch_up(self, wanted: Subscribe) -> None:
        for position in wanted.resume or ():
            known = self._core.mirror.find(position.topic)
            if known is not None and position.offset > known.topic.partitions[0].visible_end:
                await self._open_topic(position.topic)

    async def find_offset(self, partition: Partition, start: Start) -> int:
        kept = await self._ask_kept(partition.topic.name)
        log = mirror_log(partition)
        log.begins_at = max(log.begins_at, kept.first_offset)
        if start.kind == "earliest":
            return min(kept.first_offset, partition.visible_end)
        if start.kind == "time":
            return await self._find_time(partition, start.value, kept)
        if start.value <= kept.next_offset:
            self._core.mirror.gap(partition.topic.number, 0, kept.next_offset)
        return start.value

    async def _find_time(self, partition: Partition, time_us: int, kept: _Kept) -> int:
        low, high = kept.first_offset, min(kept.next_offset, partition.visible_end)
        while low < high:
            middle = (low + high) // 2
            found = await self._range(partition.topic.name, middle, 1)
            if found and int(found[0][1][b"t"]) < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    async def _range(
        self, name: str, offset: int, count: int
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return await self.line.ask(
            lambda: self.line.redis.xrange(
                scripts.STREAM + name, min=f"{offset + 1}-0", max="+", count=count
            )
        )

    def read_block(self, partition: Partition, offset: int, bytes_wanted: int, done: Done) -> None:
        async def read() -> None:
            done(await self._read(partition, offset))

        self._in_task(read())

    async def _read(self, partition: Partition, offset: int) -> Block | Exception:
        while True:
            try:
                entries = await self._range(partition.topic.name, offset, _ENTRIES_A_READ)
                break
            except FanlogError as fault:
                if partition.topic.deleted:
                    return fault
                logger.info("history of %s is asked for again: %s", partition.name, fault)
                await asyncio.sleep(_PAUSE_SECONDS)
        log = mirror_log(partition)
        first = int(entries[0][0].split(b"-")[0]) - 1 if entries else partition.visible_end
        if first > offset:
            # It has gone from the stream: readers are told.
            log.begins_at = max(log.begins_at, min(first, partition.visible_end))
            return OffsetOutOfRangeError(f"{partition.name} begins at {first} upstream.")
        batches = [
            batch
            for identity, fields in entries
            if (batch := _stored_batch(partition, identity, fields)) is not None
        ]
        data = b"".join(batches)
        last = min(int(entries[-1][0].split(b"-")[0]), partition.visible_end)
        return Block(memoryview(data), offset, last)

    async def _touch_all(self) -> None:
        """Topics that somebody follows do not expire."""
        while True:
            await asyncio.sleep(max(1.0, self._ttl / 3))
            for target in self._references.targets():
                if not target.wildcard:
                    with contextlib.suppress(FanlogError):
                        await self._ask_kept(target.name)

    def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            if isinstance(fault, FanlogError):
                logger.info("%s", fault)
            else:
                logger.error("the edge's own work failed", exc_info=fault)


def _keys(name: str) -> list[str]:
    return [scripts.TOPIC + name, scripts.TOPICS, scripts.NUMBERS]


def _channels(target: Target) -> tuple[list[bytes], list[bytes]]:
    """Channels and patterns that a target is heard on."""
    both = [source for live in (False, True) if (source := _name_of(target, live=live))]
    return ([], both) if target.wildcard else (both, [])


def _name_of(target: Target, *, live: bool) -> bytes:
    prefix = scripts.LIVE.encode() if live else b""
    return prefix + (_glob(target.name) if target.wildcard else target.name.encode())


def _source(target: Target, *, live: bool) -> bytes | None:
    """The pattern on which the messages of a target come; None: on the channel itself."""
    return _name_of(target, live=live) if target.wildcard else None


def _glob(pattern: str) -> bytes:
    """Redis's form of one of our patterns. It fits more: `*` goes over dots there."""
    tokens = (b"*" if token in ("*", ">") else _escaped(token) for token in pattern.split("."))
    return b".".join(tokens)


def _escaped(token: str) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in _SPECIAL else bytes([c]) for c in token.encode())


def _batch(body: bytes, envelope: Envelope) -> bytes:
    return make_batch(
        read_body(body),
        number=envelope.number,
        epoch=envelope.epoch,
        offset=envelope.offset,
        time_us=envelope.time_us,
    )


def _stored_batch(
    partition: Partition, identity: bytes, fields: dict[bytes, bytes]
) -> bytes | None:
    """An entry of the stream as a batch; None if it is behind what readers may see."""
    offset = int(identity.split(b"-")[0]) - 1
    if offset >= partition.visible_end:
        return None
    epochs = mirror_log(partition).epochs
    at = bisect_right(epochs, offset, key=lambda start: start.base) - 1
    try:
        body = read_body(fields[b"b"])
    except (FormatError, KeyError):
        body = Body(None)
    return make_batch(
        body,
        number=partition.topic.number,
        epoch=epochs[at].epoch if at >= 0 else 0,
        offset=offset,
        time_us=int(fields.get(b"t", b"0")),
    )
