"""Requests about keys and users. Without the role admin, a user may only list their own permissions
and set their own password. Listeners of all protocols call `ask_accounts`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.authority import Permit
from fanlog.errors import FanlogError, InvalidArgumentError, NotSupportedError
from fanlog.format.accounts import (
    AccountsAsk,
    Allowed,
    AskAccounts,
    CreateKey,
    CreateUser,
    DeleteUser,
    DescribeKey,
    DescribeUser,
    ListKeys,
    ListUsers,
    MayDo,
    RevokeKey,
    RotateKey,
    SetKey,
    SetPassword,
    SetUser,
)
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb
from fanlog.security.accounts import BrokerAccounts
from fanlog.security.rules import forbidden

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.listeners.request_session import RequestSession

# The audit log's action for each change.
ACTIONS: dict[type[AccountsAsk], str] = {
    CreateKey: "key.create",
    SetKey: "key.set",
    RotateKey: "key.rotate",
    RevokeKey: "key.revoke",
    CreateUser: "user.create",
    SetUser: "user.set",
    SetPassword: "user.password",
    DeleteUser: "user.delete",
}


async def ask_accounts(
    broker: BrokerCore, permit: Permit, ask: AccountsAsk
) -> msgspec.Struct | None:
    """Executes a request if it is allowed, and returns the answer. It is in effect on return, and
    durable with `broker.internal.when_durable`."""
    _check_allowed(permit, ask)
    accounts = broker.accounts
    if accounts is None:
        raise NotSupportedError(
            "This broker asks for no logins, so it has no keys and users. Set security.auth = true "
            "and security.admin_key_file in its config file, and start it again."
        )
    if isinstance(ask, MayDo):
        return _may(accounts, permit, ask)
    action = ACTIONS.get(type(ask))
    try:
        answer = await _do(accounts, permit, ask)
    except FanlogError as fault:
        if action is not None:
            broker.audit.note(permit.who, action, _name_of(ask), "failed", fault.code)
        raise
    if action is not None:
        broker.audit.note(permit.who, action, _name_of(ask), "ok")
    return answer


def _check_allowed(permit: Permit, ask: AccountsAsk) -> None:
    if isinstance(ask, MayDo) and not ask.name:
        return
    if isinstance(ask, SetPassword) and _is_own(permit, ask):
        return
    permit.ask(Verb.ADMIN, "")


def _is_own(permit: Permit, ask: SetPassword) -> bool:
    account = permit.who.account
    return account is not None and account.kind == "user" and account.name == ask.name


def _name_of(ask: AccountsAsk) -> str:
    return getattr(ask, "name", "")


async def _do(accounts: BrokerAccounts, permit: Permit, ask: AccountsAsk) -> msgspec.Struct | None:
    match ask:
        case CreateUser():
            return await accounts.create_user(ask)
        case SetPassword():
            who = None if permit.may(Verb.ADMIN, "") else permit.who
            return await accounts.set_password(ask, by=who)
        case RevokeKey():
            return accounts.revoke_key(ask.name)
        case DeleteUser():
            return accounts.delete_user(ask.name)
        case _:
            return _do_at_once(accounts, ask)


def _do_at_once(accounts: BrokerAccounts, ask: AccountsAsk) -> msgspec.Struct:
    match ask:
        case CreateKey():
            return accounts.create_key(ask)
        case SetKey():
            return accounts.set_key(ask)
        case RotateKey():
            return accounts.rotate_key(ask)
        case DescribeKey():
            return accounts.describe_key(ask.name)
        case ListKeys():
            return accounts.keys(ask.after)
        case SetUser():
            return accounts.set_user(ask)
        case DescribeUser():
            return accounts.describe_user(ask.name)
        case ListUsers():
            return accounts.users(ask.after)
        case _:
            raise InvalidArgumentError("There is no such request about keys and users.")


def _may(accounts: BrokerAccounts, permit: Permit, ask: MayDo) -> Allowed:
    if ask.name:
        account = accounts.account(ask.kind, ask.name)
        who = msgspec.structs.replace(permit.who, user=account.name, account=account)
        if accounts.may(account, ask.verb, ask.topic):
            return Allowed(True)
        return Allowed(False, str(forbidden(who, ask.verb, ask.topic)))
    refusal = permit.maybe_refusal(ask.verb, ask.topic)
    return Allowed(refusal is None, "" if refusal is None else str(refusal))


def accounts(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    ask = decode(AskAccounts, payload).ask
    _check_allowed(session.permit, ask)

    async def asking() -> None:
        # A client that rotates its own key has to get the secret before it is disconnected.
        account = session.permit.who.account
        own = account is not None and account.name == _name_of(ask)
        session.spared = own
        try:
            answer = await ask_accounts(session.broker, session.permit, ask)
        except BaseException:
            asyncio.get_running_loop().call_soon(session.no_longer_spared)
            raise
        session.answer_durably(request, answer)
        if own:
            session.broker.internal.when_durable(lambda fault: session.no_longer_spared())

    session.later(request, asking())


HANDLERS: dict[FrameKind, Callable[[RequestSession, int, int, memoryview], None]] = {
    FrameKind.ACCOUNTS: accounts,
}
