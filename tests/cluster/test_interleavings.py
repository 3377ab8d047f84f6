"""Several nodes decide on one etcd, in any order: whatever swaps are lost, unknown or late, whoever
is killed, loses its page cache or its disk. Logs are lists, and a position is the length of one.

After each step: one reign for an epoch; nobody reigns from outside the in-sync set; the set never
shrinks below `min_in_sync` nodes; a primary waits for all of etcd's set; and what was acknowledged
is on every member of the set, and with every later primary."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fanlog.cluster import follower_decisions, primary_decisions
from fanlog.cluster.committed_position import committed, waits_for
from fanlog.cluster.coordination import NotSent, Stored, SwapOutcome, Swapped, Unknown
from fanlog.cluster.follower_decisions import decide_follower
from fanlog.cluster.primary_decisions import decide_primary
from fanlog.cluster.records import (
    ClusterKeys,
    NodeRecord,
    SeenRecord,
    ShardRecord,
    decode,
    encode,
    nodes_of,
)
from fanlog.cluster.snapshot import Absences, Newest, cluster_of
from fanlog.cluster.steps import (
    CreateRecord,
    FollowPrimary,
    MovePrimary,
    NewCluster,
    NoChange,
    OpenReign,
    Promote,
    RepeatChange,
    StepDown,
    StopNode,
)
from fanlog.cluster.views import (
    AckedPositions,
    ClusterRules,
    Folder,
    FollowerReport,
    FollowerView,
    KnownCluster,
    PendingChange,
    PrimaryView,
)
from tests.simulation.memory_etcd import MemoryEtcd

KEYS = ClusterKeys("test")
SHARD = KEYS.shard()
Entry = tuple[int, int]


@dataclass
class SimpleReign:
    epoch: int
    base: SeenRecord
    opened_at: int
    pending: PendingChange | None = None
    committed: int = 0
    heard: int = 0


@dataclass
class SimpleNode:
    name: str
    starts: int = 1
    up: bool = True
    folder: Folder = Folder.EMPTY
    known: KnownCluster = KnownCluster()  # noqa: RUF009 a frozen value
    log: list[Entry] = field(default_factory=list)
    newest: Newest = field(default_factory=Newest)
    absences: Absences = field(default_factory=Absences)
    missing: dict[str, float] = field(default_factory=dict)
    reign: SimpleReign | None = None
    follows: tuple[str, int] | None = None
    heard: int = 0

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.starts}"


class SimpleCluster:
    def __init__(self, min_in_sync: int) -> None:
        self.now = 0.0
        self.rules = ClusterRules(min_in_sync=min_in_sync)
        self.etcd = MemoryEtcd(lambda: self.now)
        self.nodes = [SimpleNode(name) for name in "abcd"]
        self.late: list[tuple[Stored | None, bytes]] = []
        self.reigns: dict[int, str] = {}
        self.acknowledged: list[Entry] = []
        self.last: ShardRecord | None = None

    # Actions

    def look(self, node: SimpleNode, _: int) -> None:
        """Reads etcd; until the next look it decides from this."""
        if not node.up:
            return
        record = NodeRecord(
            node=node.name,
            incarnation=node.incarnation,
            address="",
            revision=node.known.seen.revision if node.known.seen else 0,
        )
        self.etcd.put(KEYS.node(node.name), encode(record))
        listing = self.etcd.list(KEYS.prefix)
        snapshot = cluster_of(listing, KEYS)
        assert node.newest.listed(listing, snapshot)
        node.missing = dict(node.absences.observe(snapshot, self.now))

    def step(self, node: SimpleNode, choice: int) -> None:
        if node.newest.snapshot is None:
            self.look(node, 0)
        if not node.up:
            return
        if node.reign is not None:
            self._lead(node, node.reign, choice)
        else:
            self._follow(node, choice)

    def turn(self, node: SimpleNode, choice: int) -> None:
        """What a node usually does: decides from what is there now."""
        self.look(node, choice)
        self.step(node, choice)

    def publish(self, node: SimpleNode, _: int) -> None:
        if node.up and node.reign is not None:
            node.log.append((node.reign.epoch, len(node.log)))

    def replicate(self, node: SimpleNode, choice: int) -> None:
        """The follower gets some entries of whom it follows."""
        if not node.up or node.follows is None or node.reign is not None:
            return
        incarnation, epoch = node.follows
        for primary in self.nodes:
            if primary.up and primary.reign and primary.incarnation == incarnation:
                primary.reign.heard = max(primary.reign.heard, node.heard)
                if primary.reign.epoch != epoch or node.heard > epoch:
                    break
                node.heard = epoch
                common = _common(node.log, primary.log)
                node.folder = Folder.CUTTING
                node.log = primary.log[: common + choice]
                if len(node.log) >= primary.reign.opened_at:
                    node.folder = Folder.WHOLE
                return
        node.follows = None

    def commit(self, node: SimpleNode, _: int) -> None:
        """The primary acknowledges what all that it waits for have."""
        reign = node.reign
        if not node.up or reign is None:
            return
        acks = {one.incarnation: one.acked for one in self._reports(node, reign)}
        acks[node.incarnation] = AckedPositions(len(node.log), len(node.log))
        needed = waits_for(reign.base, reign.pending)
        reached = committed(acks, needed, reign.base.record.min_in_sync).written
        if reached > max(reign.committed, reign.opened_at):
            reign.committed = reached
            self.acknowledged += [one for one in node.log[:reached] if one not in self.acknowledged]

    def kill(self, node: SimpleNode, _: int) -> None:
        node.up, node.reign, node.follows, node.newest = False, None, None, Newest()
        node.absences = Absences()

    def lose_page_cache(self, node: SimpleNode, choice: int) -> None:
        if not self._is_spared(node):
            return
        self.kill(node, 0)
        node.log = node.log[: max(0, len(node.log) - choice % 5)]
        node.starts += 1

    def lose_disk(self, node: SimpleNode, _: int) -> None:
        if not self._is_spared(node):
            return
        self.kill(node, 0)
        node.log, node.folder, node.known, node.heard = [], Folder.EMPTY, KnownCluster(), 0
        node.starts += 1

    def start(self, node: SimpleNode, _: int) -> None:
        if not node.up and node.folder in (Folder.COPYING, Folder.CUTTING):
            node.starts += 1
        node.up = True

    def _is_spared(self, node: SimpleNode) -> bool:
        """Whether another member of the in-sync set has all its data: otherwise only an operator
        could continue."""
        others = {one.incarnation for one in self.nodes if one is not node}
        return self.last is not None and not others.isdisjoint(self.last.in_sync)

    def lose_lease(self, node: SimpleNode, _: int) -> None:
        """The node is gone, or only seems to be."""
        if self.etcd.get(KEYS.node(node.name)) is not None:
            self.etcd.remove(KEYS.node(node.name))

    def wait(self, _node: SimpleNode, _: int) -> None:
        """Leases of nodes that are gone end, and graces."""
        self.now += 10.0
        for node in self.nodes:
            if not node.up:
                self.lose_lease(node, 0)

    def land(self, _node: SimpleNode, _: int) -> None:
        late, self.late = self.late, []
        for expected, value in late:
            self.etcd.swap(SHARD, expected, value)

    # What nodes do

    def _follow(self, node: SimpleNode, choice: int) -> None:
        snapshot = node.newest.snapshot
        assert snapshot is not None
        step = decide_follower(
            FollowerView(
                node=node.name,
                incarnation=node.incarnation,
                folder=node.folder,
                known=node.known,
                cluster=snapshot,
                now=self.now,
                rules=self.rules,
                missing_since=node.missing,
                folder_epoch=max((epoch for epoch, _ in node.log), default=0),
                epoch_heard=node.heard,
            )
        )
        assert not isinstance(step, StopNode), step
        if snapshot.record is not None:
            node.known = replace(
                node.known, cluster=snapshot.id, node=node.name, etcd="memory", seen=snapshot.record
            )
        match step:
            case NewCluster():
                self.etcd.swap(KEYS.id, None, b"id")
            case CreateRecord(record):
                self._swap(node, None, record, choice)
            case FollowPrimary(target, epoch):
                node.follows = (target.incarnation, epoch)
            case Promote(record):
                node.follows = None
                self._swap(node, snapshot.record, record, choice)
            case OpenReign(epoch):
                self._open(node, epoch, snapshot.record)
            case _:
                pass

    def _open(self, node: SimpleNode, epoch: int, seen: SeenRecord | None) -> None:
        assert seen is not None
        assert node.folder in (Folder.EMPTY, Folder.WHOLE)
        node.folder = Folder.WHOLE
        assert epoch not in self.reigns, "one reign for an epoch"
        self.reigns[epoch] = node.incarnation
        lost = [one for one in self.acknowledged if one not in node.log]
        assert not lost, "acknowledged, and not with a later primary"
        node.known = replace(node.known, last_reign=epoch)
        node.follows, node.heard = None, epoch
        node.reign = SimpleReign(epoch, seen, len(node.log))
        node.log.append((epoch, len(node.log)))

    def _lead(self, node: SimpleNode, reign: SimpleReign, choice: int) -> None:
        snapshot = node.newest.snapshot
        assert snapshot is not None
        end = AckedPositions(len(node.log), len(node.log))
        waits = reign.committed < len(node.log)
        step = decide_primary(
            PrimaryView(
                incarnation=node.incarnation,
                epoch=reign.epoch,
                etcd="memory",
                base=reign.base,
                cluster=snapshot,
                now=self.now,
                followers=self._reports(node, reign),
                pending=reign.pending,
                end=end,
                committed=AckedPositions(reign.committed, reign.committed),
                waiting_since=self.now - choice if waits else None,
                epoch_heard=reign.heard,
                move_to="abcd"[choice % 4] if choice > 19 else "",
                leaving=frozenset("d") if choice == 5 else frozenset(),
            )
        )
        assert not isinstance(step, StepDown) or "back" not in step.reason, step
        now = snapshot.record
        if isinstance(step, StepDown):
            node.reign = None
            node.known = replace(node.known, seen=now or node.known.seen)
        elif now is not None:
            reign.base = now
            node.known = replace(node.known, seen=now)
            if not isinstance(step, NoChange):
                if isinstance(step, MovePrimary) and not self._is_level(node, step.to):
                    return
                first = not isinstance(step, RepeatChange)
                reign.pending = PendingChange(now.revision, step.record)
                outcome = self._swap(node, now, step.record, choice)
                if isinstance(outcome, NotSent) and first:
                    reign.pending = None

    def _is_level(self, node: SimpleNode, to: str) -> bool:
        return any(one.incarnation == to and one.log == node.log for one in self.nodes)

    def _reports(self, node: SimpleNode, reign: SimpleReign) -> tuple[FollowerReport, ...]:
        me = (node.incarnation, reign.epoch)
        return tuple(
            FollowerReport(
                incarnation=one.incarnation,
                level=one.folder is Folder.WHOLE and len(one.log) >= reign.opened_at,
                acked=AckedPositions(len(one.log), len(one.log)),
            )
            for one in self.nodes
            if one.up
            and one.follows == me
            and one.heard == reign.epoch
            and _common(one.log, node.log) == len(one.log)
        )

    def _swap(
        self, node: SimpleNode, seen: SeenRecord | None, record: ShardRecord, choice: int
    ) -> SwapOutcome:
        expected = Stored(SHARD, encode(seen.record), seen.revision) if seen else None
        value = encode(record)
        match choice % 8:
            case 1:
                return NotSent("")
            case 2:
                return Unknown("")
            case 3:
                self.late.append((expected, value))
                return Unknown("")
            case _:
                outcome = self.etcd.swap(SHARD, expected, value)
        if isinstance(outcome, Swapped) and choice % 8 != 4:
            node.newest.swapped(record, outcome.revision)
            if node.reign is not None and record.epoch == node.reign.epoch:
                node.reign.base = SeenRecord(record, outcome.revision)
        return outcome if choice % 8 != 4 else Unknown("")

    # Invariants

    def check(self) -> None:
        stored = self.etcd.get(SHARD)
        if stored is None:
            return
        record = decode(stored.value, ShardRecord)
        self._check_change(record)
        self.last = record
        for node in self.nodes:
            reign = node.reign
            if (
                node.up
                and reign
                and (record.epoch, record.primary)
                == (
                    reign.epoch,
                    node.incarnation,
                )
            ):
                assert waits_for(reign.base, reign.pending) >= set(record.in_sync)
            if node.incarnation in record.in_sync:
                lost = [one for one in self.acknowledged if one not in node.log]
                assert not lost, f"acknowledged, and not on {node.incarnation}"

    def _check_change(self, record: ShardRecord) -> None:
        last = self.last
        if last is None or last == record:
            return
        assert record.epoch >= last.epoch
        enough = min(record.min_in_sync, len(nodes_of(last.in_sync)))
        assert len(nodes_of(record.in_sync)) >= enough
        assert record.primary in record.in_sync
        if record.epoch > last.epoch:
            assert record.primary in last.in_sync
            assert set(record.in_sync) <= set(last.in_sync)


def _common(one: list[Entry], other: list[Entry]) -> int:
    """How long two logs are the same."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


