"""A broker's address, as people write it, and what they are told when nobody is there."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from fanlog.config import NATIVE_PORT
from fanlog.errors import ConnectError, InvalidArgumentError


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Host and port of `fanlog://host:port`, `host:port` or `host`."""
    given = url if "://" in url else f"fanlog://{url}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as fault:
        raise InvalidArgumentError(f"{url!r} is not an address: {fault}.") from fault
    if parts.scheme != "fanlog" or not host or parts.path not in ("", "/"):
        raise InvalidArgumentError(f"{url!r} is not an address. Write it as fanlog://host:port.")
    if parts.username is not None or parts.password is not None:
        # Without what was given: a password must not end up in a log.
        raise InvalidArgumentError(
            f"The address of {host} has a user or a password, and this release has no logins. "
            "Write it as fanlog://host:port."
        )
    if parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"{url!r} has options, and an address takes none. Give them to connect(), for example "
            "fanlog.connect(url, linger_ms=5)."
        )
    return Address(host, NATIVE_PORT if port is None else port)


def no_answer(address: Address, timeout_seconds: float) -> ConnectError:
    return ConnectError(
        f"No answer from {address} within {timeout_seconds} s. Is the address right?"
    )


def unreachable(address: Address, fault: OSError) -> ConnectError:
    return ConnectError(
        f"No broker answers at {address} ({fault.strerror or fault}). Start one with: fanlog serve"
    )
