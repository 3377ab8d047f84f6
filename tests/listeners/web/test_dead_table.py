"""What is remembered of dead letters: rows come and go, and a search reads what was not kept."""

from __future__ import annotations

import pytest

from fanlog.listeners.web import dead_table
from fanlog.listeners.web.dead_reasons import group_of
from fanlog.listeners.web.dead_table import DeadLetterFacts, LetterTable
from tests.listeners.web.conftest import Serving
from tests.listeners.web.dead import DEAD, complete, kill_many


def found(number: int, reason: str = "x") -> DeadLetterFacts:
    return DeadLetterFacts(number, reason, group_of(reason), "jobs", "q", 0)


def test_rows_that_are_gone_are_swept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_table, "_GONE_MIN", 10)
    table = LetterTable()
    records = [(b"%d" % i, i, found(i, f"r{i % 3} {'x' * 600 * (i % 2)}")) for i in range(1000)]
    for _ in table.take(0, records):
        pass
    assert (table.count, table.mostly_gone) == (1000, False)
    for _ in table.take(0, [(b"%d" % i, 1000 + i, None) for i in range(900)]):
        pass
    assert (table.count, table.mostly_gone) == (100, True)
    before = table.removed
    for _ in table.renumber():
        pass
    assert (len(table), table.count, table.generation, table.removed) == (100, 100, 1, before)
    assert [table.position(row) for row in range(3)] == [(0, 900), (0, 901), (0, 902)]
    assert sum(group.count for group in table.group_list) == 100
    for _ in table.take(0, [(b"950", 2000, None), (b"951", 2001, found(1))]):
        pass
    assert table.count == 99
    assert (table.find(0, 950), table.find(0, 951)) == (None, None)
    row = table.find(0, 2001)
    assert row is not None
    for _ in table.forget_before(0, 990):
        pass
    assert table.count == 11


def test_what_is_told_apart_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_table, "GROUPS_MAX", 5)
    monkeypatch.setattr(dead_table, "TEXTS_MAX", 5)
    monkeypatch.setattr(dead_table, "SOURCES_MAX", 5)
    table = LetterTable()
    records = [
        (b"%d" % i, i, DeadLetterFacts(i, f"r{chr(97 + i)}", f"r{chr(97 + i)}", f"t{i}", "q", 0))
        for i in range(20)
    ]
    for _ in table.take(0, records):
        pass
    assert (len(table.group_list), len(table.text_list), len(table.source_list)) == (6, 6, 6)
    assert table.group_list[0].count == 15
    assert sum(table.source_counts) == 20


async def test_a_search_finds_what_was_not_kept(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_table, "TEXTS_MAX", 3)
    monkeypatch.setattr(dead_table, "SOURCES_MAX", 1)
    async with serving() as site:
        await kill_many(site.broker, 30, lambda i: f"reason {i} {'long ' * 200 * (i % 2)}end{i}")
        page = await complete(site, f"{DEAD}/browse?reason=end17")
        assert [letter["key"] for letter in page["letters"]] == ["k17"]
        assert (await complete(site, f"{DEAD}/browse?origin=jobs"))["total"] == 31
        assert (await complete(site, f"{DEAD}/browse?origin=other"))["total"] == 0
