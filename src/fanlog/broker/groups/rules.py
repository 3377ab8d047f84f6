"""Checks of requests of members and operators. They raise, and change nothing."""

from __future__ import annotations

from collections.abc import Iterable

from fanlog.broker.groups.state import ConsumerGroup, ConsumerMember
from fanlog.config import BrokerOptions
from fanlog.errors import FencedError, GroupActiveError, InvalidArgumentError, InvalidNameError
from fanlog.format.messages import JoinGroup, Position, Seek
from fanlog.model import DURABLE_NAME_BYTES_MAX, GROUP_PREFIX, TopicPartition

GROUP_NAME_BYTES_MAX = DURABLE_NAME_BYTES_MAX - len(GROUP_PREFIX)
_NAMES_SHOWN = 5
# A membership's epoch is a time, and none is past this: there must be room for later ones.
_EPOCH_MAX = 1 << 62


def check_group_name(name: str) -> None:
    if not 1 <= len(name.encode(errors="replace")) <= GROUP_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"A group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes: choose another."
        )


def check_join(wanted: JoinGroup, options: BrokerOptions) -> None:
    """Checks names and times against this broker's limits."""
    check_group_name(wanted.group)
    if not 1 <= len(wanted.member.encode(errors="replace")) <= DURABLE_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"A member's name has 1 to {DURABLE_NAME_BYTES_MAX} bytes: choose another."
        )
    if not 0 <= wanted.epoch <= _EPOCH_MAX:
        raise InvalidArgumentError(
            f"No member was ever given the epoch {wanted.epoch}: join with epoch 0."
        )
    least, most = options.session_seconds_min, options.session_seconds_max
    if not least <= wanted.session_seconds <= most:
        raise InvalidArgumentError(
            f"A member's session_seconds is {least} to {most} on this broker, not "
            f"{wanted.session_seconds}. The broker's settings broker.session_seconds_min and "
            "broker.session_seconds_max say so."
        )


def check_owned(
    group: ConsumerGroup, member: ConsumerMember, positions: Iterable[Position]
) -> None:
    """Checks that a member may commit: it owns the partitions, if only until it releases them."""
    for position in positions:
        tp = TopicPartition(position.topic, position.partition)
        owned = group.owned.get(tp)
        # A partition that was lost and granted again: the commit may be about records read before.
        if owned is None or owned.member is not member or tp in member.losses:
            raise FencedError(
                f"Partition {position.partition} of {position.topic!r} is not this member's "
                f"(any more) in the group {group.name!r}; nothing was committed. Its new owner "
                "resumes at the offset that was committed before."
            )


def seekable(member: ConsumerMember, wanted: Seek) -> list[TopicPartition]:
    """The partitions of a member that a seek is about."""
    chosen = [
        tp
        for tp, owned in member.owned.items()
        if not owned.revoke_by_us
        and wanted.topic in ("", tp[0])
        and (wanted.partitions is None or tp[1] in wanted.partitions)
    ]
    found = {tp[1] for tp in chosen}
    missing = [partition for partition in wanted.partitions or () if partition not in found]
    if missing or (wanted.topic and not chosen):
        where = f"partition {missing[0]}" if missing else "partition"
        of = f"of {wanted.topic!r}" if wanted.topic else "of any topic"
        raise InvalidArgumentError(
            f"This member has no {where} {of}. It can seek only in partitions that it has."
        )
    return chosen


def check_inactive(group: ConsumerGroup | None, done: str) -> None:
    """Checks that a group to be reset or deleted has no members."""
    if group is not None:
        some = ", ".join(list(group.members)[:_NAMES_SHOWN])
        more = ", ..." if len(group.members) > _NAMES_SHOWN else ""
        raise GroupActiveError(
            f"The group {group.name!r} has members ({some}{more}), so it can't be {done}. Stop "
            "them first. A member that was killed leaves when its session ends."
        )


def taken_over_error(group: ConsumerGroup, member: ConsumerMember) -> FencedError:
    return FencedError(
        f"Another member called {member.id!r} has joined the group {group.name!r} and replaced "
        "this one. Give each member a name of its own."
    )
