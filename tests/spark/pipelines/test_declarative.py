"""The pipelines that are projects of Spark Declarative Pipelines, end to end on generated data, as
a user runs them: clean, join, rollup."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

import fanlog
from fanlog.spark.examples import EPOCH_US, KINDS, Example, Shape
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.pipelines.running import run_pipeline
from tests.spark.sessions import need_java
from tests.spark.test_kill import published


def publish(
    client: fanlog.sync.Client, kind: str, topic: str, records: int, shape: Shape
) -> list[Example]:
    examples = list(islice(KINDS[kind](1, shape), records))
    for some in examples:
        client.send(topic, some.value, key=some.key, event_time=some.event_time_us)
    client.flush()
    return examples


@pytest.mark.timeout(1000)
def test_clean_parts_good_rows_from_bad_ones_and_says_why(
    connect: str, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    good = publish(client, "orders", "clean.in", 100, Shape())
    for value in (b"{", b"[1]", b'{"order_id": "o"}', None):
        client.send("clean.in", value, key=b"k", headers={"trace": b"7"})
    bad_type = json.loads(good[0].value) | {"quantity": "many"}
    client.send("clean.in", json.dumps(bad_type).encode())
    client.flush()
    names = {"topic": "clean.in", "good": "clean.good", "bad": "dead.clean.in"}
    said = run_pipeline("clean", broker.url, tmp_path / "state", master=connect, **names)
    assert "clean is done: 105 records" in said
    passed = [json.loads(value) for value in published(client, "clean.good").elements()]
    wanted = [json.loads(some.value) for some in good]
    assert sorted(passed, key=lambda row: row["order_id"]) == sorted(
        wanted, key=lambda row: row["order_id"]
    )
    letters = client.dead_letters.list("dead.clean.in")
    assert Counter(letter.death.reason for letter in letters) == Counter(
        [
            "it is no JSON",
            "it is JSON, but no object",
            "`customer` is missing",
            "there is no value",
            "`quantity` is no int",
        ]
    )
    first = next(letter for letter in letters if letter.value == b"{")
    assert (first.death.topic, first.death.key) == ("clean.in", b"k")
    assert first.headers == {"trace": b"7"}
    # The rows were right, and the schema was not: they are put back, and cleaned by another one.
    assert client.dead_letters.replay("dead.clean.in") == 5
    said = run_pipeline(
        "clean",
        broker.url,
        tmp_path / "state",
        master=connect,
        **names,
        schema="order_id STRING NOT NULL, quantity STRING",
    )
    assert "clean is done: 5 records" in said
    passed = [json.loads(value) for value in published(client, "clean.good").elements()]
    added = [row.get("quantity") for row in passed if "customer" not in row]
    assert sorted(added, key=str) == [None, "many"]
    assert len(client.dead_letters.list("dead.clean.in")) == 3
    for group in ("pipeline.state.good", "pipeline.state.bad"):
        assert client.groups.describe(group).lag == 0


@pytest.mark.timeout(1000)
def test_join_pairs_what_happened_in_time_of_each_other(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    shape = Shape(per_second=1.0)
    orders = publish(client, "orders", "join.orders", 300, shape)
    payments = publish(client, "payments", "join.payments", 200, shape)
    names = {"left": "join.orders", "right": "join.payments", "to": "join.pairs"}
    # This one with a Spark of its own, as on a laptop.
    run_pipeline("join", broker.url, tmp_path / "state", **names, within="1 minute")
    placed = {some.key: some.event_time_us for some in orders}
    wanted = sorted(
        some.key.decode()
        for some in payments
        if some.key in placed and 0 <= some.event_time_us - placed[some.key] <= 60_000_000
    )
    assert wanted
    pairs = [json.loads(value) for value in published(client, "join.pairs").elements()]
    assert sorted(pair["key"] for pair in pairs) == wanted
    for pair in pairs:
        assert pair["join.orders"]["order_id"] == pair["join.payments"]["order_id"]
        assert 0 <= pair["seconds_apart"] <= 60


@pytest.mark.timeout(1000)
def test_rollup_counts_windows_and_goes_on_where_it_was(
    connect: str, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    examples = publish(client, "sensors", "rollup.in", 500, Shape(per_second=10.0))
    options = {
        "topics": "rollup.in",
        "to": "rollup.out",
        "window": "10 seconds",
        "late": "0 seconds",
        "keys": "yes",
    }
    state = tmp_path / "state"
    run_pipeline("rollup", broker.url, state, master=connect, **options)
    # A record far ahead ends all windows before it.
    client.send("rollup.in", b"{}", key=b"end", event_time=EPOCH_US + 3_600_000_000)
    client.flush()
    run_pipeline("rollup", broker.url, state, master=connect, **options)
    windows = [json.loads(value) for value in published(client, "rollup.out").elements()]
    counted = Counter(
        (some.key.decode(), (some.event_time_us - EPOCH_US) // 10_000_000) for some in examples
    )
    assert Counter(window["key"] for window in windows) == Counter(key for key, _ in counted)
    assert sorted(window["records"] for window in windows) == sorted(counted.values())
    assert sum(window["bytes"] for window in windows) == sum(len(e.value) for e in examples)
    for window in windows:
        assert window["topic"] == "rollup.in"
        assert window["records_per_second"] == window["records"] / 10
        assert 0 < window["latency_ms_p50"] <= window["latency_ms_p99"]
    # As a dashboard plots them: a line for each key, a point at the end of each window.
    with client.subscribe("rollup.out", start="earliest") as points:
        point = next(iter(points))
    window = json.loads(point.value or b"")
    assert point.key == f"rollup.in/{window['key']}".encode()
    assert point.event_time == dt.datetime.fromisoformat(window["end"])
