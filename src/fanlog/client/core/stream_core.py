"""Reading a resumable stream, without I/O: which records are its pieces, where a reader continues,
and how a stream ends. `client/streams.py` waits; `format/streams.py` describes the records.

Law: a stream is written once. So its reader ends with the topic, and never continues in another one
of the same name.
"""

from __future__ import annotations

import msgspec

from fanlog.client.core.subscription_core import SubscriptionCore
from fanlog.client.message import Message
from fanlog.errors import MessagesLostError, StreamFailedError, StreamGoneError, StreamSilentError
from fanlog.format import streams
from fanlog.format.messages import Left, Notice, Position, Subscribe
from fanlog.format.requests import ERROR
from fanlog.model import STREAM_PREFIX, GapReason

_ERROR = ERROR.encode()


class StreamReadProgress:
    """How far a reader is: `at` is behind the last piece that it gave, None until that is known."""

    __slots__ = ("_first", "_wanted", "at", "ended")

    def __init__(self, wanted: Subscribe) -> None:
        self._wanted = wanted
        self.at: Position | None = wanted.resume[0] if wanted.resume else None
        self.ended = False
        # Pieces before it were given, or are not wanted.
        self._first = 0

    def begin(self) -> Subscribe:
        """The request of a new subscription. It starts at the record before the position, which may
        already be the end."""
        at = self.at
        if at is None:
            self._first = 0
            return self._wanted
        self._first = at.offset
        before = msgspec.structs.replace(at, offset=max(0, at.offset - 1))
        return msgspec.structs.replace(self._wanted, resume=(before,))

    def take(self, message: Message, reached: Position | None) -> bool:
        """Whether a record is a piece for the application. `reached` is the position behind it.
        Raises the writer's error at the end of a stream that failed."""
        mark = streams.mark_of(message.batch, message.index)
        if mark == streams.END:
            # The position stays before it, so that a reader which continues there finds the end.
            self.ended = True
            said = message.batch.columns.header(message.index, _ERROR)
            if said is not None:
                raise StreamFailedError(said.decode(errors="replace"))
            return False
        if message.offset < self._first:
            return False
        self.at = reached or self.at
        return mark is None

    def is_unwanted(self, lost: MessagesLostError) -> bool:
        """Whether only the record before the position is missing. It was read because it may have
        been the end."""
        return lost.reason == GapReason.RETENTION and lost.next <= self._first


class StreamCore(SubscriptionCore):
    """A subscription to a stream, which ends with its topic."""

    def left(self, left: Left) -> None:
        super().left(left)
        self.arrivals.put(gone_error(self.wanted.target))

    def noticed(self, notice: Notice) -> None:
        was_there = bool(self.receiving.next)
        super().noticed(notice)
        if notice.kind == "missing" and was_there:
            self.arrivals.put(gone_error(self.wanted.target))


def silent_error(topic: str, idle_seconds: float | None) -> StreamSilentError:
    name = topic.removeprefix(STREAM_PREFIX)
    return StreamSilentError(
        f"Nothing came from the stream {name!r} for {idle_seconds} s, and it has not ended: its "
        "writer seems to have died. Begin a new stream to try again."
    )


def gone_error(topic: str) -> StreamGoneError:
    return StreamGoneError(
        f"The stream {topic.removeprefix(STREAM_PREFIX)!r} was deleted before it had ended: it "
        "expired, or the broker was restarted. Begin a new stream to try again."
    )
