"""Processes that do one thing together: each makes itself ready, all begin at the same moment.

Law: what a role does before `start()` is not measured; the clock runs from the word that lets all
of them go to the last one's end. The processes stay from run to run, so that starting them is no
part of any. They share the machine's cores with the system: nothing is pinned here.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeAlias, TypeVar

import uvloop

from fanlog.bench.systems import BenchError

READY = "ready"
GO = "go"
RUN_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0

PeerPipe: TypeAlias = "Connection[Any, Any]"
StartSignal: TypeAlias = Callable[[], Awaitable[None]]
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class RoleResult:
    """The result of one process: its count, and the time of the last item."""

    count: int
    ended_s: float


CrewRole: TypeAlias = "Callable[[P, StartSignal], Coroutine[Any, Any, RoleResult]]"


@dataclass(frozen=True, slots=True)
class CrewTask(Generic[P]):
    """The role of a process, and its arguments."""

    role: CrewRole[P]
    given: P


class Crew:
    """A process for each member."""

    def __init__(self, members: Sequence[tuple[BaseProcess, PeerPipe]]) -> None:
        self._members = members

    def play(self, parts: Sequence[CrewTask[P]]) -> tuple[int, float]:
        """Runs a role in each process. Returns the total count and the seconds."""
        peers = [peer for _, peer in self._members[: len(parts)]]
        for peer, part in zip(peers, parts, strict=True):
            peer.send(part)
        for peer in peers:
            _expect(peer, str, READY)
        began = time.perf_counter()
        for peer in peers:
            peer.send(GO)
        done = [_expect(peer, RoleResult) for peer in peers]
        return sum(one.count for one in done), max(one.ended_s for one in done) - began


@contextlib.contextmanager
def crew_of(processes: int) -> Generator[Crew]:
    """Starts processes, which end with the body."""
    context = multiprocessing.get_context("spawn")
    members: list[tuple[BaseProcess, PeerPipe]] = []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_attend, args=(theirs,), daemon=True)
            process.start()
            # Only the child holds the other end now: when it dies, our end says so.
            theirs.close()
            members.append((process, ours))
        yield Crew(members)
    finally:
        for process, ours in members:
            ours.close()
            process.join(END_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()


def _attend(parent: PeerPipe) -> None:
    """The main loop of a process: one role after the other, until the parent closes its end."""

    async def start() -> None:
        parent.send(READY)
        # In a thread: the loop keeps running for the client.
        await asyncio.to_thread(parent.recv)

    with contextlib.suppress(EOFError):
        while True:
            part: CrewTask[Any] = parent.recv()
            try:
                parent.send(uvloop.run(part.role(part.given, start)))
            except BenchError as error:
                parent.send(error)


T = TypeVar("T")


def _expect(peer: PeerPipe, kind: type[T], wanted: T | None = None) -> T:
    """The next message of a process, which must be of this type."""
    try:
        if not peer.poll(RUN_TIMEOUT_S):
            raise BenchError(f"a client's process said nothing for {RUN_TIMEOUT_S:.0f} s")
        said: object = peer.recv()
    except EOFError:
        raise BenchError("a client's process ended without a result; see its error above") from None
    if isinstance(said, BenchError):
        raise said
    if not isinstance(said, kind) or (wanted is not None and said != wanted):
        raise BenchError(f"a client's process said {said!r} out of turn")
    return said
