"""All topics, found by name, by number and by pattern. Creates, grows and deletes them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from fanlog.broker.messages.intake import partition_key
from fanlog.broker.messages.producers import Producer, forget_longest_idle
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.names import NameTree, check_name, is_hidden, missing_topic
from fanlog.broker.settings import changed
from fanlog.broker.sorted_names import SortedNames
from fanlog.config import BrokerOptions
from fanlog.errors import (
    InvalidArgumentError,
    PartitionNotFoundError,
    TooManyTopicsError,
    TopicExistsError,
    allow_more,
)
from fanlog.format.patterns import fits, literal_prefix
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.log.partition import PartitionLog
from fanlog.log.store import LogStore, StoredTopic
from fanlog.model import INTERNAL_PREFIX, PARTITIONS_MAX, TopicSettings

logger = logging.getLogger("fanlog.broker")

# A topic that is not created yet, with its logs.
PreparedTopic: TypeAlias = StoredTopic
_RETENTION_SECONDS = TopicSettings().retention_seconds
# Entries of one page of a listing: a few milliseconds of work.
_PAGE_PARTITIONS = 200
_PAGE_NAMES = 2000


class Catalog:
    """All topics. The hot path finds batches' partitions in `partitions`. The broker's own topics
    are not in it, so that no client can publish to them, except the topic of delayed messages."""

    def __init__(self, store: LogStore, options: BrokerOptions) -> None:
        self._store = store
        self._options = options
        self._by_name: dict[str, BrokerTopic] = {}
        # How many of them are the broker's own.
        self._own = 0
        self._tree: NameTree[BrokerTopic] = NameTree()
        self._names = SortedNames()
        self.partitions: dict[int, Partition] = {}
        self._internal: dict[int, Partition] = {}
        # Counts created and deleted topics, for caches of the list.
        self.changes = 0

    def load(self, stored: Iterable[StoredTopic]) -> None:
        for topic in stored:
            self._add(BrokerTopic(topic))
        self._names = SortedNames(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def public_count(self) -> int:
        """Topics of users."""
        return len(self._by_name) - self._own

    def __iter__(self) -> Iterator[BrokerTopic]:
        return iter(self._by_name.values())

    def find(self, name: str) -> BrokerTopic | None:
        return self._by_name.get(name)

    def names_since(self, name: str) -> Iterator[str]:
        """The names from this one on, in order. They must not change meanwhile."""
        return self._names.since(name)

    def number_of(self, name: str) -> int:
        """The number of the topic that has this name now; 0 if there is none."""
        topic = self._by_name.get(name)
        return 0 if topic is None else topic.number

    def get(self, name: str, *, creatable: bool = True) -> BrokerTopic:
        topic = self._by_name.get(name)
        if topic is None:
            raise missing_topic(name, creatable=creatable)
        return topic

    def find_partition(self, number: int, index: int) -> Partition | None:
        if not 0 <= index < PARTITIONS_MAX:
            return None
        key = partition_key(number, index)
        return self.partitions.get(key) or self._internal.get(key)

    def partition(self, number: int, index: int) -> Partition:
        partition = self.find_partition(number, index)
        if partition is None:
            raise PartitionNotFoundError(
                f"There is no topic number {number} with a partition {index} on this broker (any "
                "more): ask for the topic's number and partitions again."
            )
        return partition

    def matching(self, pattern: str, *, internal: bool = False) -> list[BrokerTopic]:
        """Topics that fit a pattern, by name. The broker's own and inboxes only when asked for."""
        return sorted(
            (
                topic
                for topic in self._tree.matching(pattern)
                if _is_shown(topic.name, pattern, internal=internal)
            ),
            key=lambda topic: topic.name,
        )

    def each_matching(self, pattern: str) -> Iterator[BrokerTopic]:
        """The same as an iterator. Topics may be created and deleted meanwhile; such a topic may be
        included or not."""
        after = ""
        while True:
            found, after = self.page(pattern, after, internal=False)
            yield from found
            if not after:
                return

    def page(self, pattern: str, after: str, *, internal: bool) -> tuple[list[BrokerTopic], str]:
        """The next matching topics after the name `after`, in order, up to a page; and the name to
        continue after, empty at the end."""
        prefix = literal_prefix(pattern)
        found: list[BrokerTopic] = []
        looked_at = partitions = 0
        for name in self._names.since(max(prefix, after)):
            if not name.startswith(prefix):
                break
            if name == after:
                continue
            looked_at += 1
            if fits(name, pattern) and _is_shown(name, pattern, internal=internal):
                topic = self._by_name[name]
                found.append(topic)
                partitions += len(topic.partitions)
            if partitions >= _PAGE_PARTITIONS or looked_at >= _PAGE_NAMES:
                return found, name
        return found, ""

    def create(
        self,
        name: str,
        settings: TopicSettings,
        *,
        exist_ok: bool = False,
        prepared: PreparedTopic | None = None,
    ) -> BrokerTopic:
        topic = self._by_name.get(check_name(name))
        if topic is not None:
            if exist_ok:
                return topic
            raise TopicExistsError(
                f"Topic {name!r} exists already. See its settings with: fanlog topic describe "
                f"{shlex.quote(name)}"
            )
        # The broker's own do not count: a full broker must still revoke a key.
        own = name.startswith(INTERNAL_PREFIX)
        if not own and self.public_count >= self._options.topics_max:
            raise TooManyTopicsError(
                f"This broker has {self.public_count} topics, which is the limit. Delete some. "
                + allow_more("broker.topics_max")
            )
        topic = BrokerTopic(self._store.create(name, settings, prepared=prepared))
        self._add(topic)
        self._names.add(name)
        logger.debug(
            "topic %s created: number %d, %d partitions, durability %s",
            name,
            topic.number,
            settings.partitions,
            settings.durability,
        )
        return topic

    def adopt(self, stored: StoredTopic) -> BrokerTopic:
        """Takes in a topic that another broker has made, with the number that it has there."""
        topic = BrokerTopic(stored)
        self._add(topic)
        self._names.add(topic.name)
        logger.debug("topic %s mirrored: number %d", topic.name, topic.number)
        return topic

    def adopt_growth(self, topic: BrokerTopic) -> list[Partition]:
        """Takes in partitions that such a topic has got; which ones those are."""
        new = topic.grow()
        for partition in new:
            self.partitions[partition_key(topic.number, partition.index)] = partition
        return new

    def new_logs(
        self, topic: BrokerTopic, settings: TopicSettings
    ) -> Generator[None, None, list[PartitionLog]]:
        """Makes the logs for `grow` in steps: there may be thousands."""
        return self._store.new_logs(topic.stored, settings)

    def grow(
        self, topic: BrokerTopic, settings: TopicSettings, logs: Sequence[PartitionLog] = ()
    ) -> list[Partition]:
        """Gives a topic the partitions that its new settings ask for; which ones those are. The
        new count is durable before they can be found."""
        self._store.update(topic.stored, settings, logs)
        new = topic.grow()
        logger.debug("topic %s grew to %d partitions", topic.name, settings.partitions)
        for partition in new:
            self.partitions[partition_key(topic.number, partition.index)] = partition
        return new

    def alter(self, topic: BrokerTopic, settings: TopicSettings) -> None:
        """Gives a topic other settings, as many partitions as before."""
        self._store.update(topic.stored, settings)
        topic.settings = settings
        logger.debug("topic %s has new settings", topic.name)

    def remove(self, topic: BrokerTopic) -> None:
        topic.deleted = True
        logger.debug("topic %s deleted", topic.name)
        del self._by_name[topic.name]
        self.changes += 1
        self._own -= topic.name.startswith(INTERNAL_PREFIX)
        self._tree.remove(topic.name, topic)
        self._names.remove(topic.name)
        for partition in topic.partitions:
            key = partition_key(topic.number, partition.index)
            self.partitions.pop(key, None)
            self._internal.pop(key, None)

    def _add(self, topic: BrokerTopic) -> None:
        self._by_name[topic.name] = topic
        self.changes += 1
        self._own += topic.name.startswith(INTERNAL_PREFIX)
        self._tree.add(topic.name, topic)
        # Delayed messages, and signals, are published like others.
        open_to_all = topic.name in (SCHEDULED_TOPIC, SIGNALS_TOPIC)
        internal = topic.name.startswith(INTERNAL_PREFIX) and not open_to_all
        partitions = self._internal if internal else self.partitions
        for partition in topic.partitions:
            partitions[partition_key(topic.number, partition.index)] = partition
            _recover_producers(partition, self._options)


