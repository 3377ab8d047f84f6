"""How an edge reaches its upstream: over TCP, or over the socket between a broker and its
workers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from fanlog.client.address import Address
from fanlog.client.link import Dial, open_tcp, tcp_dial
from fanlog.client.tls import no_tls
from fanlog.config import ClientOptions
from fanlog.errors import ConnectError


class UpstreamReach(Protocol):
    """The way to an upstream. `name` is for people."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def dial(self) -> Dial:
        """Connects the edge itself."""
        ...

    async def open(self, make: Callable[[], asyncio.Protocol], peer: str) -> None:
        """Connects for one peer of the edge, at this address. Raises ConnectError."""
        ...


class TcpReach:
    """An upstream at an address."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self.dial = tcp_dial(address, options)

    @property
    def name(self) -> str:
        return str(self._address)

    @property
    def url(self) -> str:
        return self._address.url

    async def open(self, make: Callable[[], asyncio.Protocol], peer: str) -> None:
        try:
            await open_tcp(make, self._address, self._options)
        except ssl.SSLError as fault:
            raise no_tls(self._address, fault) from fault
        except OSError as fault:
            raise ConnectError(
                f"The edge can't reach its upstream {self._address}: {fault}."
            ) from fault
