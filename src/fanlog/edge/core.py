"""The broker's core on an edge: its topics are mirrors, and it asks upstream for everything that
they do not have. Listeners use it like a broker's core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from fanlog.broker.authority import Permit
from fanlog.broker.broker_core import BrokerCore, log_fault
from fanlog.broker.messages.loader import BlockDone, BlockSource
from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.subscriptions import Subscriptions
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.topics import (
    BrokerSubscription,
    BrokerTopic,
    Outlet,
    Partition,
    TopicViews,
)
from fanlog.broker.ports import Origin, Reader
from fanlog.broker.state.ledger import Done
from fanlog.config import LogOptions
from fanlog.edge.mirror import Mirror
from fanlog.edge.own_copy import CopiedBlock, OwnCopy
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import BrokerStatus, Joined, Subscribe
from fanlog.model import Start


class Upstream(BlockSource, Protocol):
    """The bus, as far as the core of an edge needs it."""

    async def follow(self, target: str, wildcard: bool) -> None:
        """Has the topics of a name or a pattern mirrored, as they are now. Reference counted."""
        ...

    def unfollow(self, target: str, wildcard: bool) -> None: ...

    async def catch_up(self, wanted: Subscribe) -> None:
        """Waits until the mirror has the offsets that a reader already knows, if the bus has
        them."""
        ...

    async def find_offset(self, partition: Partition, start: Start) -> int:
        """Where a start lies: the earliest record, a time, or an offset."""
        ...


class Relay(Protocol):
    """A peer's own connection to upstream."""

    def resume_reading(self) -> None: ...


@runtime_checkable
class Relaying(Protocol):
    """A peer whose batches go upstream over its own connection."""

    def pass_on_batches(self, data: bytes, at: int) -> int: ...


class MirrorSubscriptions(Subscriptions):
    """Each subscription has its target mirrored, for as long as it lasts."""

    def __init__(self, core: EdgeCore, **ports: Any) -> None:
        super().__init__(
            core.catalog, core.fan_out, core.reading, core.slices, core.drop_notes, **ports
        )
        self._core = core

    async def add(
        self,
        key: int,
        wanted: Subscribe,
        outlet: Outlet,
        reader: Reader,
        client: str = "",
        *,
        permit: Permit | None = None,
        views: TopicViews | None = None,
    ) -> tuple[BrokerSubscription, list[Joined]]:
        upstream = self._core.upstream
        await upstream.follow(wanted.target, wanted.wildcard)
        try:
            await upstream.catch_up(wanted)
            return await super().add(
                key, wanted, outlet, reader, client, permit=permit, views=views
            )
        except BaseException:
            upstream.unfollow(wanted.target, wanted.wildcard)
            raise

    def epoch_of(self, topic: BrokerTopic) -> int:
        known = self._core.mirror.find(topic.name)
        return self._core.epoch if known is None else known.epoch

    def _unregister(self, subscription: BrokerSubscription) -> None:
        super()._unregister(subscription)
        self._core.upstream.unfollow(subscription.target, subscription.wildcard)


class MirrorReading(Reading):
    """Asks upstream for what the mirror does not have."""

    def __init__(self, core: EdgeCore, *parts: Any) -> None:
        super().__init__(*parts)
        self._core = core

    async def find_offset(self, partition: Partition, start: Start) -> int:
        if start.kind == "latest":
            return partition.visible_end
        if start.kind == "offset" and start.value <= partition.visible_end:
            return await super().find_offset(partition, start)
        return await self._core.upstream.find_offset(partition, start)


