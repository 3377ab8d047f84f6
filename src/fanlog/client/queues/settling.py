"""Sends outcomes to the broker: all of one turn of the loop in one frame, and neighbouring jobs as
one range."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from fanlog.errors import LeaseLostError
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled

logger = logging.getLogger("fanlog.client")

# Sends outcomes; the answer, and whether they may have been sent more than once.
SendOutcomes = Callable[[Settle], Awaitable[tuple[Settled, bool]]]
# Called for outcomes that were sent again on another connection.
Repeated = Callable[[Settle], None]
# Topic number, partition, and the broker's epoch when the jobs were handed out.
Stretch = tuple[int, int, int]
_OUTCOMES_A_FRAME = 4096


class Turn:
    """The outcomes of one turn of the loop, and their result."""

    __slots__ = ("_acks", "_late", "_others", "done", "watched")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.watched = False
        self._acks: dict[Stretch, list[list[int]]] = {}
        self._others: list[tuple[int, JobOutcome]] = []
        self._late: list[JobOutcome] = []

    def ack(self, stretch: Stretch, first: int, next: int) -> None:
        ranges = self._acks.get(stretch)
        if ranges is None:
            self._acks[stretch] = [[first, next]]
        elif ranges[-1][1] == first:
            ranges[-1][1] = next
        else:
            ranges.append([first, next])

    def say(self, epoch: int, outcome: JobOutcome) -> None:
        self._others.append((epoch, outcome))

    def settles(self) -> Iterator[Settle]:
        """The frames that say it, each about the jobs of one epoch."""
        by_epoch: dict[int, list[JobOutcome]] = {}
        for (number, partition, epoch), ranges in self._acks.items():
            outcomes = by_epoch.setdefault(epoch, [])
            for first, next in _joined(ranges):
                outcomes.append(JobOutcome(number, partition, OutcomeKind.ACK, first, next))
        for epoch, outcome in self._others:
            by_epoch.setdefault(epoch, []).append(outcome)
        for epoch, outcomes in by_epoch.items():
            for at in range(0, len(outcomes), _OUTCOMES_A_FRAME):
                yield Settle(tuple(outcomes[at : at + _OUTCOMES_A_FRAME]), epoch)

    def ranges(self) -> Iterator[tuple[Stretch, int, int]]:
        """The jobs that it is about."""
        for stretch, ranges in self._acks.items():
            for first, next in ranges:
                yield stretch, first, next
        for epoch, outcome in self._others:
            yield (outcome.number, outcome.partition, epoch), outcome.first, outcome.next

    async def wait(self) -> None:
        """Waits until the broker has answered. Others wait too: one that gives up must not end
        it."""
        await asyncio.shield(self.done)

    def came_late(self, late: tuple[JobOutcome, ...]) -> None:
        self._late += late

    def late(self, verb: OutcomeKind, stretch: Stretch, first: int, next: int) -> int:
        """How many of these jobs the outcome came too late for."""
        return sum(
            max(0, min(next, v.next) - max(first, v.first))
            for v in self._late
            if (v.verb, v.number, v.partition) == (verb, stretch[0], stretch[1])
        )

    def late_acks(self) -> int:
        return sum(v.next - v.first for v in self._late if v.verb == OutcomeKind.ACK)


class JobSettling:
    """One worker's outcomes. `flush` raises the errors of those that nobody waits for."""

    def __init__(self, send: SendOutcomes, repeated: Repeated) -> None:
        self._send = send
        self._repeated = repeated
        self._turn: Turn | None = None
        self._under_way: dict[asyncio.Task[None], Turn] = {}
        self._error: Exception | None = None

    def turn(self) -> Turn:
        """This turn of the loop, which goes out when it ends."""
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = Turn(loop.create_future())
            loop.call_soon(self._go)
        return self._turn

    def _go(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            task = asyncio.ensure_future(self._settle(turn))
            self._under_way[task] = turn
            task.add_done_callback(self._under_way.pop)

    async def _settle(self, turn: Turn) -> None:
        try:
            for settle in turn.settles():
                settled, repeated = await self._send(settle)
                if repeated:
                    # The first one may have taken effect: then it is normal that this one was late.
                    self._repeated(settle)
                else:
                    turn.came_late(settled.late)
        except Exception as error:  # noqa: BLE001 - whoever waits for the outcome must hear of it
            turn.done.set_exception(error)
            # A caller may wait for it, or none.
            turn.done.exception()
        else:
            turn.done.set_result(None)

    def unanswered(self) -> Iterator[tuple[Stretch, int, int]]:
        """Jobs whose outcomes the broker may not know yet."""
        turns = [*self._under_way.values(), *([] if self._turn is None else [self._turn])]
        for turn in turns:
            yield from turn.ranges()

    def watch(self, turn: Turn) -> None:
        """Nobody waits for acks of this turn: their errors are kept for `flush`."""
        turn.watched = True

        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, Exception):
                self._error = self._error or error
                logger.error("jobs were not acked: %s", error)
            elif turn.late_acks():
                self._error = self._error or LeaseLostError(
                    f"{turn.late_acks()} jobs were acked too late: others have done them, or they "
                    "are dead letters. Give them more time (visibility_seconds)."
                )

        turn.done.add_done_callback(done)

    async def drain(self) -> None:
        """Waits until all outcomes are answered."""
        self._go()
        while self._under_way:
            await asyncio.wait(self._under_way)
        # Watchers of a turn are called in the next one.
        await asyncio.sleep(0)

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _joined(ranges: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Merges ranges: the same jobs in as few as possible."""
    ranges.sort()
    current = ranges[0]
    for one in ranges[1:]:
        if one[0] <= current[1]:
            current[1] = max(current[1], one[1])
        else:
            yield current[0], current[1]
            current = one
    yield current[0], current[1]
