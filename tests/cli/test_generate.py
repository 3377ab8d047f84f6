"""`fanlog generate`: example data into topics, the same for the same seed."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_example_data_is_published_with_keys_and_event_times(ask: Run) -> None:
    made = ask("generate", "orders", "payments", "--records", "200", "--prefix", "made.")
    assert made.code == 0, made.err
    assert "400 messages are in made.orders, made.payments." in made.out + made.err
    tailed = ask("tail", "made.orders", "--from", "earliest", "--count", "200", "--json")
    assert len(tailed.lines) == 200
    assert all(line["key"].startswith("o-1-") for line in tailed.lines)
    assert all(line["event_time"].startswith("2026-01-01T") for line in tailed.lines)


def test_a_kind_that_there_is_not(typed: Run) -> None:
    ended = typed("generate", "weather")
    assert ended.sentence == "There is no kind 'weather': use orders, payments, sensors, chat."
