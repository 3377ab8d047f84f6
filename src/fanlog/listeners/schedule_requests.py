"""Requests about delayed messages and schedules. Delayed messages are published like all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fanlog.errors import FanlogError, LimitError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb
from fanlog.model import PendingMessage, ScheduleInfo

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.listeners.request_session import NativeHandler, RequestSession

T = TypeVar("T", PendingMessage, ScheduleInfo)

# Messages that one request may cancel, or list.
_MESSAGES_MAX = 10_000


def cancel(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.CancelScheduled, payload)
    if len(wanted.ids) > _MESSAGES_MAX:
        raise LimitError(f"One request cancels {_MESSAGES_MAX} messages at most: ask twice.")
    if session.permit.guarded:
        for id in wanted.ids:
            session.permit.ask(Verb.SCHEDULE, id)

    def cancelled(got: list[bool] | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, messages.Cancelled(tuple(got)))

    session.broker.schedule.cancel(list(wanted.ids), cancelled)


def list_scheduled(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ListScheduled, payload)
    wanted = msgspec.structs.replace(wanted, count=max(1, min(wanted.count, _MESSAGES_MAX)))

    def listed(got: messages.ScheduledPage | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, _seen(session, got))

    session.broker.schedule.page(wanted, listed)


def _seen(session: RequestSession, page: messages.ScheduledPage) -> messages.ScheduledPage:
    """The entries of a page that the peer may see."""
    permit = session.permit
    if not permit.guarded:
        return page
    seen = tuple(
        _without_key(permit, message)
        for message in page.messages
        if permit.may(Verb.DESCRIBE, message.topic)
    )
    return messages.ScheduledPage(seen, page.next, len(seen))


def _without_key(permit: Permit, shown: T) -> T:
    """A key is part of a message: it is hidden from a peer that may only describe the topic."""
    if shown.key is None or any(
        permit.may(verb, shown.topic) for verb in (Verb.SUBSCRIBE, Verb.PUBLISH)
    ):
        return shown
    return msgspec.structs.replace(shown, key=None)


def add(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.AddSchedule, payload)
    session.permit.ask(Verb.PUBLISH, wanted.topic)
    session.permit.ask(Verb.SCHEDULE, wanted.name)

    def added(got: ScheduleInfo | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, got)

    _when_allowed(session, request, wanted.name, lambda: session.broker.schedule.add(wanted, added))


def _when_allowed(
    session: RequestSession, request: int, name: str, resume: Callable[[], None]
) -> None:
    """Continues when the schedules are loaded. A client that changes or removes a schedule must be
    allowed to publish to its topic: names are easy to guess."""
    schedule = session.broker.schedule

    def known() -> None:
        former = schedule.recurring.maybe(name)
        try:
            if former is not None:
                session.permit.ask(Verb.PUBLISH, former.topic)
            resume()
        except FanlogError as fault:
            session.fail(request, fault)

    schedule.when_ready(known)


def list_schedules(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    after = decode(messages.ListSchedules, payload).after
    schedule = session.broker.schedule

    def listed() -> None:
        page = schedule.recurring.page(after)
        permit = session.permit
        if permit.guarded:
            seen = tuple(
                _without_key(permit, one)
                for one in page.schedules
                if permit.may(Verb.DESCRIBE, one.topic)
            )
            page = messages.SchedulePage(seen, page.next)
        session.answer(request, page)

    schedule.when_ready(listed)


def remove(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.RemoveSchedule, payload).name
    session.permit.ask(Verb.SCHEDULE, name)

    def removed(got: bool | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, messages.ScheduleRemoved(got))

    _when_allowed(session, request, name, lambda: session.broker.schedule.remove(name, removed))


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.CANCEL_SCHEDULED: cancel,
    FrameKind.LIST_SCHEDULED: list_scheduled,
    FrameKind.ADD_SCHEDULE: add,
    FrameKind.LIST_SCHEDULES: list_schedules,
    FrameKind.REMOVE_SCHEDULE: remove,
}
