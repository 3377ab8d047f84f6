"""What an outbox is given: a connection, clocks, and a tracer if the program has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from fanlog.client.core.outbox import PublishSpan


class Wire(Protocol):
    """The connection, as far as publishing needs it."""

    @property
    def ready(self) -> bool: ...
    def write(self, data: bytes) -> None: ...


class OutboxClock(NamedTuple):
    """The clocks that an outbox is given: one that never goes back, and the time of day."""

    monotonic: Callable[[], float]
    time_ns: Callable[[], int]


class PublishTracer(Protocol):
    """Makes the spans of published messages."""

    def publishing(
        self, topic: str, headers: Mapping[str, bytes] | None, value: bytes | None
    ) -> tuple[PublishSpan | None, dict[str, bytes]]: ...


class MarkAllowance:
    """How many sampled records a second the broker wants to learn of. A fast publisher that
    samples much would keep it busy with nothing else."""

    __slots__ = ("_left", "_second", "per_second_max")

    def __init__(self) -> None:
        self.per_second_max = 0
        self._left = 0
        self._second = 0

    def take(self, now: float) -> bool:
        """Whether it wants to learn of one more."""
        second = int(now)
        if second != self._second:
            self._second, self._left = second, self.per_second_max
        self._left -= 1
        return self._left >= 0
