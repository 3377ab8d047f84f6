"""What is expected of a queue, job by job: new, out with a worker, waiting, done or dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fanlog.errors import FanlogError
from fanlog.format.messages import OutcomeKind, Settled
from tests.broker.model.world import Place

JobPlace = tuple[Place, int]
DELIVERIES_MAX = 3


@dataclass
class JobModel:
    """`due_us` is when the lease runs out, or when the job may go out again. Whether the last
    outcome on it counted is `unsure` after a crash that came before the answer."""

    state: Literal["new", "out", "waiting", "done", "dead"] = "new"
    failures: int = 0
    worker: str = ""
    due_us: int = 0
    reason: str = ""
    unsure: bool = False

    @property
    def over(self) -> bool:
        return self.state in ("done", "dead")

    def is_with(self, worker: str) -> bool:
        return self.state == "out" and self.worker == worker

    def go_out(self, worker: str, deliveries: int, now_us: int, deadline_us: int) -> None:
        """It is handed to a worker: nobody else has it, it is not over, and its time has come."""
        assert self.unsure or self.state in ("new", "waiting")
        assert self.state == "new" or self.due_us <= now_us
        if self.unsure:
            assert deliveries - 1 in (self.failures, self.failures + 1)
            self.failures, self.unsure = deliveries - 1, False
        assert deliveries == self.failures + 1
        self.state, self.worker, self.due_us = "out", worker, deadline_us

    def fail(self, reason: str, due_us: int, deliveries_max: int = DELIVERIES_MAX) -> None:
        self.failures += 1
        self.reason = reason
        dead = self.failures >= deliveries_max
        self.state, self.worker, self.due_us = "dead" if dead else "waiting", "", due_us

    def give_back(self) -> None:
        self.state, self.worker, self.due_us = "waiting", "", 0


class Said(NamedTuple):
    """Outcomes that are not answered yet, and which of them come too late. Of those in `either`
    nobody can tell."""

    answers: list[Settled | FanlogError]
    late: set[JobPlace]
    either: set[JobPlace]
    verb: OutcomeKind
    about: set[JobPlace]
