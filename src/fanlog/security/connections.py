"""Limits of connections per address and per user. Only those with a connection are counted, so the
tables are never larger than the number of connections."""

from __future__ import annotations

from fanlog.config_limits import LimitOptions
from fanlog.errors import ConnectionQuotaError
from fanlog.identity import Account
from fanlog.security.addresses import Sources


class ConnectionCounts:
    """Over all listeners."""

    def __init__(self, options: LimitOptions) -> None:
        self._options = options
        self._sources = Sources(options.exempt_addresses)
        self._by_source: dict[str, int] = {}
        self._by_user: dict[str, int] = {}

    # By address

    def maybe_refusal(self, address: str) -> ConnectionQuotaError | None:
        """The error against one more connection from an address, or None."""
        most = self._options.connections_per_address
        source = self._sources.maybe_of(address) if most else ""
        count = self._by_source.get(source, 0)
        if not source or count < most:
            return None
        return ConnectionQuotaError(
            f"The address {source} has {count} connections, which is the limit for one address "
            "(limits.connections_per_address). Close some, or share one between threads."
        )

    def came(self, address: str) -> None:
        _add(self._by_source, self._sources.maybe_of(address))

    def went(self, address: str) -> None:
        _subtract(self._by_source, self._sources.maybe_of(address))

    # By user

    def log_in(self, account: Account) -> None:
        """Counts a connection of an account. Raises ConnectionQuotaError if it has too many."""
        most = account.allowance.connections or self._options.connections_per_user
        key = _key_of(account)
        count = self._by_user.get(key, 0)
        if most and count >= most:
            raise ConnectionQuotaError(
                f"{account.name!r} has {count} connections, which is its limit. Close some, "
                "share one between threads, or ask the operator for more."
            )
        _add(self._by_user, key)

    def log_out(self, account: Account) -> None:
        _subtract(self._by_user, _key_of(account))

    def of(self, account: Account) -> int:
        """How many connections an account has."""
        return self._by_user.get(_key_of(account), 0)

    def __len__(self) -> int:
        return len(self._by_source) + len(self._by_user)


class CountedAccount:
    """The account that one connection counts for, at most one at a time."""

    __slots__ = ("_account", "_counts")

    def __init__(self, counts: ConnectionCounts) -> None:
        self._counts = counts
        self._account: Account | None = None

    def become(self, account: Account | None) -> None:
        """The connection logs in, as somebody else, or out. Raises ConnectionQuotaError if the
        account has too many; then the connection keeps its account."""
        before = self._account
        if before is not None and account is not None and _key_of(before) == _key_of(account):
            return
        if account is not None:
            self._counts.log_in(account)
        if before is not None:
            self._counts.log_out(before)
        self._account = account


def _key_of(account: Account) -> str:
    return f"key {account.id}" if account.kind == "key" else f"user {account.name}"


def _add(counts: dict[str, int], key: str) -> None:
    if key:
        counts[key] = counts.get(key, 0) + 1


def _subtract(counts: dict[str, int], key: str) -> None:
    count = counts.get(key, 0)
    if count > 1:
        counts[key] = count - 1
    else:
        counts.pop(key, None)
