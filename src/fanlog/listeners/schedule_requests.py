"""What a peer asks about delayed messages, which it publishes like all others, and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fanlog.errors import FanlogError, LimitError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.model import ScheduleInfo

if TYPE_CHECKING:
    from fanlog.listeners.native import Handler, NativeSession

# Messages that one request may cancel, or list.
_MESSAGES_MAX = 10_000


def cancel(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.CancelScheduled, payload)
    if len(wanted.ids) > _MESSAGES_MAX:
        raise LimitError(f"One request cancels {_MESSAGES_MAX} messages at most: ask twice.")

    def cancelled(got: list[bool] | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, messages.Cancelled(tuple(got)))

    session.broker.schedule.cancel(list(wanted.ids), cancelled)


def list_scheduled(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.ListScheduled, payload)
    wanted = msgspec.structs.replace(wanted, count=max(1, min(wanted.count, _MESSAGES_MAX)))

    def listed(got: messages.ScheduledPage | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, got)

    session.broker.schedule.page(wanted, listed)


def add(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.AddSchedule, payload)

    def added(got: ScheduleInfo | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, got)

    session.broker.schedule.add(wanted, added)


def list_schedules(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    after = decode(messages.ListSchedules, payload).after
    schedule = session.broker.schedule
    schedule.when_ready(lambda: session.answer(request, schedule.recurring.page(after)))


def remove(session: NativeSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.RemoveSchedule, payload).name

    def removed(got: bool | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            session.answer(request, messages.ScheduleRemoved(got))

    session.broker.schedule.remove(name, removed)


HANDLERS: dict[FrameKind, Handler] = {
    FrameKind.CANCEL_SCHEDULED: cancel,
    FrameKind.LIST_SCHEDULED: list_scheduled,
    FrameKind.ADD_SCHEDULE: add,
    FrameKind.LIST_SCHEDULES: list_schedules,
    FrameKind.REMOVE_SCHEDULE: remove,
}