class EdgeCore(BrokerCore):
    """The creator sets `upstream` before the first request."""

    upstream: Upstream

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, blocks=self)
        self.mirror = Mirror(self)
        # Peers that have a connection of their own to upstream.
        self.relays: dict[Outlet, Relay] = {}
        # Publishes upstream for clients without their own upstream connection.
        self.publisher: Callable[[bytes, int, Origin], int] | None = None
        # Why upstream can't be reached; empty if it can.
        self.problem = ""
        # What this process has of upstream's topics in files of its own, if it has any.
        self.own_copy: OwnCopy | None = None

    def _make_reading(self, options: LogOptions) -> Reading:
        return MirrorReading(self, self._loader, options, self._runtime)

    def _make_subscriptions(self) -> MirrorSubscriptions:
        return MirrorSubscriptions(
            self,
            positions=self.durable,
            open_for_reader=self.open_for_reader,
            epoch=lambda: self.epoch,
        )

    def _make_events(self) -> TopicEvents:
        """Mirrors have readers only: everything else is upstream's."""
        events = TopicEvents()
        events.subscribe(removed=self._forget_allowed)
        events.subscribe(
            created=self.subscriptions.topic_appeared,
            grown=self.subscriptions.topic_grew,
            deleted=self.subscriptions.topic_vanished,
            remade=self.subscriptions.topic_remade,
        )
        return events

    @property
    def epoch(self) -> int:
        """The bus's epoch, compared with the one that readers know."""
        return self._store.epoch

    def take_over(self, epoch: int, release: str) -> None:
        """Represents the bus from now on, since its last start."""
        self._store.epoch = epoch
        self.release = release

    def copy_with(self, number: int, partition: int, offset: int) -> OwnCopy | None:
        """The own copy, if it has the record at an offset."""
        copy = self.own_copy
        if copy is None or not copy.has(
            number, partition, offset, epoch=self.epoch, upstream_away=bool(self.problem)
        ):
            return None
        return copy

    async def read_own(self, topic: str, partition: int, offset: int) -> CopiedBlock | None:
        """Batches from an offset on, if the own copy has them."""
        number = None if self.own_copy is None else self.own_copy.maybe_number(topic)
        copy = None if number is None else self.copy_with(number, partition, offset)
        if copy is None or number is None:
            return None
        return await copy.read(number, partition, offset, 0)

    def take(self, data: bytes, at: int, origin: Origin) -> int:
        """Sends batches upstream unchanged."""
        if isinstance(origin, Relaying):
            return origin.pass_on_batches(data, at)
        if self.publisher is None:
            raise InvalidArgumentError("An edge has no log. Publish upstream.")
        return self.publisher(data, at, origin)

    def resume(self, outlet: Outlet) -> None:
        super().resume(outlet)
        relay = self.relays.get(outlet)
        if relay is not None and not outlet.blocked:
            relay.resume_reading()

    def status(self) -> BrokerStatus:
        status = super().status()
        if not self.problem:
            return status
        state = "degraded" if status.state == "ok" else status.state
        return msgspec.structs.replace(
            status, state=state, problems=(self.problem, *status.problems)
        )

    def unready(self) -> list[str]:
        reasons = super().unready()
        return [*reasons, "The upstream is away."] if self.problem else reasons

    def create_topic(
        self, name: str, settings: dict[str, int | str], **options: Any
    ) -> BrokerTopic:
        raise InvalidArgumentError(f"An edge can't create topics: create {name!r} upstream.")

    def delete_topic(self, name: str, done: Done = log_fault) -> None:
        """A topic is deleted here when upstream deletes it."""
        done(None)

    def read_block(
        self, partition: Partition, offset: int, bytes_wanted: int, done: BlockDone
    ) -> None:
        """The loader's source of blocks that the mirror does not have."""
        self.upstream.read_block(partition, offset, bytes_wanted, done)

    def forget_tail(self, partition: Partition) -> None:
        """The partition's tail is given up: it no longer counts."""
        self.turns.forget(partition)

    def forget_partition(self, partition: Partition) -> None:
        """The same for a deleted partition, and its cached blocks."""
        self.turns.forget(partition)
        self._loader.forget(partition)
        if partition.audience is not None:
            partition.audience.wake()
