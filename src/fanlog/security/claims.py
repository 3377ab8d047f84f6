"""From the claims of a token to a user and its rules, as `[security]` says.

| claim (option)                              | becomes                                           |
| ------------------------------------------- | ------------------------------------------------- |
| `sub` (`token_user_claim`)                  | the user's name                                   |
| `fanlog_role` (`token_role_claim`)          | the role: itself, or by `token_roles`             |
| `fanlog_publish` (`token_publish_claim`)    | patterns of topics that it may publish to         |
| `fanlog_subscribe` (`token_subscribe_claim`)| patterns of topics that it may read               |

A claim's name may be a path, as `realm_access.roles`. Lists may be JSON lists, or text with spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fanlog.config_security import SecurityOptions
from fanlog.errors import ConfigError, UnauthenticatedError
from fanlog.format.patterns import misplaced_wildcard
from fanlog.identity import Role, Rules
from fanlog.model import TOPIC_NAME_BYTES_MAX

USER_LENGTH_MAX = 200
PATTERNS_MAX = 1000


class Claims:
    """How claims are read."""

    def __init__(self, options: SecurityOptions) -> None:
        self._options = options
        self._roles = read_roles(options.token_roles)
        self._role = Role(options.token_role) if options.token_role else None

    def user(self, claims: Mapping[str, Any]) -> str:
        name = self._options.token_user_claim
        user = find_claim(claims, name)
        if not isinstance(user, str) or not is_user_name(user):
            raise UnauthenticatedError(
                f"The token has no user: its claim {name!r} must be text of 1 to "
                f"{USER_LENGTH_MAX} characters, without control characters."
            )
        return user

    def has_role(self, claims: Mapping[str, Any]) -> bool:
        """Whether the claims say anything of a role."""
        return find_claim(claims, self._options.token_role_claim) is not None

    def rules(self, claims: Mapping[str, Any]) -> Rules:
        options = self._options
        return Rules(
            role=self._maybe_role(find_claim(claims, options.token_role_claim)),
            publish=_patterns(claims, options.token_publish_claim),
            subscribe=_patterns(claims, options.token_subscribe_claim),
        )

    def _maybe_role(self, given: Any) -> Role | None:
        """The first role of `token_roles` that the claim names; without such a list, the claim is
        the role itself."""
        values = _texts(given)
        for value, role in self._roles:
            if value in values:
                return role
        if not self._roles:
            for role in Role:
                if role.value in values:
                    return role
        return self._role


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names; None if it is not there."""
    if not name or name in claims:
        return claims.get(name)
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, Any]", found).get(part)
    return found


def is_user_name(name: str) -> bool:
    """Whether a name is valid for a user: it is used in logs, headers and topics."""
    return 0 < len(name) <= USER_LENGTH_MAX and name.isprintable()


def read_roles(text: str) -> list[tuple[str, Role]]:
    """`token_roles` as a list, such as `ops=admin staff=viewer`."""
    found: list[tuple[str, Role]] = []
    for entry in text.split():
        value, equals, role = entry.rpartition("=")
        if not equals or not value or role not in list(Role):
            known = ", ".join(Role)
            raise ConfigError(
                f"security.token_roles has {entry!r}: write claim=role with spaces between, where "
                f"a role is one of {known}."
            )
        found.append((value, Role(role)))
    return found


def _texts(given: Any) -> list[str]:
    if isinstance(given, str):
        return given.split()
    if isinstance(given, list):
        return [one for one in cast("list[Any]", given) if isinstance(one, str)]
    return []


def _patterns(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """The patterns of a claim; None if there is no claim. A claim that can't be understood allows
    nothing."""
    given = find_claim(claims, name)
    if given is None:
        return None
    found = _texts(given)
    whole = isinstance(given, str) or (
        isinstance(given, list) and len(found) == len(cast("list[Any]", given))
    )
    if not whole or len(found) > PATTERNS_MAX or not all(_is_pattern(one) for one in found):
        raise UnauthenticatedError(
            f"The token's claim {name!r} must be a list of at most {PATTERNS_MAX} topics or "
            "patterns, such as orders.>."
        )
    return tuple(found)


def _is_pattern(text: str) -> bool:
    target = text.removeprefix("!")
    size = len(target.encode(errors="replace"))
    printable = target.isprintable() and 0 < size <= TOPIC_NAME_BYTES_MAX
    return printable and not misplaced_wildcard(target)
