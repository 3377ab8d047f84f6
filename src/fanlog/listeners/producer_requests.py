"""Requests about named producers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fanlog.errors import FencedError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def register_producer(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.RegisterProducer, payload)
    session.permit.ask(Verb.PRODUCER, wanted.name)
    producers = session.broker.producers
    try:
        registered = producers.register(wanted)
    except FencedError:
        # Another client has registered this name: its transactions are refused too.
        session.registered[wanted.name] = (wanted.id, wanted.epoch)
        raise
    session.registered[wanted.name] = (registered.id, registered.epoch)
    key = f"producer {wanted.name}"
    if key not in session.at_close:
        session.at_close[key] = partial(producers.left, wanted.name)
        producers.connected(wanted.name)
    session.answer_durably(request, registered)


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.REGISTER_PRODUCER: register_producer,
}
