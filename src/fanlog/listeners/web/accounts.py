"""Keys and users over REST, for admins. A change takes effect at once, also on open connections.
The listener answers when the change is durable. A secret appears in one answer only. It is long
because bodies and answers are written out here, and the OpenAPI document is made from them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.errors import (
    AccountExistsError,
    AccountNotFoundError,
    FanlogError,
    ForbiddenError,
    InvalidArgumentError,
    LimitError,
    NotSupportedError,
    StorageError,
    UnauthenticatedError,
)
from fanlog.format import accounts as asks
from fanlog.identity import Allowance, Rules
from fanlog.listeners.account_requests import ask_accounts
from fanlog.listeners.web.login_watch import time_text
from fanlog.listeners.web.routes import Call, Nothing, Param, Route

T = TypeVar("T")

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


async def _ask(call: Call[Any, Any], ask: asks.AccountsAsk, kind: type[T]) -> T:
    """Asks, and waits until a change is durable."""
    core, account = call.bus.core, call.permit.who.account
    # Clients that rotate their own key must get the new secret before they are disconnected.
    call.guest.spared = account is not None and account.name == getattr(ask, "name", "")
    answer = await ask_accounts(core, call.permit, ask)
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(fault: FanlogError | None = None) -> None:
        if durable.done():
            return
        if fault is None:
            durable.set_result(None)
        else:
            durable.set_exception(fault)

    core.internal.when_durable(done)
    await durable
    assert isinstance(answer, kind)
    return answer


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


def _made(made: asks.KeyMade, status: int) -> web.StreamResponse:
    return web.Response(
        status=status,
        body=msgspec.json.encode(MadeKey(key=made.key, info=key_answer(made.info))),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _changes(body: ChangedKey) -> dict[str, Any]:
    return {
        "rules": None if body.rules is None else body.rules.plain(),
        "allowance": None if body.allowance is None else body.allowance.plain(),
        "comment": body.comment,
        "expires_seconds": body.expires_seconds,
    }


def _new(body: NewKey) -> dict[str, Any]:
    return {
        "name": body.name,
        "rules": body.rules.plain(),
        "allowance": body.allowance.plain(),
        "comment": body.comment,
        "expires_seconds": body.expires_seconds,
    }


# Keys


async def list_keys(call: Call[AccountPageQuery, None]) -> KeysAnswer:
    page = await _ask(call, asks.ListKeys(after=call.query.after), asks.KeysPage)
    return KeysAnswer(keys=[key_answer(one) for one in page.keys], next=page.next)


async def create_key(call: Call[Nothing, NewKey]) -> web.StreamResponse:
    return _made(await _ask(call, asks.CreateKey(**_new(call.body)), asks.KeyMade), 201)


async def describe_key(call: Call[Nothing, None]) -> KeyAnswer:
    return key_answer(await _ask(call, asks.DescribeKey(name=call.path("key")), asks.KeyInfo))


async def change_key(call: Call[Nothing, ChangedKey]) -> KeyAnswer:
    ask = asks.SetKey(name=call.path("key"), **_changes(call.body))
    return key_answer(await _ask(call, ask, asks.KeyInfo))


async def rotate_key(call: Call[Nothing, Rotation]) -> web.StreamResponse:
    ask = asks.RotateKey(name=call.path("key"), grace_seconds=call.body.grace_seconds)
    return _made(await _ask(call, ask, asks.KeyMade), 200)


async def revoke_key(call: Call[Nothing, None]) -> None:
    await _ask(call, asks.RevokeKey(name=call.path("key")), type(None))


# Users


async def list_users(call: Call[AccountPageQuery, None]) -> UsersAnswer:
    page = await _ask(call, asks.ListUsers(after=call.query.after), asks.UsersPage)
    return UsersAnswer(users=[user_answer(one) for one in page.users], next=page.next)


async def create_user(call: Call[Nothing, NewUser]) -> UserAnswer:
    body = call.body
    ask = asks.CreateUser(
        **_new(body), password=body.password, certificates=tuple(body.certificates)
    )
    return user_answer(await _ask(call, ask, asks.UserInfo))


async def describe_user(call: Call[Nothing, None]) -> UserAnswer:
    return user_answer(await _ask(call, asks.DescribeUser(name=call.path("user")), asks.UserInfo))


async def change_user(call: Call[Nothing, ChangedUser]) -> UserAnswer:
    body = call.body
    certificates = None if body.certificates is None else tuple(body.certificates)
    ask = asks.SetUser(
        name=call.path("user"),
        **_changes(body),
        certificates=certificates,
        disabled=body.disabled,
    )
    return user_answer(await _ask(call, ask, asks.UserInfo))


async def set_password(call: Call[Nothing, NewPassword]) -> None:
    body = call.body
    ask = asks.SetPassword(
        name=call.path("user"), password=body.password, old_password=body.old_password
    )
    await _ask(call, ask, asks.UserInfo)


async def delete_user(call: Call[Nothing, None]) -> None:
    await _ask(call, asks.DeleteUser(name=call.path("user")), type(None))


_READ = (ForbiddenError, NotSupportedError, AccountNotFoundError)
_CHANGE = (*_READ, InvalidArgumentError, StorageError)
_MAKE = (*_CHANGE, AccountExistsError, LimitError)
_NO_STORE = (Param("Cache-Control", "It is never kept."),)
_EXAMPLE = {"name": "shop", "rules": {"role": "producer", "publish": ["orders.>"]}}


def _route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
    return Route(method, path, handler, summary, "accounts", **more)


ROUTES = [
    _route(
        "GET",
        "/v1/keys",
        list_keys,
        "List keys",
        query=AccountPageQuery,
        answer=KeysAnswer,
        errors=_READ,
    ),
    _route(
        "POST",
        "/v1/keys",
        create_key,
        "Create a key",
        body=NewKey,
        answer=MadeKey,
        status=201,
        answer_headers=_NO_STORE,
        example=_EXAMPLE,
        description="The answer contains the key. It is shown only once.",
        errors=_MAKE,
    ),
    _route("GET", "/v1/keys/{key}", describe_key, "Describe a key", answer=KeyAnswer, errors=_READ),
    _route(
        "PATCH",
        "/v1/keys/{key}",
        change_key,
        "Change the permissions of a key",
        body=ChangedKey,
        answer=KeyAnswer,
        errors=_CHANGE,
    ),
    _route(
        "POST",
        "/v1/keys/{key}/rotate",
        rotate_key,
        "Give a key a new secret",
        body=Rotation,
        answer=MadeKey,
        answer_headers=_NO_STORE,
        errors=_CHANGE,
    ),
    _route(
        "DELETE",
        "/v1/keys/{key}",
        revoke_key,
        "Revoke a key",
        status=204,
        description="Its connections are closed at once.",
        errors=_CHANGE,
    ),
    _route(
        "GET",
        "/v1/users",
        list_users,
        "List users",
        query=AccountPageQuery,
        answer=UsersAnswer,
        errors=_READ,
    ),
    _route(
        "POST",
        "/v1/users",
        create_user,
        "Create a user",
        body=NewUser,
        answer=UserAnswer,
        status=201,
        example={"name": "ann", "password": "correct horse", "rules": {"role": "viewer"}},
        errors=_MAKE,
    ),
    _route(
        "GET", "/v1/users/{user}", describe_user, "Describe a user", answer=UserAnswer, errors=_READ
    ),
    _route(
        "PATCH",
        "/v1/users/{user}",
        change_user,
        "Change the permissions of a user",
        body=ChangedUser,
        answer=UserAnswer,
        errors=_CHANGE,
    ),
    _route(
        "POST",
        "/v1/users/{user}/password",
        set_password,
        "Set a password",
        body=NewPassword,
        status=204,
        description="The user's sessions end. Users may set their own password if they give"
        " the old one.",
        errors=(*_CHANGE, UnauthenticatedError),
    ),
    _route("DELETE", "/v1/users/{user}", delete_user, "Delete a user", status=204, errors=_CHANGE),
]
