"""Requests of a backup: a point, the bytes of its files, and its end. A point ends with the
connection that took it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def backup(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.BackupRequest, payload)
    session.permit.ask(Verb.ADMIN, "")
    if wanted.action == "begin":
        session.later(request, _beginning(session, request))
    elif wanted.action == "read":
        session.later(request, _reading(session, request, wanted))
    else:
        session.at_close.pop(f"backup {wanted.point}", None)
        session.broker.backups.end(wanted.point)
        session.answer(request)


async def _beginning(session: RequestSession, request: int) -> None:
    backups = session.broker.backups
    point = await backups.begin()
    if session.is_closed:
        backups.end(point.ticket)
        return
    session.at_close[f"backup {point.ticket}"] = lambda: backups.end(point.ticket)
    begun = messages.BackupBegun(point.ticket, len(point.listing), point.folder)
    session.answer(request, begun)


async def _reading(session: RequestSession, request: int, wanted: messages.BackupRequest) -> None:
    data = await session.broker.backups.read(wanted.point, wanted.file, wanted.at, wanted.bytes)
    session.answer(request, messages.BackupData(data))


HANDLERS: dict[FrameKind, NativeHandler] = {FrameKind.BACKUP: backup}
