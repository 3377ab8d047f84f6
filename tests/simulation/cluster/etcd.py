"""The way of a node to the etcd in memory: requests and answers take their time, and may be lost.

Law: what was sent may arrive, whatever becomes of who has sent it. So a swap whose answer is lost
is *unknown*: it was applied, it never is, or it is later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, TypeVar

from fanlog.cluster.coordination import Listing, NotSent, Stored, SwapOutcome, Swapped, Unknown
from fanlog.errors import CoordinationError
from tests.simulation.memory_etcd import MemoryEtcd
from tests.simulation.world import World

T = TypeVar("T")

LEASE_SECONDS = 1.5
_ANSWER_SECONDS = 1.0
_RENEW_SECONDS = LEASE_SECONDS / 3
# A watch of a server that is gone is noticed after so long.
_WATCH_SECONDS = 2.0
_LATE_SECONDS = 4.0
_NEVER_SECONDS = 1e9
_AWAY = "etcd does not answer now: it is away."


class SentSwap(NamedTuple):
    """A compare-and-swap that has left its node. `value` is None for a deletion."""

    key: str
    expected: Stored | None
    value: bytes | None


class EtcdFaults:
    """How etcd and the ways to it are. `cut` has the nodes that are cut off, `on_the_way` the swaps
    that may still arrive."""

    def __init__(self) -> None:
        self.delay_max = 0.003
        self.lost_share = 0.0
        self.cut: dict[str, bool] = {}
        self.on_the_way: list[SentSwap] = []


class SimulatedCoordination:
    """One node's connection: `Coordination`."""

    def __init__(self, world: World, etcd: MemoryEtcd, faults: EtcdFaults, node: str) -> None:
        self._world = world
        self._etcd = etcd
        self._faults = faults
        self._node = node
        self._dice = world.dice(f"etcd of {node} {world.now}")
        self._revision = 0
        self._lease = 0
        self._wanted: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}
        self._keeping: asyncio.Task[None] | None = None

    # `Coordination`

    async def read(self, key: str) -> Stored | None:
        return await self._ask(lambda: self._etcd.get(key))

    async def read_prefix(self, prefix: str) -> Listing:
        floor = self._revision
        listing = await self._ask(lambda: self._etcd.list(prefix, floor))
        self._revision = max(self._revision, listing.revision)
        if listing.has_gone_back:
            self._revision = listing.revision
        return listing

    async def swap(self, key: str, expected: Stored | None, value: bytes) -> SwapOutcome:
        return await self._swap(key, expected, value)

    async def delete(self, key: str, expected: Stored) -> SwapOutcome:
        return await self._swap(key, expected, None)

    async def _swap(self, key: str, expected: Stored | None, value: bytes | None) -> SwapOutcome:
        if self._is_away and self._dice.random() < 0.5:
            return NotSent(_AWAY)
        sent = SentSwap(key, expected, value)
        try:
            outcome = await self._ask(lambda: self._etcd.swap(*sent), sent)
        except CoordinationError as fault:
            return Unknown(str(fault))
        if isinstance(outcome, Swapped):
            self._revision = max(self._revision, outcome.revision)
        return outcome

    async def put_leased(self, key: str, value: bytes) -> None:
        self._wanted[key] = value
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        else:
            self._world.after(self._delay(), self._renew)

    async def watch(self, prefix: str) -> AsyncGenerator[Listing]:
        changed = self._etcd.subscribe()
        try:
            while True:
                changed.clear()
                yield await self.read_prefix(prefix)
                try:
                    async with asyncio.timeout(_WATCH_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    if self._is_away:
                        raise CoordinationError(_AWAY) from None
                await asyncio.sleep(self._delay())
        finally:
            self._etcd.unsubscribe(changed)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        self._wanted.clear()
        lease = self._lease
        if lease and not self._is_away:
            self._etcd.revoke(lease)

    # The lease

    async def _keep(self) -> None:
        while True:
            self._world.after(self._delay(), self._renew)
            await asyncio.sleep(_RENEW_SECONDS)

    def _renew(self) -> None:
        """Arrives at etcd."""
        if self._is_away or not self._wanted:
            return
        if not (self._lease and self._etcd.keep_alive(self._lease, LEASE_SECONDS)):
            self._lease = self._etcd.grant(LEASE_SECONDS)
            self._stored.clear()
        for key, value in self._wanted.items():
            if self._stored.get(key) != value:
                self._etcd.put(key, value, self._lease)
                self._stored[key] = value

    # The way

    @property
    def _is_away(self) -> bool:
        return self._etcd.away or self._faults.cut.get(self._node, False)

    def _delay(self) -> float:
        return self._dice.uniform(0.000_1, self._faults.delay_max)

    async def _ask(self, do: Callable[[], T], swap: SentSwap | None = None) -> T:
        """Only a swap may be held up on its way, or be lost, or have its answer lost."""
        world, on_the_way = self._world, self._faults.on_the_way
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        delay = self._delay()
        if swap is not None and self._is_lost():
            delay = self._dice.choice((self._dice.uniform(0, _LATE_SECONDS), _NEVER_SECONDS))
        if swap is not None and delay < _NEVER_SECONDS:
            on_the_way.append(swap)

        def arrive() -> None:
            if swap is not None:
                on_the_way.remove(swap)
            if self._is_away:
                return
            result = do()
            if swap is None or not self._is_lost():
                world.after(self._delay(), lambda: answer(result))

        def answer(result: T) -> None:
            if not answered.done() and not self._is_away:
                answered.set_result(result)

        if delay < _NEVER_SECONDS:
            world.after(delay, arrive)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await answered
        except TimeoutError:
            raise CoordinationError(_AWAY) from None

    def _is_lost(self) -> bool:
        return self._dice.random() < self._faults.lost_share
