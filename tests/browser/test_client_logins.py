"""The browser client logs in to a real broker: with a token that is renewed without a disconnect,
with one that is refused, and where a topic is forbidden."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.browser.node import MODULE, PACKAGE, find_node
from tests.listeners.web.guarded import Guarded, guarded

KEY = ed25519.Ed25519PrivateKey.generate()
TRANSPORTS = ["websocket", "sse"]


def sign(seconds: float) -> str:
    claims = {
        "sub": "ann",
        "iss": "https://issuer.test",
        "aud": "fanlog",
        "exp": int(time() + seconds),
        "fanlog_role": "viewer",
        "fanlog_subscribe": ["open.>"],
    }
    return jwt.encode(claims, KEY, "EdDSA")


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Guarded]:
    file = tmp_path / "issuer.pem"
    public = KEY.public_key()
    file.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    async with guarded(
        token_key_file=str(file),
        token_issuer="https://issuer.test",
        token_audience="fanlog",
        token_leeway_seconds=0,
        expiry_warning_seconds=500,
    ) as site:
        await site.broker.create_topic("open.a")
        await site.broker.create_topic("secret")
        yield site


class Page:
    """The client in Node."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def next(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of this kind, with these fields."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            if said["event"] == event and fields.items() <= said.items():
                return said
        raise AssertionError(f"the client ended before {event}")


@asynccontextmanager
async def page(
    tmp_path: Path, site: Guarded, transport: str, tokens: str, *topics: str
) -> AsyncIterator[Page]:
    folder = tmp_path / "browser"
    if not folder.exists():
        (folder / "test").mkdir(parents=True)
        shutil.copy(MODULE / "fanlog.js", folder / "fanlog.js")
        shutil.copy(PACKAGE / "package.json", folder)
        shutil.copy(PACKAGE / "test" / "login.mjs", folder / "test")
    process = await asyncio.create_subprocess_exec(
        find_node(),
        "test/login.mjs",
        *(site.url, transport, tokens, *topics),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Page(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_token_is_renewed_before_it_expires(tmp_path: Path, transport: str) -> None:
    async with serving(tmp_path) as site:
        # The first one ends soon, though not before a slow machine has used it.
        tokens = json.dumps([sign(400), sign(3600)])
        async with page(tmp_path, site, transport, tokens, "open.a") as client:
            first = await client.next("state", state="open")
            assert first["asked"] == 1
            await client.next("expiring")
            # It shows the next one.
            while not _long_lived(site):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            await site.broker.publish("open.a", "after")
            got = await client.next("message", value="after")
            # The same connection, where there is one that can be told.
            assert got["connection"] == first["connection"]


def _long_lived(site: Guarded) -> bool:
    later_us = site.node.core.now_us() + 1_000_000_000
    peers = [stream.protocol for stream in site.listener.streams]
    guests = [getattr(getattr(talk, "_hearer", talk), "guest", None) for talk in peers]
    return any(guest is not None and guest.expires_us > later_us for guest in guests)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tokens", ['["bad"]', "bad", ""], ids=["function", "text", "none"])
async def test_a_token_that_is_refused_closes_the_client(
    tmp_path: Path, transport: str, tokens: str
) -> None:
    async with (
        serving(tmp_path) as site,
        page(tmp_path, site, transport, tokens, "open.a") as client,
    ):
        refused = await client.next("refused")
        assert refused["code"] == "unauthenticated"
        assert await asyncio.wait_for(client.process.wait(), 60) == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_old_token_is_made_anew_once(tmp_path: Path, transport: str) -> None:
    async with (
        serving(tmp_path) as site,
        page(tmp_path, site, transport, json.dumps(["old", sign(3600)]), "open.a") as client,
    ):
        await client.next("ready", topic="open.a")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_topic_that_is_forbidden_ends_its_subscription_only(
    tmp_path: Path, transport: str
) -> None:
    async with serving(tmp_path) as site:
        # Without a role it may not even ask how the broker is.
        key = site.key("board", subscribe=("open.>",))
        async with page(tmp_path, site, transport, key, "secret", "open.a") as client:
            seen = {}
            while len(seen) < 2:
                line = json.loads(await client.process.stdout.readline())  # type: ignore[union-attr]
                if line["event"] in ("ready", "refused"):
                    seen[line["topic"]] = line.get("code", "ready")
            assert seen == {"secret": "forbidden", "open.a": "ready"}
            # Revoked, it is told so.
            site.revoke("board")
            await client.next("state", state="closed")
