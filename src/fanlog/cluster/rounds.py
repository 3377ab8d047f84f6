"""Who waits until the in-sync set has said that this node is still the primary. No I/O.

Law: a job or a partition is assigned first, then a round begins, and the client learns of it when
all of the in-sync set have answered that round. A round is a number in the frames to the followers,
which they send back with what they have. No clock is part of this.

Why that is enough. The primary of the next reign is a member of this reign's in-sync set: nobody
else can be promoted. It stops following before it opens its copy as the primary, so it never
answers a round of the old primary after that. When all of the set have answered a round, the next
reign had not opened when the round began. So no later primary had taken an ack, or assigned a
partition, before this one made its assignment, which is older than the round.

What is left is an assignment that reaches its client late: the next primary may open while the
answers are on their way, and the same job may be handed out and acknowledged there. It is as if the
frame had been slow: the job was handed out before it was acknowledged. An ack or an offset commit
of the late client does not count here, because nothing is committed without the in-sync set.

A pause, however long, changes nothing. What becomes possible while a round is on its way (a worker
that joins, a job whose worker is gone) is assigned after that round began, and waits for the next
one. A follower that lost its connection has answered nothing, until it has answered on a new one.
If an operator promotes a node that was not in sync, this does not hold, like the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Resume = Callable[[], None]


class Rounds:
    """`newest` is the number of the newest round: it goes into every frame."""

    def __init__(self) -> None:
        self.newest = 0
        # Those that wait for a round that has not begun.
        self._next: list[Resume] = []
        self._begun: deque[tuple[int, list[Resume]]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a round that has not begun."""
        return bool(self._next)

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a round that has begun."""
        return bool(self._begun)

    def wait(self, resume: Resume) -> None:
        """Waits for a round that begins after this."""
        self._next.append(resume)

    def begin(self) -> None:
        """The frames that are sent from now on have the number of a new round."""
        self.newest += 1
        if self._next:
            self._begun.append((self.newest, self._next))
            self._next = []

    def answered(self, number: int) -> list[Resume]:
        """Everybody has answered this round or a later one. Those that waited for it, in the order
        in which they came."""
        ready: list[Resume] = []
        while self._begun and self._begun[0][0] <= number:
            ready += self._begun.popleft()[1]
        return ready
