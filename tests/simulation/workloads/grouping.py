"""Members of a consumer group that join, leave and die. Promises (docs/groups.md):

- every message is delivered, and none is left out when a partition moves;
- a commit that was acknowledged counts: positions never go back;
- a partition has one owner: while a member has it, nobody else's commits of it succeed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import fanlog
from tests.simulation.workload import PATIENCE_SECONDS, Violation, Workload, ensure

TOPIC, GROUP = "events", "readers"
_PARTITIONS = 4
# What ends a membership, and not the program.
_OVER = (fanlog.errors.LinkError, fanlog.errors.FencedError)


@dataclass(slots=True, frozen=True)
class Commit:
    """One that succeeded: when it was asked for and answered, and by whom. `tenure` is when the
    member got the partition, and on which of its connections it committed."""

    begin: float
    end: float
    offset: int
    member: int
    tenure: tuple[float, int]


class Grouping(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.published: dict[bytes, tuple[int, int]] = {}
        self.delivered: set[bytes] = set()
        self.commits: list[list[Commit]] = [[] for _ in range(_PARTITIONS)]
        # The highest offset that anybody has asked to commit.
        self.asked = [0] * _PARTITIONS
        self.members = 0
        self._named = self.dice.random() < 0.3
        self._session = self.dice.choice((0.3, 1.0, 5.0))
        await client.create_topic(TOPIC, partitions=_PARTITIONS, durability="fsync")

    def begin(self) -> None:
        self.actor("publisher", self._publish)
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"member-{number}", lambda number=number: self._consume(number))

    async def _publish(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                value = b"%d" % self.dice.getrandbits(60)
                receipt = await client.publish(TOPIC, value, key=value)
                self.published[value] = (receipt.partition, receipt.offset)
                self.acknowledged += 1
                await asyncio.sleep(self.dice.uniform(0, 0.02))

    async def _consume(self, number: int) -> None:
        async with self.connecting() as client:
            while not self.over:
                self.members += 1
                name = f"member-{number}" if self._named else ""
                try:
                    await Membership(self, self.members).follow(client, name)
                except _OVER:
                    await asyncio.sleep(0.05)

    def option(self) -> float:
        return self._session

    async def settle(self, client: fanlog.Client) -> None:
        """One more member gets what nobody has committed."""
        self.members += 1
        missing = self.published.keys() - self.delivered
        membership = Membership(self, self.members)
        while missing:
            try:
                await membership.drain(client, missing)
            except _OVER:
                continue
            except TimeoutError:
                ensure(not missing, f"never delivered: {len(missing)}, such as {min(missing)!r}")

    async def check(self, client: fanlog.Client) -> None:
        for partition, commits in enumerate(self.commits):
            _check_order(partition, commits)
            _check_owners(partition, commits)
        if any(self.commits):
            found = await client.groups.describe(GROUP)
            positions = {p.partition: p.committed for p in found.partitions}
            for partition, commits in enumerate(self.commits):
                acked = max((commit.offset for commit in commits), default=0)
                position = positions.get(partition) or 0
                ensure(
                    acked <= position,
                    f"partition {partition} is at {position}, but {acked} was acknowledged",
                )


class Membership:
    """One member, from its join to its end, as its program sees it."""

    def __init__(self, workload: Grouping, number: int) -> None:
        self._workload = workload
        self._number = number
        self._world = workload.world
        self._dice = workload.dice
        self._joined_at = 0.0
        self._client: fanlog.Client
        self._assigned_at: dict[int, float] = {}
        self._expected: dict[int, int | None] = {}

    def _join(self, client: fanlog.Client, name: str) -> fanlog.client.aio.GroupMember:
        self._joined_at = self._world.now
        self._client = client
        return client.consume(
            TOPIC,
            group=GROUP,
            member=name,
            reset="earliest",
            commit="manual",
            session_seconds=self._workload.option(),
            on_assign=self._assigned,
        )

    async def follow(self, client: fanlog.Client, name: str) -> None:
        async with self._join(client, name) as member:
            for _ in range(self._dice.randint(5, 200)):
                if self._workload.over:
                    return
                try:
                    message = await member.next(0.3)
                except TimeoutError:
                    continue
                self._deliver(message)
                if self._dice.random() < 0.2:
                    await asyncio.sleep(self._dice.uniform(0, 0.2))
                if self._dice.random() < 0.3:
                    await self._commit(member, message)

    async def drain(self, client: fanlog.Client, missing: set[bytes]) -> None:
        async with self._join(client, "") as member:
            while missing:
                message = await member.next(PATIENCE_SECONDS)
                self._deliver(message)
                missing.discard(message.value)
                await self._commit(member, message)

    def _assigned(self, places: tuple[tuple[str, int], ...]) -> None:
        for _, partition in places:
            self._world.note(f"member {self._number} gets {partition}")
            self._assigned_at[partition] = self._world.now
            self._expected[partition] = None

    def _deliver(self, message: fanlog.Message) -> None:
        workload, partition, offset = self._workload, message.partition, message.offset
        workload.delivered.add(message.value)
        self._world.note(f"member {self._number} reads {partition} at {offset}")
        expected = self._expected.get(partition)
        if expected is None:
            self._check_start(partition, offset)
        elif offset > expected:
            workload.violated(f"{partition}: offset {offset} was delivered after {expected - 1}")
        self._expected[partition] = offset + 1

    def _check_start(self, partition: int, offset: int) -> None:
        """A partition begins at what is committed: not behind what anybody has asked for, and
        not before what was acknowledged when this member had not even joined."""
        commits = self._workload.commits[partition]
        least = max((c.offset for c in commits if c.end < self._joined_at), default=0)
        most = self._workload.asked[partition]
        if not least <= offset <= most:
            self._workload.violated(
                f"{partition} begins at {offset}; committed is {least} to {most}"
            )

    async def _commit(self, member: fanlog.client.aio.GroupMember, message: fanlog.Message) -> None:
        workload, partition, offset = self._workload, message.partition, message.offset + 1
        begin, connection = self._world.now, self._client.reconnects
        workload.asked[partition] = max(workload.asked[partition], offset)
        try:
            await member.commit(message)
        except fanlog.errors.FencedError:
            # The partition is another's by now.
            self._world.note(f"member {self._number} is too late for {partition} at {offset}")
            return
        self._world.note(f"member {self._number} commits {partition} at {offset}")
        tenure = self._assigned_at.get(partition, 0.0), connection
        workload.commits[partition].append(
            Commit(begin, self._world.now, offset, self._number, tenure)
        )
        workload.acknowledged += 1


def _check_order(partition: int, commits: list[Commit]) -> None:
    for commit in commits:
        before = max((c.offset for c in commits if c.end < commit.begin), default=0)
        ensure(
            before <= commit.offset,
            f"partition {partition} went back from {before}: {commit}",
        )


def _check_owners(partition: int, commits: list[Commit]) -> None:
    """Between two commits of a member that was connected all the time, no other commits. One that
    lost its connection may have come back and claimed what another had meanwhile."""
    last: dict[tuple[int, tuple[float, int]], Commit] = {}
    for commit in sorted(commits, key=lambda commit: commit.end):
        before = last.get((commit.member, commit.tenure))
        last[commit.member, commit.tenure] = commit
        if before is None:
            continue
        for other in commits:
            between = before.end < other.begin and other.end < commit.begin
            if between and other.member != commit.member:
                raise Violation(
                    f"partition {partition} has two owners: {other} between {before} and {commit}"
                )
