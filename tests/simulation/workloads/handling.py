"""Functions that get the messages of a group, in members that join, leave and die. Promises
(docs/groups.md, "Handlers"):

- every message is handled, or is a dead letter, which has failed as often as it says;
- messages of a partition, or of a key of one, are handled in order and one at a time;
- no more than `concurrency` are handled at a time;
- offsets are never committed past a message that is neither handled nor a dead letter.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import fanlog
from fanlog.client.core.handling import Order
from fanlog.client.groups.running import Handled
from fanlog.format.dead_letters import read_death
from fanlog.model import KIB
from tests.simulation.workload import PATIENCE_SECONDS, Intended, Workload, ensure, read_all

TOPIC, GROUP, DEAD = "orders.placed", "handlers", "dead.orders.placed"
_PARTITIONS = 3
_KEYS = 5
_ATTEMPTS = 3
# One message of so many never succeeds.
_POISONOUS = 25
_SIZES = (0, 0, 300, 2000)
_LOOK_SECONDS = 0.5
_OVER = (fanlog.errors.LinkError, fanlog.errors.FencedError)


class Line(NamedTuple):
    """What is handled in order: a partition, or a key of one."""

    partition: int
    key: bytes | None


class Handling(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.published: set[bytes] = set()
        self.handled: set[bytes] = set()
        # How often each has failed, in all members.
        self.failures: dict[bytes, int] = {}
        # By line: the offsets that a handler has begun.
        self._begun: dict[Line, set[int]] = {}
        # By partition: what is handled, or may be a dead letter, and up to where without a gap.
        self._done: list[set[int]] = [set() for _ in range(_PARTITIONS)]
        self._done_until = [0] * _PARTITIONS
        self.order: Order = self.dice.choice(("partition", "key"))
        self.concurrency = self.dice.choice((1, 2, 8))
        self._session = self.dice.choice((0.3, 1.0, 5.0))
        await client.create_topic(TOPIC, partitions=_PARTITIONS, durability="fsync")

    def begin(self) -> None:
        self.actor("placer", self._publish)
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"handler-{number}", self._consume)

    async def _publish(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                number = self.dice.getrandbits(60)
                key = b"%d" % self.dice.randrange(_KEYS)
                value = b"%d " % number + bytes(self.dice.choice(_SIZES))
                await client.publish(TOPIC, value, key=key)
                self.published.add(value)
                self.acknowledged += 1
                await asyncio.sleep(self.dice.uniform(0, 0.02))

    async def _consume(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                until = asyncio.Event()
                ending = asyncio.get_running_loop().call_later(self.dice.uniform(0.1, 3), until.set)
                member = HandlingMember(self)
                try:
                    handled = await self._run(client, member, until)
                except _OVER:
                    await asyncio.sleep(0.05)
                else:
                    member.check(handled)
                finally:
                    ending.cancel()

    async def _run(
        self, client: fanlog.Client, member: HandlingMember, until: asyncio.Event
    ) -> Handled:
        return await client.consume(
            TOPIC,
            member.handle,
            group=GROUP,
            reset="earliest",
            concurrency=self.concurrency,
            order=self.order,
            retry=fanlog.Backoff(first_seconds=0.02, max_seconds=0.2),
            max_attempts=_ATTEMPTS,
            commit_interval_seconds=self.dice.choice((0.05, 0.5)),
            session_seconds=self._session,
            # A small one is full while a message waits: then other partitions need its room.
            window_bytes=self.dice.choice((4 * KIB, 1024 * KIB)),
            until=until,
        )

    # The model

    def line_of(self, message: fanlog.Message) -> Line:
        return Line(message.partition, message.key if self.order == "key" else None)

    def begins(self, message: fanlog.Message) -> None:
        """A handler gets a message: all before it, in its line, are done."""
        partition, offset = message.partition, message.offset
        before = self._begun.setdefault(self.line_of(message), set())
        waiting = {one for one in before if one < offset} - self._done[partition]
        if self.order == "partition" and offset > self._done_until[partition]:
            waiting.add(self._done_until[partition])
        if waiting:
            self.violated(f"{partition}: {offset} is handled, and {min(waiting)} is not done")
        before.add(offset)

    def failed(self, message: fanlog.Message) -> None:
        value = message.value
        self.failures[value] = self.failures.get(value, 0) + 1
        if self.failures[value] >= _ATTEMPTS:
            self._note_done(message)

    def succeeded(self, message: fanlog.Message) -> None:
        self.handled.add(message.value)
        self.acknowledged += 1
        self._note_done(message)

    def _note_done(self, message: fanlog.Message) -> None:
        partition, done = message.partition, self._done[message.partition]
        done.add(message.offset)
        while self._done_until[partition] in done:
            self._done_until[partition] += 1

    # The end

    async def settle(self, client: fanlog.Client) -> None:
        """One more member handles what is left."""
        until = asyncio.Event()
        running = asyncio.ensure_future(self._run(client, HandlingMember(self), until))
        missing = self.published
        for _ in range(round(PATIENCE_SECONDS / _LOOK_SECONDS)):
            await asyncio.sleep(_LOOK_SECONDS)
            missing = self.published - self.handled - (await self._dead_letters(client)).keys()
            if not missing or running.done():
                break
        until.set()
        await running
        ensure(not missing, f"never handled: {len(missing)}, such as {min(missing, default=b'')!r}")

    async def _dead_letters(self, client: fanlog.Client) -> dict[bytes, fanlog.Message]:
        if not any(topic.name == DEAD for topic in await client.topics("dead.>")):
            return {}
        letters = (await read_all(client, DEAD)).values()
        return {letter.value: letter for some in letters for letter in some}

    async def check(self, client: fanlog.Client) -> None:
        dead = await self._dead_letters(client)
        lost = self.published - self.handled - dead.keys()
        ensure(not lost, f"{len(lost)} are neither handled nor dead letters: {sorted(lost)[:3]}")
        for value, letter in dead.items():
            death = read_death(letter.headers)
            ensure(death is not None, f"{letter!r} does not say what it died of")
            ensure(
                self.failures.get(value, 0) >= _ATTEMPTS,
                f"{value[:20]!r} is a dead letter after {self.failures.get(value, 0)} failures",
            )
        try:
            found = await client.groups.describe(GROUP)
        except fanlog.errors.GroupNotFoundError:
            # It has no members, and never committed anything.
            ensure(not self.published, "the group is gone, with what it had committed")
            return
        for position in found.partitions:
            done_until = self._done_until[position.partition]
            ensure(
                (position.committed or 0) <= done_until,
                f"partition {position.partition} is committed up to {position.committed}, and done "
                f"up to {done_until}",
            )


class HandlingMember:
    """One call of `consume`, as its handler sees it."""

    def __init__(self, workload: Handling) -> None:
        self._workload = workload
        self._dice = workload.dice
        self._in_hand: set[Line] = set()
        self._succeeded = 0

    async def handle(self, message: fanlog.Message) -> None:
        workload, line = self._workload, self._workload.line_of(message)
        workload.world.note(f"{message.partition} at {message.offset} is handled")
        if line in self._in_hand:
            workload.violated(f"two messages of {line} are handled at a time")
        if len(self._in_hand) >= workload.concurrency:
            workload.violated(f"more than {workload.concurrency} are handled at a time")
        workload.begins(message)
        self._in_hand.add(line)
        try:
            if self._dice.random() < 0.3:
                await asyncio.sleep(self._dice.uniform(0, 0.1))
            elif self._dice.random() < 0.01:
                # Longer than a member has to give a partition back.
                await asyncio.sleep(self._dice.uniform(0, 4))
        finally:
            self._in_hand.discard(line)
        poisonous = int(message.value.split(b" ")[0]) % _POISONOUS == 0
        if poisonous or (not workload.over and self._dice.random() < 0.05):
            workload.failed(message)
            raise Intended
        workload.succeeded(message)
        self._succeeded += 1

    def check(self, handled: Handled) -> None:
        """The result counts what succeeded."""
        if handled.messages != self._succeeded:
            self._workload.violated(f"{handled} after {self._succeeded} messages were handled")
