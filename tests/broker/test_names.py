"""Names and wildcards: the tree against a plain look at every name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.names import (
    NameTree,
    check_name,
    check_pattern,
    check_public_name,
    check_target,
    is_pattern,
)
from fanlog.errors import InvalidNameError

tokens = st.sampled_from(["a", "b", "c", "", "a*", ">b"])
names = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda head, rest: ".".join([*head, *rest]),
    st.lists(st.sampled_from(["a", "b", "*", ""]), min_size=0, max_size=3),
    st.sampled_from([["a"], ["*"], [">"]]),
)


def fits(pattern: str, name: str) -> bool:
    """What the words say: `*` is one token, `>` one or more at the end."""
    if pattern == ">":
        return True
    first, _, more_pattern = pattern.partition(".")
    token, dot, more_name = name.partition(".")
    if first not in ("*", token):
        return False
    if "." not in pattern or not dot:
        return "." not in pattern and not dot
    return fits(more_pattern, more_name)


@given(st.lists(names, max_size=15), patterns)
def test_the_tree_of_names_finds_all_that_match_a_pattern(given_: list[str], pattern: str) -> None:
    tree: NameTree[int] = NameTree()
    for i, name in enumerate(given_):
        tree.add(name, i)
    assert sorted(tree.matching(pattern)) == [
        i for i, name in enumerate(given_) if fits(pattern, name)
    ]


@given(st.lists(patterns, max_size=15), names)
def test_the_tree_of_patterns_finds_all_that_a_name_fits(given_: list[str], name: str) -> None:
    tree: NameTree[int] = NameTree()
    for i, pattern in enumerate(given_):
        tree.add(pattern, i)
    assert sorted(tree.fitting(name)) == [
        i for i, pattern in enumerate(given_) if fits(pattern, name)
    ]


@given(st.lists(st.tuples(names, st.booleans()), max_size=20), patterns)
def test_what_was_removed_is_not_found_and_leaves_nothing_behind(
    steps: list[tuple[str, bool]], pattern: str
) -> None:
    tree: NameTree[int] = NameTree()
    kept: dict[int, str] = {}
    for i, (name, stays) in enumerate(steps):
        tree.add(name, i)
        kept[i] = name
        if not stays:
            gone = min(kept)
            tree.remove(kept.pop(gone), gone)
    assert sorted(tree.matching(pattern)) == sorted(
        i for i, name in kept.items() if fits(pattern, name)
    )
    for i, name in kept.items():
        tree.remove(name, i)
    assert list(tree.matching(">")) == []
    assert not tree._root.children


def test_removing_what_is_not_there_is_an_error() -> None:
    tree: NameTree[int] = NameTree()
    tree.add("a.b", 1)
    with pytest.raises(KeyError):
        tree.remove("a.c", 1)


@pytest.mark.parametrize("name", ["a", "a.b", "A-Z_0", "ü", "a..b", " ", "x" * 255])
def test_these_are_names(name: str) -> None:
    assert check_name(name) == check_public_name(name) == name
    assert not is_pattern(name)


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "a\x00", "a\x7f", "\t", "*", "a.*", ">", "a.>", "a*", "a>b"]
)
def test_these_are_no_names(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_name(name)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "orders*",
            (
                "'orders*': * stands for one whole part of a name between dots: write orders.*, or "
                "orders.> for everything below orders."
            ),
        ),
        ("eu.orders*", "write eu.orders.*, or eu.orders.> for everything below eu.orders."),
        ("*orders", "* stands for one whole part of a name between dots: write it alone there"),
        ("or*ers.new", "write it alone there, as in orders.*."),
        ("orders*.>", "write it alone there, as in orders.*."),
        ("orders>", "> stands for everything below a name, after a dot: write orders.>."),
        (">orders", "write it alone at the end, as in orders.>."),
        ("a.>.b", "'a.>.b': > stands for everything below a name: it must be the end, as a.>."),
    ],
)
def test_a_wildcard_inside_a_token_says_how_to_write_it(target: str, says: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_target(target, wildcard=is_pattern(target))
    assert says in str(caught.value)


@pytest.mark.parametrize("pattern", ["*", ">", "a.*.b", "a.>", "*.>"])
def test_these_are_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern
    assert is_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["", "a.>.b", ">.a", "*." * 128, "a*", "a*.b", "*.b>", "a.b*.>"]
)
def test_these_are_no_patterns(pattern: str) -> None:
    with pytest.raises(InvalidNameError):
        check_pattern(pattern)
