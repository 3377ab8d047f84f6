"""Where browsers reach a node."""

from __future__ import annotations

from ipaddress import ip_address

from fanlog.client.address import Address, parse_url
from fanlog.config import Config


def web_address(config: Config, address: str) -> str:
    """Where browsers reach a node's web port; empty if they can't. `address` is the node's for
    other nodes."""
    options = config.web
    if config.cluster.advertise_web:
        given = config.cluster.advertise_web.rstrip("/")
        return given if "://" in given else f"http://{given}"
    if options.port <= 0:
        return ""
    native = parse_url(address).host
    host = native if _is_any(options.host) else options.host
    if _is_loopback(host) and not _is_loopback(native):
        return ""  # only from its own machine
    scheme = "https" if config.tls.certificate_file else "http"
    return f"{scheme}://{Address(host, options.port)}"


def _is_any(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
