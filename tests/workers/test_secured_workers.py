"""Workers of a broker with TLS and logins: a client is at the core who it is."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis import asyncio as redis_asyncio

import fanlog
from fanlog.errors import FanlogError, ForbiddenError, UnauthenticatedError
from fanlog.identity import Role
from tests.tls.papers import Papers
from tests.workers.stage import PATIENCE_SECONDS, Served, served

pytestmark = pytest.mark.timeout(400)


@contextmanager
def _secured(tmp_path: Path) -> Iterator[tuple[Served, Papers, str]]:
    """A broker, its papers, and the key of an admin."""
    papers = Papers(tmp_path / "papers")
    certificate, private = papers.broker
    key_file = tmp_path / "admin.key"
    made = subprocess.run(
        [sys.executable, "-m", "fanlog", "key", "generate"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    key_file.write_text(made.stdout.strip())
    key_file.chmod(0o600)
    file = tmp_path / "fanlog.toml"
    file.write_text(
        f'[security]\nauth = true\nadmin_key_file = "{key_file}"\n'
        f'[tls]\ncertificate_file = "{certificate}"\nprivate_key_file = "{private}"\n'
        '[audit]\nlevel = "denials"\n'
    )
    with served(tmp_path, "--config", str(file)) as broker:
        yield broker, papers, made.stdout.strip()


async def test_clients_log_in_over_tls_and_act_as_themselves(tmp_path: Path) -> None:
    with _secured(tmp_path) as (broker, papers, admin_key):
        url = f"fanlogs://localhost:{broker.process.port}"
        tls: dict[str, Any] = {"tls_ca_file": papers.ca}
        async with fanlog.connect(url, key=admin_key, **tls) as admin:
            made = await admin.accounts.create_key("shop", rules=fanlog.Rules(role=Role.PRODUCER))
            async with fanlog.connect(url, key=made.key, **tls) as shop:
                await shop.publish("orders", "x")
                with pytest.raises(ForbiddenError):
                    await shop.delete_topic("orders")
            await _check_wrong_logins(url, tls)
            await _check_redis(broker, papers, made.key)
            await _check_web(broker, papers, made.key, admin_key)
            async with admin.subscribe("_fanlog.audit", start="earliest") as records:
                refused = await _refusal_of(records)
            # The client's own address, not that of a worker.
            assert refused["address"].startswith("127.0.0.1:")
            await _check_revoked(admin, url, made.key, tls)


async def _refusal_of(records: fanlog.Subscription) -> dict[str, str]:
    while True:
        record = json.loads((await records.next(PATIENCE_SECONDS)).value)
        if record.get("user") == "shop" and record.get("result") in ("denied", "refused"):
            return record


async def _check_wrong_logins(url: str, tls: dict[str, Any]) -> None:
    wrongs: list[dict[str, Any]] = [{}, {"key": "fl_wrong_wrong"}]
    for wrong in wrongs:
        with pytest.raises(UnauthenticatedError):
            async with fanlog.connect(url, **tls, **wrong):
                pass


async def _check_redis(broker: Served, papers: Papers, key: str) -> None:
    async with redis_asyncio.Redis(
        host="localhost",
        port=broker.process.redis_port,
        ssl=True,
        ssl_ca_certs=papers.ca,
        password=key,
    ) as redis:
        assert await redis.publish("orders", "y") == 0


async def _check_web(broker: Served, papers: Papers, key: str, admin_key: str) -> None:
    base = f"https://localhost:{broker.process.http_port}"
    context = ssl.create_default_context(cafile=papers.ca)
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        bearer = {"Authorization": f"Bearer {key}"}
        messages = f"{base}/v1/topics/orders/messages"
        async with http.post(messages, data="z", headers=bearer) as answer:
            assert answer.status == 200
        async with http.post(messages, data="z") as answer:
            assert answer.status == 401
        # The core has the session, whichever worker is asked.
        async with http.post(f"{base}/v1/login", json={"key": admin_key}) as answer:
            assert answer.status == 200
            (cookie,) = answer.headers.getall("Set-Cookie")
            assert "Secure" in cookie
        session = {"Cookie": cookie.partition(";")[0]}
        for _ in range(6):
            async with http.get(f"{base}/v1/whoami", headers=session) as answer:
                assert (await answer.json())["admin"]
            async with http.get(messages, headers=session) as answer:
                assert answer.status == 200


async def _check_revoked(admin: fanlog.Client, url: str, key: str, tls: dict[str, Any]) -> None:
    """A key that is taken away is cut off at every worker."""
    async with fanlog.connect(url, key=key, **tls) as shop:
        await shop.publish("orders", "x")
        await admin.accounts.revoke_key("shop")
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(FanlogError):
                await _publish_for_ever(shop)


async def _publish_for_ever(client: fanlog.Client) -> None:
    while True:
        await client.publish("orders", "x")
        await asyncio.sleep(0.05)
