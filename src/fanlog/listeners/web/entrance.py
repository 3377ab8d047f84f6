"""Authenticates requests. All paths except `OPEN_PATHS` pass through here.

| shown                       | who it is                                                      |
| --------------------------- | -------------------------------------------------------------- |
| `Authorization: Bearer ...` | the key's or the token's account                               |
| `?ticket=...`               | whoever got the ticket; streams only, once                     |
| cookie `fanlog_session`     | whoever logged in; only from a page of this server             |
| a client certificate        | the user that it names                                         |
| nothing                     | nobody: refused. `/v1/ws` may log in by its first operation    |

The first one that a request has decides: a cookie does not help after a wrong key. With
`Fanlog-User` a program names the user that it acts for. This counts only without logins, and from
an admin.

It is long because all ways to log in belong together, so that none is overlooked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from fanlog.broker.authority import Permit
from fanlog.errors import ForbiddenError, InvalidArgumentError, UnauthenticatedError
from fanlog.identity import Account, Identity, Login, Role
from fanlog.listeners.web.problems import problem_response
from fanlog.security.claims import USER_LENGTH_MAX, is_user_name
from fanlog.security.gate import SecurityGate
from fanlog.security.sessions import LoginSession, Sessions
from fanlog.security.tickets import Tickets, TicketUse
from fanlog.telemetry.callers import CALLER

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.config_security import SecurityOptions
    from fanlog.listeners.web.origins import Origins
    from fanlog.security.oidc import Oidc

COOKIE = "fanlog_session"
USER_HEADER = "Fanlog-User"
KEY_PREFIX = "fl_"
# It may log in by its first operation.
WEBSOCKET_PATH = "/v1/ws"
# They take tickets.
_TICKET_PATHS = {
    WEBSOCKET_PATH,
    "/v1/stream",
    "/v1/topics/{topic}/stream",
    "/v1/groups/{group}/stream",
    "/v1/streams/{name}",
}
# They are the same for everybody, or are there to log in.
OPEN_PATHS = {
    "/",
    "/dashboard",
    "/dashboard/{file}",
    "/fanlog.js",
    "/fanlog.d.ts",
    "/v1/openapi.json",
    "/v1/reference",
    "/v1/reference.css",
    "/v1/reference.js",
    "/v1/health",
    "/healthz",
    "/healthz/live",
    "/healthz/ready",
    "/v1/login",
    "/v1/logout",
    "/v1/oidc/login",
    "/v1/oidc/callback",
}
ENDED = (
    "The key, user, token or session of this connection has expired, or was revoked or changed. "
    "Log in again with a valid one."
)
_NO_SESSION = "The session is over, or was ended. Log in again: POST /v1/login."
_WRONG_TICKET = (
    "The ticket was used before, is too old, or is for something else. Get a new one for each "
    "connection: POST /v1/tickets."
)
_NO_LOGIN = (
    "This broker asks clients to log in. Send a key or token as `Authorization: Bearer ...`. In a "
    "browser, log in with POST /v1/login. The operator makes keys with: fanlog key create NAME"
)
_ONLY_BEARER = "Send the key or token as `Authorization: Bearer ...`."


class Guest:
    """An authenticated client: its permissions, and the session that it came with."""

    __slots__ = ("_core", "_entrance", "permit", "revoked", "session", "spared")

    def __init__(
        self,
        entrance: Entrance,
        core: BrokerCore,
        who: Identity,
        session: LoginSession | None = None,
    ) -> None:
        self._entrance = entrance
        self._core = core
        self.permit = Permit(core, who)
        self.session = session
        self.revoked = False
        # Its request is answered, whatever it changes.
        self.spared = False

    @property
    def who(self) -> Identity:
        return self.permit.who

    @property
    def logged_in(self) -> bool:
        return self.who.account is not None or not self._core.gate.guarded

    @property
    def expires_us(self) -> int:
        """When the login expires; 0: never."""
        account = self.who.account
        own = 0 if account is None else account.expires_us
        if self.session is None:
            return own
        ends = self._entrance.sessions.expires_us(self.session)
        return min(own or ends, ends)

    def named(self, connection: str) -> None:
        """The connection has an id now."""
        self.permit.who = msgspec.structs.replace(self.who, connection=connection)

    def act_for(self, user: str) -> None:
        """Acts for a user, if that may be: see `Entrance.acting`."""
        self.permit.who = self._entrance.acting(self.who, user)

    def renew(self) -> bool:
        """Checks the login again after keys, users or rules have changed, or time has passed. False
        if it is no longer valid."""
        if not self.logged_in or not self._core.gate.guarded:
            return True
        if self.session is not None and not self._entrance.sessions.is_good(self.session):
            return False
        who = self._core.gate.renew(self.who)
        if who is None or not _may_act(who):
            return False
        if who is not self.who:
            self.permit.who = who
        if self.session is not None:
            # A connection that is open is a session in use.
            self._entrance.sessions.keep(self.session)
        return True


class _GuestTask(NamedTuple):
    guest: Guest
    task: asyncio.Task[object] | None


class HttpConnections(Protocol):
    """The listener, as far as logins need it."""

    origins: Origins

    @property
    def core(self) -> BrokerCore: ...
    def peer_of(self, request: web.Request) -> str: ...
    def login_of(self, request: web.Request) -> tuple[str, Identity] | None: ...
    def note_login(self, request: web.Request, shown: str, who: Identity) -> None: ...
    def certificate_names(self, request: web.Request) -> tuple[str, ...]: ...


class GuardedListener(Protocol):
    """A listener with an entrance, which it has once it listens."""

    entrance: Entrance


class Entrance:
    """Authenticates the requests of one listener."""

    def __init__(self, listener: HttpConnections, security: SecurityOptions) -> None:
        self._listener = listener
        self.security = security
        loop = asyncio.get_running_loop()
        self.sessions = Sessions(
            self._core.now_us,
            loop.time,
            idle_seconds=security.session_idle_seconds,
            lifetime_seconds=security.session_lifetime_seconds,
            sessions_max=security.sessions_max,
        )
        self.tickets = Tickets(loop.time, lifetime_seconds=security.ticket_seconds)
        self.oidc = self._make_oidc()
        # Requests that are being answered, by the id of the object: it can't be a key itself.
        self._asking: dict[int, _GuestTask] = {}

    @property
    def _core(self) -> BrokerCore:
        return self._listener.core

    @property
    def guarded(self) -> bool:
        return self._core.gate.guarded

    def _make_oidc(self) -> Oidc | None:
        gate = self._core.gate
        if not self.security.oidc_issuer or not isinstance(gate, SecurityGate):
            return None
        # Cryptography takes a while to import, and few brokers have a provider.
        from fanlog.security.oidc import Oidc  # noqa: PLC0415

        oidc = Oidc(self.security, self._core.now_us)
        gate.verifiers.append(oidc)
        return oidc

    async def close(self) -> None:
        if self.oidc is not None:
            await self.oidc.close()

    # Who it is

    async def identify(self, request: web.Request) -> Guest:
        """The client of a request. Raises UnauthenticatedError if it has to log in."""
        stranger = Identity("", self._listener.peer_of(request), "web")
        guest = await self._guest(request, stranger)
        guest.act_for(unquote(request.headers.get(USER_HEADER, "")))
        return guest

    def stranger(self, request: web.Request) -> Guest:
        """The client of a request that needs no login."""
        return Guest(self, self._core, Identity("", self._listener.peer_of(request), "web"))

    async def _guest(self, request: web.Request, stranger: Identity) -> Guest:
        ticket = request.query.get("ticket", "")
        if ticket and _path(request) in _TICKET_PATHS and hdrs.AUTHORIZATION not in request.headers:
            return self._by_ticket(request, ticket, stranger)
        gate, core = self._core.gate, self._core
        if not gate.guarded:
            return Guest(self, core, gate.arrive(stranger))
        shown = request.headers.getall(hdrs.AUTHORIZATION, [])
        if shown:
            return Guest(self, core, await self._by_header(request, shown, stranger))
        cookies = session_cookies(request)
        if cookies:
            return self._by_session(request, cookies, stranger)
        certified = self._by_certificate(request, stranger)
        if certified is not None:
            return Guest(self, core, certified)
        if _path(request) == WEBSOCKET_PATH:
            return Guest(self, core, stranger)
        try:
            return Guest(self, core, gate.arrive(stranger))
        except UnauthenticatedError:
            raise UnauthenticatedError(_NO_LOGIN) from None

    async def _by_header(
        self, request: web.Request, shown: list[str], stranger: Identity
    ) -> Identity:
        text = shown[0]
        known = self._listener.login_of(request)
        if known is not None and known[0] == text and len(shown) == 1:
            # The same as before on this connection.
            who = self._core.gate.renew(known[1])
            if who is not None:
                return who
        scheme, _, secret = text.partition(" ")
        if len(shown) != 1 or scheme.lower() != "bearer" or not secret.strip():
            raise UnauthenticatedError(_ONLY_BEARER)
        who = await self.login(secret.strip(), stranger)
        self._listener.note_login(request, text, who)
        return who

    async def login(self, secret: str, stranger: Identity) -> Identity:
        """The identity of a key or token."""
        is_key = secret.startswith(KEY_PREFIX)
        login = Login(key=secret) if is_key else Login(token=secret)
        return await self._core.gate.login(login, stranger)

    async def login_again(self, guest: Guest, secret: str) -> None:
        """A guest logs in, or shows a new key or token of the same user. A program that acts for a
        user continues to do so."""
        before = guest.who
        who = await self.login(secret, before)
        account = before.account
        if account is not None and who.user != account.name:
            raise InvalidArgumentError(
                "This is another user's token. Open a new connection for another user."
            )
        guest.permit.who = who if account is None else self.acting(who, before.user)
        # It may have come with a session, which does not matter any more.
        guest.session = None

    def _by_ticket(self, request: web.Request, text: str, stranger: Identity) -> Guest:
        upgrade = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        use: TicketUse = "websocket" if upgrade else "events"
        ticket = self.tickets.maybe_redeem(text, use)
        if ticket is None:
            raise UnauthenticatedError(_WRONG_TICKET)
        who = msgspec.structs.replace(ticket.who, address=stranger.address)
        guest = Guest(self, self._core, who, ticket.session)
        if not guest.renew():
            raise UnauthenticatedError(_WRONG_TICKET)
        return guest

    def _by_session(self, request: web.Request, cookies: list[str], stranger: Identity) -> Guest:
        self.check_page(request)
        # Two of them: somebody beside the user has set one.
        session = self.sessions.maybe_find(cookies[0]) if len(cookies) == 1 else None
        if session is None:
            raise UnauthenticatedError(_NO_SESSION)
        who = msgspec.structs.replace(session.who, address=stranger.address)
        guest = Guest(self, self._core, who, session)
        if not guest.renew():
            self.sessions.close(session)
            raise UnauthenticatedError(_NO_SESSION)
        return guest

    def _by_certificate(self, request: web.Request, stranger: Identity) -> Identity | None:
        names = self._listener.certificate_names(request)
        return self._core.gate.certified(names, stranger) if names else None

    def acting(self, who: Identity, user: str) -> Identity:
        """The identity with the user for whom it acts. Raises ForbiddenError if it may not."""
        if not user or user == who.user:
            return who
        if self.guarded and who.account is None:
            # A WebSocket that logs in later.
            return who
        if not is_user_name(user):
            raise InvalidArgumentError(
                f"A user's name has 1 to {USER_LENGTH_MAX} characters, without control characters."
            )
        acts = msgspec.structs.replace(who, user=user)
        if self.guarded and not _may_act(acts):
            raise ForbiddenError(
                "Only an admin may act for another user. Leave out the user's name: it is that of "
                "the key, token or session."
            )
        return acts

    def maybe_permit(self, name: str) -> Permit | None:
        """The permissions of a key or user of this name; None if there is no valid one."""
        account = self._maybe_account(name)
        if account is None:
            return None
        return Permit(self._core, Identity(name, "", "web", account=account))

    def _maybe_account(self, name: str) -> Account | None:
        gate = self._core.gate
        if not isinstance(gate, SecurityGate):
            return None
        directory, now_us = gate.directory, self._core.now_us()
        key = directory.keys.get(name)
        if key is not None:
            return directory.account_of_key(key, key.digest, now_us)
        user = directory.user(name)
        return None if user is None else directory.account_of_user(user, now_us)

    # Pages of others

    def check_page(self, request: web.Request) -> None:
        """A browser adds cookies to whatever a page makes it send. So a request with one must come
        from a page of this server, or of `web.origins` by name. Raises ForbiddenError."""
        if not self._listener.origins.allow_cookie(request):
            raise ForbiddenError(
                "A session's cookie is only valid for pages of this server. Programs send a key as "
                "`Authorization: Bearer ...`; other pages need their origin in web.origins, and "
                "a token."
            )

    # Requests under way

    def begin(self, request: web.Request, guest: Guest) -> None:
        self._asking[id(request)] = _GuestTask(guest, asyncio.current_task())

    def guest_of(self, request: web.Request) -> Guest:
        """The client of a request, while it is being answered."""
        return self._asking[id(request)].guest

    def end(self, request: web.Request) -> None:
        self._asking.pop(id(request), None)

    def recheck(self) -> None:
        """Ends requests of clients whose login is no longer valid: one may wait for messages."""
        for asking in list(self._asking.values()):
            if asking.guest.spared or asking.task is None:
                continue
            if not asking.guest.renew():
                asking.guest.revoked = True
                asking.task.cancel()


def _may_act(who: Identity) -> bool:
    """Whether the account may have this user's name."""
    account = who.account
    if account is None or account.name == who.user:
        return True
    return account.rules.role is Role.ADMIN


def session_cookies(request: web.Request) -> list[str]:
    return cookies_of(request, COOKIE)


def cookies_of(request: web.Request, wanted: str) -> list[str]:
    """All cookies of a name. A parser would keep one of several, and not say which."""
    found: list[str] = []
    for line in request.headers.getall(hdrs.COOKIE, []):
        for part in line.split(";"):
            name, _, value = part.strip().partition("=")
            if name == wanted:
                found.append(value.strip().strip('"'))
    return found


def _path(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def is_open(request: web.Request) -> bool:
    """Whether a request needs no login: a document that is the same for everybody, or a file of
    `web.folder`."""
    resource = request.match_info.route.resource
    return _path(request) in OPEN_PATHS or isinstance(resource, web.StaticResource)


def authenticate(listener: GuardedListener):
    """Lets a request in, or not."""

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        entrance = listener.entrance
        if is_open(request):
            guest = entrance.stranger(request)
        else:
            guest = await entrance.identify(request)
        entrance.begin(request, guest)
        CALLER.set(guest.permit)
        try:
            return await handler(request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if guest.revoked and task is not None:
                task.uncancel()
                return problem_response(UnauthenticatedError(ENDED))
            raise
        finally:
            entrance.end(request)

    return let_in
