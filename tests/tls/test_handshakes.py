"""Peers that begin a handshake and do not end it, and other nonsense at a port with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import socket
import ssl

import pytest

import fanlog
from fanlog.client.core.handshake import hello
from fanlog.config import ListenerOptions
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.listeners.tls import TlsSocket
from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, Serving, serving

HALF = 1000


def _client_hello(papers: Papers) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=papers.ca)
    shaking = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


def _handshakes(served: Serving) -> int:
    assert served.native._handshakes is not None
    return len(served.native._handshakes)


async def _until(served: Serving, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while _handshakes(served) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_thousand_half_open_handshakes_keep_nobody_out(papers: Papers) -> None:
    begin = _client_hello(papers)
    options = papers.options(handshakes_max=200, handshake_timeout_seconds=3600)
    held: list[socket.socket] = []
    async with serving(options) as served:
        try:
            for n in range(HALF):
                sock = socket.create_connection((HOST, served.native.port))
                held.append(sock)
                # Nothing at all, a byte, half a hello, or a whole one without an answer.
                sock.send((b"", begin[:1], begin[:80], begin)[n % 4])
                if n % 50 == 0:
                    await asyncio.sleep(0)
            await _until(served, 200)
            async with fanlog.connect(served.url, tls_ca_file=papers.ca) as client:
                await client.publish("still", b"works")
            assert served.node._admission.connections <= 202
        finally:
            for sock in held:
                sock.close()
        await _until(served, 0)
        assert served.node._admission.connections == 0


async def test_a_handshake_that_takes_too_long_is_cut(papers: Papers) -> None:
    options = papers.options(handshake_timeout_seconds=0.2)
    async with serving(options) as served:
        reader, writer = await asyncio.open_connection(HOST, served.native.port)
        begin = _client_hello(papers)
        # It drips: each byte is no new beginning.
        dripping = asyncio.create_task(_drip(writer, begin))
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        dripping.cancel()
        writer.close()
        assert _handshakes(served) == 0


async def test_a_stalled_loop_cuts_no_handshake_that_waited_for_it(papers: Papers) -> None:
    async with serving(papers.options(handshake_timeout_seconds=60)) as served:
        _, writer = await asyncio.open_connection(HOST, served.native.port)
        await _until(served, 1)
        handshakes = served.native._handshakes
        assert handshakes is not None
        assert handshakes._sweeper is not None
        handshakes._sweeper.cancel()
        # As if the loop had stood still for as long: what has come meanwhile was not read.
        handshakes._swept_at -= 100
        for handshake in handshakes._open:
            handshake.began_at -= 100
        handshakes._sweep()
        assert _handshakes(served) == 1
        handshakes._sweeper.cancel()
        handshakes._sweep()
        assert _handshakes(served) == 0
        writer.close()


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)


async def test_nonsense_is_refused(papers: Papers) -> None:
    begin = _client_hello(papers)
    async with serving(papers.options(), redis=True, web=True) as served:
        assert served.redis is not None
        assert served.web is not None
        for port in (served.native.port, served.redis.port, served.web.port):
            for data in (b"\0" * 100, begin[:60] + os.urandom(500), b"\x16\x03" + b"\xff" * 50):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(data)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
                writer.close()
        async with fanlog.connect(served.url, tls_ca_file=papers.ca) as client:
            await client.publish("still", b"works")


async def test_too_many_connections_are_told_over_tls(papers: Papers) -> None:
    few = ListenerOptions(port=0, connections_max=1, drain_seconds=0.2)
    async with (
        serving(papers.options(), listener=few) as served,
        fanlog.connect(served.url, tls_ca_file=papers.ca),
    ):
        # If its hello is not read before the close, it may not get to read the answer.
        with pytest.raises(fanlog.FanlogError, match=r"too many connections|greeting"):
            await fanlog.connect(served.url, tls_ca_file=papers.ca)


async def test_closed_connections_leave_nothing_behind(papers: Papers) -> None:
    """By reference counts alone: a full collection of garbage hardly ever comes."""
    async with serving(papers.options(), web=True) as served:
        assert served.web is not None
        context = ssl.create_default_context(cafile=papers.ca)
        gc.collect()
        gc.disable()
        try:
            for port in (served.native.port, served.web.port):
                for data in (
                    b"",
                    hello("x"),
                    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                ):
                    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
                    writer.write(data)
                    await asyncio.sleep(0.02)
                    writer.transport.abort()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while served.node._admission.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
            # aiohttp has cycles of its own; what a socket needs of OpenSSL's memory is free.
            kept = [one for one in gc.get_objects() if isinstance(one, SocketConnection)]
            assert not kept, [gc.get_referrers(one) for one in kept]
            sockets = [one for one in gc.get_objects() if isinstance(one, TlsSocket)]
            assert all(one._sslobj is None for one in sockets)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            gc.enable()


async def test_new_keys_that_nobody_takes(papers: Papers) -> None:
    """A peer that asks for new keys over and over, and reads nothing, is cut, and the loop is not
    kept busy. `openssl s_client` asks with the command K."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    async with serving(papers.options()) as served:
        where = f"{HOST}:{served.native.port}"
        process = await asyncio.create_subprocess_exec(
            program,
            *("s_client", "-connect", where, "-CAfile", papers.ca, "-tls1_3"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdin is not None
        try:
            for _ in range(200):
                process.stdin.write(b"K\n")
                await process.stdin.drain()
            async with fanlog.connect(served.url, tls_ca_file=papers.ca) as client:
                await client.publish("still", b"works")
        finally:
            process.kill()
            await process.wait()
