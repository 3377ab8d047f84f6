"""Requests of programs to all web listeners on a bus: list connections, list presence, and
disconnect clients. Each process answers for itself, and the caller's process combines the
answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from fanlog.client.asking import Asker
from fanlog.errors import FormatError
from fanlog.format.messages import ConnectionsRequest
from fanlog.format.signals import WEB_CHANNEL, SignalAnswer, SignalAsk, decode_web, encode_web
from fanlog.listeners.operator_requests import close_connections, list_connections
from fanlog.listeners.web.connections import fitting
from fanlog.model import ConnectionInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanlog.broker.insight.peers import PeerSource
    from fanlog.config_web import WebOptions
    from fanlog.listeners.web.connections import WebConnections
    from fanlog.listeners.web.ports import Bus
    from fanlog.listeners.web.presence import Presence

logger = logging.getLogger("fanlog.listeners")

# What one process answers at most: an answer is one signal, and must not be too large for any bus.
_CONNECTIONS_MAX = 500
_ANSWER_BYTES_MAX = 400_000


class ServerApi:
    """One process's part in it, and the way to ask the others."""

    def __init__(
        self,
        bus: Bus,
        options: WebOptions,
        presence: Presence,
        connections: WebConnections,
        listeners: Callable[[], Sequence[PeerSource]],
    ) -> None:
        self._bus = bus
        self._options = options
        self._presence = presence
        self._connections = connections
        # All of this process.
        self._listeners = listeners
        self._answering: set[asyncio.Task[None]] = set()
        self._asker = Asker(lambda data: bus.signal(WEB_CHANNEL, data))
        bus.on_signal(WEB_CHANNEL, self._hear)

    # Answers

    def _hear(self, data: bytes) -> None:
        try:
            signal = decode_web(data)
        except FormatError as fault:
            logger.debug("%s", fault)
            return
        if isinstance(signal, SignalAnswer):
            self._asker.hear(signal)
        elif signal.every:
            task = asyncio.get_running_loop().create_task(self._answer_for_all(signal))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            self._bus.signal(WEB_CHANNEL, encode_web(self._answer(signal)))

    async def _answer_for_all(self, asked: SignalAsk) -> None:
        """For every listener of this process. There may be very many connections."""
        core = self._bus.core
        wanted = ConnectionsRequest(
            id=asked.connection,
            user=asked.user,
            address=asked.address,
            listener=asked.listener,
            after=asked.after,
            limit=max(1, min(asked.limit, _CONNECTIONS_MAX)),
            kind="close" if asked.kind == "disconnect" else "list",
            reason=asked.reason,
            reconnect=asked.reconnect,
            requests=asked.requests,
        )
        answer = SignalAnswer(asked.id, self._bus.process, self._presence.roster.names())
        if asked.kind == "disconnect":
            count = (await close_connections(core, wanted, self._listeners())).total
            answer = msgspec.structs.replace(answer, count=count)
        else:
            page = await list_connections(core, wanted, self._listeners())
            process = self._bus.process
            found = [msgspec.structs.replace(one, process=process) for one in page.connections]
            answer = msgspec.structs.replace(answer, connections=found, count=page.total)
        self._bus.signal(WEB_CHANNEL, encode_web(answer))

    def _answer(self, asked: SignalAsk) -> SignalAnswer:
        answer = SignalAnswer(asked.id, self._bus.process, self._presence.roster.names())
        if asked.kind == "connections":
            limit = max(0, min(asked.limit, _CONNECTIONS_MAX))
            page = self._connections.page(asked.after, limit, asked.user)
            return msgspec.structs.replace(answer, connections=page, count=len(self._connections))
        if asked.kind == "disconnect":
            count = self._connections.disconnect(
                user=asked.user,
                connection=asked.connection,
                reason=asked.reason,
                reconnect=asked.reconnect,
            )
            return msgspec.structs.replace(answer, count=count)
        if asked.kind == "presence":
            snapshot = self._presence.snapshot(asked.topic)
            found = msgspec.json.encode(snapshot)
            if len(found) > _ANSWER_BYTES_MAX:
                found = msgspec.json.encode(msgspec.structs.replace(snapshot, users=UNSET))
            return msgspec.structs.replace(answer, presence=found)
        names = (topic.name for topic in self._bus.core.catalog.each_matching(asked.topic))
        return msgspec.structs.replace(answer, topics=fitting(names, _ANSWER_BYTES_MAX))

    # Questions

    async def _ask(self, asked: SignalAsk) -> list[SignalAnswer]:
        return await self._asker.ask(asked, self._options.ask_timeout_seconds)

    async def connections(
        self,
        after: str,
        limit: int,
        *,
        user: str | None = None,
        address: str = "",
        listener: str = "",
        requests: bool = False,
    ) -> tuple[list[ConnectionInfo], int]:
        """A page of all processes' connections, by id, and how many there are in all."""
        limit = min(limit, _CONNECTIONS_MAX)
        asked = SignalAsk(
            "-",
            "connections",
            user=user,
            after=after,
            limit=limit,
            every=True,
            address=address,
            listener=listener,
            requests=requests,
        )
        answer = await self._ask(asked)
        found = sorted((c for one in answer for c in one.connections), key=lambda c: c.id)
        return found[:limit], sum(one.count for one in answer)

    async def disconnect(
        self, *, user: str | None = None, connection: str = "", reason: str, reconnect: bool
    ) -> int:
        """Closes connections on all processes; how many."""
        asked = SignalAsk(
            "-",
            "disconnect",
            user=user,
            connection=connection,
            reason=reason,
            reconnect=reconnect,
            every=True,
        )
        return sum(one.count for one in await self._ask(asked))

    async def topics(self, pattern: str) -> list[str]:
        """The topics that match, on a bus that has no list of them: those that are followed."""
        answer = await self._ask(SignalAsk("-", "topics", topic=pattern))
        return sorted({name for one in answer for name in one.topics})
