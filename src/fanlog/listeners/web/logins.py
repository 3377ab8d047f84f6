"""Login and logout over HTTP, sessions, tickets, and permission checks. Bodies and answers are in
`login_answers.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from fanlog.errors import (
    AccountNotFoundError,
    ForbiddenError,
    InvalidArgumentError,
    LimitError,
    RateLimitedError,
    UnauthenticatedError,
)
from fanlog.identity import Identity, Login, Role, Rules, Verb
from fanlog.listeners.web.entrance import COOKIE, Guest, session_cookies
from fanlog.listeners.web.login_answers import (
    LoginBody,
    LoginWays,
    MayAnswer,
    MayQuery,
    SessionAnswer,
    SessionsAnswer,
    SessionsQuery,
    TicketAnswer,
    TicketBody,
    WhoAmI,
)
from fanlog.listeners.web.login_watch import time_text
from fanlog.listeners.web.problems import http_problem
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.listeners.web.sorted_pages import page_of
from fanlog.security.sessions import LoginSession

# Logging in and out


async def ways(call: Call[Nothing, None]) -> LoginWays:
    entrance = call.listener.entrance
    if not entrance.guarded:
        return LoginWays(auth=False, ways=[])
    found: list[Any] = ["password", "key"]
    security = entrance.security
    if security.token_key_file or security.token_jwks_url:
        found.append("token")
    if security.oidc_issuer:
        found.append("oidc")
    return LoginWays(auth=True, ways=found, oidc="/v1/oidc/login" if security.oidc_issuer else "")


async def login(call: Call[Nothing, LoginBody]) -> web.StreamResponse:
    entrance, body = call.listener.entrance, call.body
    given = sum(map(bool, (body.user or body.password, body.key, body.token)))
    if given > 1:
        raise InvalidArgumentError(
            "Give only one of these: a user with a password, a key, or a token."
        )
    # Otherwise another site could log its visitors in as a user of its choice.
    if _from_a_browser(call.request):
        entrance.check_page(call.request)
    stranger = call.guest.who
    if not entrance.guarded:
        return _json(_who_am_i(call.guest, guarded=False))
    if not given:
        raise UnauthenticatedError("Give a user with a password, a key, or a token.")
    shown = Login(key=body.key, user=body.user, password=body.password, token=body.token)
    who = await call.listener.core.gate.login(shown, stranger)
    return begin_session(call, who)


def begin_session(call: Call[Any, Any], who: Identity, page: str = "") -> web.StreamResponse:
    """Answers with a new session. The browser's old session ends, so that nobody can prepare a
    session for others to log in to."""
    entrance = call.listener.entrance
    for secret in session_cookies(call.request):
        before = entrance.sessions.maybe_find(secret)
        if before is not None:
            entrance.sessions.close(before)
    session, secret = entrance.sessions.open(who, call.request.headers.get("User-Agent", ""))
    guest = Guest(entrance, call.listener.core, who, session)
    if page:
        answer = web.Response(text=page, content_type="text/html")
    else:
        answer = _json(_who_am_i(guest, guarded=True))
    answer.headers["Cache-Control"] = "no-store"
    answer.set_cookie(
        COOKIE,
        secret,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=is_secure(call),
        max_age=int(entrance.security.session_lifetime_seconds),
    )
    return answer


async def logout(call: Call[Nothing, None]) -> web.StreamResponse:
    entrance, request = call.listener.entrance, call.request
    cookies = session_cookies(request)
    if cookies:
        entrance.check_page(request)
    for secret in cookies:
        session = entrance.sessions.maybe_find(secret)
        if session is not None:
            entrance.sessions.close(session)
            # Not the text of a stranger, who could fill the audit log with it.
            call.bus.core.audit.note(session.who, "logout", "", "ok")
    if cookies:
        # Its WebSockets and streams end, too.
        call.listener.recheck()
    answer = web.Response(status=204)
    answer.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=is_secure(call))
    return answer


def is_secure(call: Call[Any, Any]) -> bool:
    """Whether the browser speaks TLS, with us or with a proxy. A header that lies about it keeps
    a cookie from being sent, and does no other harm."""
    forwarded = call.request.headers.get("X-Forwarded-Proto", "")
    return call.listener.secure or forwarded.lower() == "https"


def _from_a_browser(request: web.Request) -> bool:
    return "Origin" in request.headers or "Sec-Fetch-Site" in request.headers


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


# Identity and permissions


async def who_am_i(call: Call[Nothing, None]) -> web.StreamResponse:
    return _json(_who_am_i(call.guest, guarded=call.listener.entrance.guarded))


def _who_am_i(guest: Guest, *, guarded: bool) -> WhoAmI:
    account, expires_us = guest.who.account, guest.expires_us
    # Without logins, everybody may do everything.
    rules = account.rules if account is not None else Rules(role=Role.ADMIN)
    reads = rules.role in _READING if rules.subscribe is None else bool(rules.subscribe)
    return WhoAmI(
        auth=guarded,
        user=guest.who.user,
        kind="anonymous" if account is None else account.kind,
        account="" if account is None else account.name,
        role="" if rules.role is None else rules.role.value,
        rules=rules,
        reads_messages=reads and rules.role is not Role.OBSERVER,
        admin=rules.role is Role.ADMIN,
        session="" if guest.session is None else guest.session.id,
        expires=time_text(expires_us) if expires_us else "",
    )


_READING = (Role.ADMIN, Role.CONSUMER, Role.VIEWER)


async def may(call: Call[MayQuery, None]) -> MayAnswer:
    query, permit = call.query, call.permit
    account = permit.who.account
    name = "" if account is None else account.name
    if query.account and query.account != name:
        permit.ask(Verb.ADMIN, "")
        name = query.account
        others = call.listener.entrance.maybe_permit(name)
        if others is None:
            raise AccountNotFoundError(f"There is no active key or user {name!r}.")
        permit = others
    refusal = permit.maybe_refusal(query.verb, query.name)
    return MayAnswer(
        allowed=refusal is None, account=name, reason="" if refusal is None else str(refusal)
    )


# Sessions and tickets


def _is_admin(call: Call[Any, Any]) -> bool:
    return call.permit.may(Verb.ADMIN, "")


async def sessions(call: Call[SessionsQuery, None]) -> SessionsAnswer:
    kept, query, slices = call.listener.entrance.sessions, call.query, call.bus.core.slices
    text, admin = query.search.casefold(), _is_admin(call)
    found = [
        one
        async for one in slices.each(kept.each(query.user))
        if (admin or _is_mine(call, one)) and text in _text_of(one)
    ]
    page = await page_of(
        slices,
        found,
        lambda one: (one.begun, one.id),
        offset=query.offset,
        limit=len(found) if query.limit is None else query.limit,
        descending=True,
    )
    return SessionsAnswer(
        sessions=[_shown(call, one) async for one in slices.each(page)], total=len(found)
    )


def _text_of(session: LoginSession) -> str:
    return f"{session.who.user}\n{session.who.address}\n{session.agent}".casefold()


def _shown(call: Call[SessionsQuery, None], session: LoginSession) -> SessionAnswer:
    who = session.who
    return SessionAnswer(
        id=session.id,
        user=who.user,
        kind="" if who.account is None else who.account.kind,
        address=who.address,
        agent=session.agent,
        begun=time_text(session.begun_us),
        seen=time_text(session.seen_us),
        expires=time_text(call.listener.entrance.sessions.expires_us(session)),
        current=session is call.guest.session,
    )


def _is_mine(call: Call[Any, Any], session: LoginSession) -> bool:
    mine, account = call.permit.who.account, session.who.account
    if mine is None or account is None:
        return False
    return (mine.kind, mine.name) == (account.kind, account.name)


async def end_session(call: Call[Nothing, None]) -> web.StreamResponse:
    entrance = call.listener.entrance
    session = entrance.sessions.maybe(call.path("session"))
    if session is None or not (_is_admin(call) or _is_mine(call, session)):
        # The same answer for both, so that nobody learns of the sessions of others.
        detail = "There is no such session. GET /v1/sessions lists yours."
        return http_problem(404, detail, "no_such_session")
    entrance.sessions.close(session)
    call.listener.recheck()
    return web.Response(status=204)


async def ticket(call: Call[Nothing, TicketBody]) -> web.StreamResponse:
    entrance, guest, use = call.listener.entrance, call.guest, call.body.use
    text = entrance.tickets.issue(guest.who, use, guest.session)
    answer = _json(TicketAnswer(ticket=text, use=use, seconds=entrance.security.ticket_seconds))
    answer.set_status(201)
    return answer


_NO_STORE = (Param("Cache-Control", "It is never kept."),)

ROUTES = [
    Route(
        "GET",
        "/v1/login",
        ways,
        "Show the ways to log in",
        "logins",
        answer=LoginWays,
    ),
    Route(
        "POST",
        "/v1/login",
        login,
        "Log in, and get a session cookie",
        "logins",
        body=LoginBody,
        answer=WhoAmI,
        answer_headers=_NO_STORE,
        description="For browsers. Programs send their key or token with each request, as "
        "`Authorization: Bearer ...`. The cookie is `fanlog_session`.",
        errors=(UnauthenticatedError, RateLimitedError, InvalidArgumentError, LimitError),
        example={"user": "ann", "password": "..."},
    ),
    Route(
        "POST",
        "/v1/logout",
        logout,
        "End the session of the cookie",
        "logins",
        status=204,
    ),
    Route(
        "GET",
        "/v1/whoami",
        who_am_i,
        "Show who you are, and what you may do",
        "logins",
        answer=WhoAmI,
        answer_headers=_NO_STORE,
    ),
    Route(
        "GET",
        "/v1/may",
        may,
        "Check whether you may do something",
        "logins",
        query=MayQuery,
        query_example={"verb": "publish", "name": "orders"},
        answer=MayAnswer,
        errors=(ForbiddenError, InvalidArgumentError, AccountNotFoundError),
    ),
    Route(
        "GET",
        "/v1/sessions",
        sessions,
        "List browser sessions",
        "logins",
        query=SessionsQuery,
        answer=SessionsAnswer,
        description="Your own sessions, newest first. Admins see all.",
    ),
    Route(
        "DELETE",
        "/v1/sessions/{session}",
        end_session,
        "End a browser session",
        "logins",
        status=204,
        description="Its WebSockets and streams are closed. You may end your own sessions; "
        "admins may end all.",
        # For its status.
        errors=(AccountNotFoundError,),
        action="session.end",
    ),
    Route(
        "POST",
        "/v1/tickets",
        ticket,
        "Get a ticket for one stream",
        "logins",
        body=TicketBody,
        answer=TicketAnswer,
        status=201,
        answer_headers=_NO_STORE,
        description="For `EventSource` and `WebSocket`, which can't send headers. It can be "
        "used once, within some seconds.",
        errors=(RateLimitedError,),
        example={"use": "events"},
    ),
]
