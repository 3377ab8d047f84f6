"""A worker of a queue without I/O: the jobs that it gets, the outcomes that it reports, and what it
sends about both on a new connection.

Law: an outcome names the broker's epoch in which its jobs were handed out, so that it never counts
for another job."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from fanlog.client.core.arrivals import Arrivals
from fanlog.client.core.job_outcomes import JobOutcomes, OutcomeTurn
from fanlog.client.core.leases import HeldLeases, LeaseInHand
from fanlog.client.message import MessageBatch
from fanlog.client.notices import Notices
from fanlog.errors import FanlogError, InvalidArgumentError, LeaseLostError, UnreadableError
from fanlog.format.batch import Batch
from fanlog.format.batch_cache import BatchCache
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import (
    GapNotice,
    HeldJobs,
    JobOutcome,
    Joined,
    Left,
    Notice,
    OutcomeKind,
    Revoke,
    Settle,
    Settled,
    Welcome,
    Work,
    Working,
    decode,
)
from fanlog.format.offset_ranges import OffsetRange, range_without
from fanlog.model import QueueSettings

logger = logging.getLogger("fanlog.client")


class WorkerPort(Protocol):
    """The client, as far as a worker's decisions need it."""

    @property
    def welcome(self) -> Welcome | None: ...
    def decoded(self, batch: Batch) -> MessageBatch: ...


