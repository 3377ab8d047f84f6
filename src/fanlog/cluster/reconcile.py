"""What a follower must change so that its logs begin as those of its primary do. No I/O.

Each log knows which epoch wrote which range, and each epoch had one writer. So two logs that both
have records of an epoch agree up to the end of that epoch in the shorter of them (Kafka's KIP-101
and KIP-279 decide in the same way). What a follower has past that was never committed.

| a follower's log                                        | what is done                        |
| ------------------------------------------------------- | ----------------------------------- |
| begins as the primary's does                            | nothing; the rest is sent           |
| continues with other records, or has damage             | it is cut where that begins         |
| agrees only with what the primary has deleted, or with  | it is emptied, and begins where the |
| what was compacted there: tombstones may be gone        | primary's does                      |
| begins before the primary's                             | the records before that are deleted |
| begins after the primary's: an earlier primary had      | as if it agreed with nothing, but   |
| deleted records, and that was not committed             | for records that the primary lost   |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fanlog.format.replication import ReplicaPartition, ReplicaTopic
from fanlog.log.scan import Owner


class Plan(NamedTuple):
    """Changes to a follower's topics. `deletions` are numbers; `ends` say where logs are cut,
    `restarts` where logs begin anew, empty, and `starts` before which offset records are
    deleted."""

    deletions: tuple[int, ...] = ()
    creations: tuple[ReplicaTopic, ...] = ()
    alterations: tuple[ReplicaTopic, ...] = ()
    ends: Mapping[Owner, int] = {}
    restarts: Mapping[Owner, int] = {}
    starts: Mapping[Owner, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the follower lacks nothing but records."""
        return not any(self)


def reconcile(
    primary: Sequence[ReplicaTopic],
    own: Sequence[ReplicaTopic],
    damaged: Mapping[Owner, int] | None = None,
) -> Plan:
    """The plan for a follower with the topics `own`. `damaged` has the first damaged offset of
    logs: from there on they are had from the primary again."""
    known = {topic.number: topic for topic in own}
    wanted = {topic.number: topic for topic in primary}
    stays = {
        number
        for number, topic in known.items()
        if number in wanted and wanted[number].name == topic.name and _fits(topic, wanted[number])
    }
    ends: dict[Owner, int] = {}
    restarts: dict[Owner, int] = {}
    starts: dict[Owner, int] = {}
    for topic in primary:
        mine = known[topic.number].partitions if topic.number in stays else ()
        for i, theirs in enumerate(topic.partitions):
            owner = Owner(topic.number, i)
            ours = mine[i] if i < len(mine) else ReplicaPartition(0, 0)
            intact_end = (damaged or {}).get(owner, ours.end)
            agreed = min(common_end(theirs, ours), intact_end)
            if not _can_continue(theirs, ours, agreed):
                restarts[owner] = theirs.start
            else:
                if agreed < ours.end:
                    ends[owner] = agreed
                if ours.start < theirs.start:
                    starts[owner] = theirs.start
    return Plan(
        deletions=tuple(number for number in known if number not in stays),
        creations=tuple(topic for topic in primary if topic.number not in stays),
        alterations=tuple(
            topic
            for topic in primary
            if topic.number in stays and topic.settings != known[topic.number].settings
        ),
        ends=ends,
        restarts=restarts,
        starts=starts,
    )


def _fits(mine: ReplicaTopic, theirs: ReplicaTopic) -> bool:
    """Whether a topic can become the primary's by altering it: its partitions only grow, and its
    durability only rises."""
    ours, wanted = mine.settings, theirs.settings
    raised = (ours.durability, wanted.durability) == ("os", "fsync")
    return (ours.durability == wanted.durability or raised) and (
        ours.partitions <= wanted.partitions
    )


def _can_continue(theirs: ReplicaPartition, ours: ReplicaPartition, agreed: int) -> bool:
    """Whether the primary can continue to send from the offset `agreed`."""
    if agreed < max(ours.start, theirs.start):
        return False
    if ours.start > max(theirs.start, theirs.compacted_until, theirs.lost_until):
        # Compaction may have taken the first records away, or damage; nothing else has on this
        # primary.
        return False
    if agreed < min(ours.end, max(ours.compacted_until, ours.read_until)):
        # Compaction has removed records because of others that will be cut.
        return False
    if agreed == ours.start:
        # Nothing stays: neither a deleted key, nor a reason to begin later than the primary.
        return ours.start in (theirs.start, theirs.lost_until)
    return agreed >= min(theirs.end, theirs.compacted_until)


def common_end(theirs: ReplicaPartition, ours: ReplicaPartition) -> int:
    """The offset up to which two logs agree; -1 if they have nothing in common.

    >>> from fanlog.format.replication import ReplicaPartition
    >>> primary = ReplicaPartition(0, 90, ((1, 0), (3, 50)))
    >>> common_end(primary, ReplicaPartition(0, 60, ((1, 0), (2, 40))))
    40
    """
    if not ours.epochs:
        # It is empty, and has never had anything: it agrees with what ends at its end or later.
        return min(ours.end, theirs.end)
    ends = epoch_ends(theirs)
    for epoch, end in reversed(epoch_ends(ours).items()):
        if epoch in ends:
            return min(end, ends[epoch])
    return -1


def epoch_ends(log: ReplicaPartition) -> dict[int, int]:
    """Where the records of each epoch end in a log."""
    ends = [*(base for _, base in log.epochs), log.end][1:]
    return {epoch: end for (epoch, _), end in zip(log.epochs, ends, strict=True)}
