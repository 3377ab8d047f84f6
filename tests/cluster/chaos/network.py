"""Hosts of a cluster: network namespaces on one bridge, and what happens on the wires between them.

A host filters what comes in, so that a rule of one host cuts one direction. Links are shaped where
they leave a host: with `netem` (delay and loss) where the kernel has it; otherwise with `tbf` (a
narrow link, whose queue delays) and with a filter that drops by chance.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.cluster.chaos.isolation import run

_BRIDGE = "hosts"
_NET = "10.77.0"
# Where the clients are: on the bridge itself.
CLIENTS = f"{_NET}.254"


@dataclass
class Host:
    """`deaf` are the addresses from which it hears nothing, `deaf_ports` what it does not serve to
    others; of the rest it loses so many percent."""

    name: str
    address: str
    deaf: set[str] = field(default_factory=set[str])
    deaf_ports: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    loss_percent: int = 0

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def apply(self) -> None:
        """Makes the filter be what the fields say."""
        rules = [f"ip saddr {address} drop" for address in sorted(self.deaf)]
        rules += [
            f"ip saddr {address} tcp sport {port} drop" for address, port in sorted(self.deaf_ports)
        ]
        if self.loss_percent:
            # What a host says to itself is not lost.
            rules.append(
                f"ip saddr != {self.address} numgen random mod 100 < {self.loss_percent} drop"
            )
        chain = "\n".join(["type filter hook input priority 0;", *rules])
        table = f"table inet chaos {{\nchain input {{\n{chain}\n}}\n}}\n"
        # The old one goes in the same moment; it must be there for that.
        said = f"table inet chaos\ndelete table inet chaos\n{table}"
        run(*self.enter, "nft", "-f", "-", said=said)

    def shape(self, *words: str) -> None:
        """What leaves the host goes through this queue; without words nothing is slow."""
        if words:
            run(*self.enter, "tc", "qdisc", "replace", "dev", "eth0", "root", *words)
        else:
            run(*self.enter, "tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo")

    def heal(self) -> None:
        self.deaf.clear()
        self.deaf_ports.clear()
        self.loss_percent = 0
        self.apply()
        self.shape()


def make_hosts(names: Sequence[str]) -> dict[str, Host]:
    """The hosts, all of which reach each other and the clients."""
    run("ip", "link", "add", _BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{CLIENTS}/24", "dev", _BRIDGE)
    run("ip", "link", "set", _BRIDGE, "up")
    hosts: dict[str, Host] = {}
    for number, name in enumerate(names, 1):
        host = hosts[name] = Host(name, f"{_NET}.{number}")
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "eth0", "netns", name)
        run("ip", "link", "set", f"to-{name}", "master", _BRIDGE, "up")
        run("ip", "-n", name, "address", "add", f"{host.address}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        host.heal()
    return hosts


@functools.cache
def has_netem() -> bool:
    """Whether the kernel can delay and lose packets by itself."""
    try:
        run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except RuntimeError:
        return False
    run("tc", "qdisc", "delete", "dev", "lo", "root")
    return True
