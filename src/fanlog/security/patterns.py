"""Patterns of one account's rules. A wanted name may be a pattern itself: it is allowed only if one
allowed pattern includes all that it can match, and no denied pattern includes any of it.

A wildcard never reaches the broker's own topics (`_fanlog.`) or inboxes (`_inbox.`): a pattern has
to begin with that prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanlog.errors import InvalidArgumentError
from fanlog.format.patterns import ONE, REST, has_wildcard, is_pattern, meet, misplaced_wildcard
from fanlog.model import INBOX_PREFIX, INTERNAL_PREFIX, TOPIC_NAME_BYTES_MAX

DENY = "!"
USER = "{user}"
# A list longer than this is a mistake, and every decision would walk through it.
PATTERNS_MAX = 1000
_APART = (INTERNAL_PREFIX, INBOX_PREFIX)


def covers(allowed: str, wanted: str) -> bool:
    """Whether all that `wanted` matches is matched by `allowed`; both are names or patterns.

    >>> covers("a.>", "a.*"), covers("a.*", "a.>"), covers("a.*", "a.b"), covers("a.>", "a")
    (True, False, True, False)
    """
    tokens, asked = allowed.split("."), wanted.split(".")
    for at, token in enumerate(tokens):
        if at >= len(asked):
            return False
        if token == REST:
            return True
        if asked[at] == REST or (token not in (ONE, asked[at])):
            return False
    return len(tokens) == len(asked)


class Patterns:
    """A list of patterns. Those that begin with `!` deny."""

    __slots__ = ("_allowed", "_denied", "_nothing")

    def __init__(self, patterns: Iterable[str], user: str) -> None:
        self._allowed: list[str] = []
        self._denied: list[str] = []
        self._nothing = False
        for pattern in patterns:
            denies = pattern.startswith(DENY)
            filled = _with_user(pattern.removeprefix(DENY), user)
            if filled is None:
                # An account whose name can't be in a denial is denied.
                self._nothing = self._nothing or denies
            else:
                (self._denied if denies else self._allowed).append(filled)

    def deny(self, wanted: str) -> bool:
        """Whether a denial includes any of it."""
        return self._nothing or any(meet(pattern, wanted) for pattern in self._denied)

    def allow(self, wanted: str) -> bool:
        if self.deny(wanted):
            return False
        return any(_reaches(p, wanted) and covers(p, wanted) for p in self._allowed)

    def __bool__(self) -> bool:
        """Whether it may allow anything."""
        return bool(self._allowed) and not self._nothing


def _reaches(pattern: str, wanted: str) -> bool:
    return all(pattern.startswith(prefix) for prefix in _APART if wanted.startswith(prefix))


def _with_user(pattern: str, user: str) -> str | None:
    """The pattern with the account's name in it. None if the name could change its meaning: a
    wildcard, or a dot beside wildcards, would include topics of others."""
    if USER not in pattern:
        return pattern
    if not user or has_wildcard(user) or ("." in user and is_pattern(pattern)):
        return None
    return pattern.replace(USER, user)


def check_patterns(patterns: Iterable[str], what: str) -> None:
    """Raises if one of the patterns of the list `what` is wrong."""
    count = 0
    for pattern in patterns:
        count += 1
        name = pattern.removeprefix(DENY)
        if not name or len(name.encode(errors="replace")) > TOPIC_NAME_BYTES_MAX:
            raise InvalidArgumentError(
                f"The list {what!r} has the pattern {pattern!r}: a pattern has 1 to "
                f"{TOPIC_NAME_BYTES_MAX} bytes. Write > for everything."
            )
        wrong = misplaced_wildcard(name)
        if wrong:
            raise InvalidArgumentError(f"The list {what!r} has an invalid pattern. {wrong}")
    if count > PATTERNS_MAX:
        raise InvalidArgumentError(
            f"The list {what!r} has {count} patterns, but at most {PATTERNS_MAX} are allowed. "
            "Use patterns that match more, such as orders.>."
        )
