"""Receipts of jobs, and the frames that give their outcomes. A receipt holds everything that a
client needs to settle a job that another one has taken.

| field     | meaning                                                       |
| --------- | ------------------------------------------------------------- |
| queue     | name of the queue                                             |
| worker    | who has the job: a name that was made up for this take        |
| number    | the topic's                                                   |
| partition | the job's                                                     |
| epoch     | the broker's when the job was handed out                      |
| first     | the job's offset, or where compaction took those before it    |
| next      | the offset behind it                                          |

Law: a receipt names one job in the broker's epoch in which it was handed out, so that its outcome
never counts for another job.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.message import Message
from fanlog.errors import InvalidArgumentError, UnreadableError
from fanlog.format.messages import JobOutcome, OutcomeKind, Settle, Settled, decode

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


# Taking


class ReceivedJob(NamedTuple):
    """A job and its receipt."""

    message: Message
    deliveries: int
    receipt: str


class UnreadableJobs(NamedTuple):
    """Jobs of a batch that does not decode, all under one receipt. No other worker could read them
    either, so they are rejected with the reason."""

    receipt: str
    reason: str


def received_jobs(
    queue: str, worker: str, lease: LeaseInHand
) -> list[ReceivedJob] | UnreadableJobs:
    """The jobs of one lease of a worker, each with its receipt."""

    def receipt(first: int, next: int) -> str:
        return JobReceipt(queue, worker, *lease.stretch, first, next).print()

    try:
        messages = lease.messages
    except UnreadableError as fault:
        return UnreadableJobs(receipt(lease.first, lease.next), str(fault))
    return [
        ReceivedJob(message, lease.deliveries, receipt(*lease.extent(message.offset)))
        for message in messages
    ]


# Settling


class ReceiptSettle:
    """One frame of outcomes, and the receipts that they are of."""

    __slots__ = ("_receipts", "wanted")

    def __init__(self, wanted: Settle, receipts: list[str]) -> None:
        self.wanted = wanted
        self._receipts = receipts

    def late(self, payload: bytes) -> list[str]:
        """The broker's answer: the receipts whose outcomes came too late."""
        late = decode(Settled, payload).late
        pairs = zip(self.wanted.outcomes, self._receipts, strict=True)
        return [receipt for outcome, receipt in pairs if _is_late(outcome, late)]


def receipt_settles(
    receipts: Iterable[str], verb: OutcomeKind, *, delay_ms: int = -1, reason: str = ""
) -> Iterator[ReceiptSettle]:
    """The frames that give these jobs an outcome, a repeated receipt once. All receipts are read
    before the first frame."""
    said: dict[tuple[str, str, int], list[tuple[JobOutcome, str]]] = {}
    for text in dict.fromkeys(receipts):
        of = read_receipt(text)
        outcome = JobOutcome(of.number, of.partition, verb, of.first, of.next, delay_ms, reason)
        said.setdefault((of.queue, of.worker, of.epoch), []).append((outcome, text))
    for (queue, worker, epoch), pairs in said.items():
        for at in range(0, len(pairs), _OUTCOMES_MAX):
            some = pairs[at : at + _OUTCOMES_MAX]
            wanted = Settle(tuple(outcome for outcome, _ in some), epoch, queue, worker)
            yield ReceiptSettle(wanted, [text for _, text in some])


def _is_late(outcome: JobOutcome, late: Iterable[JobOutcome]) -> bool:
    return any(
        (one.number, one.partition) == (outcome.number, outcome.partition)
        and one.first < outcome.next
        and outcome.first < one.next
        for one in late
    )
