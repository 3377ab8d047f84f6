"""Which settings of a topic can change in use, and what to do instead where one can't. New settings
are durable before they take effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.settings import changed
from fanlog.errors import InvalidArgumentError
from fanlog.model import Durability

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.model import TopicSettings

_INSTEAD = "create another topic, and publish the messages to it"


def altered_settings(
    topic: BrokerTopic, given: dict[str, int | str], *, keeps_files: bool = True
) -> TopicSettings:
    """The topic's settings with the given changes; raises if one can't change."""
    settings = changed("topic", topic.settings, given)
    if settings.partitions != topic.settings.partitions:
        raise _fixed(topic, "partitions", "use grow (fanlog topic grow)")
    if settings.role != topic.settings.role:
        raise _fixed(topic, "role", "it is the broker's own")
    _check_durability(topic, settings)
    if settings.cleanup == "compact" and topic.settings.cleanup == "delete":
        return _compacted(topic, settings, given, keeps_files=keeps_files)
    return settings


def _fixed(topic: BrokerTopic, name: str, instead: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The setting {name} of topic {topic.name!r} can't change; it is "
        f"{getattr(topic.settings, name)!r}: {instead}."
    )


def _check_durability(topic: BrokerTopic, settings: TopicSettings) -> None:
    """It can only rise, and not from memory: there the messages have no files."""
    before, after = topic.settings.level, settings.level
    if after is before:
        return
    if before is Durability.MEMORY:
        raise InvalidArgumentError(
            f"Topic {topic.name!r} lives in memory, and its messages have no files: its durability "
            f"can't become {settings.durability}. Create another topic with durability "
            f"{settings.durability}, and publish the messages to it."
        )
    if after < before:
        raise InvalidArgumentError(
            f"The durability of topic {topic.name!r} can only rise, and it is "
            f"{topic.settings.durability}: programs rely on what was promised. Create another "
            f"topic with durability {settings.durability}, and publish the messages to it."
        )


def _compacted(
    topic: BrokerTopic, settings: TopicSettings, given: dict[str, int | str], *, keeps_files: bool
) -> TopicSettings:
    """From delete to compact. As at a creation, the default retention does not count: of each key
    the last message is to stay."""
    if settings.level is Durability.MEMORY and keeps_files:
        raise _fixed(topic, "cleanup", f"a topic in memory can't be compacted; {_INSTEAD}")
    default = type(settings)().retention_seconds
    if "retention_seconds" in given or settings.retention_seconds != default:
        return settings
    return msgspec.structs.replace(settings, retention_seconds=0)
