"""What a peer asks about groups: as one of their members, and as an operator. Operators ask about
queues with the same frames."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from fanlog.broker.cursors import Subscription
from fanlog.broker.groups.groups import Groups
from fanlog.broker.queues.queues import Queues
from fanlog.errors import FencedError, GroupNotFoundError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.patterns import fits
from fanlog.model import GroupInfo

if TYPE_CHECKING:
    from fanlog.listeners.native import NativeSession


# A page of a listing: what takes a few ms to tell of.
_PAGE_GROUPS = 200
_PAGE_PARTITIONS = 1000


# As a member


def join_group(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.JoinGroup, payload)
    session.check_number(aux)
    subscription, epoch = session.broker.groups.join(
        aux, wanted, session.outlet, session.told(aux), session.client
    )
    session.keep(aux, subscription)
    session.answer(request, messages.GroupJoined(epoch))


def commit(session: NativeSession, number: int, wanted: messages.Commit) -> None:
    session.broker.groups.commit(_member(session, number), wanted.positions)


def release(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Release, payload)
    session.broker.groups.release(_member(session, aux), wanted)
    session.answer(request)


def seek(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Seek, payload)
    subscription = _member(session, aux)

    async def seeking() -> None:
        moved = await session.broker.groups.seek(subscription, wanted)
        session.answer(request, messages.Positions(moved))

    session.later(request, seeking())


def _member(session: NativeSession, number: int) -> Subscription:
    subscription = session.subscriptions.get(number)
    if subscription is None:
        raise FencedError("This member has lost its seat in the group: join it again.")
    return subscription


# As an operator


def _keeper(session: NativeSession, name: str) -> Groups | Queues:
    """Who knows a group of this name: a queue is one, of another kind."""
    broker = session.broker
    return broker.groups if broker.queues.find(name) is None else broker.queues


def list_groups(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ListGroups, payload)
    broker = session.broker

    async def listing() -> None:
        names: set[str] = set()
        async for name in broker.slices.each(
            chain(broker.groups.each_name(), broker.queues.names())
        ):
            if name > wanted.after and fits(name, wanted.pattern):
                names.add(name)
        found: list[GroupInfo] = []
        looked_at = partitions = 0
        page = heapq.nsmallest(_PAGE_GROUPS, names)
        async for name in broker.slices.each(page):
            looked_at += 1
            # One may go while another is looked at.
            with contextlib.suppress(GroupNotFoundError):
                group = await _keeper(session, name).describe(name)
                found.append(group)
                partitions += len(group.partitions)
            if partitions >= _PAGE_PARTITIONS:
                break
        after = page[looked_at - 1] if looked_at < len(names) else ""
        session.answer(request, messages.GroupPage(tuple(found), after))

    session.later(request, listing())


def describe_group(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedGroup, payload).name

    async def describing() -> None:
        session.answer(request, await _keeper(session, name).describe(name))

    session.later(request, describing())


def reset_group(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ResetGroup, payload)

    async def resetting() -> None:
        session.answer(request, await _keeper(session, wanted.group).reset(wanted))

    session.later(request, resetting())


def delete_group(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedGroup, payload).name
    _keeper(session, name).delete(name)
    session.answer(request)


HANDLERS: dict[FrameKind, Callable[[NativeSession, int, int, memoryview], None]] = {
    FrameKind.JOIN_GROUP: join_group,
    FrameKind.RELEASE: release,
    FrameKind.SEEK: seek,
    FrameKind.LIST_GROUPS: list_groups,
    FrameKind.DESCRIBE_GROUP: describe_group,
    FrameKind.RESET_GROUP: reset_group,
    FrameKind.DELETE_GROUP: delete_group,
}
