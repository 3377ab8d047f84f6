"""An etcd in memory, for tests and for the simulation: revisions, leases, watches, and faults.

Law: what a client of it sees, a client of a real etcd may see; `tests/cluster/test_coordination.py`
runs one suite over both. Time is handed in, and moves only by `tick`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from fanlog.cluster.coordination import (
    Listing,
    Lost,
    NotSent,
    Stored,
    SwapOutcome,
    Swapped,
    Unknown,
)
from fanlog.errors import CoordinationError

LEASE_SECONDS = 4.0
_RENEWALS_A_LEASE = 3


@dataclass
class _State:
    """What a backup of etcd holds."""

    revision: int = 1
    keys: dict[str, Stored] = field(default_factory=dict)
    lease_of: dict[str, int] = field(default_factory=dict)
    ends_at: dict[int, float] = field(default_factory=dict)
    leases_given: int = 0


class MemoryEtcd:
    """The servers. `now` is their clock."""

    def __init__(self, now: Callable[[], float], etcd: str = "memory") -> None:
        self.now = now
        self.etcd = etcd
        self.away = False
        self._state = _State()
        # Not a set: who is told first must not depend on addresses.
        self._watchers: dict[asyncio.Event, None] = {}

    # Reads

    def get(self, key: str) -> Stored | None:
        self.tick()
        return self._state.keys.get(key)

    def list(self, prefix: str, floor: int = 0) -> Listing:
        self.tick()
        keys = self._state.keys
        stored = tuple(keys[key] for key in sorted(keys) if key.startswith(prefix))
        return Listing(self.etcd, self._state.revision, stored, floor)

    # Changes

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self._state.revision += 1
        self._state.keys[key] = Stored(key, value, self._state.revision)
        self._state.lease_of.pop(key, None)
        if lease:
            self._state.lease_of[key] = lease
        self._changed()
        return self._state.revision

    def remove(self, *keys: str) -> int:
        self._state.revision += 1
        for key in keys:
            self._state.keys.pop(key, None)
            self._state.lease_of.pop(key, None)
        self._changed()
        return self._state.revision

    def swap(self, key: str, expected: Stored | None, value: bytes | None) -> Swapped | Lost:
        current = self.get(key)
        if current != expected:
            return Lost(current)
        return Swapped(self.remove(key) if value is None else self.put(key, value))

    # Leases

    def grant(self, seconds: float) -> int:
        self._state.leases_given += 1
        lease = self._state.leases_given
        self._state.ends_at[lease] = self.now() + seconds
        return lease

    def keep_alive(self, lease: int, seconds: float) -> bool:
        self.tick()
        if lease not in self._state.ends_at:
            return False
        self._state.ends_at[lease] = self.now() + seconds
        return True

    def revoke(self, lease: int) -> None:
        self._state.ends_at.pop(lease, None)
        keys = [key for key, its in self._state.lease_of.items() if its == lease]
        if keys:
            self.remove(*keys)

    def tick(self) -> None:
        """Ends the leases whose time is up."""
        for lease in [one for one, end in self._state.ends_at.items() if end <= self.now()]:
            self.revoke(lease)

    # Watches

    def subscribe(self) -> asyncio.Event:
        changed = asyncio.Event()
        self._watchers[changed] = None
        return changed

    def unsubscribe(self, changed: asyncio.Event) -> None:
        self._watchers.pop(changed, None)

    def _changed(self) -> None:
        for watcher in list(self._watchers):
            watcher.set()

    # Faults

    def backup(self) -> Any:
        return deepcopy(self._state)

    def restore(self, backup: Any, etcd: str | None = None) -> None:
        """Goes back to a backup; with `etcd`, as another cluster. Leases begin anew."""
        given, self._state = self._state.leases_given, deepcopy(backup)
        # The numbers of leases are drawn at random in an etcd: none comes twice.
        self._state.leases_given = given
        self._state.ends_at = {lease: self.now() + LEASE_SECONDS for lease in backup.ends_at}
        self.etcd = etcd or self.etcd
        self._changed()

    def set_away(self, away: bool) -> None:
        """No answers, to anybody. When they return, leases have their whole time again."""
        if self.away and not away:
            fresh = self.now() + LEASE_SECONDS
            self._state.ends_at = dict.fromkeys(self._state.ends_at, fresh)
        self.away = away
        self._changed()


class MemoryCoordination:
    """One node's connection: `Coordination`. `cut` cuts it off."""

    def __init__(self, etcd: MemoryEtcd, lease_seconds: float = LEASE_SECONDS) -> None:
        self.etcd = etcd
        self.cut = False
        # Its watches hang, and hear of no change.
        self.deaf = False
        # "not sent"; "applied" or "not applied", but nobody knows; "late": applied by `land`.
        self.next_swap = ""
        self._late: list[tuple[str, Stored | None, bytes | None]] = []
        self._lease_seconds = lease_seconds
        self._lease = 0
        self._wanted: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._revision = 0

    async def read(self, key: str) -> Stored | None:
        await self._reach()
        return self.etcd.get(key)

    async def read_prefix(self, prefix: str) -> Listing:
        floor = self._revision
        await self._reach()
        listing = self.etcd.list(prefix, floor)
        self._revision = listing.revision
        return listing

    async def swap(self, key: str, expected: Stored | None, value: bytes) -> SwapOutcome:
        return await self._swap(key, expected, value)

    async def delete(self, key: str, expected: Stored) -> SwapOutcome:
        return await self._swap(key, expected, None)

    async def put_leased(self, key: str, value: bytes) -> None:
        self._wanted[key] = value
        self.renew()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def watch(self, prefix: str) -> AsyncGenerator[Listing]:
        changed = self.etcd.subscribe()
        try:
            while True:
                changed.clear()
                if not self.deaf:
                    yield await self.read_prefix(prefix)
                await changed.wait()
        finally:
            self.etcd.unsubscribe(changed)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._lease and not (self.cut or self.etcd.away):
            self.etcd.revoke(self._lease)

    # For tests

    def renew(self) -> None:
        """One round of what keeps the lease; the task does so by itself."""
        self.etcd.tick()
        if self.cut or self.etcd.away:
            return
        if not (self._lease and self.etcd.keep_alive(self._lease, self._lease_seconds)):
            self._lease = self.etcd.grant(self._lease_seconds)
            self._stored.clear()
        for key, value in self._wanted.items():
            if self._stored.get(key) != value:
                self.etcd.put(key, value, self._lease)
                self._stored[key] = value

    def land(self) -> list[Swapped | Lost]:
        """Swaps that were on their way arrive."""
        late, self._late = self._late, []
        return [self.etcd.swap(*one) for one in late]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / _RENEWALS_A_LEASE)
            self.renew()

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.cut or self.etcd.away:
            raise CoordinationError("etcd does not answer now: it is away.")

    async def _swap(self, key: str, expected: Stored | None, value: bytes | None) -> SwapOutcome:
        fault, self.next_swap = self.next_swap, ""
        await asyncio.sleep(0)
        if fault == "not sent" or self.cut or self.etcd.away:
            return NotSent("etcd is away")
        if fault == "late":
            self._late.append((key, expected, value))
        elif fault != "not applied":
            outcome = self.etcd.swap(key, expected, value)
            if isinstance(outcome, Swapped):
                self._revision = max(self._revision, outcome.revision)
            if not fault:
                return outcome
        return Unknown("no answer in time")
