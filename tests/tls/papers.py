"""An authority, certificates, and a broker that uses them, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.config_security import TlsOptions
from fanlog.config_web import WebOptions
from fanlog.listeners.redis.server import RedisListener
from fanlog.listeners.server import NativeListener
from fanlog.listeners.web.server import WebListener
from fanlog.node import Node
from fanlog.security.dev_certificates import DevAuthority, open_authority

HOST = "127.0.0.1"
PATIENCE_SECONDS = 100.0


@dataclass
class Papers:
    """Files of an authority, a broker and a client."""

    folder: Path
    authority: DevAuthority = field(init=False)

    def __post_init__(self) -> None:
        self.authority = open_authority(self.folder)
        self.broker = self.authority.issue("broker", ["localhost", HOST])
        self.ca = str(self.authority.ca_file)

    def options(self, **more: Any) -> TlsOptions:
        certificate, key = self.broker
        given: dict[str, Any] = {"certificate_file": str(certificate), "private_key_file": str(key)}
        return TlsOptions(**(given | more))

    def client(self, name: str = "billing") -> dict[str, Any]:
        """Options of a client that shows a certificate."""
        certificate, key = self.authority.issue(f"client-{name}", [name], client=True)
        return {
            "tls_ca_file": self.ca,
            "tls_certificate_file": str(certificate),
            "tls_key_file": str(key),
        }


def config(tls: TlsOptions, **more: Any) -> Config:
    """Settings with free ports."""
    base = Config(
        listener=ListenerOptions(port=0, drain_seconds=0.2),
        redis=RedisOptions(port=0),
        web=WebOptions(port=0),
    )
    return msgspec.structs.replace(base, tls=tls, **more)


@dataclass
class Serving:
    node: Node
    native: NativeListener
    redis: RedisListener | None = None
    web: WebListener | None = None

    @property
    def url(self) -> str:
        return f"fanlogs://{HOST}:{self.native.port}"


@asynccontextmanager
async def serving(
    tls: TlsOptions, *, redis: bool = False, web: bool = False, **more: Any
) -> AsyncIterator[Serving]:
    """A broker in memory on free ports."""
    node = Node(None, config(tls, **more))
    node.start()
    try:
        served = Serving(node, node.listen())
        if redis:
            served.redis = node.listen_redis()
        if web:
            served.web = await node.listen_web()
        yield served
    finally:
        await node.stop()
