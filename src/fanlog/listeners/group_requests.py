"""Requests about groups, of members and of operators. Operators use the same frames for queues."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.broker.groups.groups import GroupCoordinator
from fanlog.broker.groups.initial_positions import set_initial_positions
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.queues.queues import Queues
from fanlog.broker.state.pipelines import SPARK_CLIENT
from fanlog.broker.threads import begun
from fanlog.errors import ClosedError, FencedError, GroupNotFoundError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.long_messages import encode_around, encode_items
from fanlog.format.messages import decode
from fanlog.format.patterns import fits
from fanlog.identity import Verb
from fanlog.model import GroupInfo, Start

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.listeners.request_session import RequestSession


# Entries of one page of a listing: a few milliseconds of work.
_PAGE_GROUPS = 100
_PAGE_PARTITIONS = 500
_PAGE_NAMES = 4000


# As a member


def join_group(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.JoinGroup, payload)
    _ask_member(session, wanted)
    if wanted.start is None:
        session.check_number(aux)
        _join(session, request, aux, wanted)
    else:
        session.begin(aux, wanted)
        session.later(request, _placing(session, request, aux, wanted, wanted.start))


def _ask_member(
    session: RequestSession, wanted: messages.JoinGroup
) -> tuple[tuple[Verb, str], ...]:
    return session.ask_all((Verb.SUBSCRIBE, wanted.target), (Verb.GROUP, wanted.group))


async def _placing(
    session: RequestSession, request: int, aux: int, wanted: messages.JoinGroup, start: Start
) -> None:
    """The group begins at a time, which has to be looked up: then the member joins."""
    try:
        await set_initial_positions(session.broker, wanted, start)
    finally:
        begun = session.has_begun(aux, wanted)
    if not begun:
        raise ClosedError(f"Subscription {aux} was ended before it began.")
    _join(session, request, aux, wanted)


def _join(session: RequestSession, request: int, aux: int, wanted: messages.JoinGroup) -> None:
    # Again: permissions may have changed meanwhile.
    asked = _ask_member(session, wanted)
    subscription, epoch = session.broker.groups.join(
        aux, wanted, session.outlet, session.notifier_of(aux), session.client
    )
    session.keep(aux, subscription, asked)
    session.answer(request, messages.GroupJoined(epoch))
    session.tell_at_start(subscription)


def commit_offsets(session: RequestSession, number: int, wanted: messages.CommitOffsets) -> None:
    session.broker.groups.commit_offsets(_member(session, number), wanted.positions)


def release(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Release, payload)
    if not wanted.lost:
        session.broker.groups.release(_member(session, aux), wanted)
        session.answer(request)
        return
    # This has no answer, and it is no error if the membership is gone.
    subscription = session.subscriptions.get(aux)
    if subscription is not None:
        with contextlib.suppress(FencedError):
            session.broker.groups.release(subscription, wanted)


def seek(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Seek, payload)
    subscription = _member(session, aux)

    async def seeking() -> None:
        moved = await session.broker.groups.seek(subscription, wanted)
        session.answer(request, messages.Positions(moved))

    session.later(request, seeking())


def _member(session: RequestSession, number: int) -> BrokerSubscription:
    subscription = session.subscriptions.get(number)
    if subscription is None:
        raise FencedError(
            "This member is not in the group any more: its session ended, or it left. Join again."
        )
    return subscription


# As an operator


def _keeper(session: RequestSession, name: str) -> GroupCoordinator | Queues:
    """The groups or the queues: a queue is a group of another kind."""
    broker = session.broker
    return broker.groups if broker.queues.find(name) is None else broker.queues


def _ask(session: RequestSession, name: str) -> None:
    """Operators of a queue need its verb, not that of groups."""
    session.permit.ask(_verb(session, name), name)


def _may_see(session: RequestSession, name: str) -> bool:
    return session.permit.may_see(_verb(session, name), name)


def _verb(session: RequestSession, name: str) -> Verb:
    return Verb.GROUP if session.broker.queues.find(name) is None else Verb.QUEUE


def list_groups(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ListGroups, payload)
    broker = session.broker

    async def listing() -> None:
        page, after = _names(broker, wanted)
        found: list[GroupInfo] = []
        partitions = 0
        async for name in broker.slices.each(page):
            if not _may_see(session, name):
                continue
            # One may be deleted while another is described.
            with contextlib.suppress(GroupNotFoundError):
                group = await _keeper(session, name).describe(name)
                found.append(group)
                partitions += len(group.partitions)
            if partitions >= _PAGE_PARTITIONS and name != page[-1]:
                after = name
                break
        session.answer(request, messages.GroupPage(tuple(found), after))

    session.later(request, listing())


def _names(broker: BrokerCore, wanted: messages.ListGroups) -> tuple[list[str], str]:
    """The names on a page, and the name to continue after if there are more."""
    queues = sorted(name for name in broker.queues.names() if name > wanted.after)
    page: list[str] = []
    looked_at = 0
    last = ""
    for name in heapq.merge(broker.groups.names_after(wanted.after), queues):
        if name == last:
            continue
        if len(page) >= _PAGE_GROUPS or looked_at >= _PAGE_NAMES:
            return page, last
        last = name
        looked_at += 1
        if fits(name, wanted.pattern):
            page.append(name)
    return page, ""


def describe_group(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedGroup, payload).name
    session.permit.ask_state(_verb(session, name), name)

    async def describing() -> None:
        found = await _keeper(session, name).describe(name)
        partitions = await session.broker.slices.result(encode_items(found.partitions))
        session.answer(request, encode_around(found, "partitions", partitions))

    session.later(request, describing())


def reset_group(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ResetGroup, payload)
    _ask(session, wanted.group)

    async def resetting() -> None:
        steps = await _keeper(session, wanted.group).reset(wanted)
        if session.client == SPARK_CLIENT and not wanted.dry_run:
            user = session.permit.who.user
            session.broker.pipelines.moved(wanted.group, steps, user=user, client=session.client)
        # There may be tens of thousands.
        encoded = await session.broker.slices.result(encode_items(steps))
        session.answer_durably(request, encoded)

    session.later(request, resetting())


def delete_group(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedGroup, payload).name
    _ask(session, name)

    # At once, because the next frame may join a group of that name.
    deleted = begun(lambda done: _keeper(session, name).delete(name, done))

    async def deleting() -> None:
        await deleted
        session.answer_durably(request)

    session.later(request, deleting())


HANDLERS: dict[FrameKind, Callable[[RequestSession, int, int, memoryview], None]] = {
    FrameKind.JOIN_GROUP: join_group,
    FrameKind.RELEASE: release,
    FrameKind.SEEK: seek,
    FrameKind.LIST_GROUPS: list_groups,
    FrameKind.DESCRIBE_GROUP: describe_group,
    FrameKind.RESET_GROUP: reset_group,
    FrameKind.DELETE_GROUP: delete_group,
}
