"""Which edge an upstream's address asks for."""

from __future__ import annotations

from urllib.parse import urlsplit

from fanlog.config import Config
from fanlog.edge.node import EdgeNode, FanlogEdge
from fanlog.errors import InvalidArgumentError

_WRITE_IT = (
    "Write it as fanlog://host:port, redis://host:port or nats://host:port, such as "
    "fanlog://127.0.0.1:7420."
)


def make_edge(url: str, config: Config) -> EdgeNode:
    """The edge for an upstream's address, not started yet."""
    given = url if "://" in url else f"fanlog://{url}"
    try:
        scheme = urlsplit(given).scheme
    except ValueError as fault:
        raise InvalidArgumentError(f"{url!r} is not an address: {fault}. {_WRITE_IT}") from fault
    match scheme:
        case "fanlog":
            return FanlogEdge(given, config)
        case "http" | "https" | "ws" | "wss":
            raise InvalidArgumentError(
                f"{url!r} is an address for browsers. An edge speaks to the broker's own port, "
                f"7420 by default. {_WRITE_IT}"
            )
        case _:
            raise InvalidArgumentError(f"{url!r} is not the address of a bus. {_WRITE_IT}")
