"""What somebody may see of a snapshot: names that it may not describe are among the others."""

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
        # Who is connected is for operators.
        readers=snapshot.readers if permit.may(Verb.ADMIN, "") else (),
    )


def _may_see(permit: Permit, verb: Verb, name: str) -> bool:
    """Who may describe a name, or use what has it."""
    return permit.may(Verb.DESCRIBE, name) or permit.may(verb, name)


def _seen(found: Iterable[M], may: Callable[[str], bool]) -> tuple[M, ...]:
    """Those that may be seen; the others in one."""
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
