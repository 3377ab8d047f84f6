"""From one topic to another with `client.transform`, by members that die. Promise
(docs/transactions.md, "From topic to topic"): what a message becomes is stored once."""

from __future__ import annotations

import asyncio
from collections import Counter

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

SOURCE, TARGET, GROUP = "raw", "cooked", "cooks"
_IDLE_SECONDS = 8.0


class Transforming(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self._session = self.dice.choice((0.3, 2.0))
        await client.create_topic(SOURCE, partitions=3, durability="fsync")
        await client.create_topic(TARGET, partitions=2, durability="fsync")

    def begin(self) -> None:
        self.actor("source", self._publish)
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"cook-{number}", self._cook)

    async def _publish(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                value = b"%d" % self.dice.getrandbits(60)
                await client.publish(SOURCE, value, key=value)
                self.acknowledged += 1
                await asyncio.sleep(self.dice.uniform(0, 0.03))

    async def _cook(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                await self._transform(client, stay_until=self.world.now + self.dice.uniform(0.1, 3))

    async def _transform(
        self, client: fanlog.Client, *, stay_until: float = 0.0, idle_seconds: float | None = None
    ) -> None:
        def ended() -> bool:
            return bool(stay_until) and (self.over or self.world.now > stay_until)

        try:
            await client.transform(
                SOURCE,
                TARGET,
                lambda message: message.value,
                group=GROUP,
                session_seconds=self._session,
                batch_records=self.dice.choice((1, 10, 1000)),
                until=ended,
                idle_seconds=idle_seconds,
            )
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.05)

    async def settle(self, client: fanlog.Client) -> None:
        await self._transform(client, idle_seconds=_IDLE_SECONDS)

    async def check(self, client: fanlog.Client) -> None:
        counts: list[Counter[bytes]] = []
        for topic in (SOURCE, TARGET):
            found = await read_all(client, topic)
            counts.append(Counter(m.value for messages in found.values() for m in messages))
        raw, cooked = counts
        ensure(not raw - cooked, f"{len(raw - cooked)} are missing in {TARGET}")
        ensure(not cooked - raw, f"{len(cooked - raw)} are there twice in {TARGET}")
