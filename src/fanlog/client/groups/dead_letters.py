"""Stores the dead letters of a group: `core/handled_dead_letters.py` makes them, this asks for
their topic and publishes them."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from typing import Any, Protocol

from fanlog.client.core.handled_dead_letters import (
    HandledDeadLetter,
    dead_letter,
    died,
    topic_for,
    without_content,
)
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.errors import ForbiddenError, MessageTooLargeError, TopicExistsError
from fanlog.format.dead_letters import letter_topic_settings
from fanlog.model import Receipt, TopicInfo


class DeadLetterHost(Protocol):
    """The client, as far as this needs it."""

    async def describe_topic(self, name: str) -> TopicInfo: ...
    async def create_topic(self, name: str, /, **given: Any) -> TopicInfo: ...
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
    ) -> Receipt: ...


class DeadLetterPublisher:
    """Stores dead letters of a group in `topic`, or in `dead.` and the name of their own."""

    def __init__(self, host: DeadLetterHost, group: str, topic: str) -> None:
        self._host = host
        self._group = group
        self._topic = topic
        self._known: set[str] = set()

    async def publish(self, message: Message, reason: str, attempts: int) -> str:
        """Returns when the dead letter is stored, with the name of its topic."""
        topic = topic_for(message, self._topic)
        await self._make_topic(topic, message.topic)
        death = died(message, self._group, reason, attempts, time.time_ns() // 1000)
        try:
            await self._publish(topic, dead_letter(message, death))
        except MessageTooLargeError as fault:
            await self._publish(topic, without_content(death, fault))
        return topic

    async def _publish(self, topic: str, letter: HandledDeadLetter) -> None:
        value, key, headers, event_time = letter
        await self._host.publish(topic, value, key=key, headers=headers, event_time=event_time)

    async def _make_topic(self, topic: str, source: str) -> None:
        if topic in self._known:
            return
        info = await self._host.describe_topic(source)
        # A worker that may create no topics may still publish dead letters: the topic is there, or
        # the broker makes it.
        with contextlib.suppress(TopicExistsError, ForbiddenError):
            await self._host.create_topic(topic, **letter_topic_settings(info.settings))
        self._known.add(topic)
