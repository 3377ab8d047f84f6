"""Jobs that came together, which get their outcome together: one range, however many they are."""

from __future__ import annotations

from collections.abc import Iterator

from fanlog.client.message import Message
from fanlog.client.queues.jobs import Job, LeaseInHand, milliseconds
from fanlog.format.messages import OutcomeKind


class JobBatch:
    """Jobs that came together: neighbours in one partition. For speed, ack them all at once.

    >>> async for batch in worker.batches():  # doctest: +SKIP
    ...     insert_rows(batch.values)
    ...     await batch.ack()
    """

    __slots__ = ("_lease",)

    def __init__(self, lease: LeaseInHand) -> None:
        self._lease = lease

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._lease.batch.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self._lease.stretch[1]

    @property
    def first(self) -> int:
        """The offset of the first job."""
        return self._lease.first

    @property
    def next(self) -> int:
        """The offset behind the last job."""
        return self._lease.next

    @property
    def deliveries(self) -> int:
        """How often the jobs were delivered, this time included."""
        return self._lease.deliveries

    @property
    def messages(self) -> list[Message]:
        """The messages of the jobs."""
        return self._lease.messages

    @property
    def values(self) -> list[bytes]:
        """The values of the jobs."""
        return [message.value for message in self._lease.messages]

    @property
    def jobs(self) -> list[Job]:
        """The jobs, one by one."""
        make_job = self._lease.host.make_job
        return [make_job(self._lease, message) for message in self._lease.messages]

    async def ack(self) -> None:
        """All of them are done.

        >>> await batch.ack()
        """
        await self._lease.settle(OutcomeKind.ACK, self.first, self.next)

    def ack_soon(self) -> None:
        """The same in the background; `flush` or `close` of the worker raises what goes wrong.

        >>> batch.ack_soon()
        """
        self._lease.ack_soon(self.first, self.next)

    async def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """All of them failed, and are tried again.

        >>> await batch.nack(delay_seconds=60)
        """
        delay_ms = milliseconds(delay_seconds)
        await self._lease.settle(
            OutcomeKind.NACK, self.first, self.next, delay_ms=delay_ms, reason=reason
        )

    async def reject(self, reason: str = "") -> None:
        """None of them can be done: they become dead letters at once.

        >>> await batch.reject("not needed any more")
        """
        await self._lease.settle(OutcomeKind.REJECT, self.first, self.next, reason=reason)

    async def extend(self, seconds: float | None = None) -> None:
        """More time for all of them.

        >>> await batch.extend(300)
        """
        delay_ms = milliseconds(seconds)
        await self._lease.settle(OutcomeKind.EXTEND, self.first, self.next, delay_ms=delay_ms)

    def __len__(self) -> int:
        return self.next - self.first

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __repr__(self) -> str:
        return f"<JobBatch {self.topic}/{self.partition} offsets {self.first}..{self.next - 1}>"
