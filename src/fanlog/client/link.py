"""One connection of a client: the asyncio shell around `ClientCore`. Feed, take events, handle."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from fanlog.client.address import Address, no_answer, unreachable
from fanlog.client.core import ClientCore, Event
from fanlog.client.tls import client_context, no_tls, server_name
from fanlog.config import ClientOptions
from fanlog.errors import BadMagicError, ConnectionLostError, FormatError

logger = logging.getLogger("fanlog.client")


class Transport(Protocol):
    """What a client writes into: asyncio's own, or an embedded broker's."""

    def write(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...


class Link(asyncio.Protocol):
    """Bytes from the broker become events for the client, in order."""

    def __init__(
        self,
        handle: Callable[[Event], None],
        lost: Callable[[Link, Exception | None], None],
        core: ClientCore,
    ) -> None:
        self._handle = handle
        self._lost = lost
        self._core = core
        self._over = False
        self.transport: Transport | None = None
        self.peer = "the broker"
        self.heard_at = 0.0

    def data_received(self, data: bytes | memoryview) -> None:
        if self._over:
            return
        try:
            for event in self._core.feed(data):  # pyright: ignore[reportArgumentType]
                self._handle(event)
        except FormatError as fault:
            if not isinstance(fault, BadMagicError):
                logger.error("the broker sent damaged bytes: %s", fault)
            self.close()
            self.connection_lost(fault)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._lost(self, exc)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self._over:
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


Dial = Callable[[Link], Awaitable[Transport]]


def tcp_dial(address: Address, options: ClientOptions) -> Dial:
    """Connects over TCP, and speaks TLS if the address says so."""
    timeout_seconds = options.connect_timeout_seconds

    async def dial(link: Link) -> Transport:
        loop = asyncio.get_running_loop()
        link.peer = str(address)
        # Made for each connection, so that the next one uses files that were renewed.
        context = client_context(options) if address.tls else None
        name = server_name(address, options) if context else None
        try:
            async with asyncio.timeout(timeout_seconds):
                transport, _ = await loop.create_connection(
                    lambda: link, address.host, address.port, ssl=context, server_hostname=name
                )
        except TimeoutError:
            raise no_answer(address, timeout_seconds) from None
        except ssl.SSLError as fault:
            raise no_tls(address, fault) from fault
        except OSError as fault:
            raise unreachable(address, fault) from fault
        return transport

    return dial


def lost_error(exc: Exception | None) -> ConnectionLostError:
    because = f": {exc}" if exc else "."
    error = ConnectionLostError(f"The connection to the broker was lost{because}")
    error.__cause__ = exc
    return error
