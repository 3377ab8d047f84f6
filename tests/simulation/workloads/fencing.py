"""Programs that publish under one producer name. Promise (docs/transactions.md): when a second one
has connected, publishes of the first fail; and nobody's message is stored twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

TOPIC, NAME = "bills", "billing"


@dataclass(slots=True, frozen=True)
class Publish:
    """One that was acknowledged: when it began, and when its client had connected."""

    begin: float
    value: bytes
    connected_at: float


class Fencing(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.published: list[Publish] = []
        # Begin and end of each successful connect.
        self.connects: list[tuple[float, float]] = []
        await client.create_topic(TOPIC, partitions=2, durability="fsync")

    def begin(self) -> None:
        for number in range(2):
            self.actor(f"biller-{number}", self._bill)

    async def _bill(self) -> None:
        while not self.over:
            begin = self.world.now
            try:
                async with self.connecting(producer=NAME) as client:
                    self.connects.append((begin, self.world.now))
                    await self._publish(client, self.world.now)
            except (fanlog.errors.FencedError, fanlog.errors.LinkError):
                await asyncio.sleep(self.dice.uniform(0, 0.5))

    async def _publish(self, client: fanlog.Client, connected_at: float) -> None:
        while not self.over:
            begin = self.world.now
            value = b"%d" % self.dice.getrandbits(60)
            await client.publish(TOPIC, value, partition=self.dice.randrange(2))
            self.published.append(Publish(begin, value, connected_at))
            self.acknowledged += 1
            await asyncio.sleep(self.dice.uniform(0, 0.05))

    async def check(self, client: fanlog.Client) -> None:
        found = await read_all(client, TOPIC)
        values = [message.value for messages in found.values() for message in messages]
        ensure(len(set(values)) == len(values), "stored twice")
        lost = {publish.value for publish in self.published} - set(values)
        ensure(not lost, f"{len(lost)} acknowledged messages are lost")
        for publish in self.published:
            for begin, end in self.connects:
                later = begin > publish.connected_at and end < publish.begin
                ensure(not later, f"{publish} was stored after another had connected at {end}")
