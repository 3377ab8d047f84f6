"""The requests and answers for keys and users over REST. Those with a secret hide it in their
`repr`, so that no log has it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.format import accounts as asks
from fanlog.identity import Allowance, Rules
from fanlog.listeners.web.login_watch import time_text

_AccountName = Annotated[str, Meta(min_length=1, max_length=255)]
_Comment = Annotated[str, Meta(max_length=1000, description="A note for people, in one line.")]
_Expires = Annotated[
    float, Meta(ge=0, le=3_162_240_000, description="Seconds from now; 0 means never.")
]
_Password = Annotated[str, Meta(max_length=1024)]
_ExpiryTime = Annotated[str, Meta(description="RFC 3339 in UTC; absent if it never expires.")]


class RulesBody(Rules, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A role, and lists of patterns. A list replaces the role's rules for its verb. `!` before a
    pattern denies, and `{user}` in it is the account's name."""

    def plain(self) -> Rules:
        return Rules(**msgspec.structs.asdict(self))


class AllowanceBody(
    Allowance, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The limits of an account. 0: the limit from the settings."""

    def plain(self) -> Allowance:
        return Allowance(**msgspec.structs.asdict(self))


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: _AccountName
    rules: RulesBody = RulesBody()
    allowance: AllowanceBody = AllowanceBody()
    comment: _Comment = ""
    expires_seconds: _Expires = 0.0


class ChangedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes what is given, and leaves the rest."""

    rules: RulesBody | None = None
    allowance: AllowanceBody | None = None
    comment: _Comment | None = None
    expires_seconds: _Expires | None = None


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: Annotated[
        float,
        Meta(
            ge=0, le=3_162_240_000, description="The old secret stays valid for this many seconds."
        ),
    ] = 0.0


class NewUser(NewKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    password: _Password = ""
    certificates: Annotated[
        list[str],
        Meta(max_length=100, description="Names in client certificates that log in as this user."),
    ] = []

    def __repr__(self) -> str:
        return f"NewUser({self.name!r})"


class ChangedUser(ChangedKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes what is given, and leaves the rest."""

    certificates: Annotated[list[str], Meta(max_length=100)] | None = None
    disabled: Annotated[bool, Meta(description="Nobody can log in with it.")] | None = None


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Users may set their own, if they know the old one."""

    password: _Password
    old_password: _Password = ""

    def __repr__(self) -> str:
        return "NewPassword(...)"


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    name: str
    id: str
    rules: Rules
    allowance: Allowance
    comment: str
    source: Annotated[
        str, Meta(description="api: created over HTTP. file: from the broker's config file.")
    ]
    created: _ExpiryTime
    expires: _ExpiryTime
    rotated: _ExpiryTime
    old_until: Annotated[
        str, Meta(description="The time until which the previous secret is valid.")
    ]


class UserAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without the password."""

    name: str
    rules: Rules
    allowance: Allowance
    comment: str
    has_password: bool
    certificates: list[str]
    disabled: bool
    source: str
    created: _ExpiryTime
    expires: _ExpiryTime


class MadeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its secret. `key` is shown only once."""

    key: str
    info: KeyAnswer

    def __repr__(self) -> str:
        return f"MadeKey({self.info.name!r})"


class KeysAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys. With `next` there are more: give it as `after`."""

    keys: list[KeyAnswer]
    next: str


class UsersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of users. With `next` there are more: give it as `after`."""

    users: list[UserAnswer]
    next: str


class AccountPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=255, description="The `next` of the previous page.")] = ""


def _time(at_us: int) -> str:
    return time_text(at_us) if at_us else ""


def key_answer(info: asks.KeyInfo) -> KeyAnswer:
    """A key as answers have it."""
    return KeyAnswer(
        name=info.name,
        id=info.id,
        rules=info.rules,
        allowance=info.allowance,
        comment=info.comment,
        source=info.source,
        created=_time(info.created_us),
        expires=_time(info.expires_us),
        rotated=_time(info.rotated_us),
        old_until=_time(info.old_until_us),
    )


def user_answer(info: asks.UserInfo) -> UserAnswer:
    """A user as answers have it."""
    return UserAnswer(
        name=info.name,
        rules=info.rules,
        allowance=info.allowance,
        comment=info.comment,
        has_password=info.has_password,
        certificates=list(info.certificates),
        disabled=info.disabled,
        source=info.source,
        created=_time(info.created_us),
        expires=_time(info.expires_us),
    )
