"""Readers of topics that do not exist. Law: reading creates no topic. A reader waits for its topic,
and is notified of that; or it asked for an error instead."""

from __future__ import annotations

from collections.abc import Callable

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.inboxes import is_inbox
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.names import missing_topic
from fanlog.errors import TopicNotFoundError
from fanlog.format.messages import Notice
from fanlog.format.patterns import parent_of
from fanlog.model import INTERNAL_PREFIX, STREAM_PREFIX, MissingPolicy

# Creates a topic that exists as soon as somebody reads it. None if it can't be created here.
OpenForReader = Callable[[str], BrokerTopic | None]


def maybe_topic(
    catalog: Catalog, open_for_reader: OpenForReader, name: str, missing: MissingPolicy
) -> BrokerTopic | None:
    """The topic that a reader follows; None if it waits for it. An inbox is its reader's, and is
    made for it."""
    topic = catalog.find(name)
    if topic is not None:
        return topic
    if is_inbox(name):
        return open_for_reader(name)
    if name.startswith(INTERNAL_PREFIX):
        return catalog.get(name)
    check_awaited(name, missing)
    return None


def check_awaited(name: str, missing: MissingPolicy) -> None:
    """Raises for a reader that does not wait for its missing topic."""
    if missing == "wait":
        return
    if name.startswith(STREAM_PREFIX):
        raise missing_topic(name)
    raise TopicNotFoundError(
        f"There is no topic {name!r} to read. Publish to it, or create it with: fanlog topic "
        f"create {name}. To wait for it, use missing='wait' (fanlog tail --missing wait)."
    )


def maybe_notice(catalog: Catalog, target: str, *, wildcard: bool) -> Notice | None:
    """What a reader that begins should know about its target."""
    if not wildcard:
        return Notice("missing", target) if catalog.find(target) is None else None
    parent = parent_of(target)
    if parent and catalog.find(parent) is not None:
        return Notice("parent", parent)
    return None
