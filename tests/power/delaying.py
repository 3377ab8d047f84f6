"""Delayed messages and schedules while the power is cut."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import Counter

import fanlog
from tests.power.steps import PATIENCE_SECONDS
from tests.power.workloads import SEGMENT_BYTES, Workload


class Delaying(Workload):
    """Messages for later, some of them replaced or cancelled: each comes once, and none early."""

    async def prepare(self) -> None:
        # Those that must come, and those that must not.
        self.coming: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        await self.client.create_topic(
            "delayed", partitions=2, durability="fsync", segment_bytes=SEGMENT_BYTES
        )

    async def work(self) -> None:
        await asyncio.gather(*(self._delay(number) for number in range(4)))

    async def _delay(self, publisher: int) -> None:
        number = 0
        while not self.over.is_set():
            number += 1
            value = b"%d-%d " % (publisher, number) + bytes(self.dice.choice((0, 100, 9_000)))
            seconds = self.dice.choice((0.0, 0.1, 1.0, 3.0))
            waiting = await self.client.publish("delayed", value, delay_seconds=seconds)
            self.acknowledged += 1
            if self.dice.random() < 0.7:
                self.coming.add(value)
            elif await self.client.cancel_scheduled(waiting.id):
                # Otherwise it has gone out, or a cut came before the answer to the first try.
                self.cancelled.add(value)

    async def check(self) -> None:
        found: list[fanlog.Message] = []
        async with self.client.subscribe("delayed", start="earliest") as reader:
            while not self.coming <= {message.value for message in found}:
                found += (await reader.next_batch(PATIENCE_SECONDS)).messages
            with contextlib.suppress(TimeoutError):
                while True:
                    found += (await reader.next_batch(1.0)).messages
        counts = Counter(message.value for message in found)
        assert {v[:20]: n for v, n in counts.items() if n > 1} == {}, "doubled"
        assert not self.cancelled & counts.keys(), "cancelled, and came"
        early = [
            message.value[:20]
            for message in found
            if message.timestamp < dt.datetime.fromisoformat(message.headers["fanlog-due"].decode())
        ]
        assert early == [], "early"
