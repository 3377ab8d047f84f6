"""An operator that creates, grows and deletes topics, and publishes to them. Promises
(docs/topics.md): what was acknowledged holds after every crash. A topic that was created is there,
with as many partitions as it was grown to and with what was published to it; one that was deleted
is gone, and a new one of its name has nothing of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

_NAMES = tuple(f"topic.{number}" for number in range(4))


@dataclass(slots=True)
class Known:
    """What is known of a topic. `exists` is None after a request that nobody saw answered."""

    exists: bool | None = False
    partitions: int = 0
    partitions_max: int = 0
    stored: set[bytes] = field(default_factory=set)
    # What may be there: published without an answer, or to a topic that may have been deleted.
    allowed: set[bytes] = field(default_factory=set)


class Managing(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.known = {name: Known() for name in _NAMES}

    def begin(self) -> None:
        self.actor("manager", self._manage)

    async def _manage(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                try:
                    await self._step(client)
                except fanlog.errors.LinkError:
                    continue  # it may have been done, or not
                await asyncio.sleep(self.dice.uniform(0, 0.02))

    async def _step(self, client: fanlog.Client) -> None:
        name = self.dice.choice(_NAMES)
        await self._look(client, name)
        known = self.known[name]
        if not known.exists:
            await self._create(client, name)
        elif self.dice.random() < 0.2:
            await self._delete(client, name, known)
        elif self.dice.random() < 0.2:
            await self._grow(client, name, known)
        else:
            await self._publish(client, name, known)
        self.world.note(f"{name} is {self.known[name].exists}, {self.known[name].partitions}")

    async def _look(self, client: fanlog.Client, name: str) -> None:
        """What became of a request that nobody saw answered."""
        known = self.known[name]
        if known.exists is None:
            found = [topic for topic in await client.topics(name) if topic.name == name]
            known.exists = bool(found)
            if found:
                known.partitions = len(found[0].partitions)
                known.partitions_max = max(known.partitions, known.partitions_max)
            else:
                self.known[name] = Known()

    async def _create(self, client: fanlog.Client, name: str) -> None:
        partitions = self.dice.randint(1, 2)
        known = self.known[name] = Known(None, partitions, partitions)
        await client.create_topic(name, partitions=partitions, durability="fsync", exist_ok="any")
        known.exists = True
        self.acknowledged += 1

    async def _grow(self, client: fanlog.Client, name: str, known: Known) -> None:
        known.partitions_max = wanted = known.partitions_max + 1
        await client.grow_topic(name, wanted)
        known.partitions = wanted
        self.acknowledged += 1

    async def _delete(self, client: fanlog.Client, name: str, known: Known) -> None:
        known.exists = None
        known.allowed |= known.stored
        known.stored = set()
        await client.delete_topic(name)
        self.known[name] = Known()
        self.acknowledged += 1

    async def _publish(self, client: fanlog.Client, name: str, known: Known) -> None:
        value = b"%d" % self.dice.getrandbits(60)
        known.allowed.add(value)
        await client.publish(name, value, key=value)
        known.stored.add(value)
        self.acknowledged += 1

    async def check(self, client: fanlog.Client) -> None:
        found = {topic.name: topic for topic in await client.topics("topic.*")}
        for name, known in self.known.items():
            topic = found.get(name)
            if topic is None:
                ensure(not known.exists, f"{name} was created, and is gone")
                continue
            ensure(known.exists is not False, f"{name} was deleted, and is there")
            count = len(topic.partitions)
            if known.exists:
                ensure(
                    known.partitions <= count <= known.partitions_max,
                    f"{name} has {count} partitions, and not {known.partitions}",
                )
            values = [m.value for ms in (await read_all(client, name)).values() for m in ms]
            ensure(len(set(values)) == len(values), f"{name} has something twice")
            ensure(known.stored <= set(values), f"{name} has lost something")
            ensure(set(values) <= known.allowed, f"{name} has what was not published to it")
