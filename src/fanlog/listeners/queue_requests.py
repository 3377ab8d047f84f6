"""Requests of a queue's workers: to get jobs, and to report their outcomes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.errors import ClosedError, FanlogError, LeaseLostError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import RequestSession


logger = logging.getLogger("fanlog.listeners")


def work(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Work, payload)
    _ask_worker(session, wanted)
    steps = session.broker.queues.prepare(wanted, session.outlet)
    session.begin(aux, wanted)
    session.when_durable(request, lambda: _begin(session, request, aux, wanted), after=steps)


def _ask_worker(session: RequestSession, wanted: messages.Work) -> tuple[tuple[Verb, str], ...]:
    session.permit.ask_dead_letter_topic(wanted.settings.get("dead_letter"))
    return session.ask_all((Verb.SUBSCRIBE, wanted.target), (Verb.QUEUE, wanted.queue))


def _begin(session: RequestSession, request: int, aux: int, wanted: messages.Work) -> None:
    """The first positions of the queue are durable: now it exists."""
    if not session.has_begun(aux, wanted):
        raise ClosedError(f"Subscription {aux} was ended before it began.")
    # Again: permissions may have changed meanwhile.
    asked = _ask_worker(session, wanted)
    queues, notifier = session.broker.queues, session.notifier_of(aux)
    subscription, settings, joined = queues.work(
        aux, wanted, session.outlet, notifier, session.client
    )
    session.keep(aux, subscription, asked)
    logger.debug(
        "%s: subscription %d works on %s in queue %s, prefetch %d",
        session.who,
        aux,
        wanted.target,
        wanted.queue,
        wanted.prefetch,
    )
    session.answer(request, messages.Working(settings))
    session.tell_at_start(subscription)
    for topic in joined:
        notifier.joined(topic)
    queues.start(subscription)


def settle(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.Settle, payload)

    def answer(result: messages.Settled | FanlogError) -> None:
        if isinstance(result, FanlogError):
            session.fail(request, result)
        else:
            session.answer(request, result)

    if wanted.queue:
        session.permit.ask(Verb.QUEUE, wanted.queue)
        session.broker.queues.settle_kept(wanted, answer)
        return
    subscription = session.subscriptions.get(aux)
    if subscription is None:
        raise LeaseLostError(
            "This worker is not in the queue any more: its session ended, or it left. Join again."
        )
    session.broker.queues.settle(subscription, wanted, answer)


HANDLERS: dict[FrameKind, Callable[[RequestSession, int, int, memoryview], None]] = {
    FrameKind.WORK: work,
    FrameKind.SETTLE: settle,
}
