"""Resumable streams for the blocking client; see `fanlog.client.streams`."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from fanlog.client.blocking.front import LoopFront, blocking, each, fronted
from fanlog.client.forwarding import shown
from fanlog.client.streams import Stream, StreamReader

T = TypeVar("T")


class BlockingStreamReader(LoopFront[StreamReader[T]], Generic[T]):
    """Made by `stream.read(...)`: iterate it. `position` is behind the last piece that it gave."""

    position = shown(StreamReader[T], lambda reader: reader.position)
    ended = shown(StreamReader[T], lambda reader: reader.ended)
    start = blocking(StreamReader[T].start)
    close = blocking(StreamReader[T].close)
    messages = each(StreamReader[T].messages)

    def __iter__(self) -> Iterator[T]:
        return self._loop.each(aiter(self._behind))


class BlockingStream(LoopFront[Stream[T]], Generic[T]):
    """Made by `client.stream(name)`. A writer appends and ends it; `read` reads it.

    >>> with client.stream("answer-42") as answer:  # doctest: +SKIP
    ...     answer.append("Hello")
    """

    name = shown(Stream[T], lambda stream: stream.name)
    topic = shown(Stream[T], lambda stream: stream.topic)
    open = blocking(Stream[T].open)
    append = blocking(Stream[T].append)
    send = blocking(Stream[T].send)
    end = blocking(Stream[T].end)
    delete = blocking(Stream[T].delete)
    read = fronted(Stream[T].read, BlockingStreamReader[T])

    def __enter__(self) -> Self:
        self._loop.call(self._behind.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._behind.__aexit__(kind, error, trace))
