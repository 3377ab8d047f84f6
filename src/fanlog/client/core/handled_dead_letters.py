"""Dead letters of a group: messages that failed for good, stored like those of queues. The client
has the message, so that the dead letter does not depend on the log. The time is handed in.
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from fanlog.client.message import Message
from fanlog.errors import MessageTooLargeError
from fanlog.format.dead_letters import REASON_CHARACTERS_MAX, TOPIC_PREFIX, Death, death_headers


def topic_for(message: Message, chosen: str) -> str:
    """The dead-letter topic of a message: the chosen one, or `dead.` and its topic."""
    return chosen or TOPIC_PREFIX + message.topic


class HandledDeadLetter(NamedTuple):
    """What is published for a message that a group has given up on."""

    value: bytes
    key: bytes
    headers: dict[str, bytes]
    event_time: dt.datetime | None


def died(message: Message, group: str, reason: str, attempts: int, time_us: int) -> Death:
    """What happened to a message."""
    header = message.batch.header
    return Death(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        queue=group,
        reason=reason[:REASON_CHARACTERS_MAX],
        deliveries=attempts,
        time=dt.datetime.fromtimestamp(time_us / 1e6, tz=dt.UTC),
        key=message.key,
        null=message.is_tombstone,
        log=f"{header.topic}.{header.leader_epoch}",
        priority=message.priority,
    )


def dead_letter(message: Message, death: Death) -> HandledDeadLetter:
    """With the content of the message."""
    headers = {**message.headers, **death_headers(death)}
    return HandledDeadLetter(message.value, death.letter_key, headers, message.event_time)


def without_content(death: Death, fault: MessageTooLargeError) -> HandledDeadLetter:
    """With its headers the message does not fit: the dead letter has the reason, and no content."""
    bare = death._replace(null=True, reason=f"{death.reason} ({fault})")
    return HandledDeadLetter(b"", bare.letter_key, death_headers(bare), None)
