"""Operators' calls on keys and users. A change is written first. When it is durable it takes effect
everywhere, and the operator gets an answer.

Revoking is the exception: it takes effect at once, also if the disk is full. The answer then says
that it is not stored. Checks are in `account_checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

from fanlog.errors import (
    AccountExistsError,
    FanlogError,
    InvalidArgumentError,
    LimitError,
    UnauthenticatedError,
    allow_more,
)
from fanlog.format.accounts import (
    CreateKey,
    CreateUser,
    KeyInfo,
    KeyMade,
    KeysPage,
    RotateKey,
    SetKey,
    SetPassword,
    SetUser,
    UserInfo,
    UsersPage,
)
from fanlog.identity import Account, Identity, Login, Verb
from fanlog.security.account_checks import (
    check_account_name,
    checked_allowance,
    checked_comment,
    digest_in,
    expiry_us,
    id_in,
    is_admin,
    key_info,
    page_of_names,
    raise_missing,
    user_info,
)
from fanlog.security.directory import (
    KEY_PREFIX,
    USER_PREFIX,
    AccountEntry,
    Directory,
    KeyEntry,
    OldSecret,
    UserEntry,
)
from fanlog.security.gate import SecurityGate
from fanlog.security.keys import make_key, new_secret
from fanlog.security.rules import check_rules

_CERTIFICATES_MAX = 100
# Rotations with old secrets that are valid at the same time.
_OLD_MAX = 4

E = TypeVar("E", KeyEntry, UserEntry)


class AccountStore(Protocol):
    """Where keys and users survive. Both raise if nothing could be written."""

    def put(self, entry: AccountEntry, durable: Callable[[], None], /) -> None:
        """Writes an entry; `durable` runs when it is."""
        ...

    def remove(self, entry: AccountEntry, /) -> None: ...
    def owe_removal(self, entry: AccountEntry, /) -> None:
        """Writes the removal as soon as there is room."""
        ...


class BrokerAccounts:
    """Keys and users of a broker."""

    def __init__(
        self,
        gate: SecurityGate,
        store: AccountStore,
        now_us: Callable[[], int],
        accounts_max: int,
    ) -> None:
        self._gate = gate
        self._directory: Directory = gate.directory
        self._store = store
        self._now_us = now_us
        self._accounts_max = accounts_max
        # By ledger key: entries that are written, and not durable yet.
        self._pending: dict[str, list[AccountEntry]] = {}

    # Keys

    def create_key(self, wanted: CreateKey) -> KeyMade:
        """A new key. Its secret is in the answer, and nowhere else."""
        self._check_new(wanted.name)
        text = make_key()
        while self._directory.key_by_id(id_in(text)) is not None:
            text = make_key()
        now_us = self._now_us()
        entry = KeyEntry(
            name=wanted.name,
            id=id_in(text),
            digest=digest_in(text),
            rules=check_rules(wanted.rules),
            allowance=checked_allowance(wanted.allowance),
            comment=checked_comment(wanted.comment),
            created_us=now_us,
            expires_us=expiry_us(now_us, wanted.expires_seconds),
        )
        self._put(entry)
        return KeyMade(text, key_info(entry))

    def set_key(self, wanted: SetKey) -> KeyInfo:
        entry = self._changeable(self._key(wanted.name))
        changed = msgspec.structs.replace(entry, **self._changes(wanted))
        self._check_admin_left(entry, changed)
        self._put(changed)
        return key_info(changed)

    def rotate_key(self, wanted: RotateKey) -> KeyMade:
        """A new secret for a key; the old one is good for a while, or ends at once."""
        entry = self._changeable(self._key(wanted.name))
        now_us = self._now_us()
        old = [one for one in entry.old if one.until_us > now_us]
        if wanted.grace_seconds:
            old.append(OldSecret(entry.digest, expiry_us(now_us, wanted.grace_seconds)))
        else:
            old = []
        text = new_secret(entry.id)
        changed = msgspec.structs.replace(
            entry, digest=digest_in(text), old=tuple(old[-_OLD_MAX:]), rotated_us=now_us
        )
        self._put(changed)
        return KeyMade(text, key_info(changed))

    def revoke_key(self, name: str) -> None:
        entry = self._changeable(self._key(name))
        self._check_admin_left(entry, None)
        self._remove(entry)

    def describe_key(self, name: str) -> KeyInfo:
        return key_info(self._key(name))

    def keys(self, after: str = "") -> KeysPage:
        names, more = page_of_names(self._directory.names("key"), after)
        return KeysPage(tuple(key_info(self._directory.keys[name]) for name in names), more)

    # Users

    async def create_user(self, wanted: CreateUser) -> UserInfo:
        self._check_new(wanted.name)
        rules = check_rules(wanted.rules)
        kept = await self._gate.passwords.hash(wanted.password) if wanted.password else ""
        # It took a while.
        self._check_new(wanted.name)
        now_us = self._now_us()
        entry = UserEntry(
            name=wanted.name,
            rules=rules,
            password=kept,
            certificates=self._checked_certificates(wanted.name, wanted.certificates),
            allowance=checked_allowance(wanted.allowance),
            comment=checked_comment(wanted.comment),
            created_us=now_us,
            expires_us=expiry_us(now_us, wanted.expires_seconds),
        )
        self._put(entry)
        return user_info(entry)

    def set_user(self, wanted: SetUser) -> UserInfo:
        entry = self._changeable(self._user(wanted.name))
        changes = self._changes(wanted)
        if wanted.certificates is not None:
            changes["certificates"] = self._checked_certificates(entry.name, wanted.certificates)
        if wanted.disabled is not None:
            changes["disabled"] = wanted.disabled
        changed = msgspec.structs.replace(entry, **changes)
        self._check_admin_left(entry, changed)
        self._put(changed)
        return user_info(changed)

    async def set_password(self, wanted: SetPassword, *, by: Identity | None) -> UserInfo:
        """Sets a new password. Without the role admin, `by` has to know the old one. That counts as
        a login: a stolen session must not allow endless guesses."""
        passwords = self._gate.passwords
        if by is not None:
            shown = Login(user=wanted.name, password=wanted.old_password)
            try:
                await self._gate.login(shown, by)
            except UnauthenticatedError:
                wrong = "The old password is wrong. Nothing was changed."
                raise UnauthenticatedError(wrong) from None
        entry = self._changeable(self._user(wanted.name))
        kept = await passwords.hash(wanted.password)
        entry = self._changeable(self._user(wanted.name))
        changed = msgspec.structs.replace(entry, password=kept)
        self._put(changed)
        return user_info(changed)

    def delete_user(self, name: str) -> None:
        entry = self._changeable(self._user(name))
        self._check_admin_left(entry, None)
        self._remove(entry)

    def describe_user(self, name: str) -> UserInfo:
        return user_info(self._user(name))

    def users(self, after: str = "") -> UsersPage:
        names, more = page_of_names(self._directory.names("user"), after)
        return UsersPage(tuple(user_info(self._directory.users[name]) for name in names), more)

    # Both

    def entries(self, kind: Literal["key", "user"]) -> list[KeyEntry] | list[UserEntry]:
        """All keys, or all users, in no order."""
        directory = self._directory
        return list(directory.keys.values()) if kind == "key" else list(directory.users.values())

    def count(self, kind: Literal["key", "user"]) -> int:
        return len(self._directory.keys if kind == "key" else self._directory.users)

    def account(self, kind: str, name: str) -> Account:
        """The account of a key or user as after a login: to ask for its permissions."""
        if kind == "key":
            key = self._key(name)
            return Account(name=name, kind="key", rules=key.rules, id=key.id)
        return Account(name=name, kind="user", rules=self._user(name).rules)

    def may(self, account: Account, verb: Verb, topic: str) -> bool:
        return self._gate.decisions.decide(account, verb, topic)

    def replace_file_entries(self, entries: Iterable[AccountEntry]) -> None:
        """Loads the accounts of the config file. Accounts that are no longer in it are removed."""
        wanted = {entry.ledger_key: entry for entry in entries}
        gone = [
            entry
            for entry in self._directory.entries()
            if entry.source == "file" and entry.ledger_key not in wanted
        ]
        for entry in gone:
            self._directory.remove(entry)
        self._directory.load(wanted.values())

    def _put(self, entry: AccountEntry) -> None:
        key = entry.ledger_key

        def durable() -> None:
            pending = self._pending.get(key, [])
            if entry in pending:
                pending.remove(entry)
                if not pending:
                    del self._pending[key]
                self._directory.put(entry)

        self._pending.setdefault(key, []).append(entry)
        try:
            self._store.put(entry, durable)
        except BaseException:
            self._pending[key].remove(entry)
            raise

    def _remove(self, entry: AccountEntry) -> None:
        """Whatever the disk does, it is no longer valid."""
        self._pending.pop(entry.ledger_key, None)
        self._directory.remove(entry)
        try:
            self._store.remove(entry)
        except FanlogError as fault:
            self._store.owe_removal(entry)
            raise type(fault)(
                f"{entry.name!r} is cut off, but this could not be stored: {fault} The broker "
                f"tries again with the next change. If it restarts before that, {entry.name!r} "
                "works again."
            ) from fault

    def _changes(self, wanted: SetKey | SetUser) -> dict[str, object]:
        changes: dict[str, object] = {}
        if wanted.rules is not None:
            changes["rules"] = check_rules(wanted.rules)
        if wanted.allowance is not None:
            changes["allowance"] = checked_allowance(wanted.allowance)
        if wanted.comment is not None:
            changes["comment"] = checked_comment(wanted.comment)
        if wanted.expires_seconds is not None:
            changes["expires_us"] = expiry_us(self._now_us(), wanted.expires_seconds)
        return changes

    def _key(self, name: str) -> KeyEntry:
        pending = [e for e in self._pending.get(KEY_PREFIX + name, ()) if isinstance(e, KeyEntry)]
        return (
            pending[-1] if pending else self._directory.keys.get(name) or raise_missing("key", name)
        )

    def _user(self, name: str) -> UserEntry:
        pending = [e for e in self._pending.get(USER_PREFIX + name, ()) if isinstance(e, UserEntry)]
        return (
            pending[-1]
            if pending
            else self._directory.users.get(name) or raise_missing("user", name)
        )

    def _entries(self) -> Iterable[AccountEntry]:
        """All keys and users, as they are written."""
        entries = {entry.ledger_key: entry for entry in self._directory.entries()}
        return (entries | {key: some[-1] for key, some in self._pending.items() if some}).values()

    def _changeable(self, entry: E) -> E:
        if entry.source == "file":
            raise InvalidArgumentError(
                f"{entry.name!r} comes from the broker's config file, and can be changed only "
                "there."
            )
        return entry

    def _check_new(self, name: str) -> None:
        check_account_name(name)
        directory = self._directory
        is_key = name in directory.keys or bool(self._pending.get(KEY_PREFIX + name))
        if is_key or name in directory.users or self._pending.get(USER_PREFIX + name):
            kind = "key" if is_key else "user"
            raise AccountExistsError(
                f"There is a {kind} {name!r} already. Keys and users share their names: choose "
                "another, or change this one."
            )
        count = len(directory.keys) + len(directory.users) + len(self._pending)
        if count >= self._accounts_max:
            raise LimitError(
                f"This broker has {count} keys and users, which is its limit. Delete those that "
                "are not needed. " + allow_more("security.accounts_max")
            )

    def _checked_certificates(self, user: str, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > _CERTIFICATES_MAX:
            raise InvalidArgumentError(f"A user has {_CERTIFICATES_MAX} certificate names at most.")
        for name in names:
            check_account_name(name)
            other = self._directory.user_by_certificate(name)
            if other is not None and other.name != user:
                raise InvalidArgumentError(
                    f"The certificate name {name!r} belongs to the user {other.name!r} already."
                )
        return names

    def _check_admin_left(self, entry: AccountEntry, changed: AccountEntry | None) -> None:
        """Checks that an account is left that can manage keys and users."""
        if not is_admin(entry) or (changed is not None and is_admin(changed)):
            return
        others = (one for one in self._entries() if one.ledger_key != entry.ledger_key)
        if not any(is_admin(one) for one in others):
            raise InvalidArgumentError(
                f"{entry.name!r} is the last admin: without an admin, nobody can manage keys "
                "and users. Create another admin first."
            )
