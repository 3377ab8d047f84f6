"""A broker's address as users write it, and the errors when it can't be reached."""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from fanlog.config import NATIVE_PORT
from fanlog.errors import ConnectError, InvalidArgumentError
from fanlog.format.frames import NATIVE_PORT_HINT

# However the broker is addressed: a command, Python, or Spark.
GIVE_ADDRESS = "--url or FANLOG_URL for commands, connect(url) in Python, the option url in Spark"
_WRITE_IT = (
    f"Write it as fanlog://host:port, such as fanlog://127.0.0.1:{NATIVE_PORT}, or with TLS as "
    "fanlogs://host:port."
)
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class Address(NamedTuple):
    host: str
    port: int
    tls: bool = False

    @property
    def url(self) -> str:
        return f"fanlogs://{self}" if self.tls else f"fanlog://{self}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """Host and port of `fanlog://host:port`, `fanlogs://host:port`, `host:port` or `host`."""
    given = url if "://" in url else f"fanlog://{url}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as fault:
        raise InvalidArgumentError(f"{url!r} is not an address: {fault}. {_WRITE_IT}") from fault
    if parts.username is not None or parts.password is not None:
        # Without what was given: a password must not end up in a log.
        raise InvalidArgumentError(
            f"The address of {host} has a user, a password or a key. Here others would see it. Put "
            "the key into the variable FANLOG_KEY, or into a file (FANLOG_KEY_FILE, or the option "
            f"key_file). {_WRITE_IT}"
        )
    if parts.scheme in ("redis", "rediss"):
        raise InvalidArgumentError(
            f"{url!r} is an address for Redis clients. {_WRITE_IT} {NATIVE_PORT_HINT}"
        )
    if parts.scheme not in ("fanlog", "fanlogs") or not host or parts.path not in ("", "/"):
        raise InvalidArgumentError(f"{url!r} is not an address. {_WRITE_IT}")
    if parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"{url!r} has options, and an address takes none. {_WRITE_IT} In Python, give options "
            "to connect(), for example fanlog.connect(url, linger_ms=5); commands have flags."
        )
    return Address(host, NATIVE_PORT if port is None else port, parts.scheme == "fanlogs")


def parse_urls(url: str) -> tuple[Address, ...]:
    """The addresses of several nodes of a cluster: `fanlog://a:7420,b:7420,c`. One is enough."""
    scheme, separator, hosts = url.rpartition("://")
    return tuple(parse_url(f"{scheme}{separator}{host.strip()}") for host in hosts.split(","))


def no_answer(address: Address, timeout_seconds: float) -> ConnectError:
    return ConnectError(
        f"No answer from {address} within {timeout_seconds} s. Check the address, and whether a "
        "firewall is in between."
    )


def unreachable(address: Address, fault: OSError) -> ConnectError:
    """Why there is no connection at all. The advice depends on the system's error."""
    number = _number_of(fault)
    said = os.strerror(number) if number else fault.strerror or str(fault)
    if isinstance(fault, socket.gaierror):
        return ConnectError(
            f"The host name {address.host!r} was not found ({fault.strerror or fault}). Check its "
            "spelling, and this machine's name service (DNS)."
        )
    if number in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return ConnectError(
            f"There is no way to {address} ({said}). Check the address and this machine's network."
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return ConnectError(
            f"No connection to {address}: this program has too many open files ({said}). Close "
            "clients, or raise the limit (ulimit -n)."
        )
    if number in (errno.EACCES, errno.EPERM):
        return ConnectError(
            f"This machine does not allow a connection to {address} ({said}). Check its firewall."
        )
    port = "" if address.port == NATIVE_PORT else f" --port {address.port}"
    return ConnectError(
        f"No broker answers at {address} ({said}). Start one there with: fanlog serve{port}; or "
        f"give the address of one that runs ({GIVE_ADDRESS})."
    )


def _number_of(fault: OSError) -> int | None:
    """The system's error number, also from asyncio's joint error of several attempts."""
    if fault.errno is not None or isinstance(fault, socket.gaierror):
        return fault.errno
    found = _ERRNO.search(str(fault))
    return int(found[1]) if found else None
