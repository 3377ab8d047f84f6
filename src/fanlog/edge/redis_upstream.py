"""An existing Redis as the upstream of an edge. A topic is a channel, with a stream beside it that
keeps its messages: see `redis_scripts.py`.

Law: offsets are dense and the same on every edge, because one script gives them out. If an
application publishes on a channel directly, the first edge that receives the message adds it to the
stream. All edges receive messages in the same order, so they agree on them.

It is long because channels and streams of one Redis are put into one order here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from fanlog.broker.messages.loader import BlockDone
from fanlog.broker.messages.topics import Partition
from fanlog.broker.names import check_name, check_target
from fanlog.config import EdgeOptions
from fanlog.edge import redis_scripts as scripts
from fanlog.edge.cancelling import end_all
from fanlog.edge.core import EdgeCore
from fanlog.edge.envelopes import (
    Envelope,
    body_of,
    make_batch,
    read_body,
    read_envelope,
)
from fanlog.edge.mirror import mirror_log
from fanlog.edge.redis_connections import RedisConnections
from fanlog.edge.redis_history import RedisHistory
from fanlog.edge.references import References, TopicReference
from fanlog.errors import FanlogError, FormatError, InvalidNameError
from fanlog.format.header import read_header
from fanlog.format.messages import Joined, PartitionOffset, Subscribe
from fanlog.format.patterns import fits
from fanlog.listeners.web.ports import Hear, MessageToPublish, Published
from fanlog.model import EpochInfo, PartitionInfo, Start, TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.edge")

_ONCE_SECONDS = 3600
_HEARD_SECONDS = 60
# Messages of applications that wait to be taken in. More are counted as dropped.
_ADOPTING_MAX = 10_000
_MESSAGES_AT_ONCE_MAX = 1000
_SPECIAL = b"\\*?[]"


class _RedisTopic(NamedTuple):
    """The state of a topic in Redis."""

    number: int
    next_offset: int
    epochs: tuple[EpochInfo, ...]
    first_offset: int


class _Order:
    """The position of a channel in the subscription to one target: the last announced offset,
    echoes still to come, and how often each message of an application was received since. Other
    subscriptions receive the same once more."""

    __slots__ = ("echoes", "heard", "last", "target")

    def __init__(self, target: TopicReference) -> None:
        self.target = target
        self.last: int | None = None
        self.echoes = 0
        self.heard: dict[bytes, int] = {}


class RedisUpstream:
    """Answers the requests of an edge's core, and publishes for its bus."""

    def __init__(self, core: EdgeCore, url: str, options: EdgeOptions) -> None:
        self._core = core
        self._options = options
        self.line = RedisConnections(url, self._heard, self._fresh, self._back, options)
        self._history = RedisHistory(self.line)
        self._references = References(self._begin, self._finish, options.linger_seconds)
        # Targets that are subscribed to.
        self._names: set[TopicReference] = set()
        self._patterns: dict[TopicReference, None] = {}
        self._orders: dict[str, _Order] = {}
        # Topics that are being opened, and the announcements and messages of applications received
        # meanwhile.
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._holding: dict[str, list[Envelope | bytes]] = {}
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
        await end_all(self._tasks)
        await self.line.close()

    # Following

    async def follow(self, target: str, wildcard: bool) -> None:
        _check_not_own(check_target(target, wildcard=wildcard))
        if await self._references.follow(TopicReference(target, wildcard)):
            try:
                await self.line.level()
            except BaseException:
                self.unfollow(target, wildcard)
                raise

    def unfollow(self, target: str, wildcard: bool) -> None:
        self._references.unfollow(TopicReference(target, wildcard))

    @property
    def subscriptions(self) -> int:
        return len(self._references)

    async def _begin(self, target: TopicReference) -> None:
        await self.line.subscribe(*_channels(target))
        if target.wildcard:
            self._patterns[target] = None
        else:
            self._names.add(target)
        await self._open_target(target)

    async def _open_target(self, target: TopicReference) -> None:
        """Mirrors the topics of a target. A named topic is created with that, so that its readers
        have a position before its first message."""
        if not target.wildcard:
            await self._open_topic(target.name)
            return
        names: set[bytes] = await self.line.ask(lambda: self.line.redis.smembers(scripts.TOPICS))
        found = [name.decode(errors="replace") for name in names]
        await asyncio.gather(*(self._open_topic(name) for name in found if fits(name, target.name)))

    def _finish(self, target: TopicReference) -> None:
        self._core.mirror.let_go(target)
        self._patterns.pop(target, None)
        self._names.discard(target)
        for name in [n for n, order in self._orders.items() if order.target == target]:
            # Other subscriptions to it continue with it.
            del self._orders[name]
            if self._covering(name):
                self._begin_opening(name)
        self._in_task(self.line.unsubscribe(*_channels(target)))

    def _covering(self, name: str) -> list[TopicReference]:
        """The targets that a topic is of: its own name first."""
        own = TopicReference(name, False)
        found = [own] if own in self._names else []
        return found + [target for target in self._patterns if fits(name, target.name)]

    def _fresh(self) -> None:
        """A new connection that has received nothing yet."""
        self._orders.clear()

    async def _back(self) -> None:
        """All subscriptions are back: fetches the missed messages."""
        self._core.mirror.connection = object()
        for target in [*self._names, *self._patterns]:
            await self._open_target(target)

    # Topics

    async def _open_topic(self, name: str) -> None:
        """Asks Redis for a topic's position, and mirrors it from there. Messages that arrive
        meanwhile are held back."""
        await asyncio.shield(self._begin_opening(name))

    def _begin_opening(self, name: str) -> asyncio.Task[None]:
        task = self._opening.get(name)
        if task is None:
            self._holding[name] = []
            self._order_of(name)
            task = self._opening[name] = self._in_task(self._open_now(name))
        return task

    async def _open_now(self, name: str) -> None:
        try:
            kept = await self._ask_kept(name)
        finally:
            held = self._holding.pop(name, [])
            self._opening.pop(name, None)
        self._joined(name, kept)
        order = self._order_of(name)
        if order is not None and order.last is None:
            # Messages received before the first announcement come after the message before it.
            announced = (heard.offset for heard in held if isinstance(heard, Envelope))
            order.last = next(announced, kept.next_offset) - 1
        for heard in held:
            if isinstance(heard, Envelope):
                self._announced(name, order, heard)
            elif order is not None:
                self._adopt(name, order, heard)

    def _order_of(self, name: str) -> _Order | None:
        """The order of a channel; None if it is not followed."""
        order = self._orders.get(name)
        if order is None and (covering := self._covering(name)):
            order = self._orders[name] = _Order(covering[0])
        return order

    async def _ask_kept(self, name: str) -> _RedisTopic:
        keys = [*_keys(name), scripts.STREAM + name]
        arguments = [name, self.line.run, secrets.randbelow(1 << 30) + 1, self._ttl]
        number, next_offset, epochs, first = await self.line.ask(
            lambda: self.line.redis.eval(scripts.OPEN, len(keys), *keys, *arguments)
        )
        starts = [part.split(b":") for part in epochs.split(b",")]
        infos = tuple(EpochInfo(int(epoch), int(base)) for epoch, base in starts)
        return _RedisTopic(int(number), int(next_offset), infos, int(first))

    @property
    def _ttl(self) -> int:
        return max(1, int(self._options.history_seconds))

    def _joined(self, name: str, kept: _RedisTopic) -> None:
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

    # Announcements from Redis

    def _heard(self, pattern: bytes | None, channel: bytes, data: bytes) -> None:
        if channel in self._signals:
            # A pattern that fits brings it once more.
            for hear in self._signals[channel] if pattern is None else ():
                hear(data)
            return
        announced = channel.startswith(scripts.LIVE.encode())
        raw = channel.removeprefix(scripts.LIVE.encode()) if announced else channel
        try:
            name = check_name(raw.decode())
        except (UnicodeDecodeError, InvalidNameError):
            return
        is_new = name not in self._orders
        order = self._order_of(name)
        if order is None or pattern != _source(order.target, live=announced):
            return
        if is_new:
            self._begin_opening(name)
        held = self._holding.get(name)
        if announced:
            self._take(name, order, held, data)
        elif order.echoes:
            order.echoes -= 1
        elif held is not None:
            held.append(data)
        elif not name.startswith(scripts.OWN_PREFIX):
            self._adopt(name, order, data)

    def _take(
        self, name: str, order: _Order, held: list[Envelope | bytes] | None, data: bytes
    ) -> None:
        try:
            envelope = read_envelope(data)
        except FormatError as fault:
            logger.warning("%s", fault)
            return
        order.echoes += envelope.echoed
        if held is not None:
            held.append(envelope)
        else:
            self._announced(name, order, envelope)

    def _announced(self, name: str, order: _Order | None, envelope: Envelope) -> None:
        if order is not None:
            order.last = envelope.offset
            order.heard.clear()
        known = self._core.mirror.find(name)
        if known is None or known.topic.number != envelope.number:
            self._begin_opening(name)
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

    # Messages of applications

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
                body_of(MessageToPublish(value)),
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
        self, name: str, messages: Sequence[MessageToPublish], dedupe: str
    ) -> list[Published]:
        _check_not_own(check_name(name))
        if len(messages) > _MESSAGES_AT_ONCE_MAX:
            raise FanlogError(f"Publish at most {_MESSAGES_AT_ONCE_MAX} messages at a time.")
        once = scripts.ONCE + f"{len(name)}:{name}:{dedupe}" if dedupe else scripts.TOPIC + name
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

    # History that the mirror does not have

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
            return await self._history.find_time(partition, start.value, kept.first_offset)
        if start.value <= kept.next_offset:
            self._core.mirror.gap(partition.topic.number, 0, kept.next_offset)
        return start.value

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        async def read() -> None:
            done(await self._history.read(partition, offset))

        self._in_task(read())

    async def _touch_all(self) -> None:
        """Followed topics do not expire."""
        while True:
            await asyncio.sleep(max(1.0, self._ttl / 3))
            for target in self._references.targets():
                if not target.wildcard:
                    with contextlib.suppress(FanlogError):
                        await self._ask_kept(target.name)

    def _in_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            if isinstance(fault, FanlogError):
                logger.info("%s", fault)
            else:
                logger.error("the edge's own work failed", exc_info=fault)


def _check_not_own(name: str) -> str:
    """The name, if it is not one of the keys and channels of edges: a client that left such a
    channel would take it from all."""
    if name.startswith(scripts.OWN_PREFIX):
        raise InvalidNameError(f"The name {name!r} is reserved for edges: choose another.")
    return name


def _keys(name: str) -> list[str]:
    return [scripts.TOPIC + name, scripts.TOPICS, scripts.NUMBERS]


def _channels(target: TopicReference) -> tuple[list[bytes], list[bytes]]:
    """The channels and patterns of a target."""
    both = [source for live in (False, True) if (source := _name_of(target, live=live))]
    return ([], both) if target.wildcard else (both, [])


def _name_of(target: TopicReference, *, live: bool) -> bytes:
    prefix = scripts.LIVE.encode() if live else b""
    return prefix + (_glob(target.name) if target.wildcard else target.name.encode())


def _source(target: TopicReference, *, live: bool) -> bytes | None:
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
