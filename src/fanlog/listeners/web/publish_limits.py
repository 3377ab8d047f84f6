"""Rates and quotas of what web clients publish. Their messages reach the broker through its own
client, which belongs to no account, so they are counted here.

A request can't be paused for long: it is refused at once, with a time to come back at. A WebSocket
is not read for a while, as other connections are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.ports import Bus, MessageToPublish


@runtime_checkable
class Claiming(Protocol):
    """A bus that knows whose topics are."""

    def claim(self, topic: str, owner: str) -> None:
        """Sees to it that a topic that is missing, and may be created, is the owner's."""
        ...


def charge_request(
    bus: Bus, permit: Permit, topic: str, messages: Sequence[MessageToPublish]
) -> None:
    """Counts the messages of a request. Raises RateLimitedError while there is a debt."""
    _claim(bus, permit, topic)
    metering = bus.core.metering
    if metering.on:
        found = bus.core.catalog.find(topic)
        rates = metering.rates_of(permit.who)
        metering.charge_at_once(rates, found, len(messages), _size(messages))


def charge_stream(
    bus: Bus,
    permit: Permit,
    connection: WebConnection,
    topic: str,
    messages: Sequence[MessageToPublish],
) -> None:
    """Counts messages that came over a WebSocket, and does not read it while there is a debt.
    Raises RateLimitedError if that is too large already."""
    _claim(bus, permit, topic)
    metering = bus.core.metering
    if metering.on:
        found = bus.core.catalog.find(topic)
        rates = metering.rates_of(permit.who)
        wait = metering.charge(rates, found, len(messages), _size(messages))
        if wait:
            connection.throttle(wait)


def _claim(bus: Bus, permit: Permit, topic: str) -> None:
    if permit.owner and isinstance(bus, Claiming):
        bus.claim(topic, permit.owner)


def _size(messages: Sequence[MessageToPublish]) -> int:
    return sum(len(m.value or b"") + len(m.key or b"") for m in messages)
