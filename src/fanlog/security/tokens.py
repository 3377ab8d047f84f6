"""Tokens (JWT), signed by an issuer whose public key the operator trusts. Only asymmetric
algorithms are known here, and the key decides which one fits, so `alg: none` and HMAC with a public
key as its secret are just wrong.

| refused                                         | because                                       |
| ----------------------------------------------- | --------------------------------------------- |
| longer than `TOKEN_BYTES_MAX`                   | nobody's time is for free                     |
| `alg` that `token_algorithms` does not list     | `none`, HMAC, and what the operator left out  |
| a key that is not known, or of another kind     | key confusion                                 |
| `crit` in the header                            | it asks for what is not understood            |
| no `exp`, or it has passed; `nbf` in the future | with `token_leeway_seconds` for clocks        |
| another issuer, or another audience             | it was made for somebody else                 |
| no user, or rules that can't be understood      | see claims.py                                 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from time import monotonic
from typing import Any

import jwt
from jwt.exceptions import InvalidAudienceError, InvalidIssuerError, PyJWTError

from fanlog.config_security import SecurityOptions
from fanlog.errors import ConfigError, UnauthenticatedError
from fanlog.identity import Account
from fanlog.security.claims import Claims
from fanlog.security.fetching import Fetcher, problem_with_url
from fanlog.security.token_keys import KeyFile, KeySet, TokenKey, choose

TOKEN_BYTES_MAX = 16 * 1024
ASYMMETRIC = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
# Tokens whose signature is known to be right, so that a client which shows its token with every
# request costs one hash each time.
_KNOWN_MAX = 4096
# Before the mark of a key in an account's `credential`: users of an OpenID provider have another.
_MARK = "jwt:"
# How often the key file is checked.
_LOOK_SECONDS = 1.0
_SECOND_US = 1_000_000
# The year 9999: further ahead no clock can say it.
_TIME_MAX_SECONDS = 253_402_300_799
_CHECKS = {
    "require": ["exp"],
    # With the clock that is handed in, see `_check_times`.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


def read_algorithms(text: str) -> tuple[str, ...]:
    """`token_algorithms` as a list. Raises ConfigError for those with shared secrets."""
    chosen = tuple(text.split())
    for one in chosen:
        if one not in ASYMMETRIC:
            raise ConfigError(
                f"security.token_algorithms has {one!r}: allowed are {', '.join(ASYMMETRIC)}. "
                "Algorithms with a shared secret (HS256) don't fit tokens of another issuer."
            )
    if not chosen:
        raise ConfigError("security.token_algorithms is empty: name one, such as RS256.")
    return chosen


class Tokens:
    """Checks tokens by the settings."""

    def __init__(
        self,
        options: SecurityOptions,
        now_us: Callable[[], int],
        *,
        fetcher: Fetcher | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`now_us` is the wall clock, and `now` one that nobody sets."""
        check_token_options(options)
        self._options = options
        self._now_us = now_us
        self._now = now
        self._algorithms = read_algorithms(options.token_algorithms)
        self._claims = Claims(options)
        self._fetcher = fetcher or Fetcher()
        self._file: KeyFile | None = None
        self._looked_at = now()
        self._set: KeySet | None = None
        self._set_keys: tuple[TokenKey, ...] = ()
        self._known: dict[bytes, Account] = {}
        self._marked: tuple[tuple[TokenKey, ...], ...] = ()
        self._known_marks: frozenset[str] = frozenset()
        # Called when keys have changed: connections that logged in with them are checked again.
        self.on_change: list[Callable[[], None]] = []
        if options.token_key_file:
            self._file = KeyFile(options.token_key_file, "security.token_key_file")
        if options.token_jwks_url:
            url = options.token_jwks_url
            self._set = KeySet(
                lambda: self._fetcher.get(url),
                now,
                floor_seconds=options.jwks_floor_seconds,
                lifetime_seconds=options.jwks_lifetime_seconds,
            )

    async def verify(self, token: str, /) -> Account:
        """The account of a token. Raises UnauthenticatedError if the token is not valid."""
        if len(token) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError(
                f"The token is longer than {TOKEN_BYTES_MAX} bytes: give it fewer claims."
            )
        await self._look()
        digest = sha256(token.encode(errors="replace")).digest()
        known = self._known.get(digest)
        if known is not None and known.expires_us > self._now_us():
            return known
        account = await self._account(token)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[digest] = account
        return account

    def renew(self, account: Account, /) -> Account | None:
        """A token is what it was until it expires, or until its key is trusted no more."""
        self._look_at_file()
        return account if account.credential in self._marks() else None

    def _marks(self) -> frozenset[str]:
        """What accounts have of the keys that are trusted now."""
        keys = () if self._file is None else self._file.keys
        now = (keys, () if self._set is None else self._set.keys)
        if now is not self._marked and now != self._marked:
            self._marked = now
            self._known_marks = frozenset(_MARK + key.mark for several in now for key in several)
        return self._known_marks

    async def _account(self, token: str) -> Account:
        kid, algorithm = read_header(token, self._algorithms)
        claims: dict[str, Any] | None = None
        mark = ""
        for key in await self._keys(kid, algorithm):
            claims = maybe_claims(
                token,
                key,
                algorithm,
                issuer=self._options.token_issuer,
                audience=self._options.token_audience,
            )
            if claims is not None:
                mark = _MARK + key.mark
                break
        if claims is None:
            raise UnauthenticatedError(
                "The token is not signed by a key that this broker trusts. Get a new one from its "
                "issuer."
            )
        leeway = self._options.token_leeway_seconds
        expires_us = check_times(claims, self._now_us(), leeway)
        return Account(
            name=self._claims.user(claims),
            kind="token",
            rules=self._claims.rules(claims),
            expires_us=expires_us,
            credential=mark,
        )

    async def _keys(self, kid: str, algorithm: str) -> list[TokenKey]:
        found = [] if self._file is None else choose(self._file.keys, kid, algorithm)
        if self._set is not None and not any(key.kid for key in found):
            found += await self._set.wanted(kid, algorithm)
        return found

    async def _look(self) -> None:
        """Notes that keys have changed or have been withdrawn: what they have signed is checked
        again."""
        self._look_at_file()
        if self._set is not None:
            await self._set.keep_fresh()
            if self._set.keys is not self._set_keys:
                self._set_keys = self._set.keys
                self._changed()

    def _look_at_file(self) -> None:
        now = self._now()
        if self._file is not None and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            if self._file.refresh():
                self._changed()

    def _changed(self) -> None:
        self._known.clear()
        for tell in self.on_change:
            tell()

    async def close(self) -> None:
        if self._set is not None:
            self._set.close()
        await self._fetcher.close()


