"""The outcomes of jobs on their way to the broker: all of one turn of the shell's loop in one
frame, and neighbouring jobs as one range. On a new connection, unanswered outcomes go back to the
worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from fanlog.client.core.leases import Stretch
from fanlog.errors import LeaseLostError
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle
from fanlog.format.offset_ranges import joined

logger = logging.getLogger("fanlog.client")

OnFinished = Callable[[Exception | None], None]
_OUTCOMES_A_FRAME = 4096


class OutcomeTurn:
    """The outcomes of one turn of the loop, and what became of them. Each of `waiters` is called
    once; if `watched`, some outcomes have none."""

    __slots__ = ("_acks", "_late", "_others", "waiters", "watched")

    def __init__(self) -> None:
        self.watched = False
        self.waiters: list[OnFinished] = []
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
            for first, next in joined((first, next) for first, next in ranges):
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


class JobOutcomes:
    """The outcomes of one worker. `on_first` is called with the first of a turn: when the turn of
    its loop ends, the shell sends what `take_turn` gives."""

    __slots__ = ("_error", "_turn", "_under_way", "on_first")

    def __init__(self) -> None:
        self.on_first: Callable[[], None] | None = None
        self._turn: OutcomeTurn | None = None
        # A dict keeps the order in which they were sent.
        self._under_way: dict[OutcomeTurn, None] = {}
        self._error: Exception | None = None

    def turn(self) -> OutcomeTurn:
        """The outcomes that go out together."""
        if self._turn is None:
            self._turn = OutcomeTurn()
            if self.on_first is not None:
                self.on_first()
        return self._turn

    def take_turn(self) -> OutcomeTurn | None:
        """The turn is over: what to send, if there is anything. Call `finished` for it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._under_way[turn] = None
        return turn

    def finished(self, turn: OutcomeTurn, error: Exception | None = None) -> None:
        """All frames of a turn are answered, or one has failed. The error of outcomes that nobody
        waits for is kept."""
        self._under_way.pop(turn, None)
        if turn.watched and error is not None:
            self._error = self._error or error
            logger.error("jobs were not acked: %s", error)
        elif turn.watched and (late := turn.late_acks()):
            self._error = self._error or LeaseLostError(
                f"{late} jobs were acked too late: other workers have done them, or they are "
                "dead letters. Give them more time (visibility_seconds)."
            )
        waiters, turn.waiters = turn.waiters, []
        for waiter in waiters:
            waiter(error)

    def unanswered(self) -> Iterator[tuple[Stretch, int, int]]:
        """Jobs whose outcomes the broker may not know yet."""
        for turn in (*self._under_way, *(() if self._turn is None else (self._turn,))):
            yield from turn.ranges()

    def raise_error(self) -> None:
        """Raises errors of outcomes that no caller has waited for."""
        error, self._error = self._error, None
        if error is not None:
            raise error
