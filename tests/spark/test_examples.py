"""Example data: the same for the same seed, in the order in which it happened."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import Any

import pytest

from fanlog.spark.examples import KINDS, Example, Shape, orders, payments


def some(kind: str, seed: int = 1, count: int = 500, **shape: Any) -> list[Example]:
    return list(islice(KINDS[kind](seed, Shape(**shape)), count))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_messages_and_another_seed_others(kind: str) -> None:
    assert some(kind) == some(kind)
    assert some(kind) != some(kind, seed=2)


def test_messages_are_the_same_on_every_machine() -> None:
    everything = repr([some(kind, count=200) for kind in KINDS]).encode()
    assert hashlib.sha256(everything).hexdigest()[:16] == "c96818d9a948c737"


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_in_the_order_of_their_times(kind: str) -> None:
    times = [example.event_time_us for example in some(kind)]
    assert times == sorted(times)


def test_payments_are_of_orders_and_come_after_them() -> None:
    placed = {order.key: order for order in islice(orders(1, Shape()), 50_000)}
    paid = list(islice(payments(1, Shape()), 2000))
    known = [payment for payment in paid if payment.key in placed]
    assert len(known) == len(paid)
    assert all(payment.event_time_us >= placed[payment.key].event_time_us for payment in paid)
    right = 0
    for payment in paid:
        order, given = json.loads(placed[payment.key].value), json.loads(payment.value)
        right += given["amount_cents"] == order["price_cents"] * order["quantity"]
    assert 0.97 < right / len(paid) < 1


def test_some_messages_are_bad_if_one_asks_for_them() -> None:
    def is_good(example: Example) -> bool:
        try:
            return isinstance(json.loads(example.value).get("placed_at"), int) and bool(
                json.loads(example.value).get("order_id")
            )
        except ValueError:
            return False

    assert all(is_good(example) for example in some("orders"))
    bad = [example for example in some("orders", bad_per_mille=100) if not is_good(example)]
    assert 20 < len(bad) < 90


def test_the_messages_that_are_not_bad_are_the_same_as_without_bad_ones() -> None:
    for kind in KINDS:
        plain, mixed = some(kind), some(kind, bad_per_mille=100)
        assert [(e.key, e.event_time_us) for e in plain] == [
            (e.key, e.event_time_us) for e in mixed
        ]
        spoiled = [one for one, other in zip(mixed, plain, strict=True) if one != other]
        assert 20 < len(spoiled) < 90
