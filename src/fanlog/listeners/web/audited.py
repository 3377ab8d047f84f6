"""Audit records beside those of the routes: a client creates a topic when it publishes to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanlog.identity import Identity
    from fanlog.listeners.web.ports import Bus, MessageToPublish, Published


async def publish_as(
    who: Identity, bus: Bus, topic: str, messages: Sequence[MessageToPublish], *, dedupe: str = ""
) -> list[Published]:
    """Publishes. If that creates the topic, the audit log names the user."""
    core = bus.core
    is_new = core.audit.on and core.catalog.find(topic) is None
    stored = await bus.publish(topic, messages, dedupe=dedupe)
    if is_new and core.catalog.find(topic) is not None:
        core.audit.note(who, "topic.create", topic, "ok", "by publishing")
    return stored
