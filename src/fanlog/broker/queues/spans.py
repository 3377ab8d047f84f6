"""The jobs of one partition as spans: neighbouring records in the same state. Spans cover all
offsets from `floor`, below which everything is done, up to `next`, from where on nothing was handed
out. So memory grows with the jobs in flight, not with the published ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import IntEnum


class JobState(IntEnum):
    DONE = 0
    LEASED = 1
    # Waits to be handed out (again) at `due_us`.
    WAITING = 2
    # Waits for another job of its key.
    PARKED = 3
    # On its way into the dead-letter topic.
    DEAD = 4
    # An ack is on its way to the disk. The worker has room for another job.
    FINISHING = 5
    # A nack or reject is. The worker still has the job.
    FAILING = 6


class JobSpan:
    """`due_us` is when a lease runs out, or when a waiting job may go out. `failures` counts the
    deliveries that came to nothing; `reason` is why the last did. `priority` is known once they
    were handed out, and `since_us` is when they were handed out last."""

    __slots__ = (
        "due_us",
        "failures",
        "first",
        "next",
        "priority",
        "reason",
        "since_us",
        "state",
        "worker",
    )

    def __init__(
        self,
        first: int,
        next: int,
        state: JobState,
        *,
        worker: str = "",
        due_us: int = 0,
        failures: int = 0,
        reason: str = "",
    ) -> None:
        self.first = first
        self.next = next
        self.state = state
        self.worker = worker
        self.due_us = due_us
        self.failures = failures
        self.reason = reason
        self.priority = 0
        self.since_us = 0

    def __len__(self) -> int:
        return self.next - self.first

    def __repr__(self) -> str:
        return f"<Span {self.first}..{self.next - 1} {self.state.name} {self.worker}>"


class Spans:
    """An ordered cover of the offsets from `floor` to `next`."""

    __slots__ = ("_firsts", "_spans", "floor", "next")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.next = floor
        self._firsts: list[int] = []
        self._spans: list[JobSpan] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[JobSpan]:
        return iter(self._spans)

    def append(self, span: JobSpan) -> JobSpan:
        """Appends a span that begins at `next`."""
        self._firsts.append(span.first)
        self._spans.append(span)
        self.next = span.next
        return span

    def within(self, first: int, next: int) -> Iterator[JobSpan]:
        """Spans that have a part between the two, as they are; the cover must not change
        meanwhile."""
        i = max(0, bisect_right(self._firsts, first) - 1)
        while i < len(self._spans):
            span = self._spans[i]
            if span.first >= next:
                return
            if span.next > first:
                yield span
            i += 1

    def cut(self, first: int, next: int) -> list[JobSpan]:
        """Splits spans at both ends of a range, and returns those inside."""
        first, next = max(first, self.floor), min(next, self.next)
        if first >= next:
            return []
        i = bisect_right(self._firsts, first) - 1
        if self._spans[i].first < first:
            self._split(i, first)
            i += 1
        end = bisect_left(self._firsts, next, i)
        if self._spans[end - 1].next > next:
            self._split(end - 1, next)
        return self._spans[i:end]

    def tidy(self, first: int, next: int) -> None:
        """Joins neighbours that are done between the two and beside them, and moves the floor."""
        i = max(0, bisect_right(self._firsts, first) - 2)
        while i + 1 < len(self._spans) and self._spans[i].first <= next:
            span, after = self._spans[i], self._spans[i + 1]
            if span.state is after.state is JobState.DONE:
                # All at once: a long run of small spans must not cost its square.
                end = i + 2
                while end < len(self._spans) and self._spans[end].state is JobState.DONE:
                    end += 1
                span.next = self._spans[end - 1].next
                del self._spans[i + 1 : end], self._firsts[i + 1 : end]
            else:
                i += 1
        if self._spans and self._spans[0].state is JobState.DONE:
            self.floor = self._spans[0].next
            del self._spans[0], self._firsts[0]

    def _split(self, i: int, at: int) -> None:
        span = self._spans[i]
        rest = JobSpan(
            at,
            span.next,
            span.state,
            worker=span.worker,
            due_us=span.due_us,
            failures=span.failures,
            reason=span.reason,
        )
        rest.priority = span.priority
        rest.since_us = span.since_us
        span.next = at
        self._firsts.insert(i + 1, at)
        self._spans.insert(i + 1, rest)
