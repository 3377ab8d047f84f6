"""Login of a native peer: with its hello, by its client certificate, and again later with a fresh
token, without a disconnect. Frames after a hello wait until its login is decided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Identity, Login, Verb
from fanlog.listeners.faults import OUR_FAULT

if TYPE_CHECKING:
    from fanlog.listeners.request_session import RequestSession

logger = logging.getLogger("fanlog.listeners")

# A hello has a name and a login. A peer without login can make the broker keep no more than this.
HELLO_BYTES_MAX = 64 * 1024


@runtime_checkable
class Certified(Protocol):
    """An outlet that may know the names in its peer's client certificate."""

    certificate_names: tuple[str, ...]


def maybe_known(session: RequestSession, login: Login | None) -> Identity | None:
    """The identity of a peer if it is known at once; None if its login has to be checked. Raises
    UnauthenticatedError if the peer shows nothing and has to."""
    gate, who = session.broker.gate, session.permit.who
    if session.trusted or not gate.guarded:
        return who
    if login is not None:
        return None
    names = session.outlet.certificate_names if isinstance(session.outlet, Certified) else ()
    known = gate.certified(names, who) if names else None
    return gate.arrive(who) if known is None else known


class LoggingIn:
    """Checks the login of a hello, which may take a while. The frames after it wait."""

    def __init__(
        self, session: RequestSession, login: Login, let_in: Callable[[Identity], None]
    ) -> None:
        self._session = session
        self._let_in = let_in
        self._task = asyncio.get_running_loop().create_task(self._run(login))

    async def _run(self, login: Login) -> None:
        session = self._session
        try:
            self._let_in(await session.broker.gate.login(login, session.permit.who))
        except FanlogError as refusal:
            session.outlet.evict(refusal)
        except Exception:
            logger.exception("a login failed")
            session.outlet.evict(FanlogError(OUR_FAULT))

    def stop(self) -> None:
        self._task.cancel()


def login(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    """A fresh token, or a rotated key, of the same account."""
    shown = decode(Login, payload)

    async def logging_in() -> None:
        before = session.permit.who
        if session.trusted:
            who = before
        else:
            who = await session.broker.gate.login(shown, before)
        if who.user != before.user:
            raise InvalidArgumentError(
                f"This connection belongs to {before.user!r}, and the login to {who.user!r}. Open "
                "another connection for another user."
            )
        session.become(who)
        session.logged_in_again(shown)
        session.answer(request, logged_in(session))

    session.later(request, logging_in())


def vouch(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    """An edge asks for its own clients."""
    asked = decode(messages.Vouch, payload)
    session.permit.ask(Verb.ADMIN, "")
    broker = session.broker
    gate = broker.gate

    async def vouching() -> None:
        account = None
        if asked.login is not None and gate.guarded:
            who = Identity("", asked.address, asked.listener, f"{session.who}, an edge")
            account = (await gate.login(asked.login, who)).account
        renewed = [gate.renew(Identity(a.name, account=a)) for a in asked.accounts]
        session.answer(
            request,
            messages.Vouched(
                f"{broker.epoch}.{broker.permissions_epoch}",
                gate.guarded,
                account,
                tuple(None if who is None else who.account for who in renewed),
            ),
        )

    session.later(request, vouching())


def logged_in(session: RequestSession) -> messages.LoggedIn:
    account = session.permit.who.account
    if account is None:
        return messages.LoggedIn()
    left_us = account.expires_us - session.broker.now_us() if account.expires_us else 0
    return messages.LoggedIn(account.name, max(left_us / 1e6, 0.001) if left_us else 0.0)


HANDLERS: dict[FrameKind, Callable[[RequestSession, int, int, memoryview], None]] = {
    FrameKind.LOGIN: login,
    FrameKind.VOUCH: vouch,
}
