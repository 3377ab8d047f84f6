"""A TCP proxy that cuts connections: at a byte that chance picks, in either direction, in the
middle of whatever is on its way."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards to `target_port`. With `cut_after` each connection is cut after so many bytes,
    chosen from that range; `refusing` closes new ones at once, and `mute` swallows what the
    broker says."""

    def __init__(self, target_port: int, *, seed: int = 0) -> None:
        self.target_port = target_port
        self.port = 0
        self.cuts = 0
        self.cut_after: tuple[int, int] | None = None
        self.refusing = False
        self.mute = False
        self._chance = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, to_writer)
        self._open.update(pair)
        left = [self._chance.randint(*self.cut_after)] if self.cut_after else None
        try:
            await asyncio.gather(
                self._forward(reader, to_writer, left, pair),
                self._forward(to_reader, writer, left, pair, back=True),
            )
        finally:
            for end in pair:
                self._open.discard(end)
                end.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        left: list[int] | None,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        back: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if back and self.mute:
                    continue
                if left is not None:
                    part = data[: left[0]]
                    left[0] -= len(part)
                    if len(part) < len(data):
                        writer.write(part)
                        self.cuts += 1
                        # What was written still goes out; the rest never does.
                        for end in pair:
                            end.close()
                        return
                writer.write(data)
                await writer.drain()
            writer.close()

    def cut(self) -> None:
        """Cuts every connection now."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()


@asynccontextmanager
async def proxy_to(target_port: int, *, seed: int = 0) -> AsyncIterator[Proxy]:
    proxy = Proxy(target_port, seed=seed)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await server.wait_closed()
        await asyncio.sleep(0)
