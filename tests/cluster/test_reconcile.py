"""Followers and primaries with any histories: after the plan and catching up their logs are equal,
and nothing that was committed is cut."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.cluster.reconcile import Plan, common_end, reconcile
from fanlog.format.replication import ReplicaPartition, ReplicaTopic
from fanlog.log.scan import Owner
from fanlog.model import TopicSettings

OWNER = Owner(1, 0)


class Entry(NamedTuple):
    """A record: who wrote it, and what. No two are equal."""

    epoch: int
    content: int


class Node:
    """A log as a list of records, and how many are gone from its begin."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.start = 0

    def partition(self) -> ReplicaPartition:
        epochs: list[tuple[int, int]] = []
        for offset, entry in enumerate(self.log):
            if not epochs or entry.epoch > epochs[-1][0]:
                epochs.append((entry.epoch, offset))
        # As a log forgets epochs that ended before its start.
        kept = [
            e for i, e in enumerate(epochs) if i + 1 == len(epochs) or epochs[i + 1][1] > self.start
        ]
        return ReplicaPartition(self.start, len(self.log), tuple(kept))


def topic(node: Node, number: int = 1, name: str = "t") -> ReplicaTopic:
    return ReplicaTopic(number, name, TopicSettings(), (node.partition(),))


def follow(follower: Node, primary: Node) -> int:
    """Carries out a plan, and copies; the offset from which records of the follower went."""
    plan = reconcile([topic(primary)], [topic(follower)])
    kept = len(follower.log)
    if OWNER in plan.ends:
        kept = plan.ends[OWNER]
        del follower.log[kept:]
    if OWNER in plan.restarts:
        kept = plan.restarts[OWNER]
        follower.start = kept
        follower.log = primary.log[:kept]
    follower.start = max(follower.start, plan.starts.get(OWNER, 0))
    assert follower.log[follower.start :] == primary.log[follower.start : len(follower.log)]
    assert primary.start <= len(follower.log) <= len(primary.log)
    return kept


# For each reign: who is the primary, who follows, how much is written, how much of it each copies,
# and what goes from the begin.
reigns = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(reigns)
@settings(max_examples=400, deadline=None)
def test_after_the_plan_and_catching_up_logs_are_equal(
    history: list[tuple[int, list[tuple[int, int]], int, int]],
) -> None:
    nodes = [Node() for _ in range(4)]
    content = 0
    for epoch, (leader, copies, written, gone) in enumerate(history, 1):
        primary = nodes[leader]
        for _ in range(written):
            content += 1
            primary.log.append(Entry(epoch, content))
        for number, count in copies:
            if number != leader:
                node = nodes[number]
                follow(node, primary)
                node.log += primary.log[len(node.log) : len(node.log) + count]
        primary.start = min(len(primary.log), primary.start + gone)
    primary = nodes[history[-1][0]]
    for node in nodes:
        if node is not primary:
            follow(node, primary)
            node.log += primary.log[len(node.log) :]
            assert node.log[node.start :] == primary.log[node.start :]
            plan = reconcile([topic(primary)], [topic(node)])
            assert not plan.ends
            assert not plan.restarts


@given(reigns, st.data())
@settings(max_examples=400, deadline=None)
def test_nothing_that_all_in_sync_replicas_had_is_cut(
    history: list[tuple[int, list[tuple[int, int]], int, int]], data: st.DataObject
) -> None:
    nodes = [Node() for _ in range(3)]
    in_sync = {0, 1, 2}
    committed: list[Entry] = []
    content = 0
    for epoch, (_, copies, written, _) in enumerate(history, 1):
        leader = data.draw(st.sampled_from(sorted(in_sync)))
        primary = nodes[leader]
        assert primary.log[: len(committed)] == committed
        for _ in range(written):
            content += 1
            primary.log.append(Entry(epoch, content))
        # Some of the set are left out, and others are level and come in.
        in_sync = {leader}
        for number, count in copies:
            node = nodes[number % 3]
            if node is primary:
                continue
            has = sum(1 for a, b in zip(node.log, committed, strict=False) if a == b)
            assert follow(node, primary) >= has
            node.log += primary.log[len(node.log) : len(node.log) + count]
            if len(node.log) >= len(committed):
                in_sync.add(number % 3)
        everywhere = min(len(nodes[number].log) for number in in_sync)
        committed = primary.log[: max(len(committed), everywhere)]


def test_a_log_agrees_up_to_the_end_of_the_newest_common_epoch() -> None:
    primary = ReplicaPartition(0, 90, ((1, 0), (3, 50), (6, 80)))
    for end, epochs, agreed in [
        (60, ((1, 0), (3, 50)), 60),
        (85, ((1, 0), (3, 50)), 80),
        (60, ((1, 0), (2, 40)), 40),
        (60, ((1, 0), (2, 20), (5, 55)), 20),
        (95, ((1, 0), (3, 50), (6, 80)), 90),
        (40, ((2, 0),), -1),
        (0, (), 0),
    ]:
        assert common_end(primary, ReplicaPartition(0, end, epochs)) == agreed


