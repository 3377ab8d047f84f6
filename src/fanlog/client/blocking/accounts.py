"""Keys and users for the blocking client: what `client/accounts.py` does, on the client's loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fanlog.client import accounts
from fanlog.client.blocking.loop import LoopThread
from fanlog.format.accounts import Allowed, KeyInfo, KeyMade, UserInfo
from fanlog.identity import Allowance, Rules


class BlockingAccounts:
    """`client.accounts`; see the asyncio client."""

    def __init__(self, loop: LoopThread, behind: accounts.Accounts) -> None:
        self._loop = loop
        self._accounts = behind

    def create_key(
        self,
        name: str,
        *,
        rules: Rules,
        allowance: Allowance | None = None,
        comment: str = "",
        expires_seconds: float = 0.0,
    ) -> KeyMade:
        return self._loop.call(
            self._accounts.create_key(
                name,
                rules=rules,
                allowance=allowance,
                comment=comment,
                expires_seconds=expires_seconds,
            )
        )

    def set_key(self, name: str, **changes: Any) -> KeyInfo:
        return self._loop.call(self._accounts.set_key(name, **changes))

    def rotate_key(self, name: str, *, grace_seconds: float = 0.0) -> KeyMade:
        return self._loop.call(self._accounts.rotate_key(name, grace_seconds=grace_seconds))

    def revoke_key(self, name: str) -> None:
        self._loop.call(self._accounts.revoke_key(name))

    def key(self, name: str) -> KeyInfo:
        return self._loop.call(self._accounts.key(name))

    def keys(self) -> list[KeyInfo]:
        return self._loop.call(self._accounts.keys())

    def create_user(
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
        return self._loop.call(
            self._accounts.create_user(
                name,
                password,
                rules=rules,
                certificates=certificates,
                allowance=allowance,
                comment=comment,
                expires_seconds=expires_seconds,
            )
        )

    def set_user(self, name: str, **changes: Any) -> UserInfo:
        return self._loop.call(self._accounts.set_user(name, **changes))

    def set_password(self, name: str, password: str, *, old_password: str = "") -> UserInfo:
        return self._loop.call(
            self._accounts.set_password(name, password, old_password=old_password)
        )

    def delete_user(self, name: str) -> None:
        self._loop.call(self._accounts.delete_user(name))

    def user(self, name: str) -> UserInfo:
        return self._loop.call(self._accounts.user(name))

    def users(self) -> list[UserInfo]:
        return self._loop.call(self._accounts.users())

    def may(self, verb: str, topic: str, *, key: str = "", user: str = "") -> Allowed:
        return self._loop.call(self._accounts.may(verb, topic, key=key, user=user))
