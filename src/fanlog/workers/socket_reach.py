"""How a worker reaches its core: over the core's Unix socket, introduced by the secret that it
inherited."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

from fanlog.client.link import Dial, Link, Transport
from fanlog.edge.reach import PeerProtocol
from fanlog.errors import ConnectError
from fanlog.format.introduction import Introduction, write_introduction
from fanlog.listeners.workers_socket import PATH_BYTES_MAX

SOCKET_NAME = "workers.sock"


class SocketReach:
    """A `UpstreamReach` of an edge."""

    name = "the core"
    url = "fanlog://core"

    def __init__(self, path: str, secret: bytes, worker: str) -> None:
        self._path = path
        self._secret = secret
        self._worker = worker

    async def dial(self, link: Link) -> Transport:
        link.peer = self.name
        introduction = Introduction("worker", self._worker)
        return await self._connect(lambda: link, introduction)

    @property
    def dial_beside(self) -> Dial:
        return self.dial

    async def open(self, make: Callable[[], PeerProtocol], peer: str) -> None:
        await self.connect(make, "native", peer)

    async def connect(
        self, make: Callable[[], asyncio.Protocol], kind: Literal["native", "web"], peer: str
    ) -> asyncio.Transport:
        """A connection for a client of this worker."""
        return await self._connect(make, Introduction(kind, peer))

    async def _connect(
        self, make: Callable[[], asyncio.Protocol], introduction: Introduction
    ) -> asyncio.Transport:
        """What the protocol writes when it is connected comes behind the introduction."""
        loop = asyncio.get_running_loop()
        first = write_introduction(introduction, self._secret)
        try:
            transport, _ = await loop.create_unix_connection(
                lambda: _Introduced(make(), first), self._path
            )
        except OSError as fault:
            raise ConnectError(f"The worker can't reach its core: {fault}.") from fault
        return transport


class _Introduced(asyncio.Protocol):
    """Writes the introduction, and leaves the rest to the protocol behind it."""

    def __init__(self, behind: asyncio.Protocol, first: bytes) -> None:
        self._behind = behind
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no `asyncio.Transport` by its class.
        joined = cast("asyncio.Transport", transport)
        joined.write(self._first)
        joined.set_protocol(self._behind)
        self._behind.connection_made(transport)


def choose_socket(data: Path | None) -> tuple[Path, Path | None]:
    """Where the socket is, and the folder to remove with it: in the data folder, or in a private
    temporary one where there is none, or where its path is too long for a socket."""
    if data is not None:
        path = data.absolute() / SOCKET_NAME
        if len(bytes(path)) <= PATH_BYTES_MAX:
            return path, None
    folder = Path(tempfile.mkdtemp(prefix="fanlog-"))
    return folder / SOCKET_NAME, folder