# What happens often, and what happens now and then.
ACTIONS = (
    *("turn", "replicate", "commit") * 8,
    *("step", "publish", "start") * 4,
    *("look", "land", "wait", "lose_lease", "kill", "lose_page_cache", "lose_disk"),
)
CHOICES = range(24)
MOVES = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3), st.sampled_from(CHOICES))


def play(moves: list[tuple[str, int, int]], min_in_sync: int) -> SimpleCluster:
    cluster = SimpleCluster(min_in_sync)
    for action, number, choice in moves:
        getattr(cluster, action)(cluster.nodes[number], choice)
        cluster.check()
    return cluster


@settings(max_examples=150)
@given(moves=st.lists(MOVES, max_size=200), min_in_sync=st.integers(1, 3))
def test_no_interleaving_loses_what_was_acknowledged(
    moves: list[tuple[str, int, int]], min_in_sync: int
) -> None:
    play(moves, min_in_sync)


def long_run(seed: int) -> SimpleCluster:
    dice = random.Random(seed)
    moves = [(dice.choice(ACTIONS), dice.randrange(4), dice.choice(CHOICES)) for _ in range(600)]
    return play(moves, 1 + seed % 3)


def test_no_long_interleaving_loses_what_was_acknowledged() -> None:
    runs = [long_run(seed) for seed in range(100)]
    assert sum(len(run.reigns) for run in runs) > 150, "the runs are about something"
    assert sum(len(run.acknowledged) for run in runs) > 200


