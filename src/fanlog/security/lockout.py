"""Back-off and lock-out after wrong logins. Pure: the time is an argument. By address: after a few
wrong logins, each further one doubles the wait. During the wait, logins from the address are not
checked at all, so guessing costs the broker nothing.

By user: many addresses that try the passwords of one user wait together, but never long, and not
those from which that user has logged in before. Keys are not locked by name: nobody guesses 256
bits, so a right key is always accepted from an address that is not locked itself.

Law: the tables have a bounded size, however many addresses and names come. The entry whose last
failure is oldest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from fanlog.config_limits import LimitOptions
from fanlog.errors import RateLimitedError
from fanlog.identity import Identity, Login
from fanlog.security.addresses import Sources

_SECOND_US = 1_000_000
# Addresses, names, and pairs of them that are remembered.
_ENTRIES_MAX = 50_000
# Wrong logins are forgotten after this many of the longest waits without another.
_FORGOTTEN_WAITS = 4
# Characters of credentials that are remembered. A key begins with `fl_` and its id.
_NAME_CHARACTERS_MAX = 255
_PUBLIC_CHARACTERS = 13
# A wait of 2 ** 40 seconds is past every setting.
_DOUBLINGS_MAX = 40


class _Failures:
    """Wrong logins in a row. `name` is their common name; None if there are several."""

    __slots__ = ("at_us", "count", "name", "until_us")

    def __init__(self, name: str) -> None:
        self.count = 0
        self.at_us = 0
        self.until_us = 0
        self.name: str | None = name


class _FailureTable:
    """Failures by address, or by user; the last to fail is at the end."""

    def __init__(self, free: int, seconds_max: float) -> None:
        self._free = free
        self._wait_us_max = int(seconds_max * _SECOND_US)
        self._entries: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def maybe(self, key: str, now_us: int) -> _Failures | None:
        entry = self._entries.get(key)
        if entry is not None and now_us - entry.at_us > _FORGOTTEN_WAITS * self._wait_us_max:
            del self._entries[key]
            return None
        return entry

    def wait_us(self, key: str, now_us: int) -> int:
        entry = self.maybe(key, now_us)
        return 0 if entry is None else max(0, entry.until_us - now_us)

    def failed(self, key: str, name: str, now_us: int) -> None:
        entry = self.maybe(key, now_us)
        if entry is None:
            entry = self._entries[key] = _Failures(name)
        self._entries.move_to_end(key)
        entry.count += 1
        entry.at_us = now_us
        if entry.name != name:
            entry.name = None
        past = entry.count - self._free
        if past > 0:
            wait_us = _SECOND_US << min(past - 1, _DOUBLINGS_MAX)
            entry.until_us = now_us + min(wait_us, self._wait_us_max)
        if len(self._entries) > _ENTRIES_MAX:
            self._entries.popitem(last=False)

    def forget(self, key: str) -> None:
        self._entries.pop(key, None)


class Lockout:
    """Decides which peers have to wait before the next login. The gate calls `check` before a
    login, and reports its result."""

    def __init__(self, options: LimitOptions) -> None:
        self._sources = Sources(options.exempt_addresses)
        self._addresses = _FailureTable(options.wrong_logins_max, options.lockout_seconds)
        # A user has as many free attempts as a few addresses have.
        self._users = _FailureTable(4 * options.wrong_logins_max, options.name_lockout_seconds)
        # Where users have logged in from: (user, address).
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.refused = 0

    def check(self, address: str, now_us: int, *, user: str = "") -> None:
        """Raises RateLimitedError if a peer at `address` has to wait. `user` is the name for a
        password; empty for keys and tokens."""
        source = self._sources.maybe_of(address)
        wait_us = self._addresses.wait_us(source, now_us) if source else 0
        if wait_us:
            raise self._refusal("from your address", wait_us)
        if user and (user, source) not in self._good:
            wait_us = self._users.wait_us(user, now_us)
            if wait_us:
                raise self._refusal(f"for the user {user!r}", wait_us)

    def failed(self, address: str, now_us: int, *, name: str = "", user: str = "") -> None:
        """A wrong login. `name` is whatever it was for: a key's id, or a user's name."""
        source = self._sources.maybe_of(address)
        if source:
            self._addresses.failed(source, user or name, now_us)
        if user and (user, source) not in self._good:
            self._users.failed(user, user, now_us)

    def succeeded(self, address: str, now_us: int, *, name: str = "", user: str = "") -> None:
        """A correct login. It clears wrong ones of its own name only: with one valid key, a client
        must not be able to guess others."""
        source = self._sources.maybe_of(address)
        entry = self._addresses.maybe(source, now_us) if source else None
        if entry is not None and entry.name == (user or name):
            self._addresses.forget(source)
        if user:
            self._good[user, source] = None
            self._good.move_to_end((user, source))
            if len(self._good) > _ENTRIES_MAX:
                self._good.popitem(last=False)

    def entries(self) -> int:
        """How much is remembered: a bounded number."""
        return len(self._addresses) + len(self._users) + len(self._good)

    def _refusal(self, where: str, wait_us: int) -> RateLimitedError:
        self.refused += 1
        seconds = wait_us / _SECOND_US
        return RateLimitedError(
            f"There were too many wrong logins {where}. Try again in {seconds:.0f} s, and check "
            "the key or the password first.",
            retry_after_seconds=seconds,
        )


class LockoutGuard:
    """The lock-out as the gate asks it: it watches every login."""

    def __init__(self, lockout: Lockout, now_us: Callable[[], int]) -> None:
        """`now_us` is the monotonic clock."""
        self.lockout = lockout
        self._now_us = now_us

    def check(self, login: Login, who: Identity, /) -> None:
        self.lockout.check(who.address, self._now_us(), user=_user_of(login))

    def failed(self, login: Login, who: Identity, /) -> None:
        user = _user_of(login)
        self.lockout.failed(who.address, self._now_us(), name=_name_of(login), user=user)

    def succeeded(self, login: Login, who: Identity, /) -> None:
        user = _user_of(login)
        self.lockout.succeeded(who.address, self._now_us(), name=_name_of(login), user=user)


def _user_of(login: Login) -> str:
    """The name for a password; empty for keys and tokens."""
    return "" if login.key or login.token else login.user[:_NAME_CHARACTERS_MAX]


def _name_of(login: Login) -> str:
    """The start of a key or token: its public part."""
    return (login.key or login.token)[:_PUBLIC_CHARACTERS]
