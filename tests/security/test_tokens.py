"""Tokens: who is let in by one, and every known way to forge one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fanlog.config_security import SecurityOptions
from fanlog.errors import ConfigError, UnauthenticatedError
from fanlog.identity import Role
from fanlog.security.token_keys import parse_keys
from fanlog.security.tokens import TOKEN_BYTES_MAX, Tokens

NOW = 1_800_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def pem(key: Any) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    kind = jwt.get_algorithm_by_name(algorithm)
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


def claims(**changed: Any) -> dict[str, Any]:
    usual = {"sub": "ann", "iss": "https://issuer.test", "aud": "fanlog", "exp": NOW + 60}
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def sign(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str = "", **changed: Any) -> str:
    headers = {"kid": kid} if kid else None
    return jwt.encode(claims(**changed), key, algorithm, headers)


@pytest.fixture
def verifier(tmp_path: Path) -> Callable[..., Tokens]:
    """Tokens with keys from a file; `now` moves by hand."""

    def make(keys: bytes | None = None, **options: Any) -> Tokens:
        path = tmp_path / "keys.pem"
        path.write_bytes(pem(RSA_KEY) if keys is None else keys)
        usual: dict[str, Any] = {
            "token_key_file": str(path),
            "token_issuer": "https://issuer.test",
            "token_audience": "fanlog",
        }
        return Tokens(SecurityOptions(**{**usual, **options}), lambda: NOW * 1_000_000)

    return make


Verifier = Callable[..., Tokens]


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA_KEY, "RS256"), (RSA_KEY, "PS384"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")],
    ids=["RS256", "PS384", "ES256", "EdDSA"],
)
async def test_a_token_is_a_user_with_rules(verifier: Verifier, key: Any, algorithm: str) -> None:
    tokens = verifier(pem(key))
    signed = sign(
        key, algorithm, fanlog_role="viewer", fanlog_publish=["a.>"], fanlog_subscribe="b c.*"
    )
    account = await tokens.verify(signed)
    assert (account.name, account.kind, account.rules.role) == ("ann", "token", Role.VIEWER)
    assert (account.rules.publish, account.rules.subscribe) == (("a.>",), ("b", "c.*"))
    assert account.expires_us == (NOW + 60 + 10) * 1_000_000


def forged(header: dict[str, Any], payload: dict[str, Any], secret: bytes | None) -> str:
    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signing = part(header) + b"." + part(payload)
    mac = b"" if secret is None else hmac.digest(secret, signing, hashlib.sha256)
    return (signing + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 0, ["RS256"]])
async def test_a_token_without_a_signature_is_nobodys(verifier: Verifier, name: Any) -> None:
    for token in (forged({"alg": name, "typ": "JWT"}, claims(), None), forged({}, claims(), None)):
        with pytest.raises(UnauthenticatedError):
            await verifier().verify(token)


@pytest.mark.parametrize("name", ["HS256", "HS384", "HS512", "RS256", "ES256"])
async def test_a_public_key_is_no_shared_secret(verifier: Verifier, name: str) -> None:
    public = pem(RSA_KEY)
    for secret in (public, public.strip(), b""):
        with pytest.raises(UnauthenticatedError):
            await verifier().verify(forged({"alg": name, "typ": "JWT"}, claims(), secret))


async def test_a_shared_secret_in_a_key_set_is_not_used(verifier: Verifier) -> None:
    secret = base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")
    keys = {"keys": [{"kty": "oct", "k": secret, "kid": "x", "alg": "HS256"}]}
    with pytest.raises(ConfigError):
        verifier(json.dumps(keys).encode())
    with pytest.raises(ConfigError):
        verifier(token_algorithms="RS256 HS256")


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 11},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": float("nan")},
        {"nbf": NOW + 11},
        {"iat": NOW + 3600},
        {"aud": "another"},
        {"aud": ["another", "third"]},
        {"aud": None},
        {"aud": {"fanlog": 1}},
        {"iss": "https://issuer.test/"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "ann\r\nSet-Cookie: x=y"},
        {"sub": "a" * 201},
        {"fanlog_publish": 7},
        {"fanlog_publish": [7]},
        {"fanlog_publish": {"all": True}},
        {"fanlog_subscribe": ["a>"]},
        {"fanlog_subscribe": ["a\nb"]},
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_token_keeps_it_out(
    verifier: Verifier, changed: dict[str, Any]
) -> None:
    given = claims(**changed)
    # The library does not sign some of these.
    token = sign(sub="x") if changed.keys() & {"iss", "sub", "aud"} else sign()
    head = token.split(".")[0]
    body = base64.urlsafe_b64encode(json.dumps(given).encode()).rstrip(b"=").decode()
    signing = f"{head}.{body}"
    algorithm = jwt.get_algorithm_by_name("RS256")
    mac = base64.urlsafe_b64encode(algorithm.sign(signing.encode(), RSA_KEY)).rstrip(b"=").decode()
    with pytest.raises(UnauthenticatedError):
        await verifier().verify(f"{signing}.{mac}")


async def test_clocks_may_be_apart_a_little(verifier: Verifier) -> None:
    assert (await verifier().verify(sign(exp=NOW - 9, nbf=NOW + 9, iat=NOW + 9))).name == "ann"


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "x" * 40, "é.é.é", "\x00", "[" * 9000])
async def test_what_is_no_token_is_refused(verifier: Verifier, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        await verifier().verify(token)


async def test_a_huge_token_is_not_looked_at(verifier: Verifier) -> None:
    with pytest.raises(UnauthenticatedError, match="longer"):
        await verifier().verify(sign(padding="x" * TOKEN_BYTES_MAX))


async def test_another_key_is_not_trusted_whatever_the_token_brings_along(
    verifier: Verifier,
) -> None:
    own = jwk(OTHER_RSA_KEY, "k", "RS256")
    header = {"jwk": own, "jku": "http://127.0.0.1:1/", "x5c": ["AA=="], "kid": "../../dev/null"}
    token = jwt.encode(claims(), OTHER_RSA_KEY, "RS256", header)
    with pytest.raises(UnauthenticatedError):
        await verifier().verify(token)
    critical = jwt.encode(claims(), RSA_KEY, "RS256", {"crit": ["b64"], "b64": True})
    with pytest.raises(UnauthenticatedError):
        await verifier().verify(critical)


async def test_a_key_that_says_its_algorithm_is_for_no_other(verifier: Verifier) -> None:
    keys = {"keys": [jwk(RSA_KEY, "k", "RS256") | {"alg": "PS256"}]}
    tokens = verifier(json.dumps(keys).encode())
    assert (await tokens.verify(sign(algorithm="PS256", kid="k"))).name == "ann"
    with pytest.raises(UnauthenticatedError):
        await tokens.verify(sign(algorithm="RS256", kid="k"))


async def test_no_secret_stands_in_an_error(verifier: Verifier) -> None:
    token = sign(OTHER_RSA_KEY)
    with pytest.raises(UnauthenticatedError) as told:
        await verifier().verify(token)
    assert token[-20:] not in str(told.value)


async def test_roles_come_from_groups_of_the_provider(verifier: Verifier) -> None:
    tokens = verifier(
        token_role_claim="realm_access.roles", token_roles="ops=admin staff=viewer", token_role=""
    )
    for groups, role in (
        (["staff", "ops"], Role.ADMIN),
        (["staff"], Role.VIEWER),
        (["admin"], None),
        ([], None),
        ("ops", Role.ADMIN),
    ):
        account = await tokens.verify(sign(realm_access={"roles": groups}))
        assert account.rules.role is role, groups
    with pytest.raises(ConfigError, match="token_roles"):
        verifier(token_roles="ops=root")


@pytest.mark.parametrize(
    "options",
    [
        {"token_issuer": ""},
        {"token_audience": ""},
        {"token_algorithms": ""},
        {"token_algorithms": "none"},
        {"token_jwks_url": "http://keys.example.com/"},
        {"token_jwks_url": "file:///etc/passwd"},
        {"token_key_file": "/nonexistent/key.pem"},
    ],
    ids=str,
)
def test_settings_that_would_let_in_too_much_are_refused(
    verifier: Verifier, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        verifier(**options)


def test_a_key_file_has_public_keys_only() -> None:
    private = RSA_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data in (private, b"", b"{}", b"[]", b"nonsense", b'{"keys": 7}'):
        with pytest.raises(ValueError):  # noqa: PT011 - the sentences differ
            parse_keys(data)
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(ValueError, match="2048"):
        parse_keys(pem(small))
    assert len(parse_keys(pem(RSA_KEY) + b"\n# next\n" + pem(EC_KEY))) == 2


async def test_a_key_file_that_changes_changes_who_is_let_in(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.pem", [0.0]
    path.write_bytes(pem(RSA_KEY))
    options = SecurityOptions(
        token_key_file=str(path), token_issuer="https://issuer.test", token_audience="fanlog"
    )
    tokens = Tokens(options, lambda: NOW * 1_000_000, now=lambda: clock[0])
    old, new = sign(), sign(EC_KEY, "ES256")
    changes: list[int] = []
    tokens.on_change.append(lambda: changes.append(1))
    first = await tokens.verify(old)
    assert tokens.renew(first) is first
    path.write_bytes(pem(EC_KEY))
    clock[0] += 2
    assert (await tokens.verify(new)).name == "ann"
    with pytest.raises(UnauthenticatedError):
        await tokens.verify(old)
    # Also for connections that are open.
    assert tokens.renew(first) is None
    assert changes == [1]
    # Half a file, as an editor may leave it for a moment, changes nothing.
    path.write_bytes(pem(RSA_KEY)[:80])
    clock[0] += 2
    assert (await tokens.verify(new)).name == "ann"


class Issuer:
    """Serves a JWK set over real HTTP, and counts who asks."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.asked = 0
        self.status = 200
        self.body: bytes | None = None
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.status == 302:
            raise web.HTTPFound("/elsewhere")
        body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
        return web.Response(body=body, status=self.status, content_type="application/json")

    async def __aenter__(self) -> Issuer:
        app = web.Application()
        app.router.add_get("/keys", self.answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/keys"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def by_url(issuer: Issuer, clock: list[float], wall: list[int] | None = None) -> Tokens:
    options = SecurityOptions(
        token_jwks_url=issuer.url, token_issuer="https://issuer.test", token_audience="fanlog"
    )
    at = wall or [NOW]
    return Tokens(options, lambda: at[0] * 1_000_000, now=lambda: clock[0])


async def test_a_key_set_is_asked_for_once_and_again_when_keys_rotate() -> None:
    clock = [0.0]
    async with Issuer() as issuer:
        issuer.keys = [jwk(RSA_KEY, "one", "RS256")]
        tokens = by_url(issuer, clock)
        try:
            await asyncio.gather(*(tokens.verify(sign(kid="one", n=i)) for i in range(20)))
            assert issuer.asked == 1
            issuer.keys = [jwk(EC_KEY, "two", "ES256")]
            clock[0] += 11
            assert (await tokens.verify(sign(EC_KEY, "ES256", "two"))).name == "ann"
            assert issuer.asked == 2
            # The old key was withdrawn, also for what it has signed before.
            with pytest.raises(UnauthenticatedError):
                await tokens.verify(sign(kid="one", n=1))
            with pytest.raises(UnauthenticatedError):
                await tokens.verify(sign(kid="one", n=99))
            # Without a name it is tried with those that fit.
            assert (await tokens.verify(sign(EC_KEY, "ES256"))).name == "ann"
        finally:
            await tokens.close()


async def test_a_withdrawn_key_is_forgotten_although_nobody_shows_another() -> None:
    clock = [0.0]
    async with Issuer() as issuer:
        issuer.keys = [jwk(RSA_KEY, "one", "RS256")]
        tokens = by_url(issuer, clock)
        try:
            token = sign(kid="one")
            await tokens.verify(token)
            issuer.keys = [jwk(EC_KEY, "two", "ES256")]
            clock[0] += 3601
            with pytest.raises(UnauthenticatedError):
                await tokens.verify(token)
        finally:
            await tokens.close()


async def test_a_flood_of_unknown_keys_asks_the_issuer_once() -> None:
    clock = [0.0]
    async with Issuer() as issuer:
        issuer.keys = [jwk(RSA_KEY, "one", "RS256")]
        tokens = by_url(issuer, clock)
        try:
            for number in range(200):
                with pytest.raises(UnauthenticatedError):
                    await tokens.verify(sign(OTHER_RSA_KEY, kid=f"k{number}"))
            assert issuer.asked == 1
            assert (await tokens.verify(sign(kid="one"))).name == "ann"
            assert issuer.asked == 1
        finally:
            await tokens.close()


@pytest.mark.parametrize("trouble", ["500", "302", "huge", "no json", "list", "no keys"])
async def test_an_issuer_in_trouble_keeps_its_old_keys(trouble: str) -> None:
    clock = [0.0]
    async with Issuer() as issuer:
        issuer.keys = [jwk(RSA_KEY, "one", "RS256")]
        tokens = by_url(issuer, clock)
        try:
            assert (await tokens.verify(sign(kid="one"))).name == "ann"
            match trouble:
                case "500" | "302":
                    issuer.status = int(trouble)
                case "huge":
                    issuer.body = b'{"keys":[' + b" " * 600_000 + b"]}"
                case "no json":
                    issuer.body = b"<html>"
                case "list":
                    issuer.body = b"[1]"
                case _:
                    issuer.body = b'{"keys":[{"kty":"oct","k":"AA"}]}'
            clock[0] += 4000
            assert (await tokens.verify(sign(kid="one", n=2))).name == "ann"
            assert issuer.asked == 2
        finally:
            await tokens.close()


async def test_a_token_that_was_seen_before_expires_all_the_same() -> None:
    clock, wall = [0.0], [NOW]
    async with Issuer() as issuer:
        issuer.keys = [jwk(RSA_KEY, "one", "RS256")]
        tokens = by_url(issuer, clock, wall)
        try:
            token = sign(kid="one")
            first = await tokens.verify(token)
            assert await tokens.verify(token) is first
            wall[0] += 71
            with pytest.raises(UnauthenticatedError, match="expired"):
                await tokens.verify(token)
        finally:
            await tokens.close()
