"""Transactions over two topics, by programs that die in the middle. Promises
(docs/transactions.md):

- all of a transaction is stored, or nothing;
- a transaction of an id is stored once, however often and by whomever it is tried;
- its messages for a partition are stored in their order, without others between them;
- nothing is stored of a transaction that nobody has committed: one that was aborted, or left alone.
"""

from __future__ import annotations

import asyncio

import fanlog
from fanlog.model import KIB
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
        # Transactions that nobody commits.
        self._never = 0
        # What each program has begun: the process that follows it tries the same again.
        self._begun: dict[int, str] = {}
        for topic in TOPICS:
            await client.create_topic(topic, partitions=_PARTITIONS, durability="fsync")

    def begin(self) -> None:
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"coordinator-{number}", lambda number=number: self._coordinate(number))

    async def _coordinate(self, number: int) -> None:
        # With small batches a transaction has several for each partition.
        async with self.connecting(batch_bytes=self.dice.choice((1, 1024)) * KIB) as client:
            while not self.over:
                id = self._begun.get(number)
                if id is None:
                    self._count += 1
                    id = self._begun[number] = f"tx-{self._count}"
                await self._transact(client, id, regrets=self.dice.random() < 0.1)
                del self._begun[number]
                if self.dice.random() < 0.2:
                    await self._stage_in_vain(client)
                await asyncio.sleep(self.dice.uniform(0, 0.05))

    async def _transact(self, client: fanlog.Client, id: str, *, regrets: bool) -> None:
        already = False

        async def stage(tx: fanlog.Transaction) -> None:
            await self._stage(tx, id, _messages(id))
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

    async def _stage(self, tx: fanlog.Transaction, id: str, count: int) -> None:
        for index in range(count):
            value = f"{id} {index} ".encode() + bytes(self.dice.choice(_SIZES))
            for topic, partition in _PIECES:
                await tx.publish(topic, value, partition=partition)

    async def _stage_in_vain(self, client: fanlog.Client) -> None:
        self._never += 1
        tx = client.transaction(timeout_seconds=self.dice.choice((1.0, 60.0)))
        try:
            await tx.begin()
            await self._stage(tx, f"never-{self._never}", 2)
            if self.dice.random() < 0.5:
                await tx.flush()
            if self.dice.random() < 0.5:
                await tx.abort()
        except (fanlog.errors.LinkError, fanlog.errors.TransactionNotFoundError):
            # A restart of the broker has ended it.
            return

    async def check(self, client: fanlog.Client) -> None:
        found: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = {}
        for topic in TOPICS:
            for partition, messages in (await read_all(client, topic)).items():
                by_id = found[topic, partition] = {}
                for message in messages:
                    id, index = message.value.split(b" ")[:2]
                    by_id.setdefault(id.decode(), []).append((message.offset, int(index)))
        for piece, by_id in found.items():
            for id, stored in by_id.items():
                ensure(not id.startswith("never"), f"{id} was not committed, and is in {piece}")
                _check_piece(f"{id} in {piece}", stored, _messages(id))
        for number in range(1, self._count + 1):
            id = f"tx-{number}"
            pieces = [piece for piece in _PIECES if id in found[piece]]
            ensure(len(pieces) in (0, len(_PIECES)), f"{id} is there in part: {pieces}")
            ensure(pieces or id not in self.committed, f"{id} was committed, and is lost")


def _messages(id: str) -> int:
    """How many messages a transaction has for each partition, whoever tries it."""
    return 1 + int(id.split("-")[1]) % 3


def _check_piece(what: str, stored: list[tuple[int, int]], count: int) -> None:
    """`stored` has the offsets and numbers of a transaction's messages in a partition."""
    ensure(len(stored) <= count, f"{what} is there {len(stored)} times, and not {count} times")
    ensure(len(stored) == count, f"{what} is there in part: {stored}")
    first = stored[0][0]
    together = [(first + index, index) for index in range(count)]
    ensure(stored == together, f"{what} is not in order, or others are between: {stored}")
