"""An operator that creates, grows and deletes topics, and publishes to them. Promises
(docs/topics.md): what was acknowledged holds after every crash. A topic that was created is there,
with as many partitions as it was grown to and with what was published to it; one that was deleted
is gone, and a new one of its name has nothing of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

_NAMES = 4


@dataclass(slots=True)
class Known:
    """What is known of a topic. `exists` is None after a request that nobody saw answered, or that
    was sent twice: a copy of it may be on its way still."""

    exists: bool | None = False
    partitions: int = 0
    partitions_max: int = 0
    stored: set[bytes] = field(default_factory=set)
    # What may be there: published without an answer, or to a topic that may have been deleted.
    allowed: set[bytes] = field(default_factory=set)


class Managing(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.known: dict[str, Known] = {}
        self._names: list[str] = []
        for _ in range(_NAMES):
            self._add_name()

    def _add_name(self) -> None:
        name = f"topic.{len(self.known)}"
        self.known[name] = Known()
        self._names.append(name)

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
        name = self.dice.choice(self._names)
        known = self.known[name]
        if known.exists is None:
            # Nobody knows when the last request is done with it: another takes its place.
            self._names.remove(name)
            self._add_name()
            return
        if not known.exists:
            await self._create(client, name)
        elif self.dice.random() < 0.2:
            await self._delete(client, name, known)
        elif self.dice.random() < 0.2:
            await self._grow(client, name, known)
        else:
            await self._publish(client, name, known)
        self.world.note(f"{name} is {self.known[name].exists}, {self.known[name].partitions}")

    async def _create(self, client: fanlog.Client, name: str) -> None:
        wanted, reconnects = self.dice.randint(1, 2), client.reconnects
        known = self.known[name] = Known(None, wanted, wanted)
        await client.create_topic(name, partitions=wanted, durability="fsync", exist_ok="any")
        known.exists = True if client.reconnects == reconnects else None
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
