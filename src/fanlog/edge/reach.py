"""How an edge reaches its upstream: over TCP, at one address or at those of a cluster's nodes, or
over the socket between a broker and its workers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from fanlog.client.address import Address, no_answer
from fanlog.client.link import Dial, Link, Transport, dial_any, open_tcp
from fanlog.client.tls import no_tls
from fanlog.config import ClientOptions
from fanlog.errors import ConnectError


class PeerProtocol(asyncio.Protocol):
    """The connection to upstream of one of the edge's peers."""

    def abort(self) -> None:
        """Ends it at once."""
        raise NotImplementedError


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

    @property
    def dial_beside(self) -> Dial:
        """Connects further clients of the edge itself."""
        ...

    async def open(self, make: Callable[[], PeerProtocol], peer: str) -> None:
        """Connects for one peer of the edge, at this address. Raises ConnectError."""
        ...


class TcpReach:
    """An upstream at an address, or a cluster at the addresses of some of its nodes: the edge is
    connected to one of them, and its peers go there, too."""

    def __init__(self, addresses: Sequence[Address], options: ClientOptions) -> None:
        self._addresses = list(addresses)
        self._options = options
        self._dial_any = dial_any(addresses, options)
        self.dial_beside = dial_any(addresses, options)
        # Where the edge is connected, or was last.
        self._reached = addresses[0]
        self._peers = PeerProtocols()

    @property
    def name(self) -> str:
        return ",".join(map(str, self._addresses))

    @property
    def url(self) -> str:
        scheme = "fanlogs" if self._addresses[0].tls else "fanlog"
        return f"{scheme}://{self.name}"

    async def dial(self, link: Link) -> Transport:
        transport = await self._dial_any(link)
        reached = next(one for one in self._addresses if str(one) == link.peer)
        if reached != self._reached:
            # The node may be paused, and would keep these open without an answer.
            self._peers.abort(self._reached)
            self._reached = reached
        return transport

    async def open(self, make: Callable[[], PeerProtocol], peer: str) -> None:
        others = (one for one in self._addresses if one != self._reached)
        faults: list[ConnectError] = []
        for address in (self._reached, *others):
            try:
                await open_at(address, partial(self._peers.noting, make, address), self._options)
            except ConnectError as fault:
                faults.append(fault)
            else:
                return
        raise faults[0]


async def open_at(
    address: Address, make: Callable[[], asyncio.Protocol], options: ClientOptions
) -> None:
    """Connects for one peer of an edge. Raises ConnectError."""
    timeout_seconds = options.connect_timeout_seconds
    try:
        async with asyncio.timeout(timeout_seconds):
            await open_tcp(make, address, options)
    except TimeoutError:
        raise no_answer(address, timeout_seconds) from None
    except ssl.SSLError as fault:
        raise no_tls(address, fault) from fault
    except OSError as fault:
        raise ConnectError(f"The edge can't reach its upstream {address}: {fault}.") from fault


class PeerProtocols:
    """Where the connections of an edge's peers go, to end them together. It holds none of them."""

    def __init__(self) -> None:
        self._addresses: WeakKeyDictionary[PeerProtocol, Address] = WeakKeyDictionary()

    def noting(self, make: Callable[[], PeerProtocol], address: Address) -> PeerProtocol:
        made = make()
        self._addresses[made] = address
        return made

    def abort(self, address: Address) -> None:
        """Ends the connections to an address."""
        for protocol in [one for one, at in self._addresses.items() if at == address]:
            del self._addresses[protocol]
            protocol.abort()
