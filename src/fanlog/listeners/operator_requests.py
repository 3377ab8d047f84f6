"""Requests of operators over the native port: list connections, close connections, and get a
snapshot of all metrics."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fanlog.broker.insight.peers import Peer, PeerSource, describe_peer, is_match
from fanlog.errors import InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import ConnectionPage, ConnectionsRequest, decode
from fanlog.identity import Verb
from fanlog.listeners.visible_snapshot import seen_by

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.listeners.request_session import NativeHandler, RequestSession

logger = logging.getLogger("fanlog.listeners")

_LIMIT_MAX = 1000
_REASON_LENGTH_MAX = 500


async def found_peers(
    broker: BrokerCore, wanted: ConnectionsRequest, listeners: Sequence[PeerSource] | None
) -> list[Peer]:
    """The connections that are meant, in slices: there may be very many."""
    found: list[Peer] = []
    for listener in list(broker.metrics.listeners if listeners is None else listeners):
        each = broker.slices.each(listener.peers())
        found += [peer async for peer in each if _is_meant(peer, wanted)]
    return found


def _is_meant(peer: Peer, wanted: ConnectionsRequest) -> bool:
    if wanted.id:
        return wanted.id in (peer.id, peer.who.address)
    if peer.transport == "http" and wanted.kind == "list" and not wanted.requests:
        return False
    return is_match(peer, user=wanted.user, address=wanted.address, listener=wanted.listener)


async def list_connections(
    broker: BrokerCore, wanted: ConnectionsRequest, listeners: Sequence[PeerSource] | None = None
) -> ConnectionPage:
    """A page of connections by id: of the given listeners, or of all listeners."""
    limit = max(1, min(wanted.limit, _LIMIT_MAX))
    found = await found_peers(broker, wanted, listeners)
    later = (peer for peer in found if peer.id > wanted.after)
    page = heapq.nsmallest(limit, later, key=lambda peer: peer.id)
    shown = [describe_peer(peer) async for peer in broker.slices.each(page)]
    after = shown[-1].id if len(shown) == limit else ""
    return ConnectionPage(connections=tuple(shown), total=len(found), next=after)


async def close_connections(
    broker: BrokerCore, wanted: ConnectionsRequest, listeners: Sequence[PeerSource] | None = None
) -> ConnectionPage:
    """Closes the chosen connections, and returns their ids."""
    if not (wanted.id or wanted.user is not None or wanted.address or wanted.listener):
        raise InvalidArgumentError(
            "Say which connections to close: give an id, a user, an address or a listener."
        )
    if len(wanted.reason) > _REASON_LENGTH_MAX:
        raise InvalidArgumentError(f"A reason has at most {_REASON_LENGTH_MAX} characters.")
    closed: list[messages.ConnectionInfo] = []
    for peer in await found_peers(broker, wanted, listeners):
        info = describe_peer(peer)
        closed.append(info)
        logger.info("%s: an operator closed the connection: %s", info.id, wanted.reason or "-")
        peer.close(wanted.reason, reconnect=wanted.reconnect)
    return ConnectionPage(connections=tuple(closed[:_LIMIT_MAX]), total=len(closed))


def connections(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(ConnectionsRequest, payload)
    session.permit.ask(Verb.ADMIN, "")

    async def answering() -> None:
        broker, workers = session.broker, session.broker.workers
        answer = close_connections if wanted.kind == "close" else list_connections
        page = await answer(broker, wanted)
        if workers is not None:
            page = await workers.find_connections(wanted, page)
        if wanted.kind == "close":
            for closed in page.connections:
                who = session.permit.who
                broker.audit.note(who, "connection.close", closed.id, "ok", wanted.reason)
        session.answer(request, page)

    session.later(request, answering())


def metrics(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    session.permit.ask(Verb.DESCRIBE, "")

    async def answering() -> None:
        snapshot = await session.broker.metrics.snapshot()
        session.answer(request, seen_by(session.permit, snapshot))

    session.later(request, answering())


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.CONNECTIONS: connections,
    FrameKind.METRICS: metrics,
}