def _is_shown(name: str, pattern: str, *, internal: bool) -> bool:
    """Internal topics, inboxes and streams are shown only on request."""
    if internal:
        return True
    if name.startswith(INTERNAL_PREFIX):
        return False
    return not is_hidden(name, pattern)


def changed_settings(
    settings: TopicSettings, given: dict[str, int | str], *, keeps_files: bool = True
) -> TopicSettings:
    """The settings with the given changes. Raises an error that names the invalid setting. A broker
    without files accepts a compacted topic, and compacts nothing."""
    chosen = changed("topic", settings, given)
    if chosen.cleanup == "delete":
        return chosen
    if chosen.durability == "memory" and keeps_files:
        raise InvalidArgumentError(
            "A topic that lives in memory can't be compacted: use durability os or fsync, or "
            "cleanup delete."
        )
    return _for_compaction(chosen, settings, given)


def _for_compaction(
    chosen: TopicSettings, defaults: TopicSettings, given: dict[str, int | str]
) -> TopicSettings:
    """A compacted topic keeps its messages for good, unless a time was chosen for it."""
    chosen_for_it = "cleanup" not in given and defaults.retention_seconds != _RETENTION_SECONDS
    if "retention_seconds" in given or chosen_for_it:
        return chosen
    return msgspec.structs.replace(chosen, retention_seconds=0)


def _recover_producers(partition: Partition, options: BrokerOptions) -> None:
    """Producers as the batches on disk show them, so that a repeat is known after a restart."""
    recovered, partition.log.recovered = partition.log.recovered, []
    if not recovered:
        return
    producers = partition.remember_producers()
    for run in recovered:
        producer = producers.get(run.producer_id)
        if (
            producer is None
            or producer.next_sequence != run.first_sequence
            or producer.epoch != run.producer_epoch
        ):
            producer = Producer(run.producer_epoch, run.first_sequence, run.base_offset)
            producers[run.producer_id] = producer
        producer.extend(run.record_count, run.base_offset, options.producer_runs_max)
    if len(producers) > options.producers_max:
        forget_longest_idle(producers, len(producers) - options.producers_max)
