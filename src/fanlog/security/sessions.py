"""Browser sessions: a random secret in a cookie stands for a login. Only its hash is kept, so that
the broker's memory reveals no login. Sessions end with the process: after a restart users log in
again."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator

import msgspec

from fanlog.errors import LimitError, allow_more
from fanlog.identity import Identity

_SECRET_BYTES = 32
_AGENT_LENGTH_MAX = 200
_SECRET_LENGTH_MAX = 64
# Sessions of one account: with one key, a client must not use up those of all others.
_SESSIONS_OF_ONE_MAX = 100


class LoginSession(msgspec.Struct, kw_only=True, eq=False):
    """A login of a browser. `id` is no secret: lists show it. `seen` and `begun` are monotonic
    times."""

    id: str
    digest: bytes
    who: Identity
    agent: str
    begun_us: int
    seen_us: int
    begun: float
    seen: float
    closed: bool = False


class Sessions:
    """All sessions of this process. `now_us` is the wall clock, for lists; `now` is a monotonic
    one, for expiry."""

    def __init__(
        self,
        now_us: Callable[[], int],
        now: Callable[[], float],
        *,
        idle_seconds: float,
        lifetime_seconds: float,
        sessions_max: int,
    ) -> None:
        self._now_us = now_us
        self._now = now
        self._idle_seconds = idle_seconds
        self._lifetime_seconds = lifetime_seconds
        self._sessions_max = sessions_max
        self._by_digest: dict[bytes, LoginSession] = {}
        self._by_id: dict[str, LoginSession] = {}
        # By account, the oldest first.
        self._by_owner: dict[str, dict[str, LoginSession]] = {}
        self._of_one_max = max(1, min(_SESSIONS_OF_ONE_MAX, sessions_max // 2))

    def open(self, who: Identity, agent: str = "") -> tuple[LoginSession, str]:
        """A new session, and its secret, which is not kept. An account at its limit loses its
        oldest session."""
        mine = self._by_owner.get(owner_of(who), {})
        if len(mine) >= self._of_one_max:
            self._drop(next(iter(mine.values())))
        if len(self._by_id) >= self._sessions_max:
            self.sweep()
        if len(self._by_id) >= self._sessions_max:
            raise LimitError(
                f"There are {self._sessions_max} sessions, which is the limit. Log out "
                "elsewhere, or end some of them (DELETE /v1/sessions/ID). "
                + allow_more("security.sessions_max")
            )
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        shown = "".join(c if c.isprintable() else "?" for c in agent[:_AGENT_LENGTH_MAX])
        session = LoginSession(
            id=secrets.token_hex(8),
            digest=_digest(secret),
            who=who,
            agent=shown,
            begun_us=self._now_us(),
            seen_us=self._now_us(),
            begun=self._now(),
            seen=self._now(),
        )
        self._by_digest[session.digest] = self._by_id[session.id] = session
        self._by_owner.setdefault(owner_of(who), {})[session.id] = session
        return session, secret

    def maybe_find(self, secret: str) -> LoginSession | None:
        """The session of a secret, which counts as used now; None if it does not exist or has
        expired."""
        if len(secret) > _SECRET_LENGTH_MAX:
            return None
        session = self._by_digest.get(_digest(secret))
        if session is None or not self.is_good(session):
            return None
        session.seen, session.seen_us = self._now(), self._now_us()
        return session

    def is_good(self, session: LoginSession) -> bool:
        """Whether a session is valid now. An expired one is forgotten."""
        now = self._now()
        over = (
            now - session.seen >= self._idle_seconds
            or now - session.begun >= self._lifetime_seconds
        )
        if over and not session.closed:
            self._drop(session)
        return not session.closed

    def keep(self, session: LoginSession) -> None:
        """The session is in use, on a connection that stays open."""
        if not session.closed:
            session.seen = self._now()

    def expires_us(self, session: LoginSession) -> int:
        """When the session ends, however much it is used."""
        return session.begun_us + int(self._lifetime_seconds * 1_000_000)

    def maybe(self, id: str) -> LoginSession | None:
        session = self._by_id.get(id)
        return session if session is not None and self.is_good(session) else None

    def close(self, session: LoginSession) -> None:
        self._drop(session)

    def all(self, user: str | None = None) -> list[LoginSession]:
        """Sessions that are good, newest first; those of one user, if that is given."""
        self.sweep()
        found = [s for s in self._by_id.values() if user is None or s.who.user == user]
        return sorted(found, key=lambda one: one.begun, reverse=True)

    def each(self, user: str | None = None) -> Iterator[LoginSession]:
        """The same in no order, one at a time: there may be very many."""
        for session in list(self._by_id.values()):
            if (user is None or session.who.user == user) and self.is_good(session):
                yield session

    def sweep(self) -> None:
        for session in list(self._by_id.values()):
            self.is_good(session)

    def _drop(self, session: LoginSession) -> None:
        session.closed = True
        self._by_digest.pop(session.digest, None)
        self._by_id.pop(session.id, None)
        owner = owner_of(session.who)
        mine = self._by_owner.get(owner, {})
        mine.pop(session.id, None)
        if not mine:
            self._by_owner.pop(owner, None)


def owner_of(who: Identity) -> str:
    """The account that sessions and tickets count for."""
    return who.user if who.account is None else f"{who.account.kind}:{who.account.name}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
