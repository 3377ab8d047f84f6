"""A broker with logins, its web listener, and the keys of some people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from yarl import URL

import fanlog
from fanlog.config import Config
from fanlog.config_limits import LimitOptions
from fanlog.identity import Role, Rules
from fanlog.listeners.web.server import WebListener
from fanlog.node import Node
from fanlog.security.directory import KeyEntry, UserEntry
from fanlog.security.gate import SecurityGate
from fanlog.security.keys import digest_of, make_key, maybe_parse

PAGE = {"Sec-Fetch-Site": "same-origin"}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@dataclass
class Guarded:
    """`http` sends requests by their path alone, and has no key of its own."""

    node: Node
    broker: fanlog.Broker
    listener: WebListener
    http: aiohttp.ClientSession

    @property
    def gate(self) -> SecurityGate:
        assert self.node.security is not None
        return self.node.security

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, name: str, role: Role | None = None, *, expires_us: int = 0, **lists: Any) -> str:
        """A new key, or new rules for the key of this name."""
        rules = Rules(role=role, **lists)
        known = self.gate.directory.keys.get(name)
        if known is not None:
            self.gate.directory.put(msgspec.structs.replace(known, rules=rules))
            return ""
        text = make_key()
        parsed = maybe_parse(text)
        assert parsed is not None
        entry = KeyEntry(
            name=name,
            id=parsed.id,
            digest=digest_of(parsed.secret),
            rules=rules,
            expires_us=expires_us,
        )
        self.gate.directory.put(entry)
        return text

    async def user(self, name: str, password: str, role: Role = Role.VIEWER) -> None:
        kept = await self.gate.passwords.hash(password)
        self.gate.directory.put(UserEntry(name=name, rules=Rules(role=role), password=kept))

    def revoke(self, name: str) -> None:
        self.gate.directory.remove(self.gate.directory.keys[name])

    async def ask(
        self, method: str, path: str, *, key: str = "", body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """The status and the body of an answer."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            sent |= bearer(key)
        url = URL(self.url + path, encoded=True)
        async with self.http.request(method, url, json=body, headers=sent) as answer:
            text = await answer.text()
            is_json = "json" in answer.content_type
            return answer.status, msgspec.json.decode(text) if is_json and text else text

    async def log_in(self, **body: str) -> str:
        """Logs in as a browser does; the cookie's header."""
        async with self.http.post("/v1/login", json=body, headers=PAGE) as answer:
            assert answer.status == 200, await answer.text()
            return "fanlog_session=" + answer.cookies["fanlog_session"].value


@asynccontextmanager
async def guarded(
    web: dict[str, Any] | None = None, limits: LimitOptions | None = None, **security: Any
) -> AsyncIterator[Guarded]:
    config = Config()
    config = msgspec.structs.replace(
        config,
        web=msgspec.structs.replace(config.web, port=0, **(web or {})),
        listener=msgspec.structs.replace(config.listener, port=0),
        security=msgspec.structs.replace(config.security, auth=True, **security),
        limits=limits or config.limits,
    )
    nodes: list[Node] = []

    class Broker(fanlog.Broker):
        def _make_node(self) -> Node:
            nodes.append(super()._make_node())
            return nodes[0]

    async with Broker(None, config) as broker:
        listener = await broker.listen_web()
        jar = aiohttp.DummyCookieJar()
        base = f"http://127.0.0.1:{listener.port}"
        async with aiohttp.ClientSession(base, cookie_jar=jar) as http:
            yield Guarded(nodes[0], broker, listener, http)
