"""Transactions over two topics, by programs that die in the middle. Promises
(docs/transactions.md):

- all of a transaction is stored, or nothing;
- a transaction of an id is stored once, however often and by whomever it is tried.

That an aborted one is not stored is not checked yet: the process before may have committed its id.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

TOPICS = ("left", "right")
_PARTITIONS = 2
_SIZES = (0, 0, 500, 5000)
_PIECES = tuple((topic, partition) for topic in TOPICS for partition in range(_PARTITIONS))


class Regret(Exception):
    """Aborts a transaction from within."""


class Transacting(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self._count = 0
        # What each program has begun: the process that follows it tries the same again.
        self._begun: dict[int, str] = {}
        for topic in TOPICS:
            await client.create_topic(topic, partitions=_PARTITIONS, durability="fsync")

    def begin(self) -> None:
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"coordinator-{number}", lambda number=number: self._coordinate(number))

    async def _coordinate(self, number: int) -> None:
        async with self.connecting() as client:
            while not self.over:
                id = self._begun.get(number)
                if id is None:
                    self._count += 1
                    id = self._begun[number] = f"tx-{self._count}"
                await self._transact(client, id, regrets=self.dice.random() < 0.1)
                del self._begun[number]
                await asyncio.sleep(self.dice.uniform(0, 0.05))

    async def _transact(self, client: fanlog.Client, id: str, *, regrets: bool) -> None:
        value = id.encode() + b" " + bytes(self.dice.choice(_SIZES))
        already = False

        async def stage(tx: fanlog.Transaction) -> None:
            for topic, partition in _PIECES:
                await tx.publish(topic, value, partition=partition)
            if regrets:
                raise Regret

        while True:
            try:
                result = await client.run_transaction(stage, id=id, attempts=1000)
            except Regret:
                # It may have been committed by the process before.
                if id not in self.committed and not already:
                    self.aborted.add(id)
                return
            except fanlog.errors.LinkError:
                already = True
            else:
                self.committed.add(id)
                self.aborted.discard(id)
                self.acknowledged += 1
                if result.already and not already:
                    already = True
                return

    async def check(self, client: fanlog.Client) -> None:
        found: dict[tuple[str, int], Counter[str]] = {}
        for topic in TOPICS:
            for partition, messages in (await read_all(client, topic)).items():
                ids = (message.value.split(b" ")[0].decode() for message in messages)
                found[topic, partition] = Counter(ids)
        for number in range(1, self._count + 1):
            id = f"tx-{number}"
            counts = {piece: found[piece][id] for piece in _PIECES}
            ensure(len(set(counts.values())) == 1, f"{id} is there in part: {counts}")
            count = counts[_PIECES[0]]
            ensure(count <= 1, f"{id} is there {count} times")
            ensure(count == 1 or id not in self.committed, f"{id} was committed, and is lost")
