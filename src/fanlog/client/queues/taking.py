"""Jobs without a permanent worker: one call takes jobs, and another one, perhaps in another
process, gives their outcomes (`core/job_receipts.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Unpack

import msgspec

from fanlog.client.core.job_receipts import (
    ReceivedJob,
    UnreadableJobs,
    receipt_settles,
    received_jobs,
)
from fanlog.client.queues.options import WorkOptions
from fanlog.client.queues.worker import Worker
from fanlog.format.frames import FrameKind
from fanlog.format.messages import OutcomeKind

# Also without time to wait: the broker needs a moment to hand out jobs.
_WAIT_SECONDS_MIN = 0.1


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
        jobs = received_jobs(worker.queue, worker.worker, lease)
        if isinstance(jobs, UnreadableJobs):
            await settle(host, [jobs.receipt], OutcomeKind.REJECT, reason=jobs.reason)
        else:
            taken += jobs
    return taken


async def settle(
    host: TakeHost,
    receipts: Iterable[str],
    verb: OutcomeKind,
    *,
    delay_ms: int = -1,
    reason: str = "",
) -> list[str]:
    """Reports outcomes. Returns the receipts of those that came too late."""
    late: list[str] = []
    for frame in receipt_settles(receipts, verb, delay_ms=delay_ms, reason=reason):
        late += frame.late(await host.ask(FrameKind.SETTLE, frame.wanted))
    return late
