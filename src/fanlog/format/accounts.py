"""Requests about keys and users, over any listener: one frame with one of these structs. Secrets
are sent and returned once, and are in no answer after that."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fanlog.identity import Allowance, Rules, Verb


class CreateKey(msgspec.Struct, frozen=True, kw_only=True, tag="create_key", omit_defaults=True):
    """`expires_seconds` counts from now; 0 means never."""

    name: str
    rules: Rules = Rules()
    allowance: Allowance = Allowance()
    comment: str = ""
    expires_seconds: float = 0.0


class SetKey(msgspec.Struct, frozen=True, kw_only=True, tag="set_key", omit_defaults=True):
    """Changes what is given, and leaves the rest."""

    name: str
    rules: Rules | None = None
    allowance: Allowance | None = None
    comment: str | None = None
    expires_seconds: float | None = None


class RotateKey(msgspec.Struct, frozen=True, kw_only=True, tag="rotate_key", omit_defaults=True):
    """A new secret. The old one is good for `grace_seconds` more."""

    name: str
    grace_seconds: float = 0.0


class RevokeKey(msgspec.Struct, frozen=True, kw_only=True, tag="revoke_key"):
    name: str


class DescribeKey(msgspec.Struct, frozen=True, kw_only=True, tag="describe_key"):
    name: str


class ListKeys(msgspec.Struct, frozen=True, kw_only=True, tag="list_keys", omit_defaults=True):
    after: str = ""


class CreateUser(msgspec.Struct, frozen=True, kw_only=True, tag="create_user", omit_defaults=True):
    """Without a password only a certificate lets the user in."""

    name: str
    password: str = ""
    rules: Rules = Rules()
    certificates: tuple[str, ...] = ()
    allowance: Allowance = Allowance()
    comment: str = ""
    expires_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"CreateUser({self.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


class SetUser(msgspec.Struct, frozen=True, kw_only=True, tag="set_user", omit_defaults=True):
    """Changes what is given, and leaves the rest."""

    name: str
    rules: Rules | None = None
    certificates: tuple[str, ...] | None = None
    allowance: Allowance | None = None
    comment: str | None = None
    expires_seconds: float | None = None
    disabled: bool | None = None


class SetPassword(msgspec.Struct, frozen=True, kw_only=True, tag="set_password"):
    """Users may set their own, if they know the old one."""

    name: str
    password: str
    old_password: str = ""

    def __repr__(self) -> str:
        return f"SetPassword({self.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


class DeleteUser(msgspec.Struct, frozen=True, kw_only=True, tag="delete_user"):
    name: str


class DescribeUser(msgspec.Struct, frozen=True, kw_only=True, tag="describe_user"):
    name: str


class ListUsers(msgspec.Struct, frozen=True, kw_only=True, tag="list_users", omit_defaults=True):
    after: str = ""


class MayDo(msgspec.Struct, frozen=True, kw_only=True, tag="may", omit_defaults=True):
    """Whether a key or user may do something. Without a name: the caller."""

    verb: Verb
    topic: str
    kind: Literal["key", "user"] = "key"
    name: str = ""


AccountsAsk = (
    CreateKey
    | SetKey
    | RotateKey
    | RevokeKey
    | DescribeKey
    | ListKeys
    | CreateUser
    | SetUser
    | SetPassword
    | DeleteUser
    | DescribeUser
    | ListUsers
    | MayDo
)


class AskAccounts(msgspec.Struct, frozen=True):
    ask: AccountsAsk


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without its secret. `source` is `api`, or `file` for one of the broker's config file,
    which can be changed there only. `old_until_us`: until when the secret before a rotation is
    good."""

    name: str
    id: str
    rules: Rules
    allowance: Allowance = Allowance()
    comment: str = ""
    created_us: int = 0
    expires_us: int = 0
    rotated_us: int = 0
    old_until_us: int = 0
    source: Literal["api", "file"] = "api"


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without the password."""

    name: str
    rules: Rules
    has_password: bool = False
    certificates: tuple[str, ...] = ()
    allowance: Allowance = Allowance()
    comment: str = ""
    created_us: int = 0
    expires_us: int = 0
    disabled: bool = False
    source: Literal["api", "file"] = "api"


class KeyMade(msgspec.Struct, frozen=True):
    """A key with its secret, `key`. It is shown this once, and stored nowhere."""

    key: str
    info: KeyInfo

    def __repr__(self) -> str:
        return f"KeyMade({self.info.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.info.name)]


class KeysPage(msgspec.Struct, frozen=True):
    """`next` is the name to continue after; empty at the end."""

    keys: tuple[KeyInfo, ...] = ()
    next: str = ""


class UsersPage(msgspec.Struct, frozen=True):
    users: tuple[UserInfo, ...] = ()
    next: str = ""


class Allowed(msgspec.Struct, frozen=True):
    """`reason` is the reason of a refusal."""

    allowed: bool
    reason: str = ""
