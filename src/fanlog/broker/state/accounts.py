"""The ledger of keys and users: digests and rules, never a secret. If entries of it are lost, some
of them may have been revocations. So nobody gets in by what is left, until an operator has looked:
it fails closed, and the broker starts all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from fanlog.broker.state.ledger import Ledger, LedgerHost
from fanlog.errors import FanlogError, FormatError
from fanlog.security.directory import AccountEntry, KeyEntry, UserEntry

_LOSS = (
    "a revoked key or user may be among those that are left, so the broker accepts none of them. "
    "Log in with a key of the config file (security.admin_key_file), look through `fanlog key "
    "list` and `fanlog user list`, and delete or rotate what should not be there"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeyEntry | UserEntry).decode


class AccountLedger:
    """Keeps what `security/accounts.py` changes."""

    def __init__(self, host: LedgerHost) -> None:
        self._ledger = Ledger(host, "accounts", self._everything, _LOSS)
        self._entries: dict[str, AccountEntry] = {}

    def load(self) -> None:
        self._ledger.load(self._take)

    @property
    def entries(self) -> tuple[AccountEntry, ...]:
        return tuple(self._entries.values())

    @property
    def distrusted(self) -> bool:
        """Whether entries are lost, and nobody has cleared that."""
        return bool(self._ledger.lost) or self._ledger.may_have_lost()

    def _take(self, key: bytes, value: bytes | None) -> None:
        name = key.decode()
        if value is None:
            self._entries.pop(name, None)
            return
        try:
            entry = _decode(value)
            if entry.ledger_key != name:
                raise FormatError(f"The entry of {name!r} is another's.")
        except (msgspec.DecodeError, FormatError):
            # What it said before does not count any more.
            self._entries.pop(name, None)
            raise
        self._entries[name] = entry

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        for name in list(self._entries):
            entry = self._entries.get(name)
            if entry is not None:
                yield name.encode(), _encode(entry)

    def put(self, entry: AccountEntry, durable: Callable[[], None], /) -> None:
        def done(fault: FanlogError | None) -> None:
            if fault is None:
                self._entries[entry.ledger_key] = entry
                durable()

        self._ledger.write([(entry.ledger_key.encode(), _encode(entry))], done)

    def remove(self, entry: AccountEntry, /) -> None:
        def done(fault: FanlogError | None) -> None:
            if fault is None:
                self._entries.pop(entry.ledger_key, None)

        self._ledger.write([(entry.ledger_key.encode(), None)], done)

    def owe_removal(self, entry: AccountEntry, /) -> None:
        self._ledger.write_or_owe([(entry.ledger_key.encode(), None)])
        self._entries.pop(entry.ledger_key, None)
