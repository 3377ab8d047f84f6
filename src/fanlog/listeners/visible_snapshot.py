"""The part of a snapshot that a client may see: names that it may not describe count among the
others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from fanlog.broker.authority import Permit
from fanlog.identity import Verb
from fanlog.telemetry.snapshot import OTHERS, GroupMetrics, QueueMetrics, Snapshot, TopicMetrics

M = TypeVar("M", bound=TopicMetrics | GroupMetrics | QueueMetrics)


def seen_by(permit: Permit, snapshot: Snapshot) -> Snapshot:
    """The snapshot without names that the client may not know. Their figures stay in the sums."""
    if not permit.guarded:
        return snapshot
    return msgspec.structs.replace(
        snapshot,
        topics=_seen(snapshot.topics, lambda name: permit.may(Verb.DESCRIBE, name)),
        groups=_seen(snapshot.groups, lambda name: _may_see(permit, Verb.GROUP, name)),
        queues=_seen(snapshot.queues, lambda name: _may_see(permit, Verb.QUEUE, name)),
        # Only operators may see who is connected.
        readers=snapshot.readers if permit.may(Verb.ADMIN, "") else (),
    )


def _may_see(permit: Permit, verb: Verb, name: str) -> bool:
    """Whether the account may describe or use this name."""
    return permit.may(Verb.DESCRIBE, name) or permit.may(verb, name)


def _seen(found: Iterable[M], may: Callable[[str], bool]) -> tuple[M, ...]:
    """The visible ones by name, and all others as one."""
    named: list[M] = []
    others: M | None = None
    for one in found:
        if one.name != OTHERS and may(one.name):
            named.append(one)
        else:
            others = one if others is None else _sum(others, one)
    if others is not None:
        named.append(msgspec.structs.replace(others, name=OTHERS))
    return tuple(named)


def _sum(one: M, other: M) -> M:
    mine, theirs = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    added = {name: mine[name] + theirs[name] for name in mine if name != "name"}
    return msgspec.structs.replace(one, **added)
