"""A worker says in which epoch of the broker it got a job, so that an outcome never counts for
another job. The simulation found one whose epoch was that of the broker before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from fanlog.client.queues.worker import Worker
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.frames import Lease
from fanlog.format.messages import Joined, Work, Working
from fanlog.model import QueueSettings


async def test_a_request_that_was_sent_again_to_a_restarted_broker_has_its_epoch() -> None:
    host = SimpleNamespace(
        welcome=SimpleNamespace(epoch=1), decoded=lambda batch: SimpleNamespace(batch=batch)
    )
    worker = Worker(
        cast(Any, host), 1, Work(queue="q", target="jobs", worker="w"), keep_alive=False
    )
    worker.opening()
    host.welcome = SimpleNamespace(epoch=2)
    worker.opened(msgspec.msgpack.encode(Working(QueueSettings())))
    worker.joined(Joined(3, "jobs", 2, ()))
    worker.leased(Lease(3, 0, 1, 0, 0, 1, fresh=True))
    worker.delivered(Batch(memoryview(encode_batch([b"x"], topic=3))))
    ((stretch, _, _),) = worker._held.ranges()
    assert stretch == (3, 0, 2)
