"""Which addresses count as one, and which are not counted at all.

The owner of an IPv6 address usually has a whole network, so only the first 64 bits count. An IPv4
address inside IPv6 counts as the IPv4 address that it is.
"""

from __future__ import annotations

import ipaddress

from fanlog.errors import ConfigError

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SUBNET_BITS = 64


def host_of(address: str) -> str:
    """The host of `host:port`. An IPv6 address may have brackets or not, and a port or not;
    ambiguous parts are in the last 64 bits, which do not count."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return address.strip("[]")
    bare = host.strip("[]")
    return bare if ":" not in bare or _maybe_ipv6(bare) else address


def source_of(host: str) -> str:
    """The part of an address that counts."""
    address = _maybe_ipv6(host)
    if address is None:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _SUBNET_BITS), strict=False))


def _maybe_ipv6(host: str) -> ipaddress.IPv6Address | None:
    if ":" not in host:
        return None
    try:
        return ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return None


class Sources:
    """Where peers come from, except from addresses that are not counted."""

    def __init__(self, exempt: str) -> None:
        """`exempt` has addresses and networks, separated by commas."""
        self._exempt = [_network(text.strip()) for text in exempt.split(",") if text.strip()]

    def maybe_of(self, address: str) -> str:
        """The part of the address of a peer at `host:port` that counts; empty if it is not
        counted."""
        if not address:
            return ""
        host = host_of(address)
        return "" if self._exempt and self._is_exempt(host) else source_of(host)

    def _is_exempt(self, host: str) -> bool:
        try:
            found = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._exempt)


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as fault:
        raise ConfigError(
            f"limits.exempt_addresses: {text!r} is neither an address nor a network: write it as "
            "10.0.0.7 or 10.0.0.0/8."
        ) from fault
