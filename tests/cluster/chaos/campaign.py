"""One round after the other, until the time is over: one or two faults are there for a while, then
they are undone; writes have to go on soon, and all nodes have to be in sync again."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.table import Table

from tests.cluster.chaos.faults import Fault, Scene, possible
from tests.cluster.chaos.site import Site
from tests.cluster.workload import Workload

# After the faults are undone. On a machine that does nothing else it takes a few seconds.
_RESUME_MESSAGES = 20
_TWO_FAULTS = 0.3
_HOLD_SECONDS_MIN = 0.2


class Others(Protocol):
    """Clients beside those of `Workload`."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]: ...
    async def start(self) -> None: ...
    async def finish(self) -> None: ...
    async def check(self, url: str) -> None: ...


class Round(NamedTuple):
    """What happened, and how long no publisher was answered: in all, and once it was undone."""

    faults: tuple[str, ...]
    rest_s: float
    resumed_s: float
    whole_s: float


class Campaign:
    def __init__(
        self, site: Site, scene: Scene, workload: Workload, others: Sequence[Others]
    ) -> None:
        self._site = site
        self._scene = scene
        self._workload = workload
        self._others = others
        self._faults = possible(site)
        self._begun = time.monotonic()
        self._hold_seconds = 0.0
        self.rounds: list[Round] = []
        self.console = Console(highlight=False, soft_wrap=True)

    async def run(self, seconds: float, hold_seconds: float) -> None:
        """Each fault once, in random order, then again in another one. At least one round. A fault
        lasts for up to `hold_seconds`."""
        self._hold_seconds = hold_seconds
        until = self._begun + seconds
        waiting: list[Fault] = []
        while not self.rounds or time.monotonic() < until:
            if not waiting:
                waiting = self._scene.dice.sample(self._faults, len(self._faults))
            chosen = [waiting.pop()]
            if not chosen[0].alone and self._scene.dice.random() < _TWO_FAULTS:
                chosen.append(self._scene.dice.choice([f for f in self._faults if not f.alone]))
            await self._round(chosen)

    async def _round(self, faults: Sequence[Fault]) -> None:
        workload, dice = self._workload, self._scene.dice
        workload.longest_rest_s = 0.0
        shown: list[str] = []
        self._scene.hit.clear()
        async with AsyncExitStack() as undo:
            for fault in faults:
                what = await undo.enter_async_context(fault.run(self._scene))
                shown.append(f"{fault.name} {what}")
            await self._hold(dice.uniform(_HOLD_SECONDS_MIN, self._hold_seconds))
        undone = time.monotonic()
        await workload.more(_RESUME_MESSAGES)
        resumed = time.monotonic()
        await self._while_alive(lambda: asyncio.to_thread(self._site.cluster.wait_whole))
        one = Round(
            tuple(fault.name for fault in faults),
            workload.longest_rest_s,
            resumed - undone,
            time.monotonic() - undone,
        )
        self.rounds.append(one)
        self._show(f"{' + '.join(shown)}", one)

    async def _hold(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._check_alive()

    async def _while_alive(self, wait: Callable[[], Awaitable[object]]) -> None:
        await wait()
        self._check_alive()

    def _check_alive(self) -> None:
        self._workload.check_alive()
        for others in self._others:
            for task in others.tasks:
                if task.done() and not task.cancelled():
                    task.result()

    def _show(self, what: str, one: Round) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        self.console.print(
            f"{minutes:02}:{seconds:02} {what}: no write for {one.rest_s:.1f} s, "
            f"again {one.resumed_s:.1f} s after its end, in sync after {one.whole_s:.1f} s"
            f" ({len(self._workload.acknowledged):,} acknowledged)"
        )

    def summary(self) -> Table:
        """A line for each fault."""
        table = Table("fault", "times", "longest rest", "longest until a write", "until in sync")
        by_name: defaultdict[str, list[Round]] = defaultdict(list)
        for one in self.rounds:
            for name in one.faults:
                by_name[name].append(one)
        for name, rounds in sorted(by_name.items()):
            table.add_row(
                name,
                str(len(rounds)),
                *(
                    f"{max(values):.1f} s"
                    for values in (
                        [one.rest_s for one in rounds],
                        [one.resumed_s for one in rounds],
                        [one.whole_s for one in rounds],
                    )
                ),
            )
        return table
