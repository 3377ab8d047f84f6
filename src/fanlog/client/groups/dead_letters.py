"""Dead letters of a group: messages that failed for good, stored like those of queues. The client
has the message, so that the letter does not depend on the log."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any, Protocol

from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.errors import ForbiddenError, MessageTooLargeError, TopicExistsError
from fanlog.format.dead_letters import (
    REASON_CHARACTERS_MAX,
    TOPIC_PREFIX,
    Death,
    death_headers,
    letter_topic_settings,
)
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
        """Returns when the letter is stored, with the name of its topic."""
        topic = self._topic or TOPIC_PREFIX + message.topic
        await self._make_topic(topic, message.topic)
        header = message.batch.header
        death = Death(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            queue=self._group,
            reason=reason[:REASON_CHARACTERS_MAX],
            deliveries=attempts,
            time=dt.datetime.now(dt.UTC),
            key=message.key,
            null=message.is_tombstone,
            log=f"{header.topic}.{header.leader_epoch}",
            priority=message.priority,
        )
        try:
            await self._publish(topic, message, death)
        except MessageTooLargeError as fault:
            # With its headers it does not fit: the letter has the reason, and no content.
            bare = death._replace(null=True, reason=f"{death.reason} ({fault})")
            await self._host.publish(topic, b"", key=bare.letter_key, headers=death_headers(bare))
        return topic

    async def _publish(self, topic: str, message: Message, death: Death) -> None:
        await self._host.publish(
            topic,
            message.value,
            key=death.letter_key,
            headers={**message.headers, **death_headers(death)},
            event_time=message.event_time,
        )

    async def _make_topic(self, topic: str, source: str) -> None:
        if topic in self._known:
            return
        info = await self._host.describe_topic(source)
        # A worker that may create no topics may still publish dead letters: the topic is there, or
        # the broker makes it.
        with contextlib.suppress(TopicExistsError, ForbiddenError):
            await self._host.create_topic(topic, **letter_topic_settings(info.settings))
        self._known.add(topic)
