"""`fanlog generate`: example data into topics, the same for the same seed."""

from __future__ import annotations

import datetime as dt

from tests.cli.conftest import Run


def test_example_data_is_published_with_keys_and_event_times(ask: Run) -> None:
    given = ("--records", "200", "--prefix", "made.", "--start", "2026-01-01T00:00:00Z")
    made = ask("generate", "orders", "payments", *given)
    assert made.code == 0, made.err
    assert "400 messages are in made.orders, made.payments." in made.out + made.err
    tailed = ask("tail", "made.orders", "--from", "earliest", "--count", "200", "--json")
    assert len(tailed.lines) == 200
    assert all(line["key"].startswith("o-1-") for line in tailed.lines)
    assert all(line["event_time"].startswith("2026-01-01T") for line in tailed.lines)


def test_a_kind_that_there_is_not(typed: Run) -> None:
    ended = typed("generate", "weather")
    assert ended.sentence == "There is no kind 'weather': use orders, payments, sensors, chat."


def test_event_times_span_an_hour_and_end_now(ask: Run) -> None:
    """Enough for windows of a minute, and recent enough for latencies that mean something."""
    before = dt.datetime.now(dt.UTC)
    assert ask("generate", "orders", "--records", "300", "--prefix", "recent.").code == 0
    tailed = ask("tail", "recent.orders", "--from", "earliest", "--count", "300", "--json")
    times = sorted(dt.datetime.fromisoformat(line["event_time"]) for line in tailed.lines)
    assert dt.timedelta(minutes=45) < times[-1] - times[0] < dt.timedelta(minutes=75)
    assert before - dt.timedelta(minutes=80) < times[0]
    assert times[-1] < before + dt.timedelta(minutes=15), "chance may take them a little further"


def test_the_same_seed_and_start_give_the_same_data(ask: Run) -> None:
    values: list[list[str]] = []
    for prefix in ("first.", "second."):
        given = (
            "--records",
            "50",
            "--prefix",
            prefix,
            "--start",
            "2026-01-31T12:00",
            "--over",
            "10m",
        )
        assert ask("generate", "sensors", "--partitions", "1", *given).code == 0
        tailed = ask("tail", f"{prefix}sensors", "--from", "earliest", "--count", "50", "--json")
        values.append([line["value"] for line in tailed.lines])
    assert values[0] == values[1]


def test_times_that_are_none(typed: Run) -> None:
    said = typed("generate", "orders", "--start", "yesterday").sentence
    assert said == "--start is 'yesterday', but must be a time such as 2026-01-31T12:00:00Z."
    assert "write it as 30, 500ms, 10m" in typed("generate", "orders", "--over", "long").sentence
    assert "must be longer" in typed("generate", "orders", "--over", "0").sentence
