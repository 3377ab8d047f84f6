"""Resumable streams: a text that one process writes piece by piece, and that any number of readers
read from the start or from their position, in any process, until it ends. Each is a topic of its
own, which expires; see `format/streams.py`.

Law: a reader never waits for ever, and never takes an incomplete text for a complete one. It ends
when the writer says so, or raises. `core/stream_core.py` decides what a record means to a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, get_args

from fanlog.client.arguments import StartLike, as_start, checked, topic_name
from fanlog.client.core.fetched import Fetched
from fanlog.client.core.stream_core import StreamCore, StreamReadProgress, silent_error
from fanlog.client.message import Message
from fanlog.client.notices import missing_policy
from fanlog.client.queues.jobs import said_by
from fanlog.client.subscription import Subscription, SubscriptionHost
from fanlog.client.typed.kind import MessageType
from fanlog.client.values import CONTENT_TYPE, Headers, Value
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    MessagesLostError,
    StreamEndedError,
    TopicExistsError,
)
from fanlog.format import streams
from fanlog.format.messages import Subscribe
from fanlog.format.requests import ERROR
from fanlog.model import (
    STREAM_PREFIX,
    DurabilityName,
    MissingPolicy,
    Receipt,
    Start,
    TopicInfo,
)

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
StreamMode = Literal["new", "continue", "existing"]
# How often an idle writer tells readers that it is alive. Well below the time after which readers
# take it for dead.
ALIVE_SECONDS = 15.0
IDLE_SECONDS = 60.0
# An end that is written because of an error must not hold that error up for long.
_END_SECONDS = 5.0
_TEXT: Headers = {CONTENT_TYPE: "text/plain"}


class StreamSettings(NamedTuple):
    """The settings of a stream that a writer begins."""

    ttl_seconds: int
    durability: DurabilityName
    bytes_max: int


class StreamHost(SubscriptionHost, Protocol):
    """The client, as far as streams need it."""

    def take_number(self) -> int: ...
    def create_topic(self, *given: Any, **options: Any) -> Coroutine[Any, Any, TopicInfo]: ...
    def describe_topic(self, name: str) -> Coroutine[Any, Any, TopicInfo]: ...
    def delete_topic(self, name: str) -> Coroutine[Any, Any, None]: ...
    def fetch(self, topic: str, partition: int, offset: int) -> Coroutine[Any, Any, Fetched]: ...
    def publish(self, *given: Any, **options: Any) -> Coroutine[Any, Any, Any]: ...
    def send(self, *given: Any, **options: Any) -> Coroutine[Any, Any, None]: ...
    def forget_topic(self, name: str) -> None: ...


def stream_topic(name: object) -> str:
    """The topic that a stream is kept in."""
    return STREAM_PREFIX + topic_name(name)


class Stream(Generic[T]):
    """Made by `client.stream(name)`. A writer appends and ends it; `read` reads it.

    >>> async with client.stream("answer-42") as answer:  # doctest: +SKIP
    ...     await answer.append("Hello")
    """

    def __init__(
        self, host: StreamHost, kind: MessageType[T], mode: StreamMode, settings: StreamSettings
    ) -> None:
        if mode not in get_args(StreamMode):
            raise InvalidArgumentError(
                f"A stream's mode is {mode!r}, but must be 'new', 'continue' or 'existing': it "
                "decides what a writer does if the name is in use."
            )
        self._host = host
        self._kind = kind
        self._mode: StreamMode = mode
        self._settings = settings
        self._opening = asyncio.Lock()
        self._open = False
        self._ended = False
        self._wrote_at = 0.0
        self._beat: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._kind.topic.removeprefix(STREAM_PREFIX)

    @property
    def topic(self) -> str:
        """Name of the topic that it is kept in."""
        return self._kind.topic

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    # Writing

    async def open(self) -> None:
        """Begins or continues the stream, as its `mode` decides. The first `append` does this by
        itself."""
        if self._ended:
            raise _ended(self.name)
        if self._open:
            return
        async with self._opening:
            if not self._open:
                await self._begin()
                self._open = True

    async def _begin(self) -> None:
        if self._mode == "existing":
            await self._check_not_ended(await self._host.describe_topic(self.topic))
            return
        wanted = {
            "expire_seconds": self._settings.ttl_seconds,
            "durability": self._settings.durability,
            "tail_bytes": self._settings.bytes_max,
        }
        if self._mode == "continue":
            made = await self._host.create_topic(self.topic, exist_ok="any", **wanted)
            await self._check_not_ended(made)
            return
        try:
            await self._host.create_topic(self.topic, **wanted)
        except TopicExistsError:
            raise TopicExistsError(
                f"There is a stream {self.name!r} already. Choose another name, or append to it "
                'with mode="continue".'
            ) from None

    async def _check_not_ended(self, info: TopicInfo) -> None:
        last = info.partitions[0]
        if last.visible_end == last.start_offset:
            return
        fetched = await self._host.fetch(self.topic, 0, last.visible_end - 1)
        for batch in fetched.batches:
            marks = (streams.mark_of(batch, i) for i in range(batch.header.record_count))
            if streams.END in marks:
                self._ended = True
                raise _ended(self.name)

    def _encoded(self, piece: T) -> tuple[Value, Headers | None]:
        value, headers = self._kind.encoded(piece, None)
        if isinstance(value, str) and value[:1] in ("[", "{"):
            # A piece such as [1] is text. Web readers would take it for JSON.
            headers = _TEXT
        return value, headers

    async def append(self, piece: T) -> Receipt:
        """Appends a piece. Returns when the broker has it; readers get it at once."""
        value, headers = self._encoded(piece)
        await self.open()
        self._wrote_at = asyncio.get_running_loop().time()
        return await self._host.publish(self.topic, value, headers=headers)

    async def send(self, piece: T) -> None:
        """Appends a piece without waiting for the broker. Pieces sent together share a batch. `end`
        raises errors."""
        value, headers = self._encoded(piece)
        if not self._open or self._ended:
            await self.open()
        self._wrote_at = asyncio.get_running_loop().time()
        await self._host.send(self.topic, value, headers=headers)

    async def end(self, error: str | BaseException | None = None) -> None:
        """Ends the stream: readers get all pieces, and then stop. With an `error`, they raise
        `StreamFailedError` with that text instead."""
        await self.open()
        self._stop_beating()
        headers: dict[str, bytes] = {streams.MARK: streams.END}
        if error is not None:
            said = error if isinstance(error, str) else said_by(error)
            headers[ERROR] = said.encode(errors="replace")
        self._ended = True
        await self._host.publish(self.topic, b"", headers=headers)
        self._host.forget_topic(self.topic)

    async def delete(self) -> None:
        """Deletes the stream now, before it expires. Its readers get `StreamGoneError`."""
        self._stop_beating()
        self._ended = True
        await self._host.delete_topic(self.topic)
        self._host.forget_topic(self.topic)

    async def __aenter__(self) -> Self:
        """Begins the stream, and keeps it alive until the end of the block, which ends it."""
        await self.open()
        self._wrote_at = asyncio.get_running_loop().time()
        self._beat_later()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_beating()
        if self._ended:
            return
        if error is None:
            await self.end()
            return
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self.end(error)
        except (FanlogError, TimeoutError) as fault:
            logger.warning("The stream %s could not be ended: %s", self.name, fault)

    # While the writer is idle

    def _beat_later(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(ALIVE_SECONDS, self._say_alive)

    def _say_alive(self) -> None:
        if asyncio.get_running_loop().time() - self._wrote_at >= ALIVE_SECONDS:
            self._beating = asyncio.ensure_future(self._send_alive())
        self._beat_later()

    async def _send_alive(self) -> None:
        with contextlib.suppress(FanlogError):
            await self._host.send(self.topic, b"", headers={streams.MARK: streams.ALIVE})

    def _stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    # Reading

    def read(
        self,
        *,
        start: StartLike = "earliest",
        position: str = "",
        idle_seconds: float | None = IDLE_SECONDS,
        missing: MissingPolicy = "fail",
    ) -> StreamReader[T]:
        """Reads the stream from its start, or from the `position` of an earlier reader, to its end.
        You can pass it to FastAPI's `StreamingResponse`. If nothing comes for `idle_seconds`, it
        raises `StreamSilentError`: the writer has died. A stream that does not exist is an error at
        once; with `missing="wait"` the reader waits for it that long.

        >>> reader = client.stream("answer-42").read(position=seen)  # doctest: +SKIP
        >>> async for text in reader:  # doctest: +SKIP
        ...     print(reader.position, text)
        """
        resume = (streams.parse_position(position, self.topic),) if position else None
        if idle_seconds is not None and not idle_seconds > 0:
            raise InvalidArgumentError(f"idle_seconds is above 0, or None, not {idle_seconds!r}.")
        wanted = Subscribe(
            target=self.topic,
            # Not the earliest piece left: the reader must notice missing pieces before it.
            start=Start("offset", 0) if start == "earliest" else as_start(start),
            resume=resume,
            missing=missing_policy(missing),
        )
        return StreamReader(self._host, self._kind, checked(wanted), idle_seconds)


class StreamReader(Generic[T]):
    """Made by `stream.read(...)`: iterate it. `position` is behind the last piece that it gave.
    Iterating again continues there."""

    def __init__(
        self, host: StreamHost, kind: MessageType[T], wanted: Subscribe, idle_seconds: float | None
    ) -> None:
        self._host = host
        self._kind = kind
        self._idle_seconds = idle_seconds
        self._progress = StreamReadProgress(wanted)
        self._reading: Subscription | None = None

    @property
    def ended(self) -> bool:
        """Whether the reader has come to the end of the stream."""
        return self._progress.ended

    @property
    def position(self) -> str:
        """Where another reader can continue; empty until that is known."""
        at = self._progress.at
        return "" if at is None else streams.position_text(at)

    async def start(self) -> None:
        """Begins to read. A missing stream is then an error now, and not in the middle of an
        answer. Iterating calls this by itself.

        >>> await reader.start()  # doctest: +SKIP
        """
        progress = self._progress
        if self._reading is None and not progress.ended:
            core = StreamCore(self._host, self._host.take_number(), progress.begin(), None)
            core.notices.on_notice = _say_nothing
            reading = Subscription(self._host, core)
            await reading.start()
            self._reading = reading
            progress.at = progress.at or next(iter(reading.positions), None)

    async def close(self) -> None:
        """Ends the reading. The end of an iteration does it."""
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.close()

    async def __aiter__(self) -> AsyncIterator[T]:
        messages = self.messages()
        try:
            async for message in messages:
                yield self._kind.decode(message)
        finally:
            await messages.aclose()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """The pieces as messages, with their offsets and times.

        >>> async for message in client.stream("answer-42").read().messages():  # doctest: +SKIP
        ...     print(message.offset, message.text)
        """
        progress = self._progress
        if progress.ended:
            return
        await self.start()
        reading = self._reading
        if reading is None:
            return
        try:
            while not progress.ended:
                message = await self._next(reading)
                if progress.take(message, next(iter(reading.positions), None)):
                    yield message
        finally:
            await self.close()

    async def _next(self, reading: Subscription) -> Message:
        while True:
            try:
                return await reading.next(self._idle_seconds)
            except TimeoutError:
                raise silent_error(self._kind.topic, self._idle_seconds) from None
            except MessagesLostError as lost:
                if not self._progress.is_unwanted(lost):
                    raise


def _say_nothing(sentence: str) -> None:
    """The reader gets an error instead."""


def _ended(name: str) -> StreamEndedError:
    return StreamEndedError(
        f"The stream {name!r} has ended, and can't be written any more. Write to a new one."
    )
