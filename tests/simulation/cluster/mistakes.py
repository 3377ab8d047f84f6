"""Mistakes to plant in the code of the cluster: those that docs/cluster.md is built against. The
simulation has to find each."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from fanlog.broker.messages.stream import TurnStream
from fanlog.broker.messages.turns import Turns
from fanlog.cluster import follower_decisions, mark, node, primary_decisions, reconcile, replica
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import SeenRecord
from fanlog.cluster.reign import Reign
from fanlog.cluster.views import PendingChange
from fanlog.format.replication import ReplicaPartition
from fanlog.model import Durability

Planted = AbstractContextManager[object]


def wait_for_nobody_who_joins() -> Planted:
    """A follower that joins is waited for when its swap has succeeded, and not before."""

    def waits_for(seen: SeenRecord, pending: PendingChange | None) -> frozenset[str]:
        return frozenset(seen.record.in_sync)

    return mock.patch.object(node, "waits_for", waits_for)


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
        role.node.core.stream.commit(1, 1)

    return mock.patch.object(PrimaryRole, "open", at_once)


def cut_nothing() -> Planted:
    """A follower keeps what the primary does not have."""

    def common_end(theirs: ReplicaPartition, ours: ReplicaPartition) -> int:
        return min(theirs.end, ours.end)

    return mock.patch.object(reconcile, "common_end", common_end)
