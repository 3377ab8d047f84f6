"""The gate of a broker with logins: it maps credentials to an account, and decides what the account
may do. It is the broker's `Gate` and its `Authority`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from fanlog.errors import FanlogError, RateLimitedError, UnauthenticatedError
from fanlog.identity import Account, Identity, Login, Verb
from fanlog.security.directory import Directory
from fanlog.security.keys import PREFIX, digest_of, fingerprint, maybe_parse, same
from fanlog.security.passwords import PasswordChecks
from fanlog.security.rules import Decisions, forbidden

logger = logging.getLogger("fanlog.security")

_SECOND_US = 1_000_000
# A longer name or secret is refused without a check.
_LOGIN_CHARACTERS_MAX = 16_384
NO_LOGIN = (
    "This broker asks clients to log in. Give a key: fanlog.connect(url, key=...), or FANLOG_KEY "
    "for commands. The operator makes keys with: fanlog key create NAME"
)
WRONG_LOGIN = (
    "The key, password or token is wrong, has expired, or was revoked. Use another, or ask the "
    "operator for a new one."
)
REVOKED = (
    "The key, user or token of this connection has expired, or was revoked or changed. Log in "
    "again with a valid one."
)


class TokenVerifier(Protocol):
    """Knows one kind of token."""

    async def verify(self, token: str, /) -> Account | None:
        """The account of a token; None if it is of another kind. Raises UnauthenticatedError if it
        is of this kind and not valid."""
        ...

    def renew(self, account: Account, /) -> Account | None:
        """The current account of a token that was verified before; None if it is no longer valid.
        The same object if nothing has changed. Expiry was checked before."""
        ...


class LoginGuard(Protocol):
    """Watches logins: it may refuse one before it is checked, as after many wrong ones."""

    def check(self, login: Login, who: Identity, /) -> None:
        """Raises RateLimitedError if this peer has to wait."""
        ...

    def failed(self, login: Login, who: Identity, /) -> None: ...
    def succeeded(self, login: Login, who: Identity, /) -> None: ...


class SecurityGate:
    """`verifiers` check tokens, `guards` watch logins. `on_login` is called with each login's
    result: the identity, or the error."""

    def __init__(
        self, directory: Directory, now_us: Callable[[], int], *, user_topic: str = ""
    ) -> None:
        self.directory = directory
        self.decisions = Decisions(user_topic)
        self.passwords = PasswordChecks()
        self.verifiers: list[TokenVerifier] = []
        self.guards: list[LoginGuard] = []
        self.on_login: list[Callable[[Login, Identity, FanlogError | None], None]] = []
        # Called for logins that are refused unchecked, after too many wrong ones.
        self.on_turned_away: list[Callable[[Identity], None]] = []
        # Called when an account with a rate logs in.
        self.on_limited: list[Callable[[], None]] = []
        self._now_us = now_us
        # The seconds in which accounts expire that are in use.
        self._expiries: set[int] = set()
        self.failures = 0
        self.logins = 0

    @property
    def guarded(self) -> bool:
        return True

    # Letting in

    def arrive(self, who: Identity, /) -> Identity:
        raise UnauthenticatedError(NO_LOGIN)

    async def login(self, login: Login, who: Identity, /) -> Identity:
        return await self.login_by(login, who, lambda: self._account(login))

    async def login_by(
        self, login: Login, who: Identity, find: Callable[[], Awaitable[Account | None]]
    ) -> Identity:
        """A login with the account from `find`: watched, counted and recorded like all logins."""
        try:
            for guard in self.guards:
                guard.check(login, who)
        except RateLimitedError:
            for count in self.on_turned_away:
                count(who)
            raise
        try:
            account = await find()
        except UnauthenticatedError as fault:
            self._refused(login, who, fault)
            raise
        if account is None:
            refusal = UnauthenticatedError(WRONG_LOGIN)
            self._refused(login, who, refusal)
            raise refusal
        self.logins += 1
        for guard in self.guards:
            guard.succeeded(login, who)
        found = self.admit(account, who)
        for tell in self.on_login:
            tell(login, found, None)
        return found

    def _refused(self, login: Login, who: Identity, fault: UnauthenticatedError) -> None:
        self.failures += 1
        logger.warning("%s: a login was refused: %s", who.address or who.listener, fault)
        for guard in self.guards:
            guard.failed(login, who)
        for tell in self.on_login:
            tell(login, who, fault)

    def admit(self, account: Account, who: Identity) -> Identity:
        """The identity of a peer that has this account."""
        self._note_account(account)
        return msgspec.structs.replace(who, user=account.name, account=account)

    def _note_account(self, account: Account) -> None:
        """Registers an account in use: its expiry, and whether it has its own rates."""
        allowance = account.allowance
        if allowance.messages_per_second or allowance.bytes_per_second:
            for tell in self.on_limited:
                tell()
        if account.expires_us:
            self._expiries.add(account.expires_us // _SECOND_US + 1)

    async def _account(self, login: Login) -> Account | None:
        if any(len(text) > _LOGIN_CHARACTERS_MAX for text in msgspec.structs.astuple(login)):
            return None
        if login.key:
            return self.account_of_key(login.key)
        if login.token:
            # A bearer of HTTP is either.
            if login.token.startswith(PREFIX):
                return self.account_of_key(login.token)
            return await self._account_of_token(login.token)
        if login.user or login.password:
            return await self._account_of_user(login.user, login.password)
        raise UnauthenticatedError(NO_LOGIN)

    def account_of_key(self, text: str) -> Account | None:
        """The owner of a key, or None. Every secret is compared, in the same time."""
        parsed = maybe_parse(text)
        entry = None if parsed is None else self.directory.key_by_id(parsed.id)
        digest = digest_of("" if parsed is None else parsed.secret)
        if entry is None:
            same(digest, digest_of(""))
            return None
        kept = [entry.digest, *(old.digest for old in entry.old)]
        if not sum(same(digest, one) for one in kept):
            return None
        return self.directory.account_of_key(entry, digest, self._now_us())

    async def _account_of_user(self, name: str, password: str) -> Account | None:
        entry = self.directory.user(name)
        kept = None if entry is None or not entry.password else entry.password
        if not await self.passwords.matches(password, kept):
            return None
        # It may have been changed while it was compared.
        entry = self.directory.user(name)
        if entry is None or entry.password != kept:
            return None
        return self.directory.account_of_user(
            entry, self._now_us(), credential=password_mark(entry.password)
        )

    async def _account_of_token(self, token: str) -> Account | None:
        for verifier in self.verifiers:
            account = await verifier.verify(token)
            if account is not None:
                return account
        return None

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        for name in names:
            entry = self.directory.user_by_certificate(name)
            if entry is not None:
                account = self.directory.account_of_user(
                    entry, self._now_us(), "certificate", name.casefold()
                )
                if account is not None:
                    found = self.admit(account, who)
                    # HTTP sends credentials with each request, which is no login.
                    for tell in self.on_login if who.listener != "web" else ():
                        tell(Login(), found, None)
                    return found
        return None

    # As time passes

    def renew(self, who: Identity, /) -> Identity | None:
        account = who.account
        if account is None:
            return None
        now = self._renewed(account)
        if now is None:
            return None
        if now is account:
            return who
        self._note_account(now)
        return msgspec.structs.replace(who, account=now)

    def _renewed(self, account: Account) -> Account | None:
        now_us = self._now_us()
        directory = self.directory
        if account.kind == "key":
            key = directory.key_by_id(account.id)
            if key is None:
                return None
            kept = [key.digest, *(old.digest for old in key.old)]
            digest = next((one for one in kept if fingerprint(one) == account.credential), "")
            return directory.account_of_key(key, digest, now_us) if digest else None
        if account.kind in ("user", "certificate"):
            user = directory.user(account.name)
            if user is None or not _still_shown(account, user.password, user.certificates):
                return None
            return directory.account_of_user(user, now_us, account.kind, account.credential)
        if account.expires_us and now_us >= account.expires_us:
            return None
        for verifier in self.verifiers:
            renewed = verifier.renew(account)
            if renewed is not None:
                return renewed
        return None

    def expired(self) -> bool:
        """Whether an account in use has expired since the last call. Called once a second:
        connections are checked only if it is True."""
        now = self._now_us() // _SECOND_US
        due = {second for second in self._expiries if second <= now}
        self._expiries -= due
        return bool(due)

    # What they may do

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if who.account is None:
            raise forbidden(who, verb, name)
        if not self.decisions.decide(who.account, verb, name):
            raise forbidden(who, verb, name)

    def close(self) -> None:
        self.passwords.close()


def password_mark(kept: str) -> str:
    """Changes with the password, and reveals nothing about it."""
    return hashlib.sha256(kept.encode()).hexdigest()[:12] if kept else ""


def _still_shown(account: Account, password: str, certificates: Sequence[str]) -> bool:
    """Whether the account's credentials are still valid."""
    if account.kind == "certificate":
        return account.credential in [name.casefold() for name in certificates]
    return account.credential == password_mark(password)