class WorkerCore:
    """A follower of the client's connection, whose number there is `key`. `settings` are the
    queue's."""

    def __init__(self, host: WorkerPort, key: int, wanted: Work) -> None:
        self._host = host
        self.wanted = wanted
        self.key = key
        self.attached = False
        self.arrivals: Arrivals[LeaseInHand] = Arrivals()
        self.outcomes = JobOutcomes()
        self.held = HeldLeases(wanted.queue, wanted.prefetch)
        self.notices = Notices(wanted.target)
        self.settings = QueueSettings()
        self._names: dict[int, str] = {}
        self._batch_cache: BatchCache[MessageBatch] = BatchCache()
        self._coming: Lease | None = None
        self._epoch = 0

    # Jobs

    def maybe_take(self) -> LeaseInHand | None:
        """The next jobs that came together, if they can be read; something must have come. Jobs
        that can't be read become dead letters with the reason: no other worker could read them
        either."""
        lease = self.arrivals.take()
        try:
            lease.batch.batch.check()
        except UnreadableError as fault:
            logger.warning("queue %s: jobs are rejected: %s", self.wanted.queue, fault)
            self._reject_soon(lease, str(fault))
            return None
        return lease

    def waiting(self) -> list[LeaseInHand]:
        """Received jobs that were not taken yet."""
        return [lease for lease in self.arrivals.items if isinstance(lease, LeaseInHand)]

    # Outcomes

    def report(
        self,
        lease: LeaseInHand,
        verb: OutcomeKind,
        first: int,
        next: int,
        *,
        delay_ms: int = -1,
        reason: str = "",
    ) -> OutcomeTurn:
        """Reports the outcome of some jobs with this turn. The waiting caller checks `late`, or
        calls `take_back` if it fails."""
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"A reason is a str, not {type(reason).__name__}: give str(error) of an exception."
            )
        turn = self.outcomes.turn()
        number, partition, epoch = lease.stretch
        if verb is OutcomeKind.ACK:
            turn.ack(lease.stretch, first, next)
        else:
            turn.say(epoch, JobOutcome(number, partition, verb, first, next, delay_ms, reason))
        if verb is not OutcomeKind.EXTEND:
            self.held.count(lease, next - first)
        return turn

    def take_back(self, lease: LeaseInHand, verb: OutcomeKind, first: int, next: int) -> None:
        """The broker does not have a reported outcome: the jobs are in hand again."""
        if verb is not OutcomeKind.EXTEND:
            self.held.count(lease, first - next)

    def check_in_time(
        self, turn: OutcomeTurn, lease: LeaseInHand, verb: OutcomeKind, first: int, next: int
    ) -> None:
        """Raises if a reported outcome came too late."""
        late = turn.late(verb, lease.stretch, first, next)
        if late:
            raise LeaseLostError(
                f"It was too late for {late} of {next - first} jobs of {lease.batch.topic!r} "
                f"from offset {first} on: their leases expired, and other workers have done "
                "them or have them now. Give jobs more time (visibility_seconds, extend)."
            )

    def ack_soon(self, lease: LeaseInHand, first: int, next: int) -> None:
        """Acks some jobs; what goes wrong is kept for `outcomes.raise_error`."""
        self.report(lease, OutcomeKind.ACK, first, next).watched = True

    def _reject_soon(self, lease: LeaseInHand, reason: str) -> None:
        verb = OutcomeKind.REJECT
        self.report(lease, verb, lease.first, lease.next, reason=reason).watched = True

    def extend_all(self) -> None:
        """Asks for more time for all jobs in hand. To be called long before leases expire. Nothing
        may keep a lease here: it would stay in hand even after the application has dropped its
        jobs."""
        self.held.warn_if_stuck(waited=self.arrivals.wanted)
        ranges = list(self.held.ranges())
        if ranges:
            turn = self.outcomes.turn()
            for (number, partition, epoch), first, next in ranges:
                turn.say(epoch, JobOutcome(number, partition, OutcomeKind.EXTEND, first, next, -1))

    def settled(
        self, turn: OutcomeTurn, settle: Settle, payload: bytes, before: Welcome | None
    ) -> None:
        """The broker's answer to one frame of a turn; `before` is the greeting of the connection
        on which it was first sent."""
        late = decode(Settled, payload).late
        again = self._host.welcome is not before
        # The first one may have taken effect: then it is normal that this one was late. But who
        # rejects a job has to know that it may be with another worker.
        turn.came_late(
            tuple(one for one in late if one.verb == OutcomeKind.REJECT) if again else late
        )
        # Jobs may have come again meanwhile: their leases ran out, or the broker was restarted.
        if again or any(
            lease.deliveries > 1 or lease.stretch[2] != settle.epoch for lease in self.waiting()
        ):
            late_acks = [one for one in late if one.verb == OutcomeKind.ACK]
            for outcome in settle.outcomes:
                if outcome.verb == OutcomeKind.ACK:
                    self._drop_acked(outcome, late_acks, settle.epoch)

    def _drop_acked(self, ack: JobOutcome, late: list[JobOutcome], epoch: int) -> None:
        """Jobs that are done. The broker may have handed them out again in between, after a restart
        without the ack, or when their leases ran out: they are dropped here. A late ack from before
        a restart may be about other jobs than those that have these offsets now."""
        tp = (ack.number, ack.partition)
        came_late = [(one.first, one.next) for one in late if (one.number, one.partition) == tp]
        in_time = range_without(ack.first, ack.next, came_late)
        for lease in self.waiting():
            if lease.stretch[:2] == tp:
                same_epoch = lease.stretch[2] == epoch
                self._drop(lease, [(ack.first, ack.next)] if same_epoch else in_time)

    def _drop(self, lease: LeaseInHand, done: list[OffsetRange]) -> None:
        """Drops some jobs of a lease that waits."""
        left = range_without(lease.first, lease.next, done)
        if left == [(lease.first, lease.next)]:
            return
        items = self.arrivals.items
        at = items.index(lease)
        del items[at]
        self.held.discard(lease)
        for first, next in reversed(left):
            part = lease.part(first, next)
            items.insert(at, part)
            self.held.add(part)

    # The conversation

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        self._note_epoch()
        return FrameKind.WORK, self.wanted

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """Comes back with its jobs. A restarted broker has forgotten the leases, and hands out
        again the jobs that the application has not got yet."""
        self._batch_cache = BatchCache()
        self._coming = None
        if self._note_epoch():
            for lease in self.waiting():
                self.held.discard(lease)
            self.arrivals.items.clear()
        holds = tuple(
            HeldJobs(number, partition, first, next)
            for (number, partition, epoch), first, next in (
                *self.held.ranges(),
                *self.outcomes.unanswered(),
            )
            if epoch == self._epoch
        )
        wanted = msgspec.structs.replace(self.wanted, holds=holds, settings={}, missing="wait")
        return FrameKind.WORK, wanted

    def opened(self, payload: bytes) -> None:
        # The request may have been sent again to a broker that was restarted meanwhile.
        self._note_epoch()
        self.settings = decode(Working, payload).settings

    def _note_epoch(self) -> bool:
        """Whether the broker is another than before."""
        welcome = self._host.welcome
        before, self._epoch = self._epoch, 0 if welcome is None else welcome.epoch
        return before != self._epoch

    def end(self, error: FanlogError) -> None:
        """No more jobs will come."""
        self.arrivals.close(error)

    # What the broker sends

    def leased(self, lease: Lease) -> None:
        if lease.fresh:
            self._coming = lease
            return
        batch = self._batch_cache.get((lease.number, lease.partition, lease.base_offset))
        if batch is not None:
            self._take(lease, batch)

    def delivered(self, batch: Batch) -> None:
        lease, self._coming = self._coming, None
        if lease is None:
            return
        batch.topic_name = self._names.get(lease.number, "")
        decoded = self._host.decoded(batch)
        tp = (lease.number, lease.partition, lease.base_offset)
        self._batch_cache.put(tp, decoded, batch.header.length)
        self._take(lease, decoded)

    def _take(self, lease: Lease, batch: MessageBatch) -> None:
        # Jobs of a topic that is gone can't be settled any more.
        if lease.number in self._names and self.arrivals.closed is None:
            taken = LeaseInHand(lease, batch, self._epoch)
            if taken.is_empty():
                # Compaction has left nothing there to do.
                self.ack_soon(taken, lease.first, lease.next)
                return
            if taken.deliveries > 1:
                # Its lease has run out before the application got it.
                for before in self.waiting():
                    if before.stretch == taken.stretch:
                        self._drop(before, [(taken.first, taken.next)])
            self.held.add(taken)
            self.arrivals.put(taken)

    def joined(self, joined: Joined) -> None:
        self._names[joined.number] = joined.name

    def left(self, left: Left) -> None:
        self.notices.left(left.name)
        self._names.pop(left.number, None)
        for lease in [lease for lease in self.waiting() if lease.stretch[0] == left.number]:
            self.arrivals.items.remove(lease)
            self.held.discard(lease)

    def noticed(self, notice: Notice) -> None:
        self.notices.take(notice, was_there=bool(self._names))

    def missed_some(self, notice: GapNotice) -> None:
        """Only for a subscription."""

    def revoked(self, revoke: Revoke) -> None:
        """Only for a group's member."""
