"""Damage of a node's own logs, which another node can repair.

| who finds it | what happens |
| --- | --- |
| a follower | it begins anew with its primary: what is damaged, and all after it, is copied again |
| a primary | readers get no gap. It hands over, and is a follower with damage then |

A primary that an operator has chosen may have the only copy. Until others are in sync, what is
damaged there is lost: readers get a gap, and followers leave these records out.
"""

from __future__ import annotations

from fanlog.errors import FanlogError, UnavailableError
from fanlog.log.damage import LOST
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore
from fanlog.model import DamagedRange


def first_damage(store: LogStore) -> dict[Owner, int]:
    """The first damaged offset of each log that has damage. What all nodes have lost is none."""
    troubled = store.troubled
    if not troubled:
        return {}
    found: dict[Owner, int] = {}
    for topic in store.topics:
        for log in topic.logs:
            if log.owner not in troubled:
                continue
            firsts = [d.first for d in log.damaged if d.reason not in LOST]
            if firsts:
                found[log.owner] = max(min(firsts), log.start_offset)
    return found


def accept_losses(store: LogStore) -> None:
    """No other node has what is damaged here."""
    if store.troubled:
        for topic in store.topics:
            for log in topic.logs:
                if log.owner in store.troubled:
                    log.accept_losses()


def others_have_it(damaged: DamagedRange) -> FanlogError:
    """The error of who reads damage at a primary. Readers wait for the next one."""
    return UnavailableError(
        f"Records {damaged.first} to {damaged.next - 1} can't be read here: {damaged.file} is "
        "damaged. Another node has them, and takes over. Try again."
    )
