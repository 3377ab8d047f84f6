"""A flood of lines of one kind is few lines and a count."""

from __future__ import annotations

import logging

from fanlog.cli.logs import FewOfAKind


def line(text: str, *names: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("fanlog.listeners", level, "", 0, text, names, None)


def test_a_flood_is_few_lines_and_a_count() -> None:
    now = [10.0]
    few = FewOfAKind(lambda: now[0])
    kept = [few.filter(line("%s is cut off: %d %%", f"peer {n}", n)) for n in range(1000)]
    assert sum(kept) == 50
    assert all(kept[:50])
    # Others are not held back by it.
    assert few.filter(line("another sentence"))
    now[0] = 11.0
    after = line("%s is cut off: %d %%", "peer x", 7)
    assert few.filter(after)
    assert after.getMessage() == "peer x is cut off: 7 % (950 more lines like it were left out)"
    again = line("%s is cut off: %d %%", "peer y", 8)
    assert few.filter(again)
    assert again.getMessage() == "peer y is cut off: 8 %"


def test_whoever_asks_for_everything_gets_everything() -> None:
    few = FewOfAKind(lambda: 0.0)
    assert all(few.filter(line("said", level=logging.DEBUG)) for _ in range(1000))


def test_sentences_without_end_take_a_bounded_memory() -> None:
    few = FewOfAKind(lambda: 0.0)
    assert all(few.filter(line(f"sentence {n}")) for n in range(10_000))
    assert len(few._kinds) <= 1000