def check_token_options(options: SecurityOptions) -> None:
    """Raises ConfigError for settings that would accept more tokens than the operator intends."""
    read_algorithms(options.token_algorithms)
    if not options.token_issuer or not options.token_audience:
        raise ConfigError(
            "Tokens need security.token_issuer and security.token_audience: without them the "
            "broker would also accept tokens made for other services."
        )
    wrong = problem_with_url(options.token_jwks_url) if options.token_jwks_url else ""
    if wrong:
        raise ConfigError(f"security.token_jwks_url {wrong}.")


def read_header(token: str, algorithms: tuple[str, ...]) -> tuple[str, str]:
    """The key's name and the algorithm that a token claims. Nothing is checked with them yet."""
    try:
        header = jwt.get_unverified_header(token)
    except (PyJWTError, ValueError, RecursionError):
        raise UnauthenticatedError("This is not a token (JWT): send it as it was issued.") from None
    algorithm, kid = header.get("alg"), header.get("kid", "")
    if algorithm not in algorithms:
        raise UnauthenticatedError(
            f"The token's algorithm is not allowed here. Allowed are {', '.join(algorithms)}."
        )
    if not isinstance(kid, str) or "crit" in header:
        raise UnauthenticatedError(
            "The token's header asks for a feature that is not supported here."
        )
    return kid, algorithm


def maybe_claims(
    token: str, key: TokenKey, algorithm: str, *, issuer: str, audience: str
) -> dict[str, Any] | None:
    """The claims, if the signature is this key's. Times are not checked."""
    try:
        return jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            issuer=issuer,
            audience=audience,
            options=_CHECKS,  # pyright: ignore[reportArgumentType]
        )
    except InvalidAudienceError:
        raise UnauthenticatedError(
            "The token is for another audience. Ask its issuer for one for this broker."
        ) from None
    except InvalidIssuerError:
        raise UnauthenticatedError("The token is from another issuer.") from None
    except jwt.exceptions.InvalidSignatureError:
        return None
    except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as fault:
        raise UnauthenticatedError(f"The token is wrong: {type(fault).__name__}.") from None


def check_times(claims: Mapping[str, Any], now_us: int, leeway_seconds: float) -> int:
    """When the token stops being good, with the leeway. Raises UnauthenticatedError if it is not
    good now."""
    now = now_us / _SECOND_US
    expires = _moment(claims, "exp")
    if expires is None or expires + leeway_seconds <= now:
        raise UnauthenticatedError("The token has expired. Get a new one from its issuer.")
    for name in ("nbf", "iat"):
        begins = _moment(claims, name)
        if begins is not None and begins - leeway_seconds > now:
            raise UnauthenticatedError(
                f"The token is not valid yet ({name}). Check the clocks of this machine and of "
                "the issuer."
            )
    return int((min(expires, _TIME_MAX_SECONDS) + leeway_seconds) * _SECOND_US)


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    given = claims.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise UnauthenticatedError(f"The token's {name} is not a time: use seconds since 1970.")
    return float(min(given, _TIME_MAX_SECONDS))
