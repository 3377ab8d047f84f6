"""Keys and users, for operators: `client.accounts`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from fanlog.client.arguments import checked
from fanlog.errors import InvalidArgumentError
from fanlog.format.accounts import (
    AccountsAsk,
    Allowed,
    AskAccounts,
    CreateKey,
    CreateUser,
    DeleteUser,
    DescribeKey,
    DescribeUser,
    KeyInfo,
    KeyMade,
    KeysPage,
    ListKeys,
    ListUsers,
    MayDo,
    RevokeKey,
    RotateKey,
    SetKey,
    SetPassword,
    SetUser,
    UserInfo,
    UsersPage,
)
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Allowance, Role, Rules, Verb

T = TypeVar("T")
RoleName = Role | str | None
GrantPatterns = Iterable[str] | None


class AccountsHost(Protocol):
    """The client, as far as these calls need it."""

    async def ask(
        self, kind: FrameKind, message: msgspec.Struct, *, repeat: bool = True
    ) -> bytes: ...


def rules_of(
    role: RoleName = None,
    *,
    publish: GrantPatterns = None,
    subscribe: GrantPatterns = None,
    manage: GrantPatterns = None,
    groups: GrantPatterns = None,
    queues: GrantPatterns = None,
    describe: GrantPatterns = None,
) -> Rules:
    """Rules, from a role and lists of patterns."""
    try:
        chosen = None if role is None else Role(role)
    except ValueError:
        known = ", ".join(one.value for one in Role)
        raise InvalidArgumentError(f"There is no role {role!r}. There are: {known}.") from None
    return Rules(
        role=chosen,
        publish=_tuple(publish),
        subscribe=_tuple(subscribe),
        manage=_tuple(manage),
        groups=_tuple(groups),
        queues=_tuple(queues),
        describe=_tuple(describe),
    )


def _tuple(patterns: GrantPatterns) -> tuple[str, ...] | None:
    if isinstance(patterns, str):
        return (patterns,)
    return None if patterns is None else tuple(patterns)


class Accounts:
    """Keys and users. It is `client.accounts`, and needs the role admin."""

    def __init__(self, host: AccountsHost) -> None:
        self._host = host

    async def _ask(self, ask: AccountsAsk, answer: type[T]) -> T:
        message = checked(AskAccounts(ask))
        return decode(answer, await self._host.ask(FrameKind.ACCOUNTS, message, repeat=False))

    async def _tell(self, ask: AccountsAsk) -> None:
        await self._host.ask(FrameKind.ACCOUNTS, checked(AskAccounts(ask)), repeat=False)

    # Keys

    async def create_key(
        self,
        name: str,
        *,
        rules: Rules,
        allowance: Allowance | None = None,
        comment: str = "",
        expires_seconds: float = 0.0,
    ) -> KeyMade:
        """Creates a key. Its text, `made.key`, is shown only once.

        >>> rules = fanlog.Rules(role="producer", publish=("orders.>",))  # doctest: +SKIP
        >>> made = await client.accounts.create_key("shop", rules=rules)  # doctest: +SKIP
        """
        ask = CreateKey(
            name=name,
            rules=rules,
            allowance=allowance or Allowance(),
            comment=comment,
            expires_seconds=expires_seconds,
        )
        return await self._ask(ask, KeyMade)

    async def set_key(self, name: str, **changes: Any) -> KeyInfo:
        """Changes `rules`, `allowance`, `comment` or `expires_seconds` (from now; 0: never). The
        change takes effect at once, also for open connections."""
        return await self._ask(_changing(SetKey, name, changes), KeyInfo)

    async def rotate_key(self, name: str, *, grace_seconds: float = 0.0) -> KeyMade:
        """Creates a new secret. The old one stays valid for `grace_seconds`; then its connections
        are closed."""
        return await self._ask(RotateKey(name=name, grace_seconds=grace_seconds), KeyMade)

    async def revoke_key(self, name: str) -> None:
        """Deletes a key, and cuts off all connections that have logged in with it."""
        await self._tell(RevokeKey(name=name))

    async def key(self, name: str) -> KeyInfo:
        """Describes a key."""
        return await self._ask(DescribeKey(name=name), KeyInfo)

    async def keys(self) -> list[KeyInfo]:
        """All keys, by name."""
        found: list[KeyInfo] = []
        after = ""
        while True:
            page = await self._ask(ListKeys(after=after), KeysPage)
            found += page.keys
            after = page.next
            if not after:
                return found

    # Users

    async def create_user(
        self,
        name: str,
        password: str = "",
        *,
        rules: Rules,
        certificates: Iterable[str] = (),
        allowance: Allowance | None = None,
        comment: str = "",
        expires_seconds: float = 0.0,
    ) -> UserInfo:
        """Creates a user, who logs in with a password, or with a client certificate of one of these
        names."""
        ask = CreateUser(
            name=name,
            password=password,
            rules=rules,
            certificates=tuple(certificates),
            allowance=allowance or Allowance(),
            comment=comment,
            expires_seconds=expires_seconds,
        )
        return await self._ask(ask, UserInfo)

    async def set_user(self, name: str, **changes: Any) -> UserInfo:
        """Changes `rules`, `certificates`, `allowance`, `comment`, `expires_seconds` or
        `disabled`."""
        return await self._ask(_changing(SetUser, name, changes), UserInfo)

    async def set_password(self, name: str, password: str, *, old_password: str = "") -> UserInfo:
        """Sets a new password, and ends the logins with the old one. Without the role admin, users
        may change only their own password, and must give the old one."""
        ask = SetPassword(name=name, password=password, old_password=old_password)
        return await self._ask(ask, UserInfo)

    async def delete_user(self, name: str) -> None:
        """Deletes a user, and cuts off all connections that have logged in as this one."""
        await self._tell(DeleteUser(name=name))

    async def user(self, name: str) -> UserInfo:
        """Describes a user."""
        return await self._ask(DescribeUser(name=name), UserInfo)

    async def users(self) -> list[UserInfo]:
        """All users, by name."""
        found: list[UserInfo] = []
        after = ""
        while True:
            page = await self._ask(ListUsers(after=after), UsersPage)
            found += page.users
            after = page.next
            if not after:
                return found

    # Both

    async def may(self, verb: str, topic: str, *, key: str = "", user: str = "") -> Allowed:
        """Whether a key or a user has a permission. Without a key or user, this client is checked.

        >>> (await client.accounts.may("publish", "orders", key="shop")).allowed  # doctest: +SKIP
        True
        """
        if key and user:
            raise InvalidArgumentError("Ask about a key or about a user, not about both.")
        try:
            wanted = Verb(verb)
        except ValueError:
            known = ", ".join(one.value for one in Verb)
            raise InvalidArgumentError(f"There is no verb {verb!r}. There are: {known}.") from None
        kind = "user" if user else "key"
        ask = MayDo(verb=wanted, topic=topic, kind=kind, name=user or key)
        return await self._ask(ask, Allowed)


S = TypeVar("S", SetKey, SetUser)


def _changing(kind: type[S], name: str, changes: dict[str, Any]) -> S:
    unknown = sorted(set(changes) - set(kind.__struct_fields__))
    if unknown:
        known = ", ".join(kind.__struct_fields__[1:])
        raise InvalidArgumentError(f"{unknown[0]!r} can't be changed. There are: {known}.")
    if isinstance(changes.get("certificates"), list):
        changes["certificates"] = tuple(changes["certificates"])
    return kind(name=name, **changes)
