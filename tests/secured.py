"""The same tests once more, with TLS and logins on: `make test-secured`.

Every broker that a test starts in its own program gets a certificate and asks for a login. Every
client believes that certificate and shows an admin's key, unless the test says otherwise. So a test
that passes here has gone through TLS and through every permission check. Tests that are about
connections without them have the mark `plain`."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import redis
import redis.asyncio
import websockets.asyncio.client

# The suites about what each listener does, which `make test-secured` runs. Those are left out that
# take long and are about something else, as crashes.
FILES = (
    "tests/test_secured.py",
    "tests/client/test_contract.py",
    "tests/client/test_exactly_once.py",
    "tests/client/test_reconnect.py",
    "tests/client/test_schedules.py",
    "tests/client/test_streams.py",
    "tests/client/test_growth.py",
    "tests/client/test_dead_letters.py",
    "tests/client/groups/test_groups.py",
    "tests/client/queues/test_queues.py",
    "tests/client/transactions/test_transactions.py",
    "tests/listeners/redis/test_clients.py",
    "tests/listeners/redis/test_conversations.py",
    "tests/listeners/redis/test_delivery.py",
    "tests/listeners/redis/test_native.py",
    "tests/listeners/web/test_events.py",
    "tests/listeners/web/test_group_stream.py",
    "tests/listeners/web/test_messages.py",
    "tests/listeners/web/test_present_clients.py",
    "tests/listeners/web/test_publishing.py",
    "tests/listeners/web/test_resumable.py",
    "tests/listeners/web/test_topics.py",
    "tests/listeners/web/test_websocket.py",
    "tests/listeners/web/test_work.py",
)
# By a variable, because processes of pytest-xdist inherit it.
ON = os.environ.get("FANLOG_TESTS") == "secured"


@cache
def papers() -> tuple[Path, Path, Path]:
    """The files of an authority, a certificate and its key."""
    from fanlog.security.dev_certificates import open_authority  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="fanlog-secured-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority = open_authority(folder)
    certificate, key = authority.issue("broker", ["localhost", "127.0.0.1"])
    return authority.ca_file, certificate, key


@cache
def admin_key() -> str:
    from fanlog.security.keys import make_key  # noqa: PLC0415

    return make_key()


@cache
def admin_key_file() -> Path:
    file = papers()[0].with_name("admin_key")
    file.write_text(admin_key())
    file.chmod(0o600)
    return file


@cache
def ssl_context() -> ssl.SSLContext:
    """For clients that are not ours."""
    return ssl.create_default_context(cafile=papers()[0])


def client_tls() -> ssl.SSLContext | None:
    """For connections that a test makes by itself."""
    return ssl_context() if ON else None


def headers() -> dict[str, str]:
    """What a request shows that a test writes by itself."""
    return {"Authorization": f"Bearer {admin_key()}"} if ON else {}


# Servers of others, which have neither TLS nor our keys.
plain_ports: set[int] = set()


def replace(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Puts something else in the place of a function, wherever it was imported to."""
    __import__(module)
    before = getattr(sys.modules[module], name)
    after = make(before)
    for known, there in list(sys.modules.items()):
        if known.startswith("fanlog") and getattr(there, name, None) is before:
            setattr(there, name, after)


def _secured_node(before: Any) -> Any:
    def begin(node: Any, folder: Any, config: Any, *given: Any, **named: Any) -> None:
        chosen = config
        is_own = bool(given[1:]) or "authority" in named or "gate" in named
        if not (is_own or config.security.auth or config.tls.certificate_file):
            _, certificate, key = papers()
            chosen = msgspec.structs.replace(
                config,
                tls=msgspec.structs.replace(
                    config.tls, certificate_file=str(certificate), private_key_file=str(key)
                ),
                security=msgspec.structs.replace(
                    config.security, auth=True, admin_key_file=str(admin_key_file())
                ),
            )
        before(node, folder, chosen, *given, **named)

    return begin


