"""Checks of a queue: names, settings, its topics, and its start in them."""

from __future__ import annotations

from collections.abc import Iterable

from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.names import check_public_name, is_hidden
from fanlog.broker.settings import changed
from fanlog.config import BrokerOptions
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    NoPositionError,
    allow_more,
)
from fanlog.format.dead_letters import TOPIC_PREFIX
from fanlog.format.messages import Work
from fanlog.model import (
    DURABLE_NAME_BYTES_MAX,
    GROUP_PREFIX,
    TOPIC_NAME_BYTES_MAX,
    Durability,
    QueueSettings,
)

_NAME_BYTES_MAX = DURABLE_NAME_BYTES_MAX - len(GROUP_PREFIX)


def check_names(wanted: Work, options: BrokerOptions) -> None:
    for what, name in (("queue", wanted.queue), ("worker", wanted.worker)):
        if not 1 <= len(name.encode(errors="replace")) <= _NAME_BYTES_MAX:
            raise InvalidNameError(
                f"A {what}'s name has 1 to {_NAME_BYTES_MAX} bytes: choose another."
            )
    if wanted.prefetch < 1:
        raise InvalidArgumentError(f"A worker's prefetch is 1 or more, not {wanted.prefetch}.")
    if wanted.prefetch > options.queue_prefetch_max:
        raise LimitError(
            f"A worker's prefetch is {options.queue_prefetch_max} at most, not {wanted.prefetch}. "
            + allow_more("broker.queue_prefetch_max")
        )


def changed_queue_settings(
    settings: QueueSettings, given: dict[str, int | float | str | bool]
) -> QueueSettings:
    """The settings with the given changes. Raises an error that names the invalid setting."""
    chosen = changed("queue", settings, given)
    if chosen.dead_letter:
        check_public_name(chosen.dead_letter)
    return chosen


def check_dead_letter(topic: str, settings: QueueSettings) -> None:
    """Checks that dead letters do not go back to the topic of their jobs."""
    if settings.dead_letter == topic:
        raise InvalidArgumentError(
            f"The queue's dead letters would go back to {topic!r}, which it works on. Choose "
            "another dead_letter topic."
        )
    size = len((TOPIC_PREFIX + topic).encode(errors="replace"))
    if not settings.dead_letter and size > TOPIC_NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"The name {topic!r} is too long for a dead-letter topic {TOPIC_PREFIX}NAME: name "
            "another with dead_letter."
        )


def takes_part(topic: BrokerTopic, pattern: str) -> bool:
    """Whether a topic that fits a pattern is worked on. Dead letters are not, unless the pattern
    names them: a job that fails would die again and again. Nor are inboxes and
    resumable streams."""
    if is_hidden(topic.name, pattern):
        return False
    return topic.settings.role != "dead-letter" or pattern.startswith(TOPIC_PREFIX)


def start_of(partition: Partition, settings: QueueSettings, appeared: bool) -> int:
    """Where a queue begins in a partition that it has not met before."""
    if appeared or settings.reset == "earliest":
        return partition.log.start_offset
    if settings.reset == "latest":
        return partition.visible_end
    raise NoPositionError(
        f"The queue has no position in {partition.name} yet, and its reset policy is 'none'. Set "
        "one with `fanlog group reset`, or use reset='earliest' or 'latest'."
    )


def newest_number(topics: Iterable[BrokerTopic], *, in_memory: bool) -> int:
    """The highest number that a topic on disk, or in memory, has: one with a higher one is
    newer."""
    return max(
        (t.number for t in topics if (t.settings.level is Durability.MEMORY) == in_memory),
        default=0,
    )
