"""Checks of what operators give for keys and users, and their entries as answers show them."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import NoReturn

from fanlog.errors import AccountNotFoundError, InvalidArgumentError
from fanlog.format.accounts import KeyInfo, UserInfo
from fanlog.format.patterns import has_wildcard
from fanlog.identity import Allowance, Role
from fanlog.security.directory import AccountEntry, KeyEntry, UserEntry
from fanlog.security.keys import digest_of, maybe_parse

_SECOND_US = 1_000_000
_NAME_BYTES_MAX = 255
_COMMENT_BYTES_MAX = 1000
_PAGE = 100
# Larger numbers do not fit into JSON.
_ALLOWANCE_MAX = 2**53
# A hundred years: past that a number is a mistake.
_SECONDS_MAX = 100 * 366 * 86_400.0


def check_account_name(name: str) -> str:
    """The name of a key or user, if it can be one."""
    size = len(name.encode(errors="replace"))
    odd = any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") for c in name)
    if not 1 <= size <= _NAME_BYTES_MAX or odd or name != name.strip() or has_wildcard(name):
        raise InvalidArgumentError(
            f"{name[:80]!r} can't be the name of a key or user: it has 1 to {_NAME_BYTES_MAX} "
            "bytes, no spaces at its ends, no control characters, and neither * nor >."
        )
    return name


def key_info(entry: KeyEntry) -> KeyInfo:
    return KeyInfo(
        name=entry.name,
        id=entry.id,
        rules=entry.rules,
        allowance=entry.allowance,
        comment=entry.comment,
        created_us=entry.created_us,
        expires_us=entry.expires_us,
        rotated_us=entry.rotated_us,
        old_until_us=max((old.until_us for old in entry.old), default=0),
        source=entry.source,
    )


def user_info(entry: UserEntry) -> UserInfo:
    return UserInfo(
        name=entry.name,
        rules=entry.rules,
        has_password=bool(entry.password),
        certificates=entry.certificates,
        allowance=entry.allowance,
        comment=entry.comment,
        created_us=entry.created_us,
        expires_us=entry.expires_us,
        disabled=entry.disabled,
        source=entry.source,
    )


def is_admin(entry: AccountEntry) -> bool:
    disabled = isinstance(entry, UserEntry) and entry.disabled
    return entry.rules.role is Role.ADMIN and not disabled and not entry.expires_us


def page_of_names(known: list[str], after: str) -> tuple[list[str], str]:
    at = bisect_right(known, after) if after else 0
    page = known[at : at + _PAGE]
    return page, page[-1] if at + _PAGE < len(known) else ""


def raise_missing(kind: str, name: str) -> NoReturn:
    raise AccountNotFoundError(f"There is no {kind} {name!r}. List them with: fanlog {kind} list")


def id_in(text: str) -> str:
    parsed = maybe_parse(text)
    assert parsed is not None
    return parsed.id


def digest_in(text: str) -> str:
    parsed = maybe_parse(text)
    assert parsed is not None
    return digest_of(parsed.secret)


def expiry_us(now_us: int, seconds: float) -> int:
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidArgumentError("An expiry time is 0 (never), or at most 100 years from now.")
    return now_us + max(1, int(seconds * _SECOND_US)) if seconds else 0


def checked_comment(comment: str) -> str:
    odd = any(unicodedata.category(c) == "Cc" for c in comment)
    if odd or len(comment.encode(errors="replace")) > _COMMENT_BYTES_MAX:
        raise InvalidArgumentError(f"A comment is one line of {_COMMENT_BYTES_MAX} bytes at most.")
    return comment


def checked_allowance(allowance: Allowance) -> Allowance:
    for name in allowance.__struct_fields__:
        # Written so that a NaN is refused as well.
        if not 0 <= getattr(allowance, name) <= _ALLOWANCE_MAX:
            raise InvalidArgumentError(
                f"The limit {name} is a number from 0 (what the settings say) to {_ALLOWANCE_MAX}."
            )
    return allowance
