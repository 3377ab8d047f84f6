"""Publishers that put and delete the keys of a compacted topic, and a reader that reads it from its
start again and again. Promises (docs/log.md, "Compaction"; docs/cluster.md):

- the last message of each key is there, at its offset, whatever compaction takes away;
- a key that was deleted does not return;
- compaction makes no gap that a reader is told of.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import fanlog
from tests.simulation.workload import PATIENCE_SECONDS, Workload, ensure

TOPIC = "stock"
_PARTITIONS = 2
# Keys of each publisher: nobody else writes them.
_KEYS = 4
_SIZES = (0, 0, 100, 1000)
_READ_SECONDS = 1.0
_DAY_SECONDS = 24 * 3600


@dataclass(slots=True)
class Write:
    """A message of a key: its value, None for a deletion, and where it was acknowledged."""

    value: bytes | None
    offset: int = -1


@dataclass(slots=True)
class Key:
    """What was written to a key, in order. A write begins when the one before it is acknowledged,
    so that only the last one may have happened or not."""

    partition: int = -1
    writes: list[Write] = field(default_factory=list)

    def find(self, message: fanlog.Message) -> int:
        """Which of its writes a message is; -1 for none."""
        value = None if message.is_tombstone else message.value
        for number in reversed(range(len(self.writes))):
            write = self.writes[number]
            if write.value == value and write.offset in (-1, message.offset):
                return number
        return -1


@dataclass(slots=True)
class Found:
    """What a reader has found: the last message of each key, and how far it has read."""

    last: dict[bytes, fanlog.Message] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def lacks(self, ends: dict[int, int]) -> bool:
        return any(self.ends.get(partition, 0) < end for partition, end in ends.items())

    def take(self, batch: fanlog.MessageBatch) -> None:
        for message in batch.messages:
            assert message.key is not None
            self.last[message.key] = message
        self.ends[batch.partition] = batch.next_offset


class Compacting(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.keys: dict[bytes, Key] = {}
        # Keys that a reader has seen alive though they were deleted, and which deletion it was. It
        # may have come by while both messages went. A later read must not see the key again.
        self._doubtful: dict[bytes, int] = {}
        self._processes = 0
        tombstone_seconds = self.dice.choice((0, 0, 1, _DAY_SECONDS))
        self._keeps_deletions = tombstone_seconds == _DAY_SECONDS
        await client.create_topic(
            TOPIC,
            partitions=_PARTITIONS,
            durability="fsync",
            cleanup="compact",
            compact_after_bytes=self.dice.choice((1, 1000, 5000)),
            tombstone_seconds=tombstone_seconds,
        )

    def begin(self) -> None:
        for number in range(self.dice.randint(1, 2)):
            self.actor(f"writer-{number}", self._write)
        self.actor("keys-reader", self._read)
        self.actor("compactor", self._compact)

    # Writing

    async def _write(self) -> None:
        """A process has keys of its own. What it leaves in doubt is never written again."""
        self._processes += 1
        names = [b"%d.%d" % (self._processes, i) for i in range(_KEYS)]
        pause = self.dice.choice((0.005, 0.02, 0.1))
        async with self.connecting() as client:
            while not self.over:
                some = self.dice.sample(names, self.dice.choice((1, 1, 2, _KEYS)))
                await asyncio.gather(*(self._put(client, name) for name in some))
                await asyncio.sleep(pause * self.dice.random())

    async def _put(self, client: fanlog.Client, name: bytes) -> None:
        key = self.keys.setdefault(name, Key())
        value = b"%d " % len(key.writes) + bytes(self.dice.choice(_SIZES))
        write = Write(None if self.dice.random() < 0.3 else value)
        key.writes.append(write)
        receipt = await client.publish(TOPIC, write.value, key=name)
        if key.partition not in (-1, receipt.partition):
            self.violated(f"{name} is in partition {key.partition} and in {receipt.partition}")
        key.partition, write.offset = receipt.partition, receipt.offset
        self.world.note(f"{name} is {_shown(write.value)} at {key.partition}/{write.offset}")
        self.acknowledged += 1

    async def _compact(self) -> None:
        """Somebody has it compacted, as small as the files are."""
        async with self.connecting() as client:
            while not self.over:
                await asyncio.sleep(self.dice.uniform(0, 0.5))
                with suppress(fanlog.errors.LinkError):
                    await client.compact_topic(TOPIC)

    # Reading

    async def _read(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                await asyncio.sleep(self.dice.uniform(0, 0.3))
                for promise in await self._read_all(client, _READ_SECONDS) or ():
                    self.violated(promise)

    async def _read_all(
        self, client: fanlog.Client, seconds: float, ends: dict[int, int] | None = None
    ) -> list[str] | None:
        """Reads from the beginning up to everything that is acknowledged, or to `ends`; the
        promises that are broken by what is there. None if it does not come in time: a primary of
        the past does not have it."""
        found = Found()
        async with client.subscribe(TOPIC, start="earliest") as reader:
            while found.lacks(self._acknowledged_ends()) or found.lacks(ends or {}):
                try:
                    found.take(await reader.next_batch(seconds))
                except TimeoutError:
                    return None
            self.world.note(f"read up to {found.ends}")
            # Nothing is acknowledged between the last batch and this.
            return self._broken(found, complete=ends is not None)

    def _acknowledged_ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        for key in self.keys.values():
            for write in key.writes[-2:]:
                if write.offset >= ends.get(key.partition, 0):
                    ends[key.partition] = write.offset + 1
        return ends

    def _broken(self, found: Found, *, complete: bool) -> list[str]:
        """`complete`: nothing is behind what was read."""
        broken = [f"{name} was never written" for name in found.last.keys() - self.keys.keys()]
        for name, key in self.keys.items():
            promise = self._maybe_broken(name, key, found.last.get(name), complete=complete)
            broken += [promise] if promise else []
        return broken

    def _maybe_broken(
        self, name: bytes, key: Key, message: fanlog.Message | None, *, complete: bool
    ) -> str:
        """What is wrong with the message that is the last one of a key."""
        number = -1 if message is None else key.find(message)
        if message is not None and number < 0:
            return f"{name} has {_shown(message.value)} at {message.offset}: nobody put it there"
        newest = len(key.writes) - 1
        in_doubt = key.writes[newest].offset < 0
        if in_doubt and (number >= newest - 1 or not complete):
            # The last one may be past what was read, and the reason why others are gone.
            return ""
        if in_doubt and key.writes[newest].value is not None:
            newest -= 1
        if number >= newest:
            self._doubtful.pop(name, None)
            return ""
        write = key.writes[newest]
        was = message is not None and not message.is_tombstone
        if write.value is not None:
            there = f"has the message of offset {message.offset}" if message else "is gone"
            return f"{name} {there}: {_shown(write.value)} was put at {write.offset}"
        if not was:
            self._doubtful.pop(name, None)
            return ""
        if self._keeps_deletions or self._doubtful.get(name) == newest:
            assert message is not None
            return (
                f"{name} was deleted at {write.offset}, and returns: it has the value of offset "
                f"{message.offset}"
            )
        self._doubtful[name] = newest
        return ""

    # At the end

    async def check(self, client: fanlog.Client) -> None:
        for _ in range(2):
            ends = await client.find_offsets(TOPIC, "latest")
            lost = self._acknowledged_ends()
            ensure(all(ends[p] >= end for p, end in lost.items()), f"{ends} is less than {lost}")
            ends = {partition: end for partition, end in ends.items() if end}
            broken = await self._read_all(client, PATIENCE_SECONDS, ends)
            ensure(broken is not None, f"can't be read up to {ends}")
            ensure(not broken, "; ".join(broken or ()))
            if not self._doubtful:
                return


def _shown(value: bytes | None) -> str:
    return "a deletion" if value is None else repr(value[:10])
