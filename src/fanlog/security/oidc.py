"""People log in with an OpenID provider: discovery, the code flow with PKCE, and a user made of the
claims, by the same settings as for tokens.

The browser goes to the provider with `state` and `nonce`, and comes back with a code. The state of
the login is in a signed cookie of the browser. So unfinished logins can't fill the broker's memory,
and a code is valid only in the browser that began the login.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from fanlog.config_security import SecurityOptions
from fanlog.errors import ConfigError, ForbiddenError, LinkError, UnauthenticatedError
from fanlog.identity import Account
from fanlog.security.claims import Claims
from fanlog.security.fetching import Fetcher, problem_with_url
from fanlog.security.token_keys import KeySet
from fanlog.security.tokens import (
    TOKEN_BYTES_MAX,
    check_times,
    maybe_claims,
    read_algorithms,
    read_header,
)

_SECOND_US = 1_000_000
_CREDENTIAL = "oidc"
# The longest time of a login at the provider.
LOGIN_SECONDS = 600
_DISCOVERY_SECONDS = 3600.0
_CODE_LENGTH_MAX = 4096
_SECRET_BYTES_MAX = 4096
_PAGE_LENGTH_MAX = 1024
_AGAIN = "Begin again at /v1/oidc/login."


class Provider(msgspec.Struct, frozen=True):
    """The used fields of the provider's discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Begun(msgspec.Struct, frozen=True):
    """A login in progress, as stored in the browser's cookie."""

    state: str
    nonce: str
    verifier: str
    redirect_url: str
    page: str
    until_us: int


class LoginStart(NamedTuple):
    """The redirect for the browser, and its cookie with its lifetime."""

    url: str
    cookie: str
    seconds: int = LOGIN_SECONDS


