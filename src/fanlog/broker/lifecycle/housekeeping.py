"""Housekeeping: what the broker looks for now and then in everything that it holds. Retention,
producers and names that are long idle, inboxes that nobody reads, topics that expire, logs to
compact.

It goes over all topics in slices. It skips topics that are deleted meanwhile, and visits new ones
the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fanlog.broker.messages.expiry import Expiry
from fanlog.broker.messages.idle_producers import IdleProducers
from fanlog.broker.messages.inboxes import Inboxes, is_inbox
from fanlog.broker.messages.topics import BrokerTopic, Partition
from fanlog.broker.ports import Runtime
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError

if TYPE_CHECKING:
    from fanlog.broker.lifecycle.ports import HousekeepingPorts

logger = logging.getLogger("fanlog.broker")


class Housekeeping:
    """`now_us` is the time that records' ages count by."""

    def __init__(
        self,
        broker: HousekeepingPorts,
        options: BrokerOptions,
        runtime: Runtime,
        now_us: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._runtime = runtime
        self._now_us = now_us
        self._inboxes = Inboxes(options.inbox_idle_seconds)
        self._expiry = Expiry()
        self._idle_producers = IdleProducers(options, runtime.monotonic_us)
        self._running = False

    def begin(self) -> None:
        """Begins the housekeeping. Does nothing while the last one is not over."""
        if not self._running:
            self._running = True
            self._broker.slices.in_slices(self._steps(), self._ended)

    def _ended(self) -> None:
        self._running = False

    def _steps(self) -> Iterator[None]:
        broker = self._broker
        now_us = self._now_us()
        inboxes: list[BrokerTopic] = []
        expiring: list[BrokerTopic] = []
        for topic in list(broker.catalog):
            yield from self.retain(topic, now_us)
            if is_inbox(topic.name) and not topic.deleted:
                inboxes.append(topic)
            if topic.settings.expire_seconds and not topic.deleted:
                expiring.append(topic)
        yield from self._idle_producers.forget(broker.catalog.partitions)
        yield from broker.producers.expire()
        for name in self._inboxes.left_behind(inboxes, self._runtime.monotonic_us()):
            if broker.catalog.find(name) is not None:
                broker.delete_topic(name)
            yield
        yield from self._expire(expiring, now_us)
        yield from broker.compactions.check(list(broker.catalog))

    def _expire(self, expiring: list[BrokerTopic], now_us: int) -> Iterator[None]:
        """Deletes topics that nothing was published to for too long."""
        for topic in self._expiry.due(expiring, now_us, self._runtime.monotonic_us()):
            if topic is not None and not topic.deleted:
                self._broker.delete_topic(topic.name)
            yield

    def retain(self, topic: BrokerTopic, now_us: int) -> Iterator[None]:
        """Deletes what a topic does not keep any longer, and notifies its followers once. It may be
        deleted meanwhile."""
        for partition in topic.partitions:
            if not topic.deleted:
                self._retain(partition, now_us)
            yield
        if not topic.deleted:
            self._broker.events.truncated(topic)

    def _retain(self, partition: Partition, now_us: int) -> None:
        log = partition.log
        tail_bytes = log.tail.bytes
        try:
            log.retain(now_us, partition.visible_end)
        except FanlogError as fault:
            logger.error("retention of %s failed: %s", partition.name, fault)
        self._broker.turns.resized(partition, tail_bytes)
