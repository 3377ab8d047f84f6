"""Jobs of a worker: messages that it holds for a while, and whose outcome it reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues.settling import JobSettling
from fanlog.client.tracing import maybe_tracer
from fanlog.errors import InvalidArgumentError, LeaseLostError
from fanlog.format.messages import OutcomeKind

T = TypeVar("T")


class JobHost(Protocol):
    """The worker, as far as its jobs need it."""

    settling: JobSettling
    make_job: Callable[[JobHost, LeaseInHand, Message], Job]

    @property
    def queue(self) -> str: ...
    def swallow(self, job: Job, error: Exception) -> bool:
        """Logs and counts a job's error. Returns whether the worker's loop continues."""
        ...

    async def reply(
        self, job: Message, value: Value, headers: Headers | None, error: str = ""
    ) -> None: ...


class Job:
    """One job: its message, and the calls that give its outcome. Made by a worker.

    >>> async for job in worker:  # doctest: +SKIP
    ...     async with job:  # acks at the end; an exception is logged, and the job tried again
    ...         await send_email(job.json())
    """

    __slots__ = ("_host", "_lease", "_settled", "_span", "message")

    def __init__(self, host: JobHost, lease: LeaseInHand, message: Message) -> None:
        self._host = host
        self._lease = lease
        self.message = message
        self._settled = False
        self._span: AbstractContextManager[object] | None = None

    @property
    def value(self) -> bytes:
        """The value of the message."""
        return self.message.value

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers, by name."""
        return self.message.headers

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.message.partition

    @property
    def offset(self) -> int:
        """Offset of the message."""
        return self.message.offset

    @property
    def priority(self) -> int:
        """0 to 9, the most urgent."""
        return self.message.priority

    @property
    def deliveries(self) -> int:
        """How often the job was handed out, this time included."""
        return self._lease.deliveries

    @property
    def settled(self) -> bool:
        """Whether it has got its outcome."""
        return self._settled

    @property
    def text(self) -> str:
        """The value as text, in UTF-8."""
        return self.message.text

    def json(self) -> Any:
        """The value, decoded as JSON. Raises `DecodeError`, which names the message.

        >>> job.json()
        {'to': 'alice'}
        """
        return self.message.json()

    @overload
    def decode(self, type: type[T], /) -> T: ...
    @overload
    def decode(self, type: Any = Any, /) -> Any: ...
    def decode(self, type: Any = Any, /) -> Any:
        """The job's value as an object of a type; see `Message.decode`."""
        return self.message.decode(type)

    async def ack(self) -> None:
        """The job is done. Once this returns it is never handed out again.

        >>> await job.ack()
        """
        await self._settle(OutcomeKind.ACK)

    def ack_soon(self) -> None:
        """The same in the background; `flush` or `close` of the worker raises what goes wrong.

        >>> job.ack_soon()
        >>> await worker.flush()
        """
        self._check_unsettled()
        self._settled = True
        self._host.settling.ack_soon(self._lease, *self._lease.extent(self.message.offset))

    async def nack(self, delay_seconds: float | None = None, reason: str = "") -> None:
        """The job failed, and is tried again: after this delay, or as the queue's back-off says.
        After too many failures it becomes a dead letter.

        >>> await job.nack(delay_seconds=60, reason="the mail server is down")
        """
        await self._settle(OutcomeKind.NACK, delay_ms=milliseconds(delay_seconds), reason=reason)

    async def reject(self, reason: str = "") -> None:
        """The job can't be done: it becomes a dead letter at once.

        >>> await job.reject("no address")
        """
        await self._settle(OutcomeKind.REJECT, reason=reason)

    async def extend(self, seconds: float | None = None) -> None:
        """More time for the job: so much from now, or the queue's own.

        >>> await job.extend(300)
        """
        extent = self._lease.extent(self.message.offset)
        await self._host.settling.settle(
            self._lease, OutcomeKind.EXTEND, *extent, delay_ms=extension_ms(seconds)
        )

    async def reply(self, value: Value, headers: Headers | None = None) -> None:
        """Answers the request that this job is, if it is one, and acks it.

        >>> await job.reply("42")
        """
        await self._host.reply(self.message, value, headers)
        await self.ack()

    async def fail(self, reason: str) -> None:
        """Answers the request with an error, and acks it: the caller gets a RequestError.

        >>> await job.fail("no such picture")
        """
        await self._host.reply(self.message, b"", None, reason or "failed")
        await self.ack()

    async def _settle(self, verb: OutcomeKind, *, delay_ms: int = -1, reason: str = "") -> None:
        self._check_unsettled()
        extent = self._lease.extent(self.message.offset)
        self._settled = True
        try:
            await self._host.settling.settle(
                self._lease, verb, *extent, delay_ms=delay_ms, reason=reason
            )
        except LeaseLostError:
            raise
        except BaseException:
            self._settled = False
            raise

    def _check_unsettled(self) -> None:
        if self._settled:
            raise LeaseLostError(
                f"The job at offset {self.offset} of {self.topic!r} has its outcome already: ack, "
                "nack or reject it once."
            )

    def begin_span(self) -> None:
        """From now on this task's work belongs to the job's trace, if the program has a tracer."""
        tracer = maybe_tracer()
        if tracer is not None and self._span is None:
            self._span = tracer.processing(self, self._host.queue)
            self._span.__enter__()

    def end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(type(error) if error else None, error, None)

    async def __aenter__(self) -> Self:
        self.begin_span()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        host = self._host
        self.end_span(error)
        try:
            if self._settled:
                pass
            elif error is None:
                await self.ack()
            else:
                await self.nack(reason=said_by(error))
        except LeaseLostError as late:
            if error is None and not host.swallow(self, late):
                raise
        return isinstance(error, Exception) and host.swallow(self, error)

    def __repr__(self) -> str:
        return f"<Job {self.message!r}, delivery {self.deliveries}>"


def milliseconds(seconds: float | None) -> int:
    """A delay for the broker, which knows the default."""
    if seconds is None:
        return -1
    if not isinstance(seconds, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"A delay is a number of seconds, not {seconds!r}. Give a reason by name: "
            "nack(reason='...')."
        )
    if not math.isfinite(seconds):
        raise InvalidArgumentError(f"A delay is a number of seconds, not {seconds}.")
    return max(0, round(seconds * 1000))


def extension_ms(seconds: float | None) -> int:
    """More time for a job. With none the job would go to another worker at once."""
    extension = milliseconds(seconds)
    if not extension:
        raise InvalidArgumentError(
            f"extend({seconds}) gives a job no time. Give more than 0 seconds, or no number for "
            "the queue's visibility_seconds; nack() gives it to another worker."
        )
    return extension


def said_by(error: BaseException) -> str:
    """An exception as text, for a dead letter."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
