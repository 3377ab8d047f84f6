"""TLS on the Redis listener, with Redis's own client and command."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, serving


async def test_redis_clients_publish_and_read_over_tls(papers: Papers) -> None:
    async with serving(papers.options(), redis=True) as served:
        assert served.redis is not None
        url = f"rediss://{HOST}:{served.redis.port}"
        client: Any = redis.asyncio.Redis.from_url(url, ssl_ca_certs=papers.ca)
        async with client, client.pubsub() as heard:
            await heard.subscribe("news")
            assert (await heard.get_message(timeout=PATIENCE_SECONDS))["type"] == "subscribe"
            # In one pipeline, larger than a record.
            pipeline = client.pipeline(transaction=False)
            for n in range(200):
                pipeline.publish("news", b"%d" % n + b" " * 1000)
            assert await pipeline.execute() == [1] * 200
            got = [await heard.get_message(timeout=PATIENCE_SECONDS) for _ in range(200)]
            assert [int(message["data"]) for message in got] == list(range(200))


async def test_a_redis_client_without_tls_is_told_so(papers: Papers) -> None:
    async with serving(papers.options(), redis=True) as served:
        assert served.redis is not None
        client = redis.asyncio.Redis(host=HOST, port=served.redis.port)
        with pytest.raises(redis.RedisError, match="rediss://"):
            await client.publish("news", "hello")
        await client.aclose()


async def test_redis_cli_over_tls(papers: Papers) -> None:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("Debian's package redis-tools has redis-cli")
    async with serving(papers.options(), redis=True) as served:
        assert served.redis is not None
        where = ["-h", HOST, "-p", str(served.redis.port), "--tls", "--cacert", papers.ca]
        done = await asyncio.to_thread(
            subprocess.run, [program, *where, "PING"], capture_output=True, check=False
        )
        assert done.stdout.strip() == b"PONG", done.stderr


async def test_tls_1_2_is_refused(papers: Papers) -> None:
    old = ssl.create_default_context(cafile=papers.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(papers.options(), redis=True) as served:
        assert served.redis is not None
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(HOST, served.redis.port, ssl=old)


async def test_a_client_with_tls_at_a_plain_port_is_told_so(papers: Papers) -> None:
    """Redis's own answer to it is no TLS either, and every library says so."""
    async with serving(papers.options(certificate_file=""), redis=True) as served:
        assert served.redis is not None
        url = f"rediss://{HOST}:{served.redis.port}"
        client = redis.asyncio.Redis.from_url(url, ssl_ca_certs=papers.ca)
        with pytest.raises(redis.ConnectionError, match=r"(?i)wrong version number|record layer"):
            await client.ping()
        await client.aclose()
