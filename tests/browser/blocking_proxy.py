"""A proxy that knows no WebSocket, as some offices have one. It can learn it later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class BlockingProxy:
    """`blocks` may be changed; `cut()` breaks all connections."""

    upstream_port: int
    port: int = 0
    blocks: bool = True
    refused: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if self.blocks and b"\r\nupgrade: websocket" in head.lower():
            self.refused += 1
            writer.write(REFUSAL)
            await writer.drain()
            return
        # One request a connection, so that each is looked at. Chromium asks for keep-alive.
        head = head.replace(b"Connection: keep-alive", b"Connection: close")
        upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        try:
            to_upstream.write(head)
            back = asyncio.create_task(_pour(upstream, writer))
            forth = asyncio.create_task(_pour(reader, to_upstream))
            await asyncio.wait({back, forth}, return_when=asyncio.FIRST_COMPLETED)
            for task in (back, forth):
                task.cancel()
            await asyncio.gather(back, forth, return_exceptions=True)
        finally:
            to_upstream.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()


@asynccontextmanager
async def blocking_proxy(upstream_port: int) -> AsyncIterator[BlockingProxy]:
    proxy = BlockingProxy(upstream_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
