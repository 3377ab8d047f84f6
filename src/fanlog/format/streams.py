"""Resumable streams: a topic of one partition that is written once, ends, and expires. Headers of
its records say what is no part of the text.

| header        | value   | meaning                                                              |
| ------------- | ------- | -------------------------------------------------------------------- |
| fanlog-stream | `end`   | the stream ends here. The first one counts; nothing behind it is read |
| fanlog-stream | `alive` | the writer is there, and has nothing to say yet; readers skip it     |
| fanlog-error  | text    | on an end: the writer failed, and why                                |

A position is text: `offset.epoch.number`, of the next record that a reader wants. With it any
process can continue the reading.
"""

from __future__ import annotations

from fanlog.errors import InvalidArgumentError
from fanlog.format.batch import Batch
from fanlog.format.messages import Position

MARK = "fanlog-stream"
END = b"end"
ALIVE = b"alive"
_MARK = MARK.encode()


def mark_of(batch: Batch, index: int) -> bytes | None:
    """What a record says of its stream; None for a piece of it."""
    return batch.columns.header(index, _MARK)


def position_text(position: Position) -> str:
    return f"{position.offset}.{position.epoch}.{position.number}"


def parse_position(text: str, topic: str, partition: int = 0) -> Position:
    """The position that `position_text` has written."""
    parts = text.split(".") if isinstance(text, str) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InvalidArgumentError(
            f"{text!r} is no position: give one that a reader of this stream had, such as 12.3.7."
        )
    offset, epoch, number = (int(part) for part in parts)
    if max(offset, epoch, number) >= 1 << 63:
        raise InvalidArgumentError(f"{text!r} is no position: its numbers are too large.")
    return Position(topic, partition, offset, epoch, number)
