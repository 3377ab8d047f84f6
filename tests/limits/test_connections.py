"""Connections per address, on every listener together."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

import fanlog
from fanlog.errors import ConnectionQuotaError
from tests.limits.limited import PATIENCE_SECONDS, limited, until


async def said_at_once(port: int) -> bytes:
    """What a listener says to a peer that only connects."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    finally:
        writer.close()


async def test_an_address_has_so_many_connections_over_all_listeners() -> None:
    async with limited(connections_per_address=3) as broker:
        held = [
            socket.create_connection(("127.0.0.1", port))
            for port in (broker.native.port, broker.redis.port, broker.web.port)
        ]
        counts = broker.node._admission.counts
        await until(lambda: counts._by_source == {"127.0.0.1": 3})
        with pytest.raises(ConnectionQuotaError, match=r"limits\.connections_per_address"):
            await fanlog.connect(broker.url, wait_seconds=0, reconnect=False)
        assert b"-ERR max number of clients reached: The address 127.0.0.1 has 3" in (
            await said_at_once(broker.redis.port)
        )
        told = await said_at_once(broker.web.port)
        assert told.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b'"code":"connection_quota"' in told
        # Another address of the same machine has connections of its own.
        other = socket.create_connection(
            ("127.0.0.1", broker.native.port), source_address=("127.0.0.2", 0)
        )
        await until(lambda: len(counts) == 2)
        for sock in (*held, other):
            sock.close()
        await until(lambda: not len(counts))
        async with await fanlog.connect(broker.url) as client:
            await client.publish("t", b"x")


async def test_connections_that_are_taken_over_by_streams_are_counted_once() -> None:
    async with limited(connections_per_address=2) as broker:
        counts = broker.node._admission.counts
        async with aiohttp.ClientSession() as web, web.ws_connect(f"{broker.http}/v1/ws"):
            assert counts._by_source == {"127.0.0.1": 1}
            async with web.ws_connect(f"{broker.http}/v1/ws"):
                assert counts._by_source == {"127.0.0.1": 2}
                with pytest.raises(aiohttp.ClientError):
                    await web.ws_connect(f"{broker.http}/v1/ws")
        await until(lambda: not len(counts))
        assert broker.node._admission.connections == 0


async def test_exempt_addresses_are_not_counted() -> None:
    async with (
        limited(connections_per_address=1, exempt_addresses="127.0.0.0/8") as broker,
        await fanlog.connect(broker.url) as first,
        await fanlog.connect(broker.url) as second,
    ):
        await first.publish("t", b"x")
        await second.publish("t", b"x")