def secure() -> None:
    """Called once, before tests are collected."""
    _secure_our_clients()
    _secure_processes()
    _secure_http()
    _secure_websockets()
    _secure_redis()


def _secure_processes() -> None:
    """Brokers in processes of their own."""
    _, certificate, key = papers()
    os.environ |= {
        "FANLOG_TLS_CERTIFICATE_FILE": str(certificate),
        "FANLOG_TLS_PRIVATE_KEY_FILE": str(key),
        "FANLOG_SECURITY_AUTH": "true",
        "FANLOG_SECURITY_ADMIN_KEY_FILE": str(admin_key_file()),
    }


def _secure_http() -> None:
    request = aiohttp.ClientSession._request
    build_url = aiohttp.ClientSession._build_url

    def secured_url(session: Any, given: Any) -> Any:
        url = build_url(session, given)
        return url.with_scheme(url.scheme + "s") if url.scheme in ("http", "ws") else url

    async def secured_request(session: Any, method: Any, url: Any, **options: Any) -> Any:
        own = dict(options.pop("headers", None) or {})
        headers = {"Authorization": f"Bearer {admin_key()}", **own}
        options.setdefault("ssl", ssl_context())
        return await request(session, method, url, headers=headers, **options)

    aiohttp.ClientSession._build_url = secured_url  # type: ignore[method-assign]
    aiohttp.ClientSession._request = secured_request  # type: ignore[method-assign]


def _secure_websockets() -> None:
    plain = websockets.asyncio.client.connect

    class Connect(plain):  # type: ignore[misc, valid-type]
        def __init__(self, uri: str, **options: Any) -> None:
            own = dict(options.pop("additional_headers", None) or {})
            headers = {"Authorization": f"Bearer {admin_key()}", **own}
            secured = uri.replace("ws://", "wss://", 1)
            super().__init__(secured, ssl=ssl_context(), additional_headers=headers, **options)

    websockets.asyncio.client.connect = Connect  # type: ignore[misc]


def _secure_redis() -> None:
    for kind in (redis.Redis, redis.asyncio.Redis):
        plain = kind.__init__

        def begin(client: Any, plain: Any = plain, **options: Any) -> None:
            if options.get("port") not in plain_ports and "connection_pool" not in options:
                secrets = {"ssl": True, "ssl_ca_certs": str(papers()[0]), "password": admin_key()}
                options = secrets | options
            plain(client, **options)

        kind.__init__ = begin  # type: ignore[method-assign]


def wrap_wire(sock: socket.socket, port: int) -> socket.socket:
    """A raw connection of a test to a Redis listener, logged in."""
    if not ON or port in plain_ports:
        return sock
    wrapped = ssl_context().wrap_socket(sock, server_hostname="127.0.0.1")
    key = admin_key().encode()
    wrapped.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(key), key))
    assert wrapped.recv(5) == b"+OK\r\n"
    return wrapped


def _secure_our_clients() -> None:
    from fanlog.identity import Login  # noqa: PLC0415
    from fanlog.node import Node  # noqa: PLC0415

    Node.__init__ = _secured_node(Node.__init__)
    replace("fanlog.client.address", "parse_url", lambda f: lambda url: f(url)._replace(tls=True))

    def believing(before: Any) -> Any:
        def context(options: Any) -> ssl.SSLContext:
            made = before(options)
            if not options.tls_ca_file:
                made.load_verify_locations(papers()[0])
            return made

        return context

    def asking(before: Any) -> Any:
        async def login(options: Any) -> Login | None:
            return await before(options) or Login(key=admin_key())

        return login

    replace("fanlog.client.tls", "client_context", believing)
    replace("fanlog.client.credentials", "get_login", asking)
    replace(
        "fanlog.client.credentials",
        "get_login_now",
        lambda f: lambda options: f(options) or Login(key=admin_key()),
    )


if __name__ == "__main__":
    print(*FILES)