def one(theirs: ReplicaPartition, ours: ReplicaPartition, damaged: int | None = None) -> Plan:
    settings = TopicSettings()
    return reconcile(
        [ReplicaTopic(1, "t", settings, (theirs,))],
        [ReplicaTopic(1, "t", settings, (ours,))],
        {} if damaged is None else {OWNER: damaged},
    )


def test_a_log_whose_begin_is_gone_on_the_primary_begins_anew() -> None:
    primary = ReplicaPartition(50, 90, ((1, 0), (3, 50)))
    assert one(primary, ReplicaPartition(0, 40, ((1, 0),))).restarts == {OWNER: 50}
    assert one(primary, ReplicaPartition(0, 60, ((1, 0), (3, 50)))).starts == {OWNER: 50}
    assert one(primary, ReplicaPartition(0, 0)).restarts == {OWNER: 50}
    assert one(primary, ReplicaPartition(0, 60, ((2, 0),))).restarts == {OWNER: 50}


def test_a_log_that_begins_after_the_primarys_begins_anew() -> None:
    primary = ReplicaPartition(20, 90, ((1, 0),))
    assert one(primary, ReplicaPartition(50, 90, ((1, 0),))).restarts == {OWNER: 20}
    assert one(primary, ReplicaPartition(20, 90, ((1, 0),))).is_empty
    assert one(primary, ReplicaPartition(50, 50)).restarts == {OWNER: 20}
    # Compaction may have taken the first records away, and the copy begins with those that stay.
    compacted = ReplicaPartition(20, 90, ((1, 0),), compacted_until=60)
    assert one(compacted, ReplicaPartition(50, 90, ((1, 0),))).is_empty
    assert one(compacted, ReplicaPartition(70, 90, ((1, 0),))).restarts == {OWNER: 20}


def test_a_log_that_begins_behind_what_nobody_has_goes_on() -> None:
    """The simulation found a copy that began anew with each connection."""
    primary = ReplicaPartition(0, 90, ((1, 0),), lost_until=20)
    assert one(primary, ReplicaPartition(20, 90, ((1, 0),))).is_empty
    assert one(primary, ReplicaPartition(20, 20)).is_empty
    assert one(primary, ReplicaPartition(0, 90, ((1, 0),))).is_empty
    assert one(primary, ReplicaPartition(21, 90, ((1, 0),))).restarts == {OWNER: 0}


def test_a_log_that_lacks_what_is_compacted_begins_anew() -> None:
    primary = ReplicaPartition(0, 90, ((1, 0),), compacted_until=70)
    assert one(primary, ReplicaPartition(0, 60, ((1, 0),))).restarts == {OWNER: 0}
    assert one(primary, ReplicaPartition(0, 70, ((1, 0),))).is_empty
    assert one(primary, ReplicaPartition(0, 0)).is_empty
    # Its own compaction has removed records because of others that go.
    mine = ReplicaPartition(0, 95, ((1, 0), (2, 80)), compacted_until=93)
    assert one(primary, mine).restarts == {OWNER: 0}


def test_damage_is_cut_out_and_copied_again() -> None:
    primary = ReplicaPartition(0, 90, ((1, 0),))
    mine = ReplicaPartition(0, 90, ((1, 0),))
    assert one(primary, mine, damaged=30).ends == {OWNER: 30}


def test_topics_are_deleted_made_and_altered_as_on_the_primary() -> None:
    small, wide = TopicSettings(), TopicSettings(partitions=3)
    empty = ReplicaPartition(0, 0)
    own = [
        ReplicaTopic(1, "same", small, (empty,)),
        ReplicaTopic(2, "gone", small, (empty,)),
        ReplicaTopic(3, "again", small, (empty,)),
        ReplicaTopic(4, "wider", small, (empty,)),
        ReplicaTopic(5, "narrower", wide, (empty,) * 3),
    ]
    primary = [
        own[0],
        ReplicaTopic(7, "again", small, (empty,)),
        ReplicaTopic(4, "wider", wide, (empty,) * 3),
        ReplicaTopic(5, "narrower", small, (empty,)),
        ReplicaTopic(8, "new", small, (ReplicaPartition(20, 30, ((1, 20),)),)),
    ]
    plan = reconcile(primary, own)
    assert plan.deletions == (2, 3, 5)
    assert [made.number for made in plan.creations] == [7, 5, 8]
    assert [altered.number for altered in plan.alterations] == [4]
    assert plan.restarts == {Owner(8, 0): 20}
    assert not plan.ends
    assert reconcile(own, own).is_empty
