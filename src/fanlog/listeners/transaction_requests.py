"""Requests about transactions. STAGE is the only frame here that is not MessagePack: 16 bytes of
the ticket, then batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.transactions.transactions import TICKET_BYTES
from fanlog.errors import FanlogError, ProtocolError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def begin(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.BeginTransaction, payload)
    if wanted.id:
        session.permit.ask(Verb.PRODUCER, wanted.id)
    begun = session.broker.transactions.begin(wanted, session.permit.who, session.client)
    session.answer(request, begun)


def stage(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    if len(payload) < TICKET_BYTES:
        raise ProtocolError(f"A STAGE frame begins with a ticket of {TICKET_BYTES} bytes.")
    ticket = payload[:TICKET_BYTES].hex()
    batches = bytes(payload[TICKET_BYTES:])
    session.broker.transactions.stage(ticket, batches, session)
    session.weigh(batches)
    session.answer(request)


def commit_transaction(
    session: RequestSession, request: int, aux: int, payload: memoryview
) -> None:
    def tell(outcome: messages.TransactionCommitted | FanlogError) -> None:
        if isinstance(outcome, FanlogError):
            session.fail(request, outcome)
        else:
            session.answer(request, outcome)

    wanted = decode(messages.CommitTransaction, payload)
    if wanted.id:
        session.permit.ask(Verb.PRODUCER, wanted.id)
    for offsets in wanted.offsets:
        session.permit.ask(Verb.GROUP, offsets.group)
    if session.permit.guarded:
        # Permissions may have changed since it was staged.
        for topic in session.broker.transactions.staged_topics(wanted):
            refusal = session.permit.may_publish(topic.name)
            if refusal is not None:
                raise refusal
    for producer_id, epoch in session.registered.values():
        session.broker.producers.check(producer_id, epoch)
    session.broker.transactions.commit(wanted, tell)


def abort(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    session.broker.transactions.abort(decode(messages.AbortTransaction, payload).ticket)
    session.answer(request)


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.BEGIN_TRANSACTION: begin,
    FrameKind.STAGE: stage,
    FrameKind.COMMIT_TRANSACTION: commit_transaction,
    FrameKind.ABORT_TRANSACTION: abort,
}
