"""Compares a requested topic with the existing one. Law: a program never silently gets weaker
settings than it asked for."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fanlog.errors import TopicDiffersError

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.model import TopicSettings


def check_same(topic: BrokerTopic, asked: TopicSettings, names: Collection[str]) -> None:
    """Raises if one of these settings of the topic differs from the request."""
    has = topic.settings
    different = [
        name
        for name in has.__struct_fields__
        if name in names and getattr(has, name) != getattr(asked, name)
    ]
    if not different:
        return
    listed = "; ".join(
        f"{name}: is {_shown(getattr(has, name))}, asked for {_shown(getattr(asked, name))}"
        for name in different
    )
    raise TopicDiffersError(
        f"Topic {topic.name!r} exists with other settings ({listed}). "
        f"{_remedy(topic.name, has, asked, different)} To accept the topic as it is, use "
        'exist_ok="any" (on the command line: --if-not-exists --any-settings).'
    )


def _shown(value: int | str) -> str:
    return str(value) or "empty"


def _remedy(name: str, has: TopicSettings, asked: TopicSettings, different: list[str]) -> str:
    """How to get the requested settings."""
    grows = asked.partitions > has.partitions and has.cleanup == asked.cleanup == "delete"
    never = {"role"} if grows else {"role", "partitions"}
    fixed = [setting for setting in different if setting in never]
    if fixed:
        return f"The setting {fixed[0]} can't change so: create a topic of another name."
    commands = [f"fanlog topic alter {name}"] * bool(set(different) - {"partitions"})
    if "partitions" in different:
        commands.append(f"fanlog topic grow {name} {asked.partitions}")
    return f"To change the topic, use: {', then '.join(commands)}."
