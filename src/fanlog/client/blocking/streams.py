"""Resumable streams for the blocking client; see `fanlog.client.streams`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fanlog.client import streams
from fanlog.client.arguments import StartLike
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.message import Message
from fanlog.errors import ClosedError, FanlogError
from fanlog.model import MissingPolicy, Receipt

T = TypeVar("T")


class BlockingStream(Generic[T]):
    """Made by `client.stream(name)`. A writer appends and ends it; `read` reads it.

    >>> with client.stream("answer-42") as answer:  # doctest: +SKIP
    ...     answer.append("Hello")
    """

    def __init__(self, loop: LoopThread, stream: streams.Stream[T]) -> None:
        self._loop = loop
        self._stream = stream

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._stream.name

    @property
    def topic(self) -> str:
        """Name of the topic that it is kept in."""
        return self._stream.topic

    def open(self) -> None:
        """Begins the stream, or continues it, as its `mode` says. The first `append` does it."""
        self._loop.call(self._stream.open())

    def append(self, piece: T) -> Receipt:
        """Appends a piece, and returns when the broker has it."""
        return self._loop.call(self._stream.append(piece))

    def send(self, piece: T) -> None:
        """Appends a piece without waiting for the broker. What goes wrong is raised by `end`."""
        self._loop.call(self._stream.send(piece))

    def end(self, error: str | BaseException | None = None) -> None:
        """Ends the stream; with an `error` readers raise it."""
        self._loop.call(self._stream.end(error))

    def delete(self) -> None:
        """Deletes the stream at once, before its time."""
        self._loop.call(self._stream.delete())

    def __enter__(self) -> Self:
        self._loop.call(self._stream.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._stream.__aexit__(kind, error, trace))

    def read(
        self,
        *,
        start: StartLike = "earliest",
        position: str = "",
        idle_seconds: float | None = streams.IDLE_SECONDS,
        missing: MissingPolicy = "fail",
    ) -> BlockingStreamReader[T]:
        """Reads the stream from its start, or from the `position` that a reader had, and ends where
        the stream ends; see the asyncio client."""
        reader = self._stream.read(
            start=start, position=position, idle_seconds=idle_seconds, missing=missing
        )
        return BlockingStreamReader(self._loop, reader)


class BlockingStreamReader(Generic[T]):
    """Made by `stream.read(...)`: iterate it. `position` is behind the last piece that it gave."""

    def __init__(self, loop: LoopThread, reader: streams.StreamReader[T]) -> None:
        self._loop = loop
        self._reader = reader
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def position(self) -> str:
        """Where another reader would continue; empty as long as that is not known."""
        return self._reader.position

    @property
    def ended(self) -> bool:
        """Whether it has read the end of the stream."""
        return self._reader.ended

    def start(self) -> None:
        """Begins to read, so that a stream that does not exist is an error now. Iterating does it
        by itself."""
        self._loop.call(self._reader.start())

    def close(self) -> None:
        """Ends the reading. The end of an iteration does it."""
        self._loop.call(self._reader.close())

    def __iter__(self) -> Iterator[T]:
        return self._each(self._reader.__aiter__)

    def messages(self) -> Iterator[Message]:
        """The pieces as messages, with their offsets and times."""
        return self._each(self._reader.messages)

    def _each(self, begin: Callable[[], Any]) -> Iterator[Any]:
        items = begin()

        async def following() -> list[Any]:
            """One, or none at the end: a piece itself may be anything."""
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        try:
            while found := self._loop.call(following()):
                yield found[0]
        finally:
            self._close_soon(items)

    def _close_soon(self, items: Any) -> None:
        """Without waiting: an iteration that was given up ends wherever Python finds it."""

        async def closed() -> None:
            with contextlib.suppress(FanlogError):
                await items.aclose()

        def close() -> None:
            task = asyncio.ensure_future(closed())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        with contextlib.suppress(ClosedError):
            self._loop.post(close)
