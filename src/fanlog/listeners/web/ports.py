"""What stands behind a web listener. In a broker it is the broker itself; on an edge it is the bus
that the edge stands in front of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.client.aio import Client


class MessageToPublish(msgspec.Struct, frozen=True):
    """A message to publish. A value of None deletes its key from a compacted topic."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] = {}
    partition: int | None = None


class Published(msgspec.Struct, frozen=True):
    """Where a message is. `position` is behind it."""

    topic: str
    partition: int
    offset: int
    position: str = ""


class Incoming(msgspec.Struct, frozen=True):
    """The answer to a request."""

    value: bytes | None
    headers: dict[str, bytes] = {}


Hear = Callable[[bytes], None]


class Bus(Protocol):
    """The bus: publishes messages, and provides the topics of subscriptions."""

    name: str
    process: str
    core: BrokerCore
    up: bool
    on_state: list[Callable[[bool], None]]
    # Whether `core` is the broker itself, and not an edge's.
    is_broker: bool

    @property
    def client(self) -> Client | None:
        """The whole API, where the bus is Fanlog."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def follow(self, target: str, *, wildcard: bool) -> None:
        """Keeps these topics in the core, as long as they are followed."""
        ...

    def unfollow(self, target: str, *, wildcard: bool) -> None: ...

    async def publish(
        self, topic: str, messages: Sequence[MessageToPublish], *, dedupe: str = ""
    ) -> list[Published]:
        """Returns when all are stored. With `dedupe`, a repeated call publishes nothing again and
        gets the same answer."""
        ...

    async def wait_for_more(self, topic: str, offsets: Mapping[int, int], seconds: float) -> None:
        """Returns when there is more behind one of these offsets, by partition, when the topic
        goes, or after so many seconds."""
        ...

    async def request(
        self, topic: str, message: MessageToPublish, timeout_seconds: float
    ) -> Incoming: ...

    def signal(self, channel: str, data: bytes) -> None:
        """Signals all processes on the bus, including this one. Live only, and may be lost."""
        ...

    def on_signal(self, channel: str, hear: Hear) -> None: ...
