"""API keys: `fl_<id>_<secret>`. The secret has 256 random bits, so that one round of SHA-256 is
enough to keep it by: there is nothing to guess. The id is public and finds the key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

PREFIX = "fl_"
ID_CHARACTERS = 10
_SECRET_BYTES = 32
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_KEY = re.compile(r"fl_([a-z0-9]{10})_([A-Za-z0-9_-]{43})", re.ASCII)


class ParsedKey(NamedTuple):
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ParsedKey({self.id})"


def make_key() -> str:
    """The text of a new key. It is shown once, and stored nowhere."""
    id = "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARACTERS))
    return new_secret(id)


def new_secret(id: str) -> str:
    """The text of a key with this id and a new secret."""
    return f"{PREFIX}{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def maybe_parse(text: str) -> ParsedKey | None:
    """The parts of a key; None if the text is none.

    >>> maybe_parse("fl_abcdefghij_short") is None
    True
    """
    found = _KEY.fullmatch(text)
    return None if found is None else ParsedKey(found[1], found[2])


def digest_of(secret: str) -> str:
    """The stored digest of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_digest(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def same(digest: str, other: str) -> bool:
    """Whether two digests are equal, in constant time."""
    return hmac.compare_digest(digest.encode(), other.encode())


def fingerprint(digest: str) -> str:
    """Identifies a secret without revealing it."""
    return digest[:12]
