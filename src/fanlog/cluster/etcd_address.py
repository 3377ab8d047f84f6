"""Where etcd is, and what a node shows it: addresses, TLS and a login."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import msgspec

from fanlog.errors import ConfigError


class EtcdAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The members of an etcd, and how to reach them. Paths are of PEM files."""

    endpoints: tuple[str, ...]
    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = ""
    # For one request to one member, connecting included.
    request_seconds: float = 2.0
    # So soon after a node is gone its record vanishes. etcd allows no less than 2 by default.
    lease_seconds: int = 4
    # A watch that has been silent for so long is begun again with a listing: a connection may be
    # dead without anybody knowing.
    watch_silence_seconds: float = 10.0

    def __repr__(self) -> str:
        return f"EtcdAddress({', '.join(self.endpoints)})"

    def check(self) -> EtcdAddress:
        """Raises ConfigError if an address is none. Returns it without slashes at the end."""
        for endpoint in self.endpoints:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(
                    f"{endpoint!r} is no address of etcd: write http://host:2379 or "
                    "https://host:2379."
                )
        if not self.endpoints:
            raise ConfigError("A cluster needs the address of at least one member of etcd.")
        return msgspec.structs.replace(
            self, endpoints=tuple(endpoint.rstrip("/") for endpoint in self.endpoints)
        )

    def tls(self) -> ssl.SSLContext | None:
        """For members with https; None if there are none. Raises ConfigError."""
        if not any(endpoint.startswith("https:") for endpoint in self.endpoints):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ValueError) as fault:
            raise ConfigError(f"The certificates for etcd can't be used: {fault}") from fault
        return context
