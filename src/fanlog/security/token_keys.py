"""The public keys that tokens are checked with: from a file (PEM or JSON), or from a JWKS address,
which is fetched again when an unknown key turns up. Only public keys count: with secrets in a key
set, all its readers could make tokens."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from cryptography.x509 import load_pem_x509_certificate
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from fanlog.errors import ConfigError, FanlogError

logger = logging.getLogger("fanlog.security")

KEYS_MAX = 100
# Keys that a token without `kid` is tried with.
TRIED_MAX = 8
_FILE_BYTES_MAX = 512 * 1024
_RSA_BITS_MIN = 2048
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1", "ES256K": "secp256k1"}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class TokenKey(msgspec.Struct, frozen=True):
    """A key and its use. `algorithm` is empty if its set does not state one."""

    key: PublicKey
    kid: str = ""
    algorithm: str = ""

    @property
    def mark(self) -> str:
        """Identifies a key, for as long as it is trusted."""
        der = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()[:16]

    def fits(self, algorithm: str) -> bool:
        """Whether a signature of this algorithm can be one of this key. It is the key that decides,
        never the token alone: that is how a public key becomes an HMAC secret."""
        if self.algorithm and self.algorithm != algorithm:
            return False
        match self.key:
            case RSAPublicKey():
                return algorithm[:2] in ("RS", "PS")
            case EllipticCurvePublicKey():
                return _CURVES.get(algorithm) == self.key.curve.name
            case _:
                return algorithm == "EdDSA"


def choose(keys: Sequence[TokenKey], kid: str, algorithm: str) -> list[TokenKey]:
    """The keys that a token may be signed with."""
    fitting = [key for key in keys if key.fits(algorithm)]
    if kid:
        named = [key for key in fitting if key.kid == kid]
        # A PEM file has no names.
        return named or [key for key in fitting if not key.kid][:TRIED_MAX]
    return fitting[:TRIED_MAX]


def parse_keys(data: bytes) -> tuple[TokenKey, ...]:
    """The keys in a file: PEM (public keys and certificates), one JWK, or a JWK set. Raises
    ValueError if there is none."""
    text = data.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        return parse_jwks(json.loads(text))
    keys = [TokenKey(_checked(_load_pem(block))) for block in _pem_blocks(text)]
    if not keys:
        raise ValueError("it is neither PEM nor a JSON object")
    return tuple(keys[:KEYS_MAX])


def _pem_blocks(text: str) -> list[str]:
    ends = text.split("-----END ")
    return [
        f"{part[part.index('-----BEGIN ') :]}-----END {after.split('-----')[0]}-----\n"
        for part, after in itertools.pairwise(ends)
        if "-----BEGIN " in part
    ]


def _load_pem(block: str) -> Any:
    if "PRIVATE KEY" in block:
        raise ValueError("it has a private key; only the public one belongs here")
    if "BEGIN CERTIFICATE" in block:
        return load_pem_x509_certificate(block.encode()).public_key()
    return load_pem_public_key(block.encode())


def parse_jwks(document: Any) -> tuple[TokenKey, ...]:
    """The public signature keys of a JWK set, or of one JWK. Other keys are skipped: sets also have
    keys for encryption, and of newer kinds."""
    given = cast("dict[str, Any]", document) if isinstance(document, dict) else {"keys": None}
    entries: Any = given.get("keys", [given])
    if not isinstance(entries, list):
        raise ValueError("it is not a JWK set")
    keys: list[TokenKey] = []
    for entry in cast("list[Any]", entries)[:KEYS_MAX]:
        key = _maybe_key(entry)
        if key is not None:
            keys.append(key)
    if not keys:
        raise ValueError("it has no public key for signatures (RSA, EC or OKP)")
    return tuple(keys)


def _maybe_key(entry: Any) -> TokenKey | None:
    if not isinstance(entry, dict):
        return None
    given = cast("dict[str, Any]", entry)
    private = "d" in given or given.get("kty") == "oct"
    if private or given.get("use", "sig") != "sig":
        return None
    algorithm, kid = given.get("alg", ""), given.get("kid", "")
    if not isinstance(algorithm, str) or not isinstance(kid, str):
        return None
    try:
        key = _checked(PyJWK(given, algorithm or None).key)
    except (PyJWTError, ValueError, TypeError, UnsupportedAlgorithm, OverflowError) as fault:
        logger.debug("a key of a key set can't be used: %s", type(fault).__name__)
        return None
    return TokenKey(key, kid, algorithm)


def _checked(key: Any) -> PublicKey:
    if not isinstance(
        key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey
    ):
        raise ValueError("it is not a public key of RSA, EC or EdDSA")
    if isinstance(key, RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        raise ValueError(f"its RSA key has fewer than {_RSA_BITS_MIN} bits")
    return key


class KeyFile:
    """Keys from a file. It is read again when it has changed."""

    def __init__(self, path: str, option: str) -> None:
        self._path = Path(path)
        self._option = option
        self._seen: tuple[int, int] = (0, 0)
        self.keys: tuple[TokenKey, ...] = ()
        self._load()

    def _load(self) -> None:
        try:
            about = self._path.stat()
            if about.st_size > _FILE_BYTES_MAX:
                raise ValueError("it is too large")
            keys = parse_keys(self._path.read_bytes())
        except OSError as fault:
            raise ConfigError(
                f"{self._option} can't be read: {fault.strerror}. Check {self._path}."
            ) from None
        except (ValueError, UnsupportedAlgorithm) as fault:
            raise ConfigError(
                f"{self._option} is {self._path}, which can't be used: {fault}. Put a public key "
                "there: PEM, a JWK, or a JWK set."
            ) from None
        self._seen, self.keys = (about.st_mtime_ns, about.st_size), keys

    def refresh(self) -> bool:
        """Reads the file again if it has changed; whether it has. A file that can't be used leaves
        the keys as they are."""
        try:
            about = self._path.stat()
            if (about.st_mtime_ns, about.st_size) == self._seen:
                return False
            self._load()
        except (OSError, ConfigError) as fault:
            logger.warning("%s could not be read again: %s", self._option, fault)
            return False
        return True


class KeySet:
    """Keys from a JWKS address. It is fetched when a token names an unknown key, and again after a
    while, so that withdrawn keys are forgotten. However many unknown keys turn up, it is fetched at
    most once in `floor_seconds`."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Any]],
        now: Callable[[], float],
        *,
        floor_seconds: float,
        lifetime_seconds: float,
    ) -> None:
        """`now` is a clock that nobody sets."""
        self._fetch = fetch
        self._now = now
        self._floor_seconds = floor_seconds
        self._lifetime_seconds = lifetime_seconds
        self._asked_at: float | None = None
        self._known_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self.keys: tuple[TokenKey, ...] = ()
        # Why the last answer was of no use.
        self.problem = ""

    async def wanted(self, kid: str, algorithm: str) -> list[TokenKey]:
        """The keys for a token, asking for new ones if there are none."""
        await self.keep_fresh()
        found = choose(self.keys, kid, algorithm)
        if not found:
            await self._ask()
            found = choose(self.keys, kid, algorithm)
        return found

    async def keep_fresh(self) -> None:
        """Asks again if what is known is old."""
        known = self._known_at
        if known is None or self._now() - known > self._lifetime_seconds:
            await self._ask()

    async def _ask(self) -> None:
        asked = self._asked_at
        if self._asking is None:
            if asked is not None and self._now() - asked < self._floor_seconds:
                return
            self._asked_at = self._now()
            self._asking = asyncio.create_task(self._refresh())
        # The waiting caller may be cancelled; the answer is for all callers.
        await asyncio.shield(self._asking)

    async def _refresh(self) -> None:
        try:
            self.keys = parse_jwks(await self._fetch())
            self._known_at = self._now()
            self.problem = ""
        except (FanlogError, ValueError) as fault:
            # The old keys stay: a provider that is away for an hour locks nobody out.
            self.problem = str(fault)
            logger.warning("the key set could not be read: %s", fault)
        finally:
            self._asking = None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
