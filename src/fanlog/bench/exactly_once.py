"""What exactly-once publishing costs: a producer's id and numbers in each batch, or none.

Law: both sides publish to the same broker in slices that take turns, so that whatever else the
machine does concerns both alike; everything that was acknowledged must have been stored once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import uvloop

import fanlog
from fanlog.bench.acked import acked_load, measure_in_turn
from fanlog.bench.systems import HOST, BenchError
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.fanlog import FanlogProducer
from fanlog.model import DurabilityName

DURABILITY: DurabilityName = "os"
WINDOW_MESSAGES = 1000
PRODUCER_ID = 7
TRANSACTION_MESSAGES = 1000
TOPICS = ("plain", "once", "transactions")
WARMUP_MESSAGES = 1000
# Bytes that a client sends in its turn: a few hundredths of a second.
TURN_MESSAGES = 50_000

Publish = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PublishingLoad:
    """How much to publish. `messages` are for each client."""

    port: int
    payload_bytes: int
    warmup_s: float
    run_s: float
    messages: int


def measure_wire(given: PublishingLoad, batch: int) -> list[float]:
    """Acknowledged messages per second in batches of this size: plain, and exactly once."""
    payload = make_payload(given.payload_bytes)
    wires = [FanlogProducer(payload, batch, DURABILITY, number) for number in (0, PRODUCER_ID)]
    with contextlib.ExitStack() as stack:
        loads = [
            stack.enter_context(acked_load(wire, given.port, WINDOW_MESSAGES, wire.renumber))
            for wire in wires
        ]
        return measure_in_turn(loads, given.warmup_s, given.run_s)


def measure_clients(given: PublishingLoad) -> list[float]:
    """The same with Python clients: plain, exactly once, and in transactions."""
    return uvloop.run(_publish_in_turn(given))


async def _publish_in_turn(given: PublishingLoad) -> list[float]:
    url = f"fanlog://{HOST}:{given.port}"
    payload = make_payload(given.payload_bytes)
    async with fanlog.connect(url, idempotent=False) as plain, fanlog.connect(url) as once:
        for topic in TOPICS:
            await once.create_topic(topic, durability=DURABILITY)
        sending = [_sending(plain, "plain", payload), _sending(once, "once", payload)]
        # Transactions run alone: their background work must not slow the others.
        took_s = [
            *await _take_turns(sending, given.messages),
            *await _take_turns([_staging(once, "transactions", payload)], given.messages),
        ]
        for topic in TOPICS:
            stored = (await once.describe_topic(topic)).records
            if stored != given.messages + WARMUP_MESSAGES:
                raise BenchError(f"{stored} messages are in {topic!r}, not {given.messages}")
    return [given.messages / took for took in took_s]


async def _take_turns(sides: Sequence[Publish], messages: int) -> list[float]:
    """The seconds of each side for this many messages."""
    for publish in sides:
        await publish(WARMUP_MESSAGES)
    took_s = [0.0] * len(sides)
    order = list(range(len(sides)))
    for sent in range(0, messages, TURN_MESSAGES):
        for number in order:
            began = time.perf_counter()
            await sides[number](min(TURN_MESSAGES, messages - sent))
            took_s[number] += time.perf_counter() - began
        order.reverse()
    return took_s


def _sending(client: fanlog.Client, topic: str, payload: bytes) -> Publish:
    async def publish(messages: int) -> None:
        for _ in range(messages):
            await client.send(topic, payload)
        await client.flush()

    return publish


def _staging(client: fanlog.Client, topic: str, payload: bytes) -> Publish:
    async def publish(messages: int) -> None:
        for first in range(0, messages, TRANSACTION_MESSAGES):
            async with client.transaction() as transaction:
                for _ in range(min(TRANSACTION_MESSAGES, messages - first)):
                    await transaction.publish(topic, payload)

    return publish
