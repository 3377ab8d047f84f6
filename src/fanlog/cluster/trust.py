"""Whether a node may act on the record that etcd has now, given the newest that it has seen.

| etcd                | record now                                   | trust                |
| ------------------- | -------------------------------------------- | -------------------- |
| the one it knows    | none, and it has seen none                   | act                  |
|                     | newer revision, same epoch or a higher one   | act                  |
|                     | same revision, same content                  | act                  |
|                     | anything else: etcd has gone back            | stop                 |
| another one         | same content                                 | hold: change nothing |
|                     | anything else                                | stop                 |
| any                 | a reign that an operator began, of an epoch  | stop                 |
|                     | that it has seen, but without that reign     |                      |
| any                 | a reign above what it has seen, which an     | act                  |
|                     | operator began knowing what may be lost      |                      |

Why a restored etcd stops everything: its in-sync set may name followers that were left out since,
and lack what was committed then.
"""

from __future__ import annotations

from typing import NamedTuple

from fanlog.cluster.records import SeenRecord

OPERATOR = (
    "Look at all nodes, then choose the one to continue with (docs/cluster.md, Restored etcd)."
)
EMPTY_IT = (
    "If nothing in it is needed, begin with an empty folder (docs/cluster.md, Restored etcd)."
)


class Act(NamedTuple):
    """The record is the newest that there is."""


class Hold(NamedTuple):
    """Continue, but change nothing: neither promote nor swap."""

    reason: str


class Distrust(NamedTuple):
    sentence: str


Trust = Act | Hold | Distrust


def trust(seen: SeenRecord | None, seen_etcd: str, now: SeenRecord | None, etcd: str) -> Trust:
    """`seen` is the newest record that this node knows, read from the etcd `seen_etcd`."""
    if seen is None:
        return Act()
    if now is None:
        return Distrust(
            f"etcd has no record of this cluster; this node has seen epoch {seen.record.epoch}. "
            f"Was etcd emptied? {OPERATOR}"
        )
    if now.record.forced_epoch > seen.record.epoch and now.record.epoch >= now.record.forced_epoch:
        return Act()
    if seen.record.forced_epoch < now.record.forced_epoch:
        return Distrust(
            f"An operator began the reign of epoch {now.record.forced_epoch} without this node, "
            f"which has seen epoch {seen.record.epoch} of another reign. What it has since is not "
            f"part of the cluster. {EMPTY_IT}"
        )
    if seen_etcd and etcd != seen_etcd:
        return _of_another_etcd(
            seen, now, f"This is another etcd ({etcd}) than before ({seen_etcd})"
        )
    if now.revision > seen.revision and now.record.epoch >= seen.record.epoch:
        return Act()
    if now == seen:
        return Act()
    return Distrust(
        f"etcd has gone back: its record is of epoch {now.record.epoch}, revision {now.revision}; "
        f"this node has seen epoch {seen.record.epoch}, revision {seen.revision}. Was it restored "
        f"from a backup? {OPERATOR}"
    )


def _of_another_etcd(seen: SeenRecord, now: SeenRecord, another: str) -> Hold | Distrust:
    if now.record == seen.record:
        return Hold(f"{another}. {OPERATOR}")
    return Distrust(
        f"{another}, and it has another record of this cluster: epoch {now.record.epoch}, not "
        f"{seen.record.epoch}. {OPERATOR}"
    )
