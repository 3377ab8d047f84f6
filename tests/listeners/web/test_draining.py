"""A server that stops sends its clients elsewhere. Slow readers and crowds cost nobody anything."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop

from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.events import EventStream
from fanlog.listeners.web.following import Following
from fanlog.listeners.web.rates import Rate
from fanlog.listeners.web.session import WebSession
from tests.client.ways import until
from tests.listeners.web.conftest import Serving
from tests.listeners.web.event_source import following
from tests.listeners.web.wire import handshake, raw


async def test_draining_answers_what_is_under_way_and_sends_clients_away(
    serving: Serving,
) -> None:
    async with serving(reconnect_spread_seconds=5) as site, raw(site.listener.port) as client:
        await client.told("welcome")
        for i in range(20):
            client.say(op="publish", topic="t", text=str(i), id=i)
        answered = [(await client.told())["id"] for _ in range(1)]
        loop = asyncio.get_running_loop()
        draining = asyncio.create_task(site.listener.drain(loop.time() + 30))
        while True:
            frame = await client.told()
            if frame.get("type") == "reconnect":
                break
            answered.append(frame["id"])
        assert answered == list(range(len(answered)))
        assert 0 <= frame["after_ms"] <= 5000
        assert frame["reason"] == "draining"
        assert await client.close_code() == 1012
        await draining
        assert not site.listener.streams
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", site.listener.port)


async def test_clients_come_back_at_different_times(serving: Serving) -> None:
    async with serving() as site:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(raw(site.listener.port)) for _ in range(8)]
            for client in clients:
                await client.told("welcome")
            draining = asyncio.create_task(
                site.listener.drain(asyncio.get_running_loop().time() + 30)
            )
            delays = {(await client.told("reconnect"))["after_ms"] for client in clients}
            assert len(delays) > 1
        await draining


async def test_draining_tells_readers_of_events_when_to_come_back(serving: Serving) -> None:
    async with serving() as site, following(site.http, "/v1/topics/t/stream") as source:
        await source.next("subscribed")
        draining = asyncio.create_task(site.listener.drain(asyncio.get_running_loop().time() + 30))
        event = await source.next("reconnect")
        assert event.data["after_ms"] == source.retry_ms
        with pytest.raises(EOFError):
            await source.next()
        await draining


async def test_a_lost_bus_is_told_to_everybody(serving: Serving) -> None:
    async with (
        serving() as site,
        raw(site.listener.port) as client,
        following(site.http, "/v1/topics/t/stream") as source,
    ):
        await client.told("welcome")
        await source.next("subscribed")
        for up in (False, True):
            for tell in site.listener.bus.on_state:
                tell(up)
            assert (await client.told("upstream"))["up"] is up
            assert (await source.next("upstream")).data["up"] is up


@pytest.mark.parametrize("path", ["/v1/ws", "/v1/topics/t/stream"])
async def test_a_reader_that_takes_nothing_costs_nobody_anything(
    serving: Serving, path: str
) -> None:
    async with serving() as site, raw(site.listener.port) as reader:
        await site.broker.create_topic("t")
        await reader.ask(op="subscribe", target="t")
        stuck = socket.create_connection(("127.0.0.1", site.listener.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if path == "/v1/ws":
            stuck.sendall(handshake("/v1/topics/t/stream"))
        else:
            stuck.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        value = b"x" * 100_000
        got = 0
        while len(site.listener.streams) < 2:  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.01)
        for _ in range(120):
            await site.broker.publish("t", value)
            got += len((await reader.told("messages"))["messages"])
        assert got == 120
        held = max(stream.kept_bytes for stream in site.listener.streams)
        assert 0 < held < 2_000_000
        stuck.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_slow_reader_gets_everything_in_the_end(
    serving: Serving, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    run(_read_slowly(serving))


async def _read_slowly(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as reader:
        await site.broker.create_topic("t")
        await reader.ask(op="subscribe", target="t")
        for i in range(200):
            await site.broker.publish("t", str(i).encode() + b"x" * 50_000)
        seen: list[int] = []
        while len(seen) < 200:
            frame = await reader.told("messages")
            seen += [m["offset"] for m in frame["messages"]]
        assert seen == list(range(200))


async def test_connections_wait_in_the_kernel_until_they_are_let_in(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        listener, open_to = site.listener, [5]

        def wait_seconds() -> float:
            return 0.01 if listener.connection_count() >= open_to[0] else 0.0

        monkeypatch.setattr(listener, "wait_seconds", wait_seconds)
        pairs = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(30)]
        while listener.connection_count() < 5:  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.01)
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert listener.connection_count() == 5
        open_to[0] = 100
        while listener.connection_count() < 30:  # noqa: ASYNC110 - a counter, no event
            await asyncio.sleep(0.01)
        for _, writer in pairs:
            writer.close()


def test_a_rate_makes_those_wait_that_are_too_fast() -> None:
    rate = Rate(10, now=0.0)
    for _ in range(10):
        assert rate.wait_seconds(0.0) == 0
        rate.take(1, 0.0)
    rate.take(5, 0.0)
    assert rate.wait_seconds(0.0) == pytest.approx(0.5)
    assert rate.wait_seconds(0.5) == 0
    # A second's worth is all that a quiet time saves up.
    rate.take(11, 1000.0)
    assert rate.wait_seconds(1000.0) == pytest.approx(0.1)
    # Clocks that go back take nothing away.
    assert rate.wait_seconds(999.0) == pytest.approx(0.1)
    unlimited = Rate(0, now=0.0)
    unlimited.take(10**9, 0.0)
    assert unlimited.wait_seconds(0.0) == 0


async def test_a_crowd_that_says_nothing_or_nonsense_is_not_noticed(serving: Serving) -> None:
    """Each needs two open files here. `FANLOG_TEST_CROWD=10000` makes it as large as that."""
    limits = {"header_timeout_seconds": 60, "accepts_per_second_max": 0}
    size = int(os.environ.get("FANLOG_TEST_CROWD", "1000"))
    async with serving(**limits) as site, raw(site.listener.port) as client:
        port = site.listener.port
        await client.ask(op="subscribe", target="t")
        nonsense = (
            b"",
            b"\x00\xff" * 50,
            b"GET /v1/ws HTTP/1.1\r\nHost: x\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
            handshake() + b"\xff" * 40,
        )
        crowd: list[socket.socket] = []
        for i in range(size):
            sock = socket.create_connection(("127.0.0.1", port))
            crowd.append(sock)
            sock.send(nonsense[i % len(nonsense)])
            if i % 50 == 0:
                await site.broker.publish("t", str(i).encode())
                frame = await client.told("messages")
                assert frame["messages"][0]["text"] == str(i)
        for sock in crowd:
            sock.close()
        assert (await client.ask(op="ping"))["ok"] == {}


async def test_closed_connections_leave_nothing_behind(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("t", partitions=2)
        # aiohttp and the loop have cycles of their own; only ours are looked for.
        gc.disable()
        try:
            ours = [WebConnection, WebSession, EventStream, Following]
            for _ in range(3):
                async with raw(site.listener.port) as client:
                    await client.ask(op="subscribe", target="t")
                async with following(site.http, "/v1/topics/t/stream") as source:
                    await source.next("subscribed")
            while site.listener.streams:  # noqa: ASYNC110 - a counter, no event
                await asyncio.sleep(0.01)
            await site.broker.publish("t", b"x")
            await asyncio.sleep(0)
            kept = [one for one in gc.get_objects() if type(one) in ours]
            assert not kept, [(one, gc.get_referrers(one)) for one in kept]
        finally:
            gc.enable()


async def test_a_reader_may_skip_what_it_is_too_slow_for(serving: Serving) -> None:
    async with serving() as site, raw(site.listener.port) as reader:
        await site.broker.create_topic("t", tail_bytes=65_536)
        await reader.ask(op="subscribe", target="t", policy="skip")
        transport = cast("asyncio.Transport", reader.writer.transport)
        transport.pause_reading()
        for _ in range(400):
            await site.broker.publish("t", b"x" * 50_000)
        transport.resume_reading()
        expected, skipped = 0, 0
        while expected < 400:
            frame = await reader.told()
            if frame["type"] == "gap":
                assert (frame["reason"], frame["from"].split(".")[0]) == ("skipped", str(expected))
                skipped += int(frame["to"].split(".")[0]) - expected
                expected = int(frame["to"].split(".")[0])
            for message in frame.get("messages", ()):
                assert message["offset"] == expected
                expected += 1
        assert skipped


@pytest.mark.parametrize("path", ["/v1/topics/t/stream", "/v1/topics/t/stream?websocket"])
async def test_a_peer_that_takes_nothing_for_long_is_gone(serving: Serving, path: str) -> None:
    async with serving(ping_seconds=1) as site:
        await site.broker.create_topic("t")
        path, _, upgrade = path.partition("?")
        hello = handshake(path) if upgrade else f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", site.listener.port)) as stuck:
            stuck.sendall(hello)
            while not site.listener.streams:  # noqa: ASYNC110 - a counter, no event
                await asyncio.sleep(0.01)
            for _ in range(100):
                await site.broker.publish("t", b"x" * 100_000)
            while site.listener.streams:  # noqa: ASYNC110 - a counter, no event
                await asyncio.sleep(0.05)


async def test_a_stream_that_begins_while_the_server_drains_is_sent_away(
    serving: Serving,
) -> None:
    async with serving() as site:
        # Its connection stays open, and carries the next request.
        async with site.http.get("/v1/status") as answer:
            await answer.read()
        draining = asyncio.create_task(site.listener.drain(asyncio.get_running_loop().time() + 60))
        async with following(site.http, "/v1/topics/t/stream") as source:
            assert (await source.next("subscribed")).data["targets"] == ["t"]
            assert (await source.next("reconnect")).data["reason"] == "draining"
        await draining


async def test_an_answer_that_nobody_reads_is_dropped(serving: Serving) -> None:
    async with serving(ping_seconds=0.2) as site:
        for _ in range(8):
            await site.broker.publish("t", bytes(900_000))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", site.listener.port))
            client.sendall(b"GET /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: site.listener.connection_count() > 0)
            await until(lambda: site.listener.connection_count() == 0)
