"""The gate of an edge: its upstream has the keys, users and rules. The edge asks upstream for the
account of a login, keeps it, and applies its rules, as the broker does.

Twice a second the edge asks upstream whether accounts have changed. If they have, it asks about all
accounts in use. While upstream is away there are no new logins, and existing ones stay until a
token or key expires.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fanlog.errors import FanlogError, LinkError, UnauthenticatedError
from fanlog.format.messages import Vouch, Vouched
from fanlog.identity import Account, Identity, Login, Verb
from fanlog.security.gate import NO_LOGIN
from fanlog.security.rules import Decisions, forbidden

logger = logging.getLogger("fanlog.edge")

# Accounts in use that an edge caches. With more, clients of the oldest must log in again.
_ACCOUNTS_MAX = 100_000
# Results of logins that are kept: a browser sends its token with each request.
_LOGINS_MAX = 10_000
_LOGIN_US = 10_000_000
_ACCOUNTS_A_QUESTION = 500


class EdgeGate:
    """Both the `Gate` and the `Authority` of an edge. `ask` is a question to upstream."""

    def __init__(
        self,
        ask: Callable[[Vouch], Awaitable[Vouched]],
        now_us: Callable[[], int],
        *,
        user_topic: str = "",
    ) -> None:
        self._ask = ask
        self._now_us = now_us
        self._decisions = Decisions(user_topic)
        # Until upstream has answered, all logins are refused.
        self._guarded = True
        self._version: str = ""
        # Accounts in use and their current state; None: refused.
        self._accounts: dict[Account, Account | None] = {}
        self._logins: dict[bytes, tuple[Account, int]] = {}
        self.failures = 0

    @property
    def guarded(self) -> bool:
        return self._guarded

    # Logins

    def arrive(self, who: Identity, /) -> Identity:
        if self._guarded:
            raise UnauthenticatedError(NO_LOGIN)
        return who

    async def login(self, login: Login, who: Identity, /) -> Identity:
        if not self._guarded:
            return who
        shown = hashlib.sha256(msgspec.json.encode(login)).digest()
        account, asked_us = self._logins.get(shown, (None, 0))
        if account is None or self._now_us() - asked_us > _LOGIN_US or self._is_over(account):
            account = await self._vouched(login, who)
            if len(self._logins) >= _LOGINS_MAX:
                del self._logins[next(iter(self._logins))]
            self._logins[shown] = (account, self._now_us())
        self._remember(account)
        return msgspec.structs.replace(who, user=account.name, account=account)

    async def check(self, login: Login, who: Identity) -> None:
        """Raises UnauthenticatedError if a login is no longer valid, even if its result is
        cached."""
        if self._guarded:
            await self._vouched(login, who)

    async def _vouched(self, login: Login, who: Identity) -> Account:
        try:
            vouched = await self._ask(Vouch(login, who.address, who.listener))
        except UnauthenticatedError:
            self.failures += 1
            raise
        except LinkError as fault:
            raise UnauthenticatedError(
                f"This edge can't check the login, because its upstream is away: {fault} Try "
                "again when it is back."
            ) from fault
        if vouched.account is None:
            raise UnauthenticatedError(NO_LOGIN)
        return vouched.account

    def _remember(self, account: Account) -> None:
        # The newest are at the end.
        self._accounts.pop(account, None)
        if len(self._accounts) >= _ACCOUNTS_MAX:
            del self._accounts[next(iter(self._accounts))]
        self._accounts[account] = account

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        """Upstream does not see a client certificate, so it can't trust one."""
        return None

    # As time passes

    def renew(self, who: Identity, /) -> Identity | None:
        account = who.account
        if account is None:
            return None if self._guarded else who
        now = self._accounts.get(account)
        if now is None or self._is_over(now):
            return None
        return who if now is account else msgspec.structs.replace(who, account=now)

    def _is_over(self, account: Account) -> bool:
        return bool(account.expires_us) and self._now_us() >= account.expires_us

    def expired(self) -> bool:
        """Whether an account in use has expired. True only once."""
        over = [a for a, now in self._accounts.items() if now is not None and self._is_over(now)]
        for account in over:
            self._accounts[account] = None
        return bool(over)

    async def look(self) -> bool:
        """Asks upstream whether anything has changed; True if connections must be checked again.
        While upstream is away, nothing changes."""
        try:
            current = await self._ask(Vouch())
            if current.version == self._version and current.guarded == self._guarded:
                return False
            accounts = [account for account, now in self._accounts.items() if now is not None]
            renewed: dict[Account, Account | None] = {}
            for at in range(0, len(accounts), _ACCOUNTS_A_QUESTION):
                some = accounts[at : at + _ACCOUNTS_A_QUESTION]
                answer = await self._ask(Vouch(accounts=tuple(some)))
                renewed |= dict(zip(some, answer.accounts, strict=True))
        except (FanlogError, ValueError) as fault:
            logger.debug("upstream does not say whether accounts have changed: %s", fault)
            return False
        self._guarded = current.guarded
        # Only now: a check that failed half-way is repeated.
        self._version = current.version
        self._logins.clear()
        self._decisions.forget()
        for account, now in renewed.items():
            self._accounts[account] = now
            if now is not None:
                self._accounts.setdefault(now, now)
        return True

    # Permissions

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if not self._guarded:
            return
        if who.account is None or not self._decisions.decide(who.account, verb, name):
            raise forbidden(who, verb, name)
