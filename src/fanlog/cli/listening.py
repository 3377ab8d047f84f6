"""The ports of a process that serves clients: whether its settings fit, its listeners, and their
addresses for people."""

from __future__ import annotations

import ipaddress
import logging
from itertools import combinations
from typing import TYPE_CHECKING

from fanlog.cli.settings import Settings
from fanlog.config import Config
from fanlog.errors import ConfigError

if TYPE_CHECKING:
    from fanlog.listeners.redis.server import RedisListener
    from fanlog.listeners.web.server import WebListener
    from fanlog.node import Node

logger = logging.getLogger("fanlog")


def check_ports(config: Config) -> None:
    ports = [
        ("Fanlog's own clients", "--port", config.listener.host, config.listener.port),
        ("Redis clients", "--redis-port", config.redis.host, config.redis.port),
        ("HTTP clients", "--http-port", config.web.host, config.web.port),
    ]
    for (who, flag, host, port), (others, other_flag, *other) in combinations(ports, 2):
        if port > 0 and [host, port] == other:
            raise ConfigError(
                f"{who} and {others} can't have the same port, {port}: give each another, with "
                f"{flag} and {other_flag}."
            )


def listen_redis(node: Node, settings: Settings) -> RedisListener | None:
    """The Redis listener. If nobody chose its port and another has it, it is left out."""
    setting = settings.by_path["redis.port"]
    if settings.config.redis.port < 0:
        return None
    try:
        return node.listen_redis()
    except ConfigError as fault:
        if setting.source != "default":
            raise
        logger.warning("Redis clients can't connect: %s", fault)
        return None


async def listen_web(node: Node, settings: Settings) -> WebListener | None:
    """The web listener. If nobody chose its port and another has it, it is left out."""
    if settings.config.web.port < 0:
        return None
    try:
        return await node.listen_web()
    except ConfigError as fault:
        if settings.by_path["web.port"].source != "default":
            raise
        logger.warning("HTTP clients can't connect: %s", fault)
        return None


def check_open(config: Config, *, guarded: bool) -> None:
    """Without logins everybody who reaches a port may do everything. So a setting has to allow that
    other machines reach it, and then every start warns."""
    hosts = _open_hosts(config)
    if guarded:
        if hosts and not config.tls.certificate_file:
            logger.warning(
                "%s is %s, without TLS: keys and messages can be read on their way. Set "
                "tls.certificate_file, or let a proxy or an edge with TLS stand in front.",
                *hosts[0],
            )
        return
    for option, host in hosts:
        where = f"{option} is {host or 'every address'}, and clients need not log in"
        if not config.security.allow_open:
            raise ConfigError(
                f"{where}: everybody who can reach it could read, publish and delete. Turn logins "
                "on (security.auth = true, and security.admin_key_file with a key of: fanlog key "
                "generate), or listen on 127.0.0.1. To allow it: --allow-open, or "
                "security.allow_open = true."
            )
        logger.warning(
            "%s: everybody who can reach it can read, publish and delete. Turn logins on "
            "(security.auth), use 127.0.0.1, or let a firewall decide who can reach it.",
            where,
        )


def _open_hosts(config: Config) -> list[tuple[str, str]]:
    """The addresses that other machines reach, of listeners that are on."""
    ports = (
        ("listener.host", config.listener.host, True),
        ("redis.host", config.redis.host, config.redis.port >= 0 and not config.redis.password),
        ("web.host", config.web.host, config.web.port >= 0),
    )
    return [(option, host) for option, host, on in ports if on and not is_loopback(host)]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def redis_line(redis: RedisListener | None) -> str:
    if redis is None:
        return "off"
    host = f"[{redis.host}]" if ":" in redis.host else redis.host
    scheme = "rediss" if redis.secure else "redis"
    return f"{scheme}://{host}:{redis.port}, for any client of Redis Pub/Sub"


def web_line(site: WebListener | None, *, dashboard: bool = False) -> str:
    """`dashboard`: open the address in a browser to see it. It gives way to the user's own page."""
    if site is None:
        return "off"
    host = f"[{site.host}]" if ":" in site.host else site.host
    url = f"{'https' if site.secure else 'http'}://{host}:{site.port}/"
    if not dashboard:
        return f"{url}, for browsers and any HTTP client"
    if site.options.folder:
        return f"{url}, your own page; the dashboard is at {url}dashboard/"
    return f"{url} is the dashboard; any HTTP client can use it too"


def native_url(host: str, port: int, *, secure: bool = False) -> str:
    scheme = "fanlogs" if secure else "fanlog"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
