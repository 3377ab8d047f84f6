"""One transport of a client under asyncio: it passes bytes to the session, and writes the session's
output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from fanlog.client.address import Address, no_answer, unreachable
from fanlog.client.tls import no_tls, server_name, shared_context
from fanlog.config import ClientOptions
from fanlog.errors import BadMagicError, FanlogError, FormatError

logger = logging.getLogger("fanlog.client")

# A broker that is there answers a goodbye at once.
_GOODBYE_SECONDS = 2.0


class Transport(Protocol):
    """What a client writes into: asyncio's own, or an embedded broker's."""

    def write(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...


class Link(asyncio.Protocol):
    """Passes received bytes to `received`. Calls `lost` once; after that nothing more comes."""

    def __init__(
        self,
        received: Callable[[Link, bytes], None],
        lost: Callable[[Link, Exception | None], None],
    ) -> None:
        self._received = received
        self._lost = lost
        self._over = False
        self._closing = False
        self._gone = asyncio.Event()
        self.transport: Transport | None = None
        self.peer = "the broker"

    def data_received(self, data: bytes | memoryview) -> None:
        if self._over:
            return
        try:
            self._received(self, data)  # pyright: ignore[reportArgumentType]
        except FormatError as fault:
            if not isinstance(fault, BadMagicError):
                logger.error("the broker sent damaged bytes: %s", fault)
            self.close()
            self.connection_lost(fault)

    async def wait_closed(self) -> None:
        """Waits until the transport is gone. TLS closes in both directions. If the loop ends before
        that, the socket stays open."""
        # uvloop's is no `asyncio.Transport` by its class, and an embedded broker's is none at all.
        transport = cast("asyncio.Transport", self.transport)
        if not hasattr(transport, "get_extra_info") or self._gone.is_set():
            return
        if transport.get_extra_info("sslcontext") is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._gone.wait()
                return
        transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        if not self._over:
            self._over = True
            self._lost(self, exc)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self._over and not self._closing:
            self.transport.write(data)

    def close(self) -> None:
        # asyncio's TLS forgets its connection at a second close, and fails at whatever comes then.
        if self.transport is not None and not self._closing:
            self._closing = True
            self.transport.close()


Dial = Callable[[Link], Awaitable[Transport]]


async def open_tcp(
    make: Callable[[], asyncio.Protocol], address: Address, options: ClientOptions
) -> asyncio.Transport:
    """Connects, and speaks TLS if the address says so."""
    loop = asyncio.get_running_loop()
    context = shared_context(options) if address.tls else None
    name = server_name(address, options) if context else None
    transport, _ = await loop.create_connection(
        make, address.host, address.port, ssl=context, server_hostname=name
    )
    return transport


def dial_any(addresses: Sequence[Address], options: ClientOptions) -> Dial:
    """Connects to one of several nodes. The next attempt begins with the next node: a node that is
    paused accepts connections, and never greets."""
    dials = [tcp_dial(address, options) for address in addresses]
    first = 0

    async def dial(link: Link) -> Transport:
        nonlocal first
        faults: list[FanlogError] = []
        for i in range(len(dials)):
            at = (first + i) % len(dials)
            try:
                transport = await dials[at](link)
            except FanlogError as fault:
                faults.append(fault)
            else:
                first = (at + 1) % len(dials)
                return transport
        # The others are tried with the next attempt.
        first = (first + 1) % len(dials)
        raise faults[0]

    return dial if len(dials) > 1 else dials[0]


def tcp_dial(address: Address, options: ClientOptions) -> Dial:
    """Connects over TCP, and speaks TLS if the address says so."""
    timeout_seconds = options.connect_timeout_seconds

    async def dial(link: Link) -> Transport:
        link.peer = str(address)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await open_tcp(lambda: link, address, options)
        except TimeoutError:
            raise no_answer(address, timeout_seconds) from None
        except ssl.SSLError as fault:
            raise no_tls(address, fault) from fault
        except OSError as fault:
            raise unreachable(address, fault) from fault

    return dial
