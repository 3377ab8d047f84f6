"""What the intake asks of an origin, besides where answers go: which topics it may publish to,
whether it is above its rate, and whether it can wait. The broker itself, and a listener that has
asked before, are `Unrestricted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from fanlog.broker.messages.allowed_partitions import AllowedPartitions
from fanlog.broker.ports import Origin
from fanlog.errors import FanlogError

# Returns the error against publishing to a topic, or against an id of a delayed message, or None.
Guard = Callable[[str], FanlogError | None]


class Checked(NamedTuple):
    """A decoded batch, identified by its checksum, and its error if any. `targets` are the topics
    of its delayed messages, and `keys` their keys."""

    body_crc: int
    length: int
    fault: FanlogError | None
    targets: frozenset[str] = frozenset()
    keys: frozenset[bytes] = frozenset()


class Patient(Protocol):
    """A publisher that can wait. While `checking`, it offers nothing; then `resume` is called, and
    it offers the same batches again."""

    checked: list[Checked]
    checking: bool

    def resume(self) -> None: ...


class Restrictions(Protocol):
    @property
    def allowed(self) -> AllowedPartitions | None:
        """The partitions that it may publish to; None: all."""
        ...

    @property
    def guard(self) -> Guard | None:
        """The same by a topic's name, with the error. None: it may publish to all topics."""
        ...

    @property
    def schedule_guard(self) -> Guard | None:
        """Asked about ids of delayed messages that it replaces. None: it may replace all."""
        ...

    @property
    def limited(self) -> FanlogError | None:
        """The error for its batches while it is above its rate."""
        ...

    @property
    def patient(self) -> Patient | None:
        """How it waits until a thread has decoded its batches. None: it can't wait, and they are
        decoded at once."""
        ...


class RestrictedOrigin(Origin, Restrictions, Protocol):
    """An origin as the intake sees it."""


class Unrestricted:
    """It may do everything, and waits for nothing. A subclass says what it does not share."""

    allowed: AllowedPartitions | None = None
    guard: Guard | None = None
    schedule_guard: Guard | None = None
    limited: FanlogError | None = None
    patient: Patient | None = None


UNRESTRICTED = Unrestricted()
