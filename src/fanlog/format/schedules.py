"""Delayed messages, as records of the broker's own topic `_fanlog.scheduled`.

Clients publish to it like to any other topic, so that a delayed message is batched, repeated after
a lost connection, and acknowledged like any other. The topic is compacted.

| part       | meaning                                                                       |
| ---------- | ----------------------------------------------------------------------------- |
| key        | a nonce of 8 bytes, then the id in UTF-8. The nonce tells a message from the  |
|            | one that it replaces under the same id                                        |
| event time | 0 or more: when it is due, in microseconds since 1970. Below 0: how long      |
|            | after its append, in microseconds, with a minus in front                      |
| value      | MessagePack: an array with the fields of `Delayed`. None: it was moved to its |
|            | topic, cancelled, or replaced                                                 |

In its topic, a message that was delayed has these headers beside its own:

| header            | meaning                                                              |
| ----------------- | -------------------------------------------------------------------- |
| fanlog-due        | when it was due, ISO 8601, UTC                                       |
| fanlog-schedule   | the name of the schedule that it is a run of, if it is one           |
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import FormatError, InvalidArgumentError
from fanlog.format.header import PRIORITY_MAX
from fanlog.model import INTERNAL_PREFIX, PARTITIONS_MAX, TOPIC_NAME_BYTES_MAX

SCHEDULED_TOPIC = INTERNAL_PREFIX + "scheduled"
NONCE_BYTES = 8
SCHEDULE_ID_BYTES_MAX = 255
# Ids of the broker's own: the next run of a schedule.
RUN_PREFIX = "_fanlog/schedule/"
DUE = "fanlog-due"
SCHEDULE = "fanlog-schedule"

_INT64_MAX = (1 << 63) - 1


class Repeat(msgspec.Struct, frozen=True, array_like=True):
    """When a schedule runs: by a cron expression in a time zone, or at an interval in microseconds.
    `last_us` is when its last run was due; 0: it has not run yet."""

    cron: str = ""
    timezone: str = "UTC"
    every_us: int = 0
    missed: str = "once"
    last_us: int = 0


class Delayed(msgspec.Struct, frozen=True, array_like=True):
    """A message that waits, and where it goes. `partition` -1: as its key says."""

    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_NAME_BYTES_MAX)]
    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    partition: Annotated[int, Meta(ge=-1, lt=PARTITIONS_MAX)] = -1
    event_time_us: Annotated[int, Meta(ge=-_INT64_MAX, le=_INT64_MAX)] | None = None
    repeat: Repeat | None = None
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 0


encode_delayed = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Delayed)


def decode_delayed(value: bytes) -> Delayed:
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise FormatError(f"A delayed message does not decode: {fault}.") from fault


def record_key(nonce: int, id: str) -> bytes:
    return nonce.to_bytes(NONCE_BYTES, "big") + id.encode()


def checked_id(id: object) -> str:
    """The id, if a caller may choose it."""
    if not isinstance(id, str):
        raise InvalidArgumentError(f"A schedule_id is a str, not {type(id).__name__}.")
    size = len(id.encode(errors="surrogateescape"))
    if not 1 <= size <= SCHEDULE_ID_BYTES_MAX:
        raise InvalidArgumentError(
            f"A schedule_id has 1 to {SCHEDULE_ID_BYTES_MAX} bytes, not {size}."
        )
    if id.startswith(INTERNAL_PREFIX[:-1] + "/"):
        raise InvalidArgumentError(
            f"The schedule_id {id!r} is one of the broker's own: choose one that does not begin "
            f"with {INTERNAL_PREFIX[:-1]}/."
        )
    return id


def due_us_of(event_time_us: int, append_time_us: int) -> int:
    """When a record is due, by the wall clock."""
    return event_time_us if event_time_us >= 0 else append_time_us - event_time_us


def due_text(due_us: int) -> bytes:
    return dt.datetime.fromtimestamp(due_us / 1e6, tz=dt.UTC).isoformat().encode()
