"""Attacks on each port of a broker with logins: peers that say nothing or drip, input that is too
large, wrong keys at speed, and very many addresses."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.client.core.handshake import hello
from fanlog.config import Config
from fanlog.config_security import SecurityOptions
from fanlog.errors import (
    ConnectionQuotaError,
    ForbiddenError,
    QuotaExceededError,
    RateLimitedError,
    UnauthenticatedError,
)
from fanlog.format.frames import PREFIX, FrameKind
from fanlog.identity import Allowance, Identity, Login, Role, Rules
from fanlog.security.directory import KeyEntry
from fanlog.security.keys import digest_of, make_key, maybe_parse
from tests.limits.limited import PATIENCE_SECONDS, Limited, limited, until

PORTS = ("native", "redis", "web")
AUTH = Config(security=SecurityOptions(auth=True))


def port_of(broker: Limited, name: str) -> int:
    return getattr(broker, name).port


def make_entry(text: str, name: str, **options: Any) -> KeyEntry:
    parsed = maybe_parse(text)
    assert parsed is not None
    digest = digest_of(parsed.secret)
    return KeyEntry(name=name, id=parsed.id, digest=digest, rules=Rules(role=Role.ADMIN), **options)


@asynccontextmanager
async def safe(config: Config = AUTH, **limits: Any) -> AsyncIterator[tuple[Limited, str]]:
    """A broker with logins, and a key."""
    async with limited(None, config, **limits) as broker:
        key = make_key()
        assert broker.node.security is not None
        broker.node.security.directory.put(make_entry(key, "root"))
        yield broker, key


async def works(broker: Limited, key: str) -> None:
    """An honest client is served all the while."""
    async with await fanlog.connect(broker.url, key=key) as client:
        await client.publish("t", b"x")


def hurried(config: Config = AUTH) -> Config:
    """Nobody is waited for longer than a moment. A listener looks once a second, so that less would
    cut nobody off sooner."""
    return msgspec.structs.replace(
        config,
        listener=msgspec.structs.replace(
            config.listener, hello_timeout_seconds=0.5, frame_timeout_seconds=0.5
        ),
        redis=msgspec.structs.replace(config.redis, command_timeout_seconds=0.5),
        web=msgspec.structs.replace(config.web, header_timeout_seconds=0.5),
    )


BEGINNINGS = {
    "native": hello("x")[:9],
    "redis": b"*3\r\n$7\r\nPUBLI",
    "web": b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Le",
}


@pytest.mark.parametrize("name", PORTS)
async def test_who_says_nothing_or_drips_is_cut_off_and_nobody_else_notices(name: str) -> None:
    async with safe(hurried()) as (broker, key):
        port = port_of(broker, name)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        dripping = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]

        async def drip(writer: asyncio.StreamWriter) -> None:
            for byte in BEGINNINGS[name]:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.01)

        drips = [asyncio.ensure_future(drip(writer)) for _, writer in dripping]
        await works(broker, key)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for reader, _ in (*silent, *dripping):
                try:
                    while await reader.read(1 << 16):
                        pass
                except ConnectionError:
                    pass
        await asyncio.gather(*drips)
        await until(lambda: not getattr(broker, name).connection_count())
        for _, writer in (*silent, *dripping):
            writer.close()
        await works(broker, key)


OVERSIZED = {
    # Frames that claim to be as large as can be, before and after a hello.
    "native": (
        PREFIX.pack(0x7FFFFFF8, FrameKind.HELLO) + bytes(64),
        hello("x" * 200_000),
        hello("x") + PREFIX.pack(0x7FFFFFF8, FrameKind.PING) + bytes(64),
    ),
    "redis": (
        b"*1000000000\r\n",
        b"*2\r\n$4\r\nAUTH\r\n$1000000000\r\n",
        b"*100\r\n" + b"$1\r\na\r\n" * 100,
        b"*2\r\n$4\r\nAUTH\r\n$20000\r\n" + b"x" * 20_000 + b"\r\n",
        b"x" * 10_000_000,
    ),
    "web": (
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"x" * 1_000_000 + b"\r\n\r\n",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        + b"x" * 100_000,
    ),
}


@pytest.mark.parametrize("name", PORTS)
async def test_oversized_input_before_a_login_is_refused_without_being_kept(name: str) -> None:
    async with safe() as (broker, key):
        port = port_of(broker, name)
        await works(broker, key)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for data in OVERSIZED[name]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            async with asyncio.timeout(PATIENCE_SECONDS):
                try:
                    said = await reader.read(1 << 16)
                except ConnectionError:
                    said = b""
            assert b"200 OK" not in said
            writer.transport.abort()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        # Our own buffers, and nothing near what was announced.
        assert grown_kib < 100_000
        await until(lambda: not getattr(broker, name).connection_count())
        await works(broker, key)


async def test_wrong_keys_at_speed_lock_the_address_out_on_every_listener() -> None:
    async with safe(wrong_logins_max=5) as (broker, key):
        outcomes: list[type[Exception]] = []
        for _ in range(30):
            with pytest.raises((UnauthenticatedError, RateLimitedError)) as refused:
                await fanlog.connect(broker.url, key=make_key(), reconnect=False)
            outcomes.append(type(refused.value))
        assert outcomes == [UnauthenticatedError] * 6 + [RateLimitedError] * 24
        with pytest.raises(RateLimitedError, match="too many wrong logins"):
            await fanlog.connect(broker.url, key=key, reconnect=False)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.redis.port)
        writer.write(b"AUTH %b\r\n" % key.encode())
        assert b"too many wrong logins" in await reader.readline()
        writer.close()
        async with aiohttp.ClientSession() as web:
            headers = {"Authorization": f"Bearer {key}"}
            answer = await web.get(f"{broker.http}/v1/topics", headers=headers)
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        # Later it is let in again: nobody is locked out for ever.
        broker.pay(1)
        await works(broker, key)


async def test_a_hundred_thousand_addresses_with_wrong_keys_keep_nobody_out() -> None:
    async with safe() as (broker, key):
        gate = broker.node.core.gate
        for number in range(100_000):
            host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            who = Identity(address=f"{host}:1", listener="native")
            if number < 200:
                with pytest.raises(UnauthenticatedError):
                    await gate.login(Login(key=key[:-2] + "xx"), who)
            else:
                # The rest of the path is the same, without a line in the log for each.
                broker.node.core.metering.logins.failed(Login(key=key[:-2] + "xx"), who)
        assert broker.node.core.metering.logins.lockout.entries() <= 150_000
        await works(broker, key)


async def test_a_key_has_so_many_native_connections() -> None:
    async with safe() as (broker, _):
        assert broker.node.security is not None
        key = make_key()
        entry = make_entry(key, "few", allowance=Allowance(connections=2))
        broker.node.security.directory.put(entry)
        first = await fanlog.connect(broker.url, key=key)
        async with await fanlog.connect(broker.url, key=key):
            with pytest.raises(ConnectionQuotaError, match="'few' has 2 connections"):
                await fanlog.connect(broker.url, key=key, reconnect=False)
        await until(lambda: broker.native.connection_count() == 1)
        async with await fanlog.connect(broker.url, key=key) as again:
            await again.publish("t", b"x")
        await first.close()
        await until(lambda: not len(broker.node.core.metering.connections))


async def test_a_key_has_so_many_streams_over_http_among_its_connections() -> None:
    async with safe() as (broker, _), aiohttp.ClientSession() as web:
        assert broker.node.security is not None
        key = make_key()
        entry = make_entry(key, "few", allowance=Allowance(connections=2))
        broker.node.security.directory.put(entry)
        headers = {"Authorization": f"Bearer {key}"}
        counts = broker.node.core.metering.connections
        async with web.ws_connect(f"{broker.http}/v1/ws", headers=headers):
            async with web.get(f"{broker.http}/v1/topics/t/stream", headers=headers) as events:
                assert events.status == 200
                for path in ("ws", "topics/t/stream"):
                    refused = await web.get(
                        f"{broker.http}/v1/{path}",
                        headers=headers | (HANDSHAKE if path == "ws" else {}),
                    )
                    assert refused.status == 429
                    assert (await refused.json())["code"] == "connection_quota"
                # A request is no stream, and is answered.
                answer = await web.get(f"{broker.http}/v1/topics", headers=headers)
                assert answer.status == 200
                with pytest.raises(ConnectionQuotaError):
                    await fanlog.connect(broker.url, key=key, reconnect=False)
            await until(lambda: counts._by_user == {f"key {entry.id}": 1})
        await until(lambda: not counts._by_user)


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_only_an_admin_gives_a_topic_to_somebody_else() -> None:
    async with safe() as (broker, root), aiohttp.ClientSession() as web:
        assert broker.node.security is not None
        key = make_key()
        entry = make_entry(key, "team")
        rules = Rules(role=Role.PRODUCER, manage=(">",))
        broker.node.security.directory.put(msgspec.structs.replace(entry, rules=rules))
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            await fanlog.connect(broker.url, key=key) as client,
            await fanlog.connect(broker.url, key=root) as admin,
        ):
            with pytest.raises(ForbiddenError):
                await client.create_topic("t", owner="another")
            refused = await web.post(
                f"{broker.http}/v1/topics", json={"name": "t", "owner": "another"}, headers=headers
            )
            assert refused.status == 403
            made = await client.create_topic("t")
            assert made.settings.owner == "team"
            with pytest.raises(ForbiddenError):
                await client.alter_topic("t", owner="another")
            answer = await web.post(f"{broker.http}/v1/topics", json={"name": "u"}, headers=headers)
            assert (await answer.json())["settings"]["owner"] == "team"
            answer = await web.post(
                f"{broker.http}/v1/topics/v/messages", data=b"x", headers=headers
            )
            assert answer.status == 200
            assert (await admin.describe_topic("v")).settings.owner == "team"
            assert (await admin.alter_topic("t", owner="another")).settings.owner == "another"


async def test_a_key_with_a_rate_of_its_own_is_refused_and_others_are_not() -> None:
    async with safe(pause_seconds_max=0.01) as (broker, root):
        assert broker.node.security is not None
        key = make_key()
        allowance = Allowance(messages_per_second=10, topics=1)
        entry = make_entry(key, "slow", allowance=allowance)
        broker.node.security.directory.put(entry)
        async with (
            await fanlog.connect(broker.url, key=key) as client,
            await fanlog.connect(broker.url, key=root) as other,
        ):
            await client.publish_many("mine", [b"x"] * 110)
            with pytest.raises(RateLimitedError, match="The key 'slow' publishes more than"):
                await client.publish("mine", b"y")
            await other.publish("mine", b"y")
            info = await other.describe_topic("mine")
            assert info.settings.owner == "slow"
            with pytest.raises(QuotaExceededError, match="'slow' has 1 topics"):
                await client.create_topic("second")
            # A higher quota holds at once.
            more = msgspec.structs.replace(entry, allowance=Allowance(topics=2))
            broker.node.security.directory.put(more)
            await client.create_topic("second")
            await client.publish("mine", b"y")


async def test_a_publisher_without_limits_is_not_measured_whoever_owns_its_topic() -> None:
    async with safe() as (broker, key), await fanlog.connect(broker.url, key=key) as client:
        await client.create_topic("t")
        await client.publish("t", b"x")
        metering = broker.node.core.metering
        assert broker.node.core.catalog.get("t").settings.owner == "root"
        assert not metering.on
        assert broker.node.security is not None
        limited_to = Allowance(stored_bytes=1)
        broker.node.security.directory.put(make_entry(key, "root", allowance=limited_to))
        assert metering.on
        with pytest.raises(QuotaExceededError):
            await client.publish("t", b"y")
