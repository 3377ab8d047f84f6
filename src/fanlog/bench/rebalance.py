"""Rebalancing: how long it takes until every member of a large group has its share, and what other
clients' pings wait meanwhile.

Law: the members are real clients, all in one load process, and stay from one row to the next. A
row ends when every topic has one reader and none has two more than another. A member that loses a
partition by force, or its connection, ends the run with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fanlog.bench.operations import HOST, Operation, Scale, create_topics, idle, nothing
from fanlog.bench.pings import pinging
from fanlog.bench.results import StallsReport, StallsRow
from fanlog.bench.runner import BenchProgress, RunOptions, environment_of, load_process, silent
from fanlog.bench.stalls import OPERATIONS_CONFIG, measure
from fanlog.bench.systems import BenchError, SystemSpec, choose_cores, started
from fanlog.client.aio import Client, connect
from fanlog.client.groups.member import GroupMember

_PATTERN = "user.>"
_LOOK_S = 0.005
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceOptions(RunOptions):
    """The number of the group's topics, and of its members."""

    topics: int = 10_000
    members: int = 64


def run_rebalance(options: RebalanceOptions, progress: BenchProgress = silent) -> StallsReport:
    """Let members join and leave a group.

    >>> run_rebalance(RebalanceOptions(topics=1000, members=8))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    scale = Scale(topics=options.topics, groups=options.members)
    rows: list[StallsRow] = []
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(load_process(cores.load))
        spec = SystemSpec("fanlog", config=OPERATIONS_CONFIG)
        system = stack.enter_context(started(spec, cores.system, options.directory))
        pinger = stack.enter_context(pinging(system.port, cores.load))
        for operation in OPERATIONS:
            progress(len(rows), len(OPERATIONS), operation.label(scale))
            rows.append(measure(operation, system.port, scale, load, pinger))
        load.call(_leave_all)
    progress(len(OPERATIONS), len(OPERATIONS), "done")
    return StallsReport(rows=rows, left_out=[], environment=environment)


class _Crew:
    """Members of one group on a loop of their own, which runs between the rows, too."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._members: list[tuple[Client, GroupMember]] = []

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def join(self, port: int, count: int) -> None:
        for _ in range(count):
            client = await connect(f"fanlog://{HOST}:{port}")
            member = client.consume(_PATTERN, group="crew", commit="manual")
            await member.start()
            self._members.append((client, member))

    async def leave(self, count: int | None = None) -> None:
        """So many, or all."""
        for _ in range(len(self._members) if count is None else count):
            client, member = self._members.pop()
            await member.close()
            await client.close()

    async def shared(self, topics: int) -> None:
        """Waits until each member has its share."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                loads = [len(member.partitions) for _, member in self._members]
                if sum(loads) == topics and max(loads) - min(loads) <= 1:
                    break
                await asyncio.sleep(_LOOK_S)
        if any(client.reconnects for client, _ in self._members):
            raise BenchError("the broker gave up a member's connection")


_crew: _Crew | None = None


def _the_crew() -> _Crew:
    global _crew  # noqa: PLW0603 - the load process has one, from one call to the next
    if _crew is None:
        _crew = _Crew()
    return _crew


def _join_all(port: int, scale: Scale) -> None:
    crew = _the_crew()
    crew.run(crew.join(port, scale.groups))
    crew.run(crew.shared(scale.topics))


def _join_one(port: int, scale: Scale) -> None:
    crew = _the_crew()
    crew.run(crew.join(port, 1))
    crew.run(crew.shared(scale.topics))


def _leave_one(port: int, scale: Scale) -> None:
    del port
    crew = _the_crew()
    crew.run(crew.leave(1))
    crew.run(crew.shared(scale.topics))


def _leave_all() -> None:
    crew = _the_crew()
    crew.run(crew.leave())


OPERATIONS = (
    Operation("nothing at all", create_topics, idle),
    Operation("{scale.groups} members join {scale.topics:,} topics", nothing, _join_all),
    Operation("one more joins", nothing, _join_one),
    Operation("one leaves", nothing, _leave_one),
)
