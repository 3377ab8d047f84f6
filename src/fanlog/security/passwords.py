"""Passwords of users, kept as scrypt makes them: `scrypt$<log2 n>$<r>$<p>$<salt>$<hash>`. A check
takes about 100 ms and 32 MiB, so that it runs in a thread, a few at a time. An unknown user costs
as much as a wrong password."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from fanlog.errors import InvalidArgumentError, RateLimitedError

T = TypeVar("T")

PASSWORD_CHARACTERS_MIN = 8
PASSWORD_BYTES_MAX = 1024
_LOG2_N, _R, _P = 15, 8, 1
_SALT_BYTES = 16
_HASH_BYTES = 32
# OpenSSL needs this limit: 128 * n * r bytes, and some more. It also bounds what a hash in a config
# file can ask for.
_MEMORY_BYTES_MAX = 160 * 1024 * 1024
# Checks at a time, and those that wait for their turn: each has 32 MiB, and a wrong one costs us as
# much as a right one.
_THREADS = 2
_WAITING_MAX = 64


class _Hash(msgspec.Struct, frozen=True):
    log2_n: int
    r: int
    p: int
    salt: bytes
    hash: bytes


def check_password(password: str) -> str:
    """The password, if it can be one."""
    size = len(password.encode(errors="replace"))
    if len(password) < PASSWORD_CHARACTERS_MIN or size > PASSWORD_BYTES_MAX:
        raise InvalidArgumentError(
            f"A password has at least {PASSWORD_CHARACTERS_MIN} characters, and at most "
            f"{PASSWORD_BYTES_MAX} bytes. Choose another."
        )
    return password


def hash_password(password: str) -> str:
    """The stored hash of a password. Takes about 100 ms."""
    salt = secrets.token_bytes(_SALT_BYTES)
    made = _Hash(_LOG2_N, _R, _P, salt, b"")
    parts = [_encoded(salt), _encoded(_scrypt(password, made, _HASH_BYTES))]
    return "$".join(["scrypt", str(_LOG2_N), str(_R), str(_P), *parts])


def matches(password: str, kept: str) -> bool:
    """Whether the password matches the stored hash. Takes about 100 ms."""
    parsed = _maybe_parse(kept)
    if parsed is None:
        return False
    return hmac.compare_digest(_scrypt(password, parsed, len(parsed.hash)), parsed.hash)


def is_hash(text: str) -> bool:
    return _maybe_parse(text) is not None


def _maybe_parse(kept: str) -> _Hash | None:
    parts = kept.split("$")
    if len(parts) != 6 or parts[0] != "scrypt":
        return None
    try:
        log2_n, r, p = (int(part) for part in parts[1:4])
        found = _Hash(log2_n, r, p, _decoded(parts[4]), _decoded(parts[5]))
    except ValueError:
        return None
    cheap = 10 <= log2_n <= 17 and 1 <= r <= 8 and 1 <= p <= 4
    return found if cheap and len(found.salt) >= 8 and len(found.hash) >= 16 else None


def _scrypt(password: str, by: _Hash, size: int) -> bytes:
    return hashlib.scrypt(
        password.encode(errors="surrogatepass"),
        salt=by.salt,
        n=1 << by.log2_n,
        r=by.r,
        p=by.p,
        maxmem=_MEMORY_BYTES_MAX,
        dklen=size,
    )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# The hash of no password: for comparisons of unknown users.
_NOBODY = (
    f"scrypt${_LOG2_N}${_R}${_P}${_encoded(bytes(_SALT_BYTES))}${_encoded(bytes(_HASH_BYTES))}"
)


class PasswordChecks:
    """Hashes and checks passwords in its own threads."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def hash(self, password: str) -> str:
        return await self._run(lambda: hash_password(check_password(password)))

    async def matches(self, password: str, kept: str | None) -> bool:
        """Without a hash the password is wrong, and that takes as long."""
        if len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
            password = ""
        found = await self._run(lambda: matches(password, kept or _NOBODY))
        return found and kept is not None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._waiting >= _WAITING_MAX:
            raise RateLimitedError(
                "Too many logins with a password are waiting to be checked. Try again in a "
                "moment; programs should log in with a key, which is checked at once."
            )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fanlog-passwords")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
