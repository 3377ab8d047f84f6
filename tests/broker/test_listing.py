"""Listings in pages: all there is, in order, each once, and little work for each page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanlog
from fanlog.broker.messages import catalog as catalog_module
from fanlog.broker.sorted_names import SortedNames
from fanlog.format.messages import ListTopics, Position
from fanlog.listeners import group_requests
from fanlog.model import GROUP_PREFIX
from tests.broker.stage import Stage, stage

NAMES = st.text("ab.", min_size=1, max_size=4)


@given(first=st.sets(NAMES), added=st.lists(NAMES), gone=st.lists(NAMES), since=NAMES)
def test_names_are_in_order_whatever_comes_and_goes(
    first: set[str], added: list[str], gone: list[str], since: str
) -> None:
    names, model = SortedNames(first), set(first)
    for name in added:
        if name not in model:
            names.add(name)
            model.add(name)
    for name in gone:
        if name in model:
            names.remove(name)
            model.remove(name)
        else:
            with pytest.raises(KeyError):
                names.remove(name)
    assert list(names.since("")) == sorted(model)
    assert list(names.since(since)) == sorted(name for name in model if name >= since)


def test_thousands_of_names_are_in_order() -> None:
    names = SortedNames()
    order = [f"{(number * 7919) % 5000:04}" for number in range(5000)]
    for name in order:
        names.add(name)
    assert list(names.since("")) == sorted(order)
    for name in order[:4000]:
        names.remove(name)
    assert list(names.since("")) == sorted(order[4000:])


def listed(on: Stage, pattern: str, *, internal: bool = False) -> list[list[str]]:
    """The names on each page."""
    pages: list[list[str]] = []
    after = ""
    while True:
        page = on.core.list_topics(ListTopics(pattern, internal, after))
        pages.append([topic.name for topic in page.topics])
        after = page.next
        if not after:
            return pages


@pytest.mark.parametrize(
    "pattern", [">", "*", "user.*", "user.>", "*.7", "user.7", "nobody", "*.*.deep", "_inbox.>"]
)
@pytest.mark.parametrize("internal", [False, True])
def test_pages_together_are_all_that_fits(
    pattern: str, internal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "_PAGE_PARTITIONS", 10)
    monkeypatch.setattr(catalog_module, "_PAGE_NAMES", 16)
    with stage(None) as on:
        for number in range(40):
            on.core.create_topic(f"user.{number}", {"partitions": 1 + number % 3})
            on.core.create_topic(f"user.{number}.deep", {})
            on.core.create_topic(f"other{number}", {})
        on.core.create_topic("_inbox.1", {})
        pages = listed(on, pattern, internal=internal)
        expected = [t.name for t in on.core.catalog.matching(pattern, internal=internal)]
        assert [name for page in pages for name in page] == expected
        assert max(map(len, pages)) <= 10
        if pattern == ">":
            assert len(pages) > 10


def test_a_page_goes_on_where_the_last_one_ended_though_its_last_topic_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "_PAGE_PARTITIONS", 2)
    with stage(None) as on:
        for name in "abcd":
            on.core.create_topic(name, {})
        page = on.core.list_topics(ListTopics())
        assert ([topic.name for topic in page.topics], page.next) == (["a", "b"], "b")
        on.core.delete_topic("b")
        on.core.create_topic("bb", {})
        page = on.core.list_topics(ListTopics(after="b"))
        assert [topic.name for topic in page.topics] == ["bb", "c"]


async def test_a_client_gets_all_pages_of_topics_and_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "_PAGE_PARTITIONS", 10)
    monkeypatch.setattr(group_requests, "_PAGE_GROUPS", 7)
    monkeypatch.setattr(group_requests, "_PAGE_PARTITIONS", 9)
    async with fanlog.Broker() as broker:
        for number in range(35):
            await broker.create_topic(f"t{number:02}", partitions=2)
        core = broker._node.core  # type: ignore[union-attr]
        for number in range(35):
            places = tuple(Position("t00", index, 0) for index in range(1 + number % 2))
            core.durable.commit_positions([(f"{GROUP_PREFIX}g{number:02}", places)])
        assert [t.name for t in await broker.topics()] == [f"t{n:02}" for n in range(35)]
        found = await broker.groups.list()
        assert [group.name for group in found] == [f"g{number:02}" for number in range(35)]
        assert [group.name for group in await broker.groups.list("g07")] == ["g07"]
        assert await broker.groups.list("nobody") == []
