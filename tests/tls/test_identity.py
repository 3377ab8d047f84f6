"""A client certificate is a login, on every listener."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
import pytest
import redis
import redis.asyncio

import fanlog
from fanlog.config_security import SecurityOptions, UserTable
from fanlog.errors import ForbiddenError, UnauthenticatedError
from fanlog.identity import Role
from tests.tls.papers import HOST, Papers, serving

USERS = {"robot": UserTable(role=Role.PRODUCER, certificates=("robot.example.com",))}


def _guarded(papers: Papers) -> dict[str, Any]:
    return {
        "tls": papers.options(client_ca_file=papers.ca),
        "security": SecurityOptions(auth=True),
        "users": USERS,
        "redis": True,
        "web": True,
    }


async def test_the_names_of_a_certificate_say_who_it_is(papers: Papers) -> None:
    known = papers.client("robot.example.com")
    context = ssl.create_default_context(cafile=papers.ca)
    context.load_cert_chain(known["tls_certificate_file"], known["tls_key_file"])
    async with serving(**_guarded(papers)) as served:
        assert served.redis is not None
        assert served.web is not None
        async with fanlog.connect(served.url, **known) as client:
            await client.publish("orders", b"tea")
            with pytest.raises(ForbiddenError):
                async with client.subscribe("orders", start="earliest") as orders:
                    await orders.next(30)
        url = f"rediss://{HOST}:{served.redis.port}"
        files = {
            "ssl_certfile": known["tls_certificate_file"],
            "ssl_keyfile": known["tls_key_file"],
        }
        library: Any = redis.asyncio.Redis
        async with library.from_url(url, ssl_ca_certs=papers.ca, **files) as talker:
            assert await talker.execute_command("ACL", "WHOAMI") == b"robot"
        base = f"https://{HOST}:{served.web.port}"
        async with (
            aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(ssl=context)) as http,
            http.get("/v1/whoami") as answer,
        ):
            assert "robot" in await answer.text()


async def test_a_name_that_nobody_has_is_nobody(papers: Papers) -> None:
    """Nor is a certificate that shows the right name and comes from somebody else."""
    async with serving(**_guarded(papers)) as served:
        with pytest.raises(UnauthenticatedError):
            await fanlog.connect(served.url, **papers.client("other.example.com"))
        stranger = Papers(papers.folder / "stranger").client("robot.example.com")
        stranger["tls_ca_file"] = papers.ca
        with pytest.raises(fanlog.FanlogError, match="refused this client's certificate"):
            await fanlog.connect(served.url, **stranger)
