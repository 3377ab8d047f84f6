"""Chooses the kind of edge by the upstream's address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import msgspec

from fanlog.client.credentials import check_credentials, split_login
from fanlog.config import Config
from fanlog.edge.node import CLIENT, EdgeNode, FanlogEdge
from fanlog.errors import ConfigError, InvalidArgumentError

_WRITE_IT = (
    "Write it as fanlog://host:port, redis://host:port or nats://host:port, such as "
    "fanlog://127.0.0.1:7420; with TLS as fanlogs://, rediss:// or tls://."
)


def make_edge(url: str, config: Config, credentials: Mapping[str, str] | None = None) -> EdgeNode:
    """The edge for an upstream's address, not started yet. `credentials` are client options: the
    edge's login at a Fanlog broker, if neither the settings nor the address have one."""
    given = url if "://" in url else f"fanlog://{url}"
    scheme = given.partition("://")[0].lower()
    if scheme in ("fanlog", "fanlogs"):
        # It may name several nodes.
        return _fanlog_edge(given, config, credentials or {})
    try:
        urlsplit(given)
    except ValueError as fault:
        raise InvalidArgumentError(f"{url!r} is not an address: {fault}. {_WRITE_IT}") from fault
    match scheme:
        case "redis" | "rediss":
            return _redis_edge(given, config)
        case "nats" | "tls":
            return _nats_edge(given, config)
        case "http" | "https" | "ws" | "wss":
            raise InvalidArgumentError(
                f"{url!r} is an address for browsers. An edge speaks to the broker's own port, "
                f"7420 by default. {_WRITE_IT}"
            )
        case _:
            raise InvalidArgumentError(f"{url!r} is not the address of a bus. {_WRITE_IT}")


def _fanlog_edge(url: str, config: Config, credentials: Mapping[str, str]) -> EdgeNode:
    located = split_login(url)
    login = located.secrets or credentials
    if config.edge.key_file:
        login = {"key_file": config.edge.key_file}
    options = msgspec.structs.replace(CLIENT, **login)
    check_credentials(options)
    return FanlogEdge(located.url, config, client_options=options)


def _redis_edge(url: str, config: Config) -> EdgeNode:
    try:
        from fanlog.edge.redis_bus import RedisEdge  # noqa: PLC0415 - it needs redis-py
    except ImportError as fault:
        raise _missing("Redis", "edge-redis", fault) from fault
    if config.edge.tls_server_name:
        raise ConfigError(
            "edge.tls_server_name has no effect with Redis: the certificate must name the host "
            "of the address. Leave the setting out."
        )
    return RedisEdge(url, _shown(url), config)


def _nats_edge(url: str, config: Config) -> EdgeNode:
    try:
        from fanlog.edge.nats_bus import NatsEdge  # noqa: PLC0415 - it needs nats-py
    except ImportError as fault:
        raise _missing("NATS", "edge-nats", fault) from fault
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    wanted = options.pop("jetstream", "false")
    if options or wanted not in ("true", "false"):
        raise InvalidArgumentError(
            f"{_shown(url)} has an unknown option. The only option is ?jetstream=true: it "
            "creates streams for subjects that have none."
        )
    address = parts._replace(query="").geturl()
    return NatsEdge(address, _shown(url), config, make_streams=wanted == "true")


def _missing(bus: str, extra: str, fault: ImportError) -> ConfigError:
    return ConfigError(
        f"An edge of {bus} needs a library that is not installed ({fault}). Install it with: "
        f"pip install 'fanlog[{extra}]'"
    )


def _shown(url: str) -> str:
    """The address without user and password, for people and log lines."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise InvalidArgumentError(f"{parts.scheme}:// is not an address. {_WRITE_IT}")
    return f"{parts.scheme}://{host}{parts.path}"
