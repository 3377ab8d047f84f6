"""Jobs that came together, which get their outcome together: one range, however many they are."""

from __future__ import annotations

from collections.abc import Iterator

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.message import Message
from fanlog.client.queues.jobs import Job, JobHost, extension_ms, milliseconds
from fanlog.format.messages import OutcomeKind


class JobBatch:
    """Jobs that came together: neighbours in one partition. For speed, ack them all at once.

    >>> async for batch in worker.batches():  # doctest: +SKIP
    ...     insert_rows(batch.values)
    ...     await batch.ack()
    """

    __slots__ = ("_host", "_lease")

    def __init__(self, host: JobHost, lease: LeaseInHand) -> None:
        self._host = host
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
        host, lease = self._host, self._lease
        return [host.make_job(host, lease, message) for message in lease.messages]

    async def ack(self) -> None:
        """All of them are done.

        >>> await batch.ack()
        """
        await self._settle(OutcomeKind.ACK)

    def ack_soon(self) -> None:
        """The same in the background; `flush` or `close` of the worker raises what goes wrong.

        >>> batch.ack_soon()
        """
        self._host.settling.ack_soon(self._lease, self.first, self.next)

    async def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """All of them failed, and are tried again.

        >>> await batch.nack(delay_seconds=60)
        """
        delay_ms = milliseconds(delay_seconds)
        await self._settle(OutcomeKind.NACK, delay_ms=delay_ms, reason=reason)

    async def reject(self, reason: str = "") -> None:
        """None of them can be done: they become dead letters at once.

        >>> await batch.reject("not needed any more")
        """
        await self._settle(OutcomeKind.REJECT, reason=reason)

    async def extend(self, seconds: float | None = None) -> None:
        """More time for all of them.

        >>> await batch.extend(300)
        """
        delay_ms = extension_ms(seconds)
        await self._settle(OutcomeKind.EXTEND, delay_ms=delay_ms)

    async def _settle(self, verb: OutcomeKind, *, delay_ms: int = -1, reason: str = "") -> None:
        await self._host.settling.settle(
            self._lease, verb, self.first, self.next, delay_ms=delay_ms, reason=reason
        )

    def __len__(self) -> int:
        return self.next - self.first

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __repr__(self) -> str:
        return f"<JobBatch {self.topic}/{self.partition} offsets {self.first}..{self.next - 1}>"
