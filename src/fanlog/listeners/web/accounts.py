"""Keys and users over REST, for admins. A change takes effect at once, also on open connections.
The listener answers when the change is durable. A secret appears in one answer only. Bodies and
answers are in `account_answers.py`."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web

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
from fanlog.listeners.account_requests import ask_accounts
from fanlog.listeners.web.account_answers import (
    AccountPageQuery,
    ChangedKey,
    ChangedUser,
    KeyAnswer,
    KeysAnswer,
    MadeKey,
    NewKey,
    NewPassword,
    NewUser,
    Rotation,
    UserAnswer,
    UsersAnswer,
    key_answer,
    user_answer,
)
from fanlog.listeners.web.routes import Call, Nothing, Param, Route

T = TypeVar("T")


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
