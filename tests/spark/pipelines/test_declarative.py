"""The pipelines that are projects of Spark Declarative Pipelines, end to end on generated data, as
a user runs them: clean, join, rollup."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

import fanlog
from fanlog.spark.examples import EPOCH_US, KINDS, Example, Shape
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.pipelines.running import done, run_pipeline
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


@pytest.mark.timeout(300)
def test_clean_parts_good_rows_from_bad_ones_and_says_why(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    good = publish(client, "orders", "clean.in", 100, Shape())
    for value in (b"{", b"[1]", b'{"order_id": "o"}', None):
        client.send("clean.in", value, key=b"k", headers={"trace": b"7"})
    bad_type = json.loads(good[0].value) | {"quantity": "many"}
    client.send("clean.in", json.dumps(bad_type).encode())
    client.flush()
    names = {"topic": "clean.in", "good": "clean.good", "bad": "dead.clean.in"}
    said = done(run_pipeline("clean", broker.url, tmp_path / "state", **names))
    assert "clean is done: 210 records" in said
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


@pytest.mark.timeout(300)
def test_join_pairs_what_happened_in_time_of_each_other(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    shape = Shape(per_second=1.0)
    orders = publish(client, "orders", "join.orders", 300, shape)
    payments = publish(client, "payments", "join.payments", 200, shape)
    names = {"left": "join.orders", "right": "join.payments", "to": "join.pairs"}
    done(run_pipeline("join", broker.url, tmp_path / "state", **names, within="1 minute"))
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


@pytest.mark.timeout(400)
def test_rollup_counts_windows_and_goes_on_where_it_was(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    examples = publish(client, "sensors", "rollup.in", 500, Shape(per_second=10.0))
    options = {
        "topics": "rollup.in",
        "to": "rollup.out",
        "window": "10 seconds",
        "late": "0 seconds",
    }
    state = tmp_path / "state"
    done(run_pipeline("rollup", broker.url, state, **options))
    # A record far ahead ends all windows before it.
    client.send("rollup.in", b"{}", key=b"end", event_time=EPOCH_US + 3_600_000_000)
    client.flush()
    done(run_pipeline("rollup", broker.url, state, **options))
    windows = [json.loads(value) for value in published(client, "rollup.out").elements()]
    counted = Counter((some.event_time_us - EPOCH_US) // 10_000_000 for some in examples)
    assert sorted(window["records"] for window in windows) == sorted(counted.values())
    assert sum(window["bytes"] for window in windows) == sum(len(e.value) for e in examples)
    for window in windows:
        assert window["topic"] == "rollup.in"
        assert window["records_per_second"] == window["records"] / 10
        assert 0 < window["latency_ms_p50"] <= window["latency_ms_p99"]
