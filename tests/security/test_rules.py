"""Rules allow what they say, and nothing that they do not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError
from fanlog.format.patterns import fits, is_pattern
from fanlog.identity import Account, Role, Rules, Verb
from fanlog.security.patterns import covers
from fanlog.security.rules import Decisions, check_rules, state_of

TOKENS = ["a", "b", "c"]
# Every name of up to four tokens: a token that stands for one that no pattern names is among them.
NAMES = [
    ".".join(tokens)
    for size in range(1, 5)
    for tokens in itertools.product([*TOKENS, "z"], repeat=size)
]


def account(name: str = "ann", /, **lists: Any) -> Account:
    return Account(name=name, kind="key", rules=check_rules(Rules(**lists)))


def may(who: Account, verb: Verb, name: str) -> bool:
    return Decisions("user.{user}").decide(who, verb, name)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(st.sampled_from([*TOKENS, "*"]), min_size=1, max_size=3))
    if draw(st.booleans()):
        tokens[-1:] = [">"] if draw(st.booleans()) else [tokens[-1], ">"]
    return ".".join(tokens)


@settings(max_examples=300, deadline=None)
@given(
    allowed=st.lists(patterns(), max_size=3),
    denied=st.lists(patterns(), max_size=2),
    wanted=patterns(),
)
def test_a_pattern_is_allowed_only_if_every_topic_that_it_can_match_is(
    allowed: list[str], denied: list[str], wanted: str
) -> None:
    lists = (*allowed, *(f"!{pattern}" for pattern in denied))
    who = account(subscribe=lists)
    if not may(who, Verb.SUBSCRIBE, wanted):
        return
    for name in NAMES:
        if fits(name, wanted):
            assert any(fits(name, pattern) for pattern in allowed)
            assert not any(fits(name, pattern) for pattern in denied)
            assert may(who, Verb.SUBSCRIBE, name)


@settings(max_examples=300, deadline=None)
@given(patterns(), patterns())
def test_one_pattern_covers_another_exactly_if_it_matches_all_of_it(one: str, other: str) -> None:
    inside = all(fits(name, one) for name in NAMES if fits(name, other))
    deep = one.count(".") >= 3 or other.count(".") >= 3
    assert covers(one, other) == inside or deep


@pytest.mark.parametrize("name", ["orders", "orders.eu", "_stream.x"])
def test_a_role_allows_its_verbs_on_public_names(name: str) -> None:
    table = {
        Role.PRODUCER: {Verb.PUBLISH, Verb.DESCRIBE, Verb.PRODUCER, Verb.SCHEDULE},
        Role.CONSUMER: {Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.GROUP, Verb.QUEUE, Verb.PRESENCE},
        Role.VIEWER: {Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.PRESENCE},
        Role.OBSERVER: {Verb.DESCRIBE},
        Role.ADMIN: set(Verb),
    }
    for role, verbs in table.items():
        assert {verb for verb in Verb if may(account(role=role), verb, name)} == verbs, role
    assert not any(may(account(), verb, name) for verb in Verb)


@pytest.mark.parametrize("role", [r for r in Role if r is not Role.ADMIN])
@pytest.mark.parametrize("verb", list(Verb))
def test_no_role_but_admin_reaches_the_brokers_own_topics(role: Role, verb: Verb) -> None:
    for name in ("_fanlog.audit", "_fanlog.>", "_fanlog.*", "_inbox.>", "_inbox.*"):
        allowed_names = verb in (Verb.PRODUCER, Verb.SCHEDULE) and role is Role.PRODUCER
        assert not may(account(role=role), verb, name) or allowed_names
    assert may(account(role=Role.ADMIN), verb, "_fanlog.audit")


def test_a_pattern_that_names_the_brokers_own_topics_reaches_them() -> None:
    who = account(subscribe=("_fanlog.audit",))
    assert may(who, Verb.SUBSCRIBE, "_fanlog.audit")
    assert not may(who, Verb.SUBSCRIBE, "_fanlog.groups")


def test_nobody_but_an_admin_reads_the_hashes_of_passwords() -> None:
    who = account(subscribe=("_fanlog.>", "_fanlog.accounts", "_fanlog.*"))
    assert may(who, Verb.SUBSCRIBE, "_fanlog.audit")
    for name in ("_fanlog.accounts", "_fanlog.>", "_fanlog.*"):
        assert not may(who, Verb.SUBSCRIBE, name)
        assert may(account(role=Role.ADMIN), Verb.SUBSCRIBE, name)


def test_an_inbox_is_for_whoever_knows_its_whole_name() -> None:
    for lists in ({"publish": ("a",)}, {"subscribe": ("a",)}):
        who = account(**lists)
        assert may(who, Verb.PUBLISH, "_inbox.7f3a")
        assert may(who, Verb.SUBSCRIBE, "_inbox.7f3a")
        assert not may(who, Verb.SUBSCRIBE, "_inbox.*")
        assert not may(who, Verb.GROUP, "_inbox.7f3a")
    assert not may(account(role=Role.OBSERVER), Verb.SUBSCRIBE, "_inbox.7f3a")
    assert not may(account(), Verb.PUBLISH, "_inbox.7f3a")


def test_a_denial_wins_for_dead_letters_too() -> None:
    worker = account(role=Role.CONSUMER, publish=("!dead.hr.>",))
    assert may(worker, Verb.PUBLISH, "dead.orders")
    assert not may(worker, Verb.PUBLISH, "dead.hr.pay")


def test_a_viewer_answers_no_request_that_it_has_read() -> None:
    viewer = account(role=Role.VIEWER)
    assert may(viewer, Verb.SUBSCRIBE, "_inbox.7f3a")
    assert not may(viewer, Verb.PUBLISH, "_inbox.7f3a")
    assert not may(viewer, Verb.MANAGE, "_inbox.7f3a")


def test_a_role_wins_over_lists_that_it_can_not_have() -> None:
    """Claims of a token are not looked at together."""
    everything = dict.fromkeys(("publish", "subscribe", "manage", "groups", "queues"), (">",))
    observer = Account(name="ann", kind="token", rules=Rules(role=Role.OBSERVER, **everything))
    viewer = Account(name="ann", kind="token", rules=Rules(role=Role.VIEWER, **everything))
    for verb in (Verb.PUBLISH, Verb.MANAGE, Verb.GROUP, Verb.QUEUE, Verb.PRODUCER, Verb.SCHEDULE):
        assert not may(observer, verb, "orders")
        assert not may(viewer, verb, "orders")
    for name in ("orders", "user.ann", "_inbox.7f3a"):
        assert not may(observer, Verb.SUBSCRIBE, name)
        assert not may(observer, Verb.PRESENCE, name)
    assert may(viewer, Verb.SUBSCRIBE, "orders")


def test_a_list_replaces_what_the_role_allows() -> None:
    who = account(role=Role.CONSUMER, subscribe=("orders.>", "!orders.secret"))
    assert may(who, Verb.SUBSCRIBE, "orders.eu")
    assert not may(who, Verb.SUBSCRIBE, "orders.secret")
    assert not may(who, Verb.SUBSCRIBE, "orders.>")
    assert not may(who, Verb.SUBSCRIBE, "users")
    assert not may(who, Verb.DESCRIBE, "users")
    assert may(who, Verb.GROUP, "anything")


def test_a_list_that_only_denies_takes_from_the_role() -> None:
    who = account(role=Role.CONSUMER, subscribe=("!secret.>",))
    assert may(who, Verb.SUBSCRIBE, "orders")
    assert not may(who, Verb.SUBSCRIBE, "secret.x")
    assert not may(who, Verb.SUBSCRIBE, ">")
    assert not may(account(subscribe=("!secret.>",)), Verb.SUBSCRIBE, "orders")
    assert not may(account(role=Role.CONSUMER, subscribe=()), Verb.SUBSCRIBE, "orders")


@pytest.mark.parametrize("name", ["*", ">", "a.>", "", "x.*.y"])
def test_the_name_of_an_account_can_never_be_a_pattern(name: str) -> None:
    who = account(name, subscribe=("room.{user}", "room.{user}.>"))
    wanted = ["room.*", "room.>", "room.bob", "room.a.b", "room.bob.x", "room..x"]
    wanted += ["user.*", "user.>", "user.bob"]
    for target in wanted:
        assert not may(who, Verb.SUBSCRIBE, target), target
    denied = account(name, subscribe=(">", "!room.{user}"))
    assert not may(denied, Verb.SUBSCRIBE, "room.bob")


def test_a_user_in_a_pattern_is_the_accounts_name() -> None:
    ann = account("ann", subscribe=("room.{user}.>",), publish=("from.{user}",))
    assert may(ann, Verb.SUBSCRIBE, "room.ann.x")
    assert not may(ann, Verb.SUBSCRIBE, "room.bob.x")
    assert may(ann, Verb.PUBLISH, "from.ann")
    # With a dot in the name a wildcard could reach what is another's: `room.ann.>` and `ann.smith`.
    smith = account("ann.smith", subscribe=("room.{user}.>",), publish=("from.{user}",))
    assert not may(smith, Verb.SUBSCRIBE, "room.ann.smith.x")
    assert may(smith, Verb.PUBLISH, "from.ann.smith")


def test_everybody_may_read_their_own_messages() -> None:
    assert may(account("ann"), Verb.SUBSCRIBE, "user.ann")
    assert not may(account("ann"), Verb.SUBSCRIBE, "user.bob")
    assert not may(account("ann"), Verb.PUBLISH, "user.ann")
    assert not may(account("ann", role=Role.OBSERVER), Verb.SUBSCRIBE, "user.ann")
    assert not is_pattern("user.ann")


def test_viewers_and_observers_see_groups_and_join_none() -> None:
    for role in (Role.VIEWER, Role.OBSERVER):
        who = account(role=role)
        assert may(who, Verb.DESCRIBE, state_of(Verb.GROUP, "billing"))
        assert may(who, Verb.DESCRIBE, state_of(Verb.QUEUE, "mails"))
        assert not may(who, Verb.GROUP, "billing")
        some = account(role=role, describe=("orders",), groups=("billing",))
        assert may(some, Verb.DESCRIBE, state_of(Verb.GROUP, "billing"))
        assert not may(some, Verb.DESCRIBE, state_of(Verb.GROUP, "other"))
        assert not may(some, Verb.GROUP, "billing")


def test_patterns_of_topics_say_nothing_about_groups() -> None:
    for who in (account(role=Role.PRODUCER), account(publish=(">",), manage=(">", "group.>"))):
        assert may(who, Verb.DESCRIBE, "orders")
        assert not may(who, Verb.DESCRIBE, state_of(Verb.GROUP, "billing"))
        assert not may(who, Verb.DESCRIBE, state_of(Verb.QUEUE, "mails"))


def test_a_worker_stores_dead_letters_of_what_it_reads() -> None:
    who = account(role=Role.CONSUMER, subscribe=("orders",))
    assert may(who, Verb.PUBLISH, "dead.orders")
    assert not may(who, Verb.PUBLISH, "dead.users")
    assert not may(who, Verb.PUBLISH, "dead.*")
    assert not may(account(role=Role.VIEWER), Verb.PUBLISH, "dead.orders")


@pytest.mark.parametrize(
    "lists",
    [
        {"role": Role.ADMIN, "publish": ("a",)},
        {"role": Role.OBSERVER, "subscribe": ("a",)},
        {"role": Role.VIEWER, "publish": ("a",)},
        {"publish": ("a>",)},
        {"publish": ("",)},
        {"publish": ("!",)},
        {"publish": ("x" * 300,)},
        {"publish": tuple(str(n) for n in range(1001))},
    ],
    ids=range(8),
)
def test_rules_that_make_no_sense_are_refused(lists: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        account(**lists)


def test_what_is_remembered_is_bounded() -> None:
    decisions = Decisions()
    who = account(role=Role.PRODUCER)
    for number in range(10_000):
        decisions.decide(who, Verb.PUBLISH, f"t{number}")
    (kept,) = decisions._kept.values()
    assert len(kept.answers) <= 4096
    for number in range(10_000):
        assert decisions.decide(account(f"u{number}", publish=("a",)), Verb.PUBLISH, "a")
    assert len(decisions._kept) <= 4096
