"""Jobs without a permanent worker: one call takes jobs, and another one, perhaps in another
process, gives their outcomes. A receipt holds everything that the second call needs.

| field     | meaning                                                       |
| --------- | ------------------------------------------------------------- |
| queue     | name of the queue                                             |
| worker    | who has the job: a name that was made up for this take        |
| number    | the topic's                                                   |
| partition | the job's                                                     |
| epoch     | the broker's when the job was handed out                      |
| first     | the job's offset, or where compaction took those before it    |
| next      | the offset behind it                                          |
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple, Protocol, Unpack

import msgspec

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.message import Message
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.worker import Worker
from fanlog.errors import InvalidArgumentError, UnreadableError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled, decode

# Also without time to wait: the broker needs a moment to hand out jobs.
_WAIT_SECONDS_MIN = 0.1
# Outcomes in one frame.
_OUTCOMES_MAX = 4096


class JobReceipt(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a job and its holder."""

    queue: str
    worker: str
    number: int
    partition: int
    epoch: int
    first: int
    next: int

    def print(self) -> str:
        """As text that fits into a URL."""
        return base64.urlsafe_b64encode(_encode(self)).decode().rstrip("=")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobReceipt).decode


def read_receipt(text: str) -> JobReceipt:
    """A receipt that `print` has written."""
    try:
        receipt = _decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as fault:
        raise InvalidArgumentError(
            f"{text[:80]!r} is not a receipt: give one from the answer to a take, unchanged."
        ) from fault
    numbers = (receipt.number, receipt.partition, receipt.epoch, receipt.first)
    if not receipt.queue or min(numbers) < 0 or not receipt.first < receipt.next < 1 << 63:
        raise InvalidArgumentError(
            f"{text[:80]!r} is not a receipt: one of its values is out of range."
        )
    return receipt


class ReceivedJob(NamedTuple):
    """A job and its receipt."""

    message: Message
    deliveries: int
    receipt: str


class TakeHost(Protocol):
    """The client, as far as taking jobs needs it."""

    def work(
        self, topic: str, handler: None = None, *, queue: str, **options: Unpack[WorkOptions]
    ) -> Worker: ...
    async def ask(self, kind: FrameKind, message: msgspec.Struct) -> bytes: ...


async def take(
    host: TakeHost,
    topic: str,
    *,
    queue: str,
    limit: int,
    wait_seconds: float,
    options: WorkOptions,
) -> list[ReceivedJob]:
    """Up to `limit` jobs, as soon as there is one. The caller has them for the queue's
    `visibility_seconds`. If the caller gives up waiting, received jobs are released."""
    worker = host.work(topic, queue=queue, **{**options, "prefetch": limit, "keep_alive": False})
    try:
        leases = await worker.leave_with_jobs(max(wait_seconds, _WAIT_SECONDS_MIN))
    except BaseException:
        await worker.close()
        raise
    taken: list[ReceivedJob] = []
    for lease in leases:
        try:
            messages = lease.messages
        except UnreadableError as fault:
            # No other worker could read them either: they become dead letters with the reason.
            whole = _receipt(worker, lease, lease.first, lease.next)
            await settle(host, [whole], OutcomeKind.REJECT, reason=str(fault))
            continue
        for message in messages:
            receipt = _receipt(worker, lease, *lease.extent(message.offset))
            taken.append(ReceivedJob(message, lease.deliveries, receipt))
    return taken


def _receipt(worker: Worker, lease: LeaseInHand, first: int, next: int) -> str:
    return JobReceipt(worker.queue, worker.worker, *lease.stretch, first, next).print()


async def settle(
    host: TakeHost,
    receipts: Iterable[str],
    verb: OutcomeKind,
    *,
    delay_ms: int = -1,
    reason: str = "",
) -> list[str]:
    """Reports outcomes. Returns the receipts of those that came too late."""
    frames: dict[tuple[str, str, int], list[tuple[JobOutcome, str]]] = {}
    for text in dict.fromkeys(receipts):
        of = read_receipt(text)
        outcome = JobOutcome(of.number, of.partition, verb, of.first, of.next, delay_ms, reason)
        frames.setdefault((of.queue, of.worker, of.epoch), []).append((outcome, text))
    late: list[str] = []
    for (queue, worker, epoch), said in frames.items():
        for at in range(0, len(said), _OUTCOMES_MAX):
            some = said[at : at + _OUTCOMES_MAX]
            wanted = Settle(tuple(outcome for outcome, _ in some), epoch, queue, worker)
            settled = decode(Settled, await host.ask(FrameKind.SETTLE, wanted))
            late += [text for outcome, text in some if _is_late(outcome, settled)]
    return late


def _is_late(outcome: JobOutcome, settled: Settled) -> bool:
    return any(
        (late.number, late.partition) == (outcome.number, outcome.partition)
        and late.first < outcome.next
        and outcome.first < late.next
        for late in settled.late
    )
