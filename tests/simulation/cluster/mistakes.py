"""Mistakes to plant in the code of the cluster: those that docs/cluster.md is built against. The
simulation has to find each."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from msgspec.structs import replace

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.stream import TurnStream
from fanlog.broker.messages.turns import Turns
from fanlog.broker.transactions.staged_copies import STAGED_TOPIC, StagedCopies
from fanlog.cluster import (
    follower_decisions,
    forced_reign,
    mark,
    node,
    primary_decisions,
    reconcile,
    replica,
)
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import SeenRecord
from fanlog.cluster.reign import Reign
from fanlog.cluster.replica import Replica
from fanlog.cluster.snapshot import ClusterSnapshot
from fanlog.cluster.steps import FollowerStep, PrimaryStep, RemoveInSync
from fanlog.cluster.trust import Act, Trust
from fanlog.cluster.views import FollowerReport, FollowerView, PendingChange, PrimaryView
from fanlog.format.replication import ReplicaPartition
from fanlog.log import cutting
from fanlog.log.journal import Journal
from fanlog.log.synced_ends import SyncedEnds
from fanlog.model import Durability

Planted = AbstractContextManager[object]


def wait_for_nobody_who_joins() -> Planted:
    """A follower that joins is waited for when its swap has succeeded, and not before."""

    def waits_for(seen: SeenRecord, pending: PendingChange | None) -> frozenset[str]:
        return frozenset(seen.record.in_sync)

    return mock.patch.object(node, "waits_for", waits_for)


def let_join_who_was_only_sent_everything() -> Planted:
    """In a reign that has committed nothing yet, a follower joins that has acknowledged nothing."""

    def is_level(view: PrimaryView, report: FollowerReport) -> bool:
        return report.level and report.acked >= view.committed

    return mock.patch.object(primary_decisions, "_is_level", is_level)


def forget_at_once_who_leaves() -> Planted:
    """A follower that is left out is not waited for while the swap is on its way."""

    def waits_for(seen: SeenRecord, pending: PendingChange | None) -> frozenset[str]:
        is_open = pending is not None and pending.is_open(seen)
        return frozenset((pending if is_open and pending else seen).record.in_sync)

    return mock.patch.object(node, "waits_for", waits_for)


def answer_before_the_commit() -> Planted:
    """Publishers hear of a message when the primary has it."""

    def hold(stream: TurnStream, durability: Durability, go_on: Any, *, position: int = -1) -> None:
        go_on()

    return mock.patch.object(TurnStream, "hold", hold)


def answer_of_ledgers_before_the_commit() -> Planted:
    """Entries of ledgers take effect, and are answered, when the primary has synced them; and
    changes of topics when it has made them."""
    append_entry = Turns.append_entry

    def early(turns: Turns, partition: Any, piece: bytes, next_offset: int, done: Any) -> None:
        append_entry(turns, partition, piece, next_offset, lambda _: None)
        turns.do_afterwards(lambda: done(None))

    def after_all(stream: TurnStream, go_on: Any) -> None:
        go_on()

    stack = ExitStack()
    stack.enter_context(mock.patch.object(TurnStream, "after_all", after_all))
    stack.enter_context(mock.patch.object(Turns, "append_entry", early))
    return stack


def keep_the_place_after_a_power_cut() -> Planted:
    """A folder is resumed whose page cache is lost."""

    def inherit(known: mark.FolderMark, boot_id: str) -> str:
        return known.incarnation

    return mock.patch.object(mark, "inherit_or_new", inherit)


def promote_anybody() -> Planted:
    """A node takes over that is not in the in-sync set."""
    rules = tuple(
        rule
        for rule in follower_decisions._FOLLOWER_RULES
        if rule is not follower_decisions._not_promotable
    )
    return mock.patch.object(follower_decisions, "_FOLLOWER_RULES", rules)


def go_on_after_a_higher_epoch() -> Planted:
    """A primary of the past does not step down."""
    fences = (primary_decisions._fenced, primary_decisions._untrusted_record)
    rules = tuple(rule for rule in primary_decisions._PRIMARY_RULES if rule not in fences)
    stack = ExitStack()
    stack.enter_context(mock.patch.object(primary_decisions, "_PRIMARY_RULES", rules))
    stack.enter_context(mock.patch.object(Reign, "hear_epoch", return_value=None))
    return stack


def acknowledge_before_the_sync() -> Planted:
    """A follower says that it has synced what it has only written."""
    return mock.patch.object(replica._Syncing, "wait", return_value=False)


def serve_before_the_opening() -> Planted:
    """A new primary serves before its in-sync set has what it found in its folder."""
    opened = PrimaryRole.open

    def at_once(role: PrimaryRole) -> None:
        opened(role)
        role.node.core.opening = ""
        role.node.core.stream.advance(1, 1)

    return mock.patch.object(PrimaryRole, "open", at_once)


def cut_nothing() -> Planted:
    """A follower keeps what the primary does not have."""

    def common_end(theirs: ReplicaPartition, ours: ReplicaPartition) -> int:
        return min(theirs.end, ours.end)

    return mock.patch.object(reconcile, "common_end", common_end)


def cut_too_much() -> Planted:
    """A follower cuts what it shares with the primary, too."""

    def common_end(theirs: ReplicaPartition, ours: ReplicaPartition) -> int:
        return min(theirs.end, ours.end) // 2

    return mock.patch.object(reconcile, "common_end", common_end)


def cut_before_the_mark() -> Planted:
    """The mark of a folder says that it is whole while its logs are cut."""

    def unmarked(follower: Replica) -> None:
        follower._complete = False
        follower.written = follower.synced = 0
        follower._syncing.waiting.clear()

    return mock.patch.object(Replica, "_incomplete", unmarked)


def resume_the_reign() -> Planted:
    """A primary that was killed goes on in the epoch of its last reign."""
    named = follower_decisions._named_primary

    def resumed(view: FollowerView) -> FollowerStep | None:
        return named(replace(view, known=replace(view.known, last_reign=0)))

    rules = tuple(resumed if rule is named else rule for rule in follower_decisions._FOLLOWER_RULES)
    return mock.patch.object(follower_decisions, "_FOLLOWER_RULES", rules)


def trust_any_etcd() -> Planted:
    """An etcd that has gone back is believed."""

    def act(*_: object) -> Trust:
        return Act()

    stack = ExitStack()
    for module in (follower_decisions, primary_decisions):
        stack.enter_context(mock.patch.object(module, "trust", act))
    newer = follower_decisions._newer_record_elsewhere
    rules = tuple(rule for rule in follower_decisions._FOLLOWER_RULES if rule is not newer)
    stack.enter_context(mock.patch.object(follower_decisions, "_FOLLOWER_RULES", rules))
    return stack


def leave_too_few() -> Planted:
    """A silent follower is left out although the set becomes smaller than `min_in_sync`."""
    silent = primary_decisions._silent_follower

    def greedy(view: PrimaryView) -> PrimaryStep | None:
        seen = view.cluster.record
        assert seen is not None
        few = replace(seen, record=replace(seen.record, min_in_sync=1))
        step = silent(replace(view, cluster=replace(view.cluster, record=few)))
        if not isinstance(step, RemoveInSync):
            return step
        whole = replace(step.record, min_in_sync=seen.record.min_in_sync)
        return RemoveInSync(step.incarnation, whole)

    rules = tuple(greedy if rule is silent else rule for rule in primary_decisions._PRIMARY_RULES)
    return mock.patch.object(primary_decisions, "_PRIMARY_RULES", rules)


def use_an_epoch_again() -> Planted:
    """An operator begins the reign after the one that etcd knows, and nodes know a later one."""

    def next_epoch(cluster: ClusterSnapshot) -> int:
        assert cluster.record is not None
        return cluster.record.record.epoch + 1

    return mock.patch.object(forced_reign, "forced_epoch", next_epoch)


def look_for_nothing_after_a_power_cut() -> Planted:
    """Who has lost what was in the middle of a log says that it has everything."""

    async def nothing(follower: Replica) -> None:
        pass

    return mock.patch.object(Replica, "_search", nothing)


def let_the_journal_bring_back_what_was_cut() -> Planted:
    """The journal is not emptied before logs are cut."""

    def close(kept: Journal) -> None:
        kept._await_checkpoint()
        kept._close_files()

    def unchecked(folder: str) -> SyncedEnds | None:
        return cutting.load_ends(f"{folder}/journal")

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Journal, "close", close))
    stack.enter_context(mock.patch.object(cutting, "check_closed", unchecked))
    return stack


def compact_before_the_opening() -> Planted:
    """Records go because of others that the in-sync set may not have."""

    def housekeeping(core: BrokerCore) -> None:
        core._housekeeping.begin()

    return mock.patch.object(BrokerCore, "housekeeping", housekeeping)


def copy_on_behind_lost_tombstones() -> Planted:
    """A follower goes on where it was, and the primary has compacted what comes next."""

    def can_continue(theirs: ReplicaPartition, ours: ReplicaPartition, agreed: int) -> bool:
        return agreed >= max(ours.start, theirs.start)

    return mock.patch.object(reconcile, "_can_continue", can_continue)


def drop_staged_bytes_before_the_commit() -> Planted:
    """The copies of what a transaction has staged go when its intent is written."""
    write = StagedCopies.write

    def too_early(copies: StagedCopies, files: Any, done: Any) -> None:
        def written(fault: Any) -> None:
            done(fault)
            partition = copies._internal.find_internal(STAGED_TOPIC)
            if fault is None and partition is not None:
                partition.log.drop_before(partition.log.begin_segment())

        write(copies, files, written)

    return mock.patch.object(StagedCopies, "write", too_early)


def keep_staged_bytes_to_itself() -> Planted:
    """What a transaction has staged in a file is not in the stream before its intent."""

    def nothing(copies: StagedCopies, files: Any, done: Any) -> None:
        done(None)

    return mock.patch.object(StagedCopies, "write", nothing)