class Oidc:
    """Logins with one provider. `now_us` is the wall clock, and `now` a monotonic one."""

    def __init__(
        self,
        options: SecurityOptions,
        now_us: Callable[[], int],
        *,
        fetcher: Fetcher | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        check_oidc_options(options)
        self._options = options
        self._now_us = now_us
        self._now = now
        self._fetcher = fetcher or Fetcher()
        self._claims = Claims(options)
        self._algorithms = read_algorithms(options.token_algorithms)
        self._secret = _read_secret(options.oidc_client_secret_file)
        # Cookies of before a restart are not good any more.
        self._seal = secrets.token_bytes(32)
        self._provider: Provider | None = None
        self._known_at = 0.0
        self._keys = KeySet(
            self._fetch_keys,
            now,
            floor_seconds=options.jwks_floor_seconds,
            lifetime_seconds=options.jwks_lifetime_seconds,
        )

    # The gate's TokenVerifier: a login here has a session, and no token.

    async def verify(self, token: str, /) -> Account | None:
        return None

    def renew(self, account: Account, /) -> Account | None:
        return account if account.credential == _CREDENTIAL else None

    # Beginning

    async def begin(self, redirect_url: str, page: str) -> LoginStart:
        """Where to send a browser that shall come back to `redirect_url`, and then to `page`."""
        provider = await self._discover()
        begun = Begun(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            redirect_url=redirect_url,
            page=safe_page(page),
            until_us=self._now_us() + LOGIN_SECONDS * _SECOND_US,
        )
        query = {
            "response_type": "code",
            "client_id": self._options.oidc_client_id,
            "redirect_uri": redirect_url,
            "scope": self._options.oidc_scopes,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge_of(begun.verifier),
            "code_challenge_method": "S256",
        }
        joined = "&" if urlsplit(provider.authorization_endpoint).query else "?"
        url = provider.authorization_endpoint + joined + urlencode(query)
        return LoginStart(url, self._sealed(begun))

    def _sealed(self, begun: Begun) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(begun)).rstrip(b"=")
        return f"{body.decode()}.{self._mac(body)}"

    def _mac(self, body: bytes) -> str:
        return hmac.new(self._seal, body, hashlib.sha256).hexdigest()

    def _opened(self, cookie: str) -> Begun:
        body, _, mac = cookie.partition(".")
        good = hmac.compare_digest(mac.encode(), self._mac(body.encode()).encode())
        if not good:
            raise UnauthenticatedError(f"This login did not begin in this browser. {_AGAIN}")
        begun = msgspec.json.decode(base64.urlsafe_b64decode(body + "=="), type=Begun)
        if self._now_us() >= begun.until_us:
            raise UnauthenticatedError(f"The login took too long. {_AGAIN}")
        return begun

    # Coming back

    async def finish(self, query: Mapping[str, str], cookie: str) -> tuple[Account, str]:
        """The user that the provider has sent back, and the page that they wanted."""
        begun = self._opened(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), begun.state.encode()):
            raise UnauthenticatedError(f"This answer belongs to another login. {_AGAIN}")
        # If the provider states its issuer, it must be the right one.
        if query.get("iss", self._options.oidc_issuer) != self._options.oidc_issuer:
            raise UnauthenticatedError(f"The answer came from another provider. {_AGAIN}")
        if "error" in query:
            raise UnauthenticatedError(f"The provider refused the login: {_word(query['error'])}.")
        code = query.get("code", "")
        if not 0 < len(code) <= _CODE_LENGTH_MAX:
            raise UnauthenticatedError(f"The provider has sent no code. {_AGAIN}")
        try:
            claims = await self._exchange(code, begun)
        except LinkError as fault:
            raise UnauthenticatedError(f"The provider did not confirm the login: {fault}") from None
        return self._account(claims), begun.page

    def _account(self, claims: Mapping[str, Any]) -> Account:
        rules = self._claims.rules(claims)
        user = self._claims.user(claims)
        if rules.role is None and rules.publish is None and rules.subscribe is None:
            raise ForbiddenError(
                f"The user {user!r} has no role here. The operator gives roles by the claim "
                f"{self._options.token_role_claim!r} (security.token_roles, security.token_role)."
            )
        lifetime_us = int(self._options.session_lifetime_seconds * _SECOND_US)
        expires_us = self._now_us() + lifetime_us
        return Account(
            name=user, kind="token", rules=rules, expires_us=expires_us, credential=_CREDENTIAL
        )

    async def _exchange(self, code: str, begun: Begun) -> dict[str, Any]:
        """The claims of a code's user."""
        provider = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": begun.redirect_url,
            "code_verifier": begun.verifier,
        }
        headers: dict[str, str] = {}
        if not self._secret:
            form["client_id"] = self._options.oidc_client_id
        elif "client_secret_basic" in provider.token_endpoint_auth_methods_supported:
            pair = f"{quote(self._options.oidc_client_id, '')}:{quote(self._secret, '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": self._options.oidc_client_id, "client_secret": self._secret}
        answer = await self._fetcher.post(provider.token_endpoint, form, headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise UnauthenticatedError("The provider has sent no ID token: ask for `openid`.")
        claims = await self._verify_id_token(token, begun.nonce)
        if not self._claims.has_role(claims) and provider.userinfo_endpoint:
            claims = await self._with_userinfo(provider, claims, answer.get("access_token"))
        return claims

    async def _verify_id_token(self, token: str, nonce: str) -> dict[str, Any]:
        if len(token) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError("The provider's ID token is too long.")
        client_id = self._options.oidc_client_id
        kid, algorithm = read_header(token, self._algorithms)
        claims: dict[str, Any] | None = None
        for key in await self._keys.wanted(kid, algorithm):
            claims = maybe_claims(
                token, key, algorithm, issuer=self._options.oidc_issuer, audience=client_id
            )
            if claims is not None:
                break
        if claims is None:
            raise UnauthenticatedError("The ID token is not signed by the provider.")
        check_times(claims, self._now_us(), self._options.token_leeway_seconds)
        audience = claims.get("aud")
        several = isinstance(audience, list) and len(cast("list[Any]", audience)) > 1
        if claims.get("azp", None if several else client_id) != client_id:
            raise UnauthenticatedError("The ID token was made for another client.")
        shown = claims.get("nonce")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), nonce.encode()):
            raise UnauthenticatedError(f"The ID token belongs to another login. {_AGAIN}")
        return claims

    async def _with_userinfo(
        self, provider: Provider, claims: dict[str, Any], access_token: Any
    ) -> dict[str, Any]:
        """The claims, including those that the provider returns only on request."""
        if not isinstance(access_token, str) or not access_token.isprintable():
            return claims
        headers = {"Authorization": f"Bearer {access_token}"}
        more = await self._fetcher.get(provider.userinfo_endpoint, headers)
        if more.get("sub") != claims.get("sub"):
            raise UnauthenticatedError("The provider's user information is about another user.")
        return {**more, **claims}

    # The provider

    async def _discover(self) -> Provider:
        if self._provider is not None and self._now() - self._known_at < _DISCOVERY_SECONDS:
            return self._provider
        url = self._options.oidc_issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            found = msgspec.convert(await self._fetcher.get(url), Provider)
        except msgspec.ValidationError as fault:
            raise LinkError(f"{url} is not a discovery document: {fault}.") from None
        if found.issuer != self._options.oidc_issuer:
            raise LinkError(
                f"The provider calls itself {found.issuer!r}. If that is right, set "
                "security.oidc_issuer to exactly that text."
            )
        for endpoint in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            wrong = problem_with_url(endpoint)
            if wrong:
                raise LinkError(f"An address of the provider {wrong}.")
        self._provider, self._known_at = found, self._now()
        return found

    async def _fetch_keys(self) -> Any:
        return await self._fetcher.get((await self._discover()).jwks_uri)

    async def close(self) -> None:
        self._keys.close()
        await self._fetcher.close()


def check_oidc_options(options: SecurityOptions) -> None:
    wrong = problem_with_url(options.oidc_issuer)
    if wrong:
        raise ConfigError(f"security.oidc_issuer {wrong}.")
    if not options.oidc_client_id:
        raise ConfigError("OpenID Connect needs security.oidc_client_id.")
    if "openid" not in options.oidc_scopes.split():
        raise ConfigError("security.oidc_scopes must have `openid`.")


def challenge_of(verifier: str) -> str:
    """The PKCE challenge: the SHA-256 of the verifier."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def safe_page(page: str) -> str:
    """A page of this server, or its front page. A browser reads `//host` and `/\\host` as another
    host's address, so that a link to log in could lead anywhere.

    >>> safe_page("/board?x=1"), safe_page("//evil.example"), safe_page("https://evil.example")
    ('/board?x=1', '/', '/')
    """
    own = page.startswith("/") and page[1:2] not in ("/", "\\")
    return page if own and page.isprintable() and len(page) <= _PAGE_LENGTH_MAX else "/"


def _read_secret(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            return file.read(_SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(
            f"security.oidc_client_secret_file can't be read: {type(fault).__name__}. Check {path}."
        ) from None


def _word(error: str) -> str:
    """The code of an error, if it is one: it stands in an answer and in a log."""
    return error if error.replace("_", "").isalnum() and len(error) < 64 else "unknown"
