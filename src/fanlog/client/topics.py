"""A client's calls about topics: settings, offsets and records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fanlog.client.arguments import (
    ExistOk,
    StartLike,
    as_start,
    checked,
    to_compare,
    topic_name,
    topic_settings,
)
from fanlog.client.connection import ClientConnection
from fanlog.client.core.fetched import Fetched, read_fetched
from fanlog.errors import (
    ConnectionLostError,
    PartitionNotFoundError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import TopicInfo, TopicSettings
from fanlog.telemetry.snapshot import Snapshot


class TopicCalls(ClientConnection):
    """Calls of one request and one answer."""

    # Topics

    async def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        exist_ok: ExistOk = False,
        **given: Any,
    ) -> TopicInfo:
        """Creates a topic. Settings are given as `TopicSettings` or by name:

        >>> await client.create_topic("orders", partitions=4, durability="fsync")  # doctest: +SKIP

        With `exist_ok=True` it may exist already, with the settings that are given here; if one of
        them is different, `TopicDiffersError` lists it. Settings that are not given here, or that
        are the default in a `TopicSettings`, may be any. `exist_ok="any"` accepts a topic with
        whatever settings it has.

        A broker in memory makes topics in memory, whatever their durability: the client logs a
        warning.
        """
        wanted = messages.CreateTopic(
            topic_name(name),
            topic_settings(settings, given),
            exist_ok=bool(exist_ok),
            compare=to_compare(settings, given, exist_ok),
        )
        payload = await self._session.request(
            FrameKind.CREATE_TOPIC, wanted, repeat=wanted.exist_ok
        )
        made = decode(TopicInfo, payload)
        if exist_ok != "any":
            self._kept_warnings.compare(settings, given, made)
        return made

    async def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]:
        """The topics that match a pattern, by name.

        >>> for topic in await client.topics("orders.>"):
        ...     print(topic.name, topic.records)
        """
        return [topic async for topic in self._each_topic(pattern, internal=internal)]

    async def _each_topic(self, pattern: str, *, internal: bool) -> AsyncIterator[TopicInfo]:
        """Page by page. A topic that is created or deleted meanwhile may be included or not."""
        after = ""
        while True:
            wanted = messages.ListTopics(pattern, internal, after)
            page = await self._session.ask(FrameKind.LIST_TOPICS, wanted, messages.TopicPage)
            for topic in page.topics:
                yield topic
            after = page.next
            if not after:
                return

    async def describe_topic(self, name: str) -> TopicInfo:
        """Returns the settings, partitions and counters of a topic. Raises `TopicNotFoundError` if
        there is none.

        >>> orders = await client.describe_topic("orders")
        >>> orders.settings.durability, orders.records
        ('fsync', 4)
        """
        return await self._session.ask(
            FrameKind.DESCRIBE_TOPIC, messages.NamedTopic(topic_name(name)), TopicInfo
        )

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Gives a topic more partitions while it is in use, and returns its new state. Its present
        number changes nothing. Readers, groups and queues read the new partitions by themselves,
        from their first message. Keys go to other partitions from now on: the messages of a key
        keep their order before the change and after it, but not across it.

        >>> await client.grow_topic("orders", partitions=8)  # doctest: +SKIP
        """
        wanted = checked(messages.GrowTopic(topic_name(name), partitions))
        return await self._session.ask(FrameKind.GROW_TOPIC, wanted, TopicInfo)

    async def alter_topic(
        self, name: str, settings: TopicSettings | None = None, **given: Any
    ) -> TopicInfo:
        """Changes settings of a topic while it is in use, and returns its new state. A shorter
        retention deletes older messages at once. `durability` can rise from os to fsync; the call
        returns when all messages are synced. With `cleanup="compact"`, new messages need a key; old
        messages without one stay. Partitions grow with `grow_topic`.

        >>> await client.alter_topic("orders", retention_seconds=3600)  # doctest: +SKIP
        """
        wanted = messages.AlterTopic(topic_name(name), topic_settings(settings, given))
        return await self._session.ask(FrameKind.ALTER_TOPIC, wanted, TopicInfo)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic and its messages.

        >>> await client.delete_topic("orders")
        """
        await self._session.request(
            FrameKind.DELETE_TOPIC, messages.NamedTopic(topic_name(name)), repeat=False
        )

    async def delete_records(
        self, topic: str, before: dict[int, int] | StartLike
    ) -> dict[int, int]:
        """Deletes the records before an offset in each partition, for good, and returns where each
        partition begins now. `before` is the offsets by partition, or one start for all partitions.

        >>> await client.delete_records("orders", {0: 1000})  # doctest: +SKIP
        {0: 1000}
        """
        offsets = before if isinstance(before, dict) else await self.find_offsets(topic, before)
        ends = tuple(messages.PartitionOffset(p, o) for p, o in offsets.items())
        wanted = checked(messages.DeleteRecords(topic_name(topic), ends))
        found = await self._session.ask(FrameKind.DELETE_RECORDS, wanted, messages.Positions)
        return {position.partition: position.offset for position in found.positions}

    async def compact_topic(self, name: str) -> TopicInfo:
        """Compacts a topic now, up to its visible end, and returns its new state. The broker also
        does this by itself, when it is worthwhile.

        >>> await client.compact_topic("prices")
        """
        return await self._session.ask(
            FrameKind.COMPACT_TOPIC, messages.NamedTopic(topic_name(name)), TopicInfo
        )

    # Offsets

    async def find_offsets(self, topic: str, start: StartLike) -> dict[int, int]:
        """The offset of each partition where `start` lies.

        >>> await client.find_offsets("orders", "earliest")
        """
        wanted = messages.FindOffsets(topic_name(topic), as_start(start))
        found = await self._session.ask(FrameKind.FIND_OFFSETS, wanted, messages.Positions)
        return {position.partition: position.offset for position in found.positions}

    async def commit(self, durable: str, positions: tuple[messages.Position, ...]) -> None:
        """Moves a durable name to these positions."""
        await self._session.request(FrameKind.COMMIT, messages.CommitOffsets(durable, positions))

    async def committed(self, durable: str) -> tuple[messages.Position, ...]:
        """Where a durable name would resume.

        >>> await client.committed("billing")
        """
        wanted = messages.FindCommitted(durable)
        return (await self._session.ask(FrameKind.COMMITTED, wanted, messages.Positions)).positions

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> Fetched:
        """Fetches batches from an offset on. With `wait_seconds`, it waits for new batches.

        >>> fetched = await client.fetch("orders", 0, 0)
        >>> [value for batch in fetched.batches for value in batch.values]
        [b'one tea']
        """
        wait_ms = int(wait_seconds * 1000)
        while True:
            await self._session.connection()
            known = self._topics.maybe_number(topic)
            try:
                number = await self._number_of(topic) if known is None else known
                wanted = messages.Fetch(number, partition, offset, bytes_max, wait_ms)
                payload = await self._session.request_now(FrameKind.FETCH, wanted)
            except ConnectionLostError:
                if not self._session.comes_back:
                    raise
            except PartitionNotFoundError:
                # A number that was known may be that of a topic that was deleted since.
                if known is None:
                    raise
                self._topics.forget(topic)
            else:
                return read_fetched(payload, topic, verify=self._verify, limits=self._limits)

    async def _number_of(self, topic: str) -> int:
        """The number of a topic that exists; it is not created."""
        wanted = messages.OpenTopic(topic_name(topic), create=False)
        return self._topics.take_number(
            await self._session.request_now(FrameKind.OPEN_TOPIC, wanted)
        )

    # The broker

    async def status(self) -> messages.BrokerStatus:
        """Returns the broker's version, uptime and problems, as `fanlog health` shows them.

        >>> status = await client.status()
        """
        return await self._session.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)

    async def metrics(self) -> Snapshot:
        """Returns all metrics of the process, as `fanlog top` and `/metrics` show them. They are at
        most a second old.

        >>> snapshot = await client.metrics()
        >>> snapshot.totals.published_messages
        0
        """
        return await self._session.ask(FrameKind.METRICS, messages.Goodbye(), Snapshot)
