"""The current keys and users, in memory. Every change goes through `change`: it takes effect at
once, and subscribers are notified, so that open connections are checked again.

Entries come from the broker's ledger, or from its config file. Those of the file can be changed
only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeVar

import msgspec

from fanlog.identity import Account, AccountKind, Allowance, Rules
from fanlog.security.keys import fingerprint

AccountSource = Literal["api", "file"]
KEY_PREFIX = "key/"
USER_PREFIX = "user/"


class OldSecret(msgspec.Struct, frozen=True):
    """The secret that a key had before it was rotated: it is good until then."""

    digest: str
    until_us: int


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, tag="key", omit_defaults=True):
    """A key: `digest` is the SHA-256 of its secret."""

    name: str
    id: str
    digest: str
    rules: Rules
    allowance: Allowance = Allowance()
    comment: str = ""
    created_us: int = 0
    expires_us: int = 0
    rotated_us: int = 0
    old: tuple[OldSecret, ...] = ()
    source: AccountSource = "api"

    @property
    def ledger_key(self) -> str:
        return KEY_PREFIX + self.name

    def __repr__(self) -> str:
        return f"KeyEntry({self.name!r})"


class UserEntry(msgspec.Struct, frozen=True, kw_only=True, tag="user", omit_defaults=True):
    """A user: `password` is the hash by `passwords.py`; if empty, the user can't log in with a
    password. `certificates` are the names in client certificates that log in as this user."""

    name: str
    rules: Rules
    password: str = ""
    certificates: tuple[str, ...] = ()
    allowance: Allowance = Allowance()
    comment: str = ""
    created_us: int = 0
    expires_us: int = 0
    disabled: bool = False
    source: AccountSource = "api"

    @property
    def ledger_key(self) -> str:
        return USER_PREFIX + self.name

    def __repr__(self) -> str:
        return f"UserEntry({self.name!r})"


AccountEntry = KeyEntry | UserEntry
E = TypeVar("E", KeyEntry, UserEntry)


class Directory:
    """All keys and users. `on_change` is called after every change."""

    def __init__(self) -> None:
        self._keys: dict[str, KeyEntry] = {}
        self._users: dict[str, UserEntry] = {}
        self._key_by_id: dict[str, KeyEntry] = {}
        self._user_by_certificate: dict[str, UserEntry] = {}
        # Entries of the ledger are valid only if none is lost: a revocation may be among the lost
        # ones.
        self._distrusted = False
        # By entry, so that a change leaves the accounts of others as they are.
        self._accounts: dict[str, dict[tuple[AccountKind, str], Account]] = {}
        self._sorted: dict[str, list[str]] = {}
        self.on_change: list[Callable[[], None]] = []

    @property
    def keys(self) -> Mapping[str, KeyEntry]:
        return self._keys

    @property
    def users(self) -> Mapping[str, UserEntry]:
        return self._users

    @property
    def distrusted(self) -> bool:
        """Whether keys and users that were made by commands may not log in: see `distrust`."""
        return self._distrusted

    def names(self, kind: Literal["key", "user"]) -> list[str]:
        """All names in order. They are sorted once for all pages of a list."""
        found = self._sorted.get(kind)
        if found is None:
            found = self._sorted[kind] = sorted(self._keys if kind == "key" else self._users)
        return found

    def entries(self) -> Iterator[AccountEntry]:
        yield from self._keys.values()
        yield from self._users.values()

    # Changes

    def load(self, entries: Iterable[AccountEntry], *, distrust: bool = False) -> None:
        """Loads entries at the start. `distrust`: some entries of the ledger are lost, so that any
        of the others may have been revoked."""
        self._distrusted = self._distrusted or distrust
        for entry in entries:
            self._put(entry)
        self._changed()

    def put(self, entry: AccountEntry) -> None:
        """Adds an entry, or replaces the one of this name. A new entry does not affect existing
        logins."""
        known = entry.name in (self._keys if isinstance(entry, KeyEntry) else self._users)
        self._put(entry)
        if known:
            self._changed()

    def remove(self, entry: AccountEntry) -> None:
        self._drop(entry)
        self._changed()

    def _put(self, entry: AccountEntry) -> None:
        self._sorted.clear()
        known = (self._keys if isinstance(entry, KeyEntry) else self._users).get(entry.name)
        if known is not None:
            self._drop(known)
        if isinstance(entry, KeyEntry):
            self._keys[entry.name] = self._key_by_id[entry.id] = entry
        else:
            self._users[entry.name] = entry
            for name in entry.certificates:
                self._user_by_certificate.setdefault(name.casefold(), entry)

    def _drop(self, entry: AccountEntry) -> None:
        self._sorted.clear()
        self._accounts.pop(entry.ledger_key, None)
        if isinstance(entry, KeyEntry):
            self._keys.pop(entry.name, None)
            owner = self._key_by_id.get(entry.id)
            if owner is not None and owner.name == entry.name:
                del self._key_by_id[entry.id]
            return
        self._users.pop(entry.name, None)
        for name in map(str.casefold, entry.certificates):
            user = self._user_by_certificate.get(name)
            if user is not None and user.name == entry.name:
                del self._user_by_certificate[name]

    def _changed(self) -> None:
        for tell in self.on_change:
            tell()

    # Accounts that may log in now

    def key_by_id(self, id: str) -> KeyEntry | None:
        return self._trusted(self._key_by_id.get(id))

    def allowance_of(self, name: str) -> Allowance | None:
        """The limits of the key or user of this name."""
        entry = self._keys.get(name) or self._users.get(name)
        return None if entry is None else entry.allowance

    def user(self, name: str) -> UserEntry | None:
        return self._trusted(self._users.get(name))

    def user_by_certificate(self, name: str) -> UserEntry | None:
        return self._trusted(self._user_by_certificate.get(name.casefold()))

    def _trusted(self, entry: E | None) -> E | None:
        if entry is None or (self._distrusted and entry.source == "api"):
            return None
        return entry

    def account_of_key(self, entry: KeyEntry, digest: str, now_us: int) -> Account | None:
        """The account for a secret with this digest; None if it is no longer valid. The same object
        for the same secret, until something changes."""
        expires_us = entry.expires_us
        if digest != entry.digest:
            until_us = max((o.until_us for o in entry.old if o.digest == digest), default=0)
            if not until_us:
                return None
            expires_us = min(expires_us or until_us, until_us)
        if expires_us and now_us >= expires_us:
            return None
        return self._account("key", entry, fingerprint(digest), expires_us, entry.id)

    def account_of_user(
        self, entry: UserEntry, now_us: int, kind: AccountKind = "user", credential: str = ""
    ) -> Account | None:
        """The account of a logged-in user. A new password ends logins with the old one."""
        if entry.disabled or (entry.expires_us and now_us >= entry.expires_us):
            return None
        return self._account(kind, entry, credential, entry.expires_us)

    def _account(
        self, kind: AccountKind, entry: AccountEntry, credential: str, expires_us: int, id: str = ""
    ) -> Account:
        known = self._accounts.setdefault(entry.ledger_key, {})
        found = known.get((kind, credential))
        if found is None:
            found = known[kind, credential] = Account(
                name=entry.name,
                kind=kind,
                rules=entry.rules,
                id=id,
                expires_us=expires_us,
                allowance=entry.allowance,
                credential=credential,
            )
        return found
