"""The two pages of an OpenID login: the first sends the browser to the provider, and the provider
sends it back to the second."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.errors import (
    ForbiddenError,
    InvalidArgumentError,
    LinkError,
    NotSupportedError,
    RateLimitedError,
    UnauthenticatedError,
)
from fanlog.identity import Account, Login
from fanlog.listeners.web.entrance import cookies_of
from fanlog.listeners.web.logins import begin_session, is_secure
from fanlog.listeners.web.routes import Call, Route
from fanlog.security.gate import SecurityGate

if TYPE_CHECKING:
    from fanlog.security.oidc import Oidc

OIDC_COOKIE = "fanlog_oidc"
_PATH = "/v1/oidc"
_LENGTH_MAX = 4096
_ProviderText = Annotated[
    str, Meta(max_length=_LENGTH_MAX, description="The code from the provider.")
]
# The page leads on by itself. A redirect would still be the provider's doing, for a browser, and
# the cookie would not go with it.
_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={page}">'
    '<title>Fanlog</title><p>You are logged in. <a href="{page}">Continue</a>'
)


class LoginBeginQuery(msgspec.Struct, frozen=True, kw_only=True):
    page: Annotated[
        str, Meta(max_length=1024, description="The page of this server to go to afterwards.")
    ] = "/"


class ReturnQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says."""

    state: _ProviderText = ""
    code: _ProviderText = ""
    iss: _ProviderText = ""
    error: _ProviderText = ""
    error_description: _ProviderText = ""
    error_uri: _ProviderText = ""
    session_state: _ProviderText = ""
    scope: _ProviderText = ""


def _oidc(call: Call[LoginBeginQuery, None] | Call[ReturnQuery, None]) -> Oidc:
    oidc = call.listener.entrance.oidc
    if oidc is None:
        raise NotSupportedError(
            "There is no OpenID provider here. Log in with POST /v1/login, or set "
            "security.oidc_issuer."
        )
    return oidc


def _redirect_url(call: Call[LoginBeginQuery, None]) -> str:
    chosen = call.listener.entrance.security.oidc_redirect_url
    if chosen:
        return chosen
    scheme = "https" if is_secure(call) else "http"
    return f"{scheme}://{call.request.host}{_PATH}/callback"


async def begin(call: Call[LoginBeginQuery, None]) -> web.StreamResponse:
    start = await _oidc(call).begin(_redirect_url(call), call.query.page)
    answer = web.Response(status=302, headers={"Location": start.url, "Cache-Control": "no-store"})
    answer.set_cookie(
        OIDC_COOKIE,
        start.cookie,
        path=_PATH,
        httponly=True,
        # Not Strict: the browser comes back from another host.
        samesite="Lax",
        secure=is_secure(call),
        max_age=start.seconds,
    )
    return answer


async def finish(call: Call[ReturnQuery, None]) -> web.StreamResponse:
    oidc = _oidc(call)
    cookies = cookies_of(call.request, OIDC_COOKIE)
    if len(cookies) != 1:
        raise UnauthenticatedError(
            "This login did not begin in this browser. Start again at /v1/oidc/login."
        )
    given = {name: value for name, value in msgspec.structs.asdict(call.query).items() if value}
    gate, page = call.listener.core.gate, ""
    # There is no provider without logins.
    assert isinstance(gate, SecurityGate)

    async def confirmed() -> Account:
        """Each try is a request to the provider, which a stranger must not send without end."""
        nonlocal page
        account, page = await oidc.finish(given, cookies[0])
        return account

    who = await gate.login_by(Login(token="-"), call.guest.who, confirmed)
    answer = begin_session(call, who, _PAGE.format(page=escape(page, quote=True)))
    answer.headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.del_cookie(OIDC_COOKIE, path=_PATH, httponly=True, samesite="Lax")
    return answer


ROUTES = [
    Route(
        "GET",
        "/v1/oidc/login",
        begin,
        "Log in with the OpenID provider",
        "logins",
        query=LoginBeginQuery,
        status=302,
        description="Open it in a browser: it redirects to the provider, which returns with"
        " a session.",
        errors=(NotSupportedError, LinkError),
    ),
    Route(
        "GET",
        "/v1/oidc/callback",
        finish,
        "Return from the OpenID provider",
        "logins",
        query=ReturnQuery,
        answer=str,
        answer_type="text/html",
        errors=(
            UnauthenticatedError,
            ForbiddenError,
            InvalidArgumentError,
            RateLimitedError,
            LinkError,
        ),
    ),
]
