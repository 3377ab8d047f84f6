"""Dead letters: a job that failed too often, as a record of a dead-letter topic. Its value, event
time and headers are the job's own; what happened to it stands in headers beside them. Its key says
which job of which queue it was, so that in a compacted topic each is there once, and a record of
that key without a value takes it away.

| header                  | meaning                                             |
| ----------------------- | --------------------------------------------------- |
| fanlog-dead-topic       | the topic that the job came from                    |
| fanlog-dead-partition   | its partition there                                 |
| fanlog-dead-offset      | its offset there                                    |
| fanlog-dead-log         | the topic's number and the job's epoch: they tell   |
|                         | it from others that have had its name and offset    |
| fanlog-dead-queue       | the queue that gave up on it                        |
| fanlog-dead-reason      | why, in words                                       |
| fanlog-dead-deliveries  | how often it was handed to a worker                 |
| fanlog-dead-time        | when, ISO 8601, UTC                                 |
| fanlog-dead-key         | the job's own key, if it had one                    |
| fanlog-dead-null        | 1 if the job had no value; the letter's is empty    |
| fanlog-dead-priority    | the job's priority, if it had one                   |
| fanlog-dead-worker      | the worker that had it last, if that is known       |
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

from fanlog.format.header import PRIORITY_MAX
from fanlog.model import KIB, MIB, Durability, TopicSettings

TOPIC_PREFIX = "dead."
# Partition and offset.
ID_PATTERN = "[0-9]{1,4}:[0-9]{1,18}"
REASON_CHARACTERS_MAX = 4096
_PREFIX = "fanlog-dead-"
# Bytes that a dead letter may be longer than its job, for its headers.
_HEADERS_BYTES_MAX = 64 * KIB


class Death(NamedTuple):
    """The origin of a job, and what happened to it."""

    topic: str
    partition: int
    offset: int
    queue: str
    reason: str
    deliveries: int
    time: dt.datetime
    key: bytes | None = None
    null: bool = False
    # Letters of before it was kept have none.
    log: str = ""
    priority: int = 0
    worker: str = ""

    @property
    def letter_key(self) -> bytes:
        log = f"@{self.log}" if self.log else ""
        return f"{self.topic}{log}/{self.partition}/{self.offset}/{self.queue}".encode()


def letter_topic_settings(source: TopicSettings) -> dict[str, Any]:
    """The settings of the dead-letter topic of a topic: as safe as that one, kept without end, and
    each letter once."""
    in_memory = source.level is Durability.MEMORY
    return {
        "partitions": 1,
        "durability": source.durability,
        "cleanup": "delete" if in_memory else "compact",
        "retention_seconds": 0,
        "retention_bytes": 0,
        "message_bytes_max": min(64 * MIB, source.message_bytes_max + _HEADERS_BYTES_MAX),
        "role": "dead-letter",
    }


def death_headers(death: Death) -> dict[str, bytes]:
    headers = {
        _PREFIX + "topic": death.topic.encode(),
        _PREFIX + "partition": str(death.partition).encode(),
        _PREFIX + "offset": str(death.offset).encode(),
        _PREFIX + "queue": death.queue.encode(),
        _PREFIX + "reason": death.reason.encode(errors="replace"),
        _PREFIX + "deliveries": str(death.deliveries).encode(),
        _PREFIX + "time": death.time.astimezone(dt.UTC).isoformat().encode(),
    }
    if death.key is not None:
        headers[_PREFIX + "key"] = death.key
    if death.log:
        headers[_PREFIX + "log"] = death.log.encode()
    if death.null:
        headers[_PREFIX + "null"] = b"1"
    if death.priority:
        headers[_PREFIX + "priority"] = str(death.priority).encode()
    if death.worker:
        headers[_PREFIX + "worker"] = death.worker.encode(errors="replace")
    return headers


def read_death(headers: Mapping[str, bytes]) -> Death | None:
    """The content of the headers; None if the record is no dead letter."""
    try:
        return Death(
            headers[_PREFIX + "topic"].decode(),
            int(headers[_PREFIX + "partition"]),
            int(headers[_PREFIX + "offset"]),
            headers[_PREFIX + "queue"].decode(),
            headers[_PREFIX + "reason"].decode(errors="replace"),
            int(headers[_PREFIX + "deliveries"]),
            dt.datetime.fromisoformat(headers[_PREFIX + "time"].decode()),
            headers.get(_PREFIX + "key"),
            _PREFIX + "null" in headers,
            headers.get(_PREFIX + "log", b"").decode(),
            min(max(0, int(headers.get(_PREFIX + "priority", b"0"))), PRIORITY_MAX),
            headers.get(_PREFIX + "worker", b"").decode(errors="replace"),
        )
    except (KeyError, ValueError):
        return None


def own_headers(headers: Mapping[str, bytes]) -> dict[str, bytes]:
    """The job's own headers, without those of the dead letter."""
    return {name: value for name, value in headers.items() if not name.startswith(_PREFIX)}
