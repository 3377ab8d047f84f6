"""Changing a topic's settings while it is in use. The new settings are durable before they take
effect, and a shorter retention deletes at once what is past it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.settings import changed
from fanlog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fanlog.broker.topics import Topic
    from fanlog.model import TopicSettings

# What can't change, and what to do instead.
_FIXED = {
    "partitions": "use grow (fanlog topic grow)",
    "durability": "create another topic, and publish the messages to it",
    "cleanup": "create another topic, and publish the messages to it",
    "role": "it is the broker's own",
}


def altered_settings(topic: Topic, given: dict[str, int | str]) -> TopicSettings:
    """The topic's settings with what is given in place of theirs; raises if one can't change."""
    settings = changed("topic", topic.settings, given)
    for name, instead in _FIXED.items():
        if getattr(settings, name) != getattr(topic.settings, name):
            raise InvalidArgumentError(
                f"The setting {name} of topic {topic.name!r} can't change; it is "
                f"{getattr(topic.settings, name)!r}: {instead}."
            )
    return settings
