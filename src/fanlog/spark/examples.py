"""Realistic example data: orders and their payments, sensor readings, chat.

Law: the same seed gives the same messages, byte for byte, on every machine. Messages of a kind
come in the order of their event times; payments come some while after their orders, as they do.
Which messages are bad is drawn apart, so that all others are the same as without bad ones.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

EPOCH_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
_SECOND_US = 1_000_000

_CUSTOMERS = 2000
_SENSORS = 100
_ROOMS = ("lobby", "support", "music", "films", "cooking", "python", "travel", "chess")
_NAMES = ("ada", "bela", "chen", "dora", "emil", "fatma", "gus", "hana", "igor", "june", "kofi")
_ITEMS = (
    ("tea", 350),
    ("coffee", 420),
    ("sandwich", 780),
    ("soup", 640),
    ("cake", 510),
    ("lamp", 4_990),
    ("chair", 12_900),
    ("notebook", 890),
    ("pen", 240),
    ("umbrella", 1_990),
)
_METHODS = ("card", "card", "card", "transfer", "wallet")
_SAID = (
    "hello",
    "has anybody seen the new one",
    "yes",
    "it works again",
    "thanks",
    "where do I find that",
    "good morning all",
    "see you tomorrow",
    "this is great",
    "no idea",
    "try turning it off and on",
    "which version",
)
# Of a hundred orders, how many are never paid, and how many payments have another amount.
_UNPAID = 0.04
_MISTAKEN = 0.01
_PAID_AFTER_SECONDS = 90.0

_encode = msgspec.json.Encoder().encode


class Example(NamedTuple):
    """One message."""

    topic: str
    key: bytes
    value: bytes
    event_time_us: int


class Shape(NamedTuple):
    """How messages come: `per_second` on average in event time, from `start_us` on, and of a
    thousand about `bad_per_mille` that can't be parsed as they should."""

    per_second: float = 100.0
    start_us: int = EPOCH_US
    bad_per_mille: int = 0


def orders(seed: int, shape: Shape) -> Iterator[Example]:
    """Orders of a shop: who, what, how many, for how much (in cents)."""
    chance = random.Random(f"orders {seed}")
    spoiling = random.Random(f"bad orders {seed}")
    for i, time_us in enumerate(_times(chance, shape)):
        item, price = chance.choice(_ITEMS)
        # A few customers order most of what is ordered.
        customer = int(_CUSTOMERS * chance.random() ** 2)
        order = {
            "order_id": f"o-{seed}-{i}",
            "customer": f"c-{customer}",
            "item": item,
            "quantity": quantity if (quantity := int(chance.expovariate(0.8)) + 1) < 10 else 10,
            "price_cents": price,
            "placed_at": time_us,
        }
        yield _example(("orders", str(order["order_id"]), time_us), order, spoiling, shape)


def payments(seed: int, shape: Shape) -> Iterator[Example]:
    """Payments of the orders of the same seed and shape, as they come in."""
    chance = random.Random(f"payments {seed}")
    spoiling = random.Random(f"bad payments {seed}")
    clean = shape._replace(bad_per_mille=0)
    waiting: list[tuple[int, int, dict[str, object]]] = []
    for i, order in enumerate(orders(seed, clean)):
        while waiting and waiting[0][0] <= order.event_time_us:
            yield _payment(*heapq.heappop(waiting), spoiling, shape)
        bought = msgspec.json.decode(order.value)
        if chance.random() < _UNPAID:
            continue
        amount = bought["price_cents"] * bought["quantity"]
        if chance.random() < _MISTAKEN:
            amount += chance.choice((-100, 100, 900))
        delay_us = int(chance.lognormvariate(0, 1) * _PAID_AFTER_SECONDS * _SECOND_US)
        paid_at = order.event_time_us + delay_us
        payment: dict[str, object] = {
            "payment_id": f"p-{seed}-{i}",
            "order_id": bought["order_id"],
            "amount_cents": amount,
            "method": chance.choice(_METHODS),
            "paid_at": paid_at,
        }
        heapq.heappush(waiting, (paid_at, i, payment))


def _payment(
    paid_at: int, number: int, payment: dict[str, object], spoiling: random.Random, shape: Shape
) -> Example:
    del number
    return _example(("payments", str(payment["order_id"]), paid_at), payment, spoiling, shape)


def sensors(seed: int, shape: Shape) -> Iterator[Example]:
    """Readings of temperature and humidity; each sensor wanders around a level of its own."""
    chance = random.Random(f"sensors {seed}")
    spoiling = random.Random(f"bad sensors {seed}")
    levels = [chance.gauss(20.0, 5.0) for _ in range(_SENSORS)]
    for time_us in _times(chance, shape):
        sensor = chance.randrange(_SENSORS)
        levels[sensor] += chance.gauss(0.0, 0.2)
        reading = {
            "sensor": f"s-{sensor:03d}",
            "temperature": round(levels[sensor], 2),
            "humidity": round(min(100.0, max(0.0, chance.gauss(55.0, 10.0))), 1),
            "read_at": time_us,
        }
        yield _example(("sensors", f"s-{sensor:03d}", time_us), reading, spoiling, shape)


def chat(seed: int, shape: Shape) -> Iterator[Example]:
    """Messages of people in rooms. Some rooms are busier than others."""
    chance = random.Random(f"chat {seed}")
    spoiling = random.Random(f"bad chat {seed}")
    for time_us in _times(chance, shape):
        room = _ROOMS[int(len(_ROOMS) * chance.random() ** 2)]
        said = {
            "room": room,
            "user": chance.choice(_NAMES),
            "text": ", ".join(chance.choices(_SAID, k=chance.randint(1, 3))),
            "said_at": time_us,
        }
        yield _example(("chat", room, time_us), said, spoiling, shape)


Generator = Callable[[int, Shape], Iterator[Example]]
KINDS: dict[str, Generator] = {
    "orders": orders,
    "payments": payments,
    "sensors": sensors,
    "chat": chat,
}


def _times(chance: random.Random, shape: Shape) -> Iterator[int]:
    """Event times without an end, as independent events come."""
    time_us = shape.start_us
    while True:
        time_us += max(1, int(chance.expovariate(shape.per_second) * _SECOND_US))
        yield time_us


def _example(
    target: tuple[str, str, int],
    content: Mapping[str, object],
    spoiling: random.Random,
    shape: Shape,
) -> Example:
    """A message with this topic, key and time; a bad one now and then, if that is wanted."""
    topic, key, time_us = target
    value = _encode(content)
    if shape.bad_per_mille and spoiling.randrange(1000) < shape.bad_per_mille:
        value = _spoiled(value, content, spoiling)
    return Example(topic, key.encode(), value, time_us)


def _spoiled(value: bytes, content: Mapping[str, object], chance: random.Random) -> bytes:
    """A message as a faulty program would send it: cut off, or with a field missing or wrong."""
    match chance.randrange(3):
        case 0:
            return value[: chance.randrange(1, len(value))]
        case 1:
            return _encode(dict(list(content.items())[1:]))
        case _:
            last = list(content)[-1]
            return _encode(dict(content) | {last: "yesterday"})
