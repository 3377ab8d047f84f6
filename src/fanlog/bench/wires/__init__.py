"""The wires, by system. No other module knows which class speaks which protocol."""

from __future__ import annotations

from fanlog.bench.systems import Listener, SystemKind
from fanlog.bench.wires.base import AckedWire, AnsweredWire
from fanlog.bench.wires.fanlog import FanlogFanout, FanlogTopic
from fanlog.bench.wires.nats import NatsFanout, NatsStream
from fanlog.bench.wires.redis import RedisFanout, RedisStream
from fanlog.model import DurabilityName


def fanout_wire(
    kind: SystemKind, payload_bytes: int, batch: int, listener: Listener = "native"
) -> AnsweredWire:
    """The wire for publish/subscribe; only Fanlog's own knows batches."""
    payload = make_payload(payload_bytes)
    if kind == "redis" or (kind == "fanlog" and listener == "redis"):
        return RedisFanout(payload)
    if kind == "nats":
        return NatsFanout(payload)
    return FanlogFanout(payload, batch)


def acked_wire(
    kind: SystemKind, payload_bytes: int, batch: int, durability: DurabilityName, partitions: int
) -> AckedWire:
    """The wire for acknowledged publishing; batch, durability and partitions are for Fanlog."""
    payload = make_payload(payload_bytes)
    if kind == "redis":
        return RedisStream(payload)
    if kind == "nats":
        return NatsStream(payload)
    return FanlogTopic(payload, batch, durability, partitions)


def make_payload(length: int) -> bytes:
    """A payload of letters and digits: no system may gain by compressing a run of zeros."""
    alphabet = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return bytes(alphabet[(i * 37 + i // 7) % len(alphabet)] for i in range(length))
