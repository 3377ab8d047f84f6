"""What decisions lead to: the next step of a node that follows, or of a primary.

A step with a `record` is a compare-and-swap on the shard's record. It expects the record of the
view from which it was decided. If that was lost, read and decide again. If its outcome is unknown,
the same step is decided again until the record has changed.
"""

from __future__ import annotations

import msgspec

from fanlog.cluster.records import NodeRecord, ShardRecord


class NewCluster(msgspec.Struct, frozen=True):
    """Draw an id for the cluster, and store it if there is none."""


class CreateRecord(msgspec.Struct, frozen=True):
    """Note this node's incarnation durably; then store the shard's first record."""

    record: ShardRecord


class FollowPrimary(msgspec.Struct, frozen=True):
    """Follow this node."""

    node: NodeRecord
    epoch: int


class Promote(msgspec.Struct, frozen=True):
    """Stop following, then swap in this record. It names this node; or another one of the in-sync
    set, if this one should not be primary."""

    record: ShardRecord


class OpenReign(msgspec.Struct, frozen=True):
    """Stop following, write the epoch into the mark, durably; then open the folder as primary."""

    epoch: int


class Wait(msgspec.Struct, frozen=True):
    """Change nothing for now, and decide again after the next change, or after `seconds`. A
    connection to the primary stays. `needs_operator`: this does not end by itself."""

    reason: str
    seconds: float = 1.0
    needs_operator: bool = False


class StopNode(msgspec.Struct, frozen=True):
    """Neither follow nor lead. The node record stays, so that others see what this node has seen.
    The sentence is for the operator."""

    sentence: str


FollowerStep = NewCluster | CreateRecord | FollowPrimary | Promote | OpenReign | Wait | StopNode


class AddInSync(msgspec.Struct, frozen=True):
    """Wait for the follower from now on; then swap."""

    incarnation: str
    record: ShardRecord


class RemoveInSync(msgspec.Struct, frozen=True):
    """Swap; do not wait for the follower any more after that has succeeded."""

    incarnation: str
    record: ShardRecord


class AddReplica(msgspec.Struct, frozen=True):
    node: str
    record: ShardRecord


class RemoveReplica(msgspec.Struct, frozen=True):
    """The node leaves, the in-sync set included. The same law as for `RemoveInSync`."""

    node: str
    record: ShardRecord


class MovePrimary(msgspec.Struct, frozen=True):
    """Hold new writes, wait until the follower has acknowledged everything, then swap. Once the
    swap is sent, nothing more is taken until its outcome is known."""

    to: str
    record: ShardRecord


class RepeatChange(msgspec.Struct, frozen=True):
    """The outcome of the last swap is unknown: send the same again."""

    record: ShardRecord


class StepDown(msgspec.Struct, frozen=True):
    """Close the reign. Nothing that waits is acknowledged."""

    reason: str


class NoChange(msgspec.Struct, frozen=True):
    """Continue. The reason is for status pages: empty, or what should change and can't."""

    reason: str = ""


RecordChange = AddInSync | RemoveInSync | AddReplica | RemoveReplica | MovePrimary | RepeatChange
PrimaryStep = RecordChange | StepDown | NoChange