def test_the_interleavings_find_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (module, attribute, mistake) in MISTAKES.items():
        with monkeypatch.context() as planted:
            planted.setattr(module, attribute, mistake)
            assert any(is_caught(seed) for seed in range(200)), name


def is_caught(seed: int) -> bool:
    try:
        long_run(seed)
    except AssertionError:
        return True
    return False


def _without(rules: tuple[Any, ...], left_out: str) -> tuple[Any, ...]:
    return tuple(rule for rule in rules if rule.__name__ != left_out)


def _new_set_at_once(seen: SeenRecord, pending: PendingChange | None) -> frozenset[str]:
    is_open = pending is not None and pending.is_open(seen)
    return frozenset(pending.record.in_sync if pending and is_open else seen.record.in_sync)


_HERE = sys.modules[__name__]
_FOLLOWER = follower_decisions._FOLLOWER_RULES
_PRIMARY = primary_decisions._PRIMARY_RULES
MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "a joiner is waited for only after its swap": (
        _HERE,
        "waits_for",
        lambda seen, _pending: frozenset(seen.record.in_sync),
    ),
    "a leaver is not waited for before its swap has succeeded": (
        _HERE,
        "waits_for",
        _new_set_at_once,
    ),
    "any copy may become primary": (
        follower_decisions,
        "_FOLLOWER_RULES",
        _without(_FOLLOWER, "_not_promotable"),
    ),
    "a follower joins before it is level": (primary_decisions, "_is_level", lambda *_: True),
    "an unknown outcome is forgotten": (
        primary_decisions,
        "_PRIMARY_RULES",
        _without(_PRIMARY, "_outcome_unknown"),
    ),
}
