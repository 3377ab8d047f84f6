"""Tickets: credentials that a page puts into a URL where it can't send a header, as with
`EventSource` and `WebSocket`. URLs are in logs, so a ticket is valid once, for seconds, for one
use."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Literal, NamedTuple

from fanlog.errors import RateLimitedError
from fanlog.identity import Identity
from fanlog.security.sessions import LoginSession, owner_of

TICKET_PREFIX = "flt_"
_SECRET_BYTES = 24
_LENGTH_MAX = 64
# Unused tickets: of all accounts, and of one.
_TICKETS_MAX = 20_000
_TICKETS_OF_ONE_MAX = 200

TicketUse = Literal["events", "websocket"]


class Ticket(NamedTuple):
    who: Identity
    use: TicketUse
    until: float
    # The browser session that it came from: it ends with that.
    session: LoginSession | None


class Tickets:
    """Unused tickets. `now` is a monotonic clock."""

    def __init__(self, now: Callable[[], float], *, lifetime_seconds: float) -> None:
        self._now = now
        self._lifetime_seconds = lifetime_seconds
        # In the order in which they expire.
        self._open: dict[bytes, Ticket] = {}
        self._counts: dict[str, int] = {}

    def issue(self, who: Identity, use: TicketUse, session: LoginSession | None = None) -> str:
        self._sweep()
        name = owner_of(who)
        mine = self._counts.get(name, 0)
        if mine >= _TICKETS_OF_ONE_MAX or len(self._open) >= _TICKETS_MAX:
            raise RateLimitedError(
                "There are too many unused tickets. Request a ticket only when you need it.",
                retry_after_seconds=self._lifetime_seconds,
            )
        text = TICKET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        until = self._now() + self._lifetime_seconds
        self._open[_digest(text)] = Ticket(who, use, until, session)
        self._counts[name] = mine + 1
        return text

    def maybe_redeem(self, text: str, use: TicketUse) -> Ticket | None:
        """Takes the ticket, which is used up by that, also for another use; None if it is no
        ticket, was used before, or is too old."""
        self._sweep()
        digest = _digest(text) if len(text) <= _LENGTH_MAX else b""
        ticket = self._open.pop(digest, None)
        if ticket is None:
            return None
        self._uncount(ticket)
        return ticket if ticket.use == use else None

    def _sweep(self) -> None:
        now = self._now()
        while self._open:
            digest, ticket = next(iter(self._open.items()))
            if ticket.until > now:
                return
            del self._open[digest]
            self._uncount(ticket)

    def _uncount(self, ticket: Ticket) -> None:
        name = owner_of(ticket.who)
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
