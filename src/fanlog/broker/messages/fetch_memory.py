"""The memory limit for answers to fetches, of all connections together.

An answer counts from before it is read until its peer has taken all of it. At the limit further
fetches wait. One connection gets only a share, and no further answer while one waits for its peer.
A peer that takes nothing while others wait is evicted in the end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fanlog.errors import LimitError, allow_more

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import Outlet

_SHARE = 8


class _QueuedFetch(NamedTuple):
    outlet: Outlet
    size: int
    start: Callable[[], None]


class _Account:
    """One connection's: `used` is being read, or `held` for the peer since `held_us`; `queued`
    waits for others, `waiting` for this connection itself."""

    __slots__ = ("gone", "held", "held_us", "queued", "used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.held = 0
        self.held_us = 0
        self.queued = 0
        self.waiting: deque[_QueuedFetch] = deque()
        self.gone = False


class FetchMemory:
    """All of it belongs to the loop. `now_us` is a clock that nobody can set."""

    def __init__(self, bytes_max: int, stall_seconds: float, now_us: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self._stall_us = round(stall_seconds * 1e6)
        self._now_us = now_us
        self._accounts: dict[Outlet, _Account] = {}
        # Answers that wait for their peers, the oldest first.
        self._holders: OrderedDict[Outlet, None] = OrderedDict()
        self._queue: deque[_QueuedFetch] = deque()
        self._starting = False
        self.used = 0

    def begin(self, outlet: Outlet, size: int, start: Callable[[], None]) -> None:
        """Calls `start` when an answer of that size may be read: now, or later, or never if the
        connection ends before. `end` follows."""
        account = self._accounts.get(outlet)
        if account is None:
            account = self._accounts[outlet] = _Account()
        account.waiting.append(_QueuedFetch(outlet, size, start))
        self._settle(outlet, account)

    def end(self, outlet: Outlet, size: int, answer_bytes: int) -> None:
        """The answer of a fetch that began with `size` was written to the outlet."""
        account = self._accounts[outlet]
        held = answer_bytes if outlet.blocked and not account.gone else 0
        if held:
            if not account.held:
                account.held_us = self._now_us()
                self._holders[outlet] = None
            account.held += held
        account.used += held - size
        self.used += held - size
        self._settle(outlet, account)

    def drained(self, outlet: Outlet) -> None:
        """The peer has taken everything."""
        account = self._accounts.get(outlet)
        if account is None:
            return
        account.used -= account.held
        self.used -= account.held
        account.held = 0
        self._holders.pop(outlet, None)
        self._settle(outlet, account)

    def gone(self, outlet: Outlet) -> None:
        """The connection has ended: nothing more is read for it."""
        account = self._accounts.get(outlet)
        if account is None:
            return
        account.gone = True
        account.waiting.clear()
        if account.queued:
            account.queued = 0
            self._queue = deque(fetch for fetch in self._queue if fetch.outlet is not outlet)
        self.drained(outlet)

    def tick(self) -> None:
        """Cuts off the peer that has kept others waiting for longest."""
        if not self._queue or not self._holders:
            return
        outlet = next(iter(self._holders))
        if self._now_us() - self._accounts[outlet].held_us > self._stall_us:
            outlet.evict(
                LimitError(
                    "The answers to fetches of all connections fill the memory for them, and this "
                    "client did not read its own in time. Read faster, or fetch less at once. "
                    + allow_more("broker.fetch_memory_bytes", "broker.fetch_stall_seconds")
                )
            )

    def _settle(self, outlet: Outlet, account: _Account) -> None:
        """Resumes the fetches that have room now."""
        waiting = account.waiting
        while waiting and self._within_share(account, waiting[0].size):
            fetch = waiting.popleft()
            account.queued += fetch.size
            self._queue.append(fetch)
        self._start()
        if not account.used and not account.queued and not waiting:
            self._accounts.pop(outlet, None)

    def _within_share(self, account: _Account, size: int) -> bool:
        taken = account.used + account.queued
        return not taken or (not account.held and taken + size <= self._bytes_max // _SHARE)

    def _start(self) -> None:
        if self._starting:
            # It ended at once: its starter continues.
            return
        self._starting = True
        try:
            while self._queue and self._has_room(self._queue[0].size):
                fetch = self._queue.popleft()
                account = self._accounts[fetch.outlet]
                account.queued -= fetch.size
                account.used += fetch.size
                self.used += fetch.size
                fetch.start()
        finally:
            self._starting = False

    def _has_room(self, size: int) -> bool:
        """One alone may be larger than all together."""
        return not self.used or self.used + size <= self._bytes_max
