"""Requests of operators about the broker's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.ports import LiveSettings
from fanlog.errors import NotSupportedError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.settings import ConfigRequest
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def settings_of(broker: BrokerCore) -> LiveSettings:
    if broker.settings is None:
        raise NotSupportedError(
            "This broker has its settings from the program that it runs in: change them there."
        )
    return broker.settings


def config(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(ConfigRequest, payload)
    session.permit.ask(Verb.ADMIN, "")
    session.later(request, _answering(session, request, wanted))


async def _answering(session: RequestSession, request: int, wanted: ConfigRequest) -> None:
    settings, who = settings_of(session.broker), session.permit.who
    if wanted.action == "change":
        changed = await settings.change(who, wanted.values, temporary=wanted.temporary)
        session.answer(request, changed)
    elif wanted.action == "reload":
        session.answer(request, await settings.reload(who))
    else:
        session.answer(request, settings.show())


HANDLERS: dict[FrameKind, NativeHandler] = {FrameKind.CONFIG: config}
