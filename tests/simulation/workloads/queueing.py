"""Workers of a queue that ack, fail, time out and die. Promises (docs/queues.md):

- a job whose ack was acknowledged is not handed out again, and never to the worker that acked it;
- every job is done, or a dead letter, or still there;
- a rejected job is a dead letter;
- a job that has failed `max_deliveries` times is not handed out again;
- with `ordered`, a job is handed out after all earlier ones of its key are done or dead letters.
"""

from __future__ import annotations

import asyncio

import fanlog
from tests.simulation.workload import Workload, ensure, read_all

TOPIC, QUEUE, DEAD = "jobs", "workers", "dead.jobs"
_VISIBILITY_SECONDS = 1.0
_IDLE_SECONDS = 6.0
# A job may have been on its way to a worker for so long when another acked it.
_ON_THE_WAY_SECONDS = 5.0
_KEYS = 5
_DELIVERIES_MAX = 4
# One job of so many fails each time.
_HOPELESS = 10


class Queueing(Workload):
    async def prepare(self, client: fanlog.Client) -> None:
        self.published: set[bytes] = set()
        self.rejected: set[bytes] = set()
        # Jobs with an ack that nobody saw answered: they may be done.
        self.unknown: set[bytes] = set()
        # When the ack of a job was acknowledged.
        self.acked_at: dict[bytes, float] = {}
        self._acked_by: dict[bytes, fanlog.client.aio.Worker] = {}
        # When the failures of a job were acknowledged: those that must have counted.
        self.failed_at: dict[bytes, list[float]] = {}
        # By partition and key: when each offset was handed out first.
        self._handed_out: dict[tuple[int, bytes | None], dict[int, float]] = {}
        self._ordered = self.dice.random() < 0.3
        self._keep_alive = self.dice.random() < 0.5
        await client.create_topic(TOPIC, partitions=2, durability="fsync")

    def begin(self) -> None:
        self.actor("employer", self._publish)
        for number in range(self.dice.randint(1, 3)):
            self.actor(f"worker-{number}", self._work)

    async def _publish(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                value = b"%d" % self.dice.getrandbits(60)
                key = b"%d" % self.dice.randrange(_KEYS)
                priority = self.dice.choice((0, 0, 5))
                await client.publish(TOPIC, value, key=key, priority=priority)
                self.published.add(value)
                self.world.note(f"job {value!r} published")
                self.acknowledged += 1
                await asyncio.sleep(self.dice.uniform(0, 0.03))

    async def _work(self) -> None:
        async with self.connecting() as client:
            while not self.over:
                try:
                    await self._take_jobs(client)
                except fanlog.errors.LinkError:
                    await asyncio.sleep(0.05)

    def _join(self, client: fanlog.Client) -> fanlog.client.aio.Worker:
        return client.work(
            TOPIC,
            queue=QUEUE,
            prefetch=self.dice.choice((1, 1, 4)),
            visibility_seconds=_VISIBILITY_SECONDS,
            max_deliveries=_DELIVERIES_MAX,
            ordered=self._ordered,
            keep_alive=self._keep_alive,
            reset="earliest",
        )

    async def _take_jobs(self, client: fanlog.Client) -> None:
        joined_at = self.world.now
        async with self._join(client) as worker:
            for _ in range(self.dice.randint(5, 100)):
                if self.over:
                    return
                try:
                    job = await worker.next(0.3)
                except TimeoutError:
                    continue
                self._check_handed_out(job, joined_at, worker)
                await self._decide(client, job, worker)

    def _check_handed_out(
        self, job: fanlog.Job, joined_at: float, worker: fanlog.client.aio.Worker
    ) -> None:
        self.world.note(f"job {job.value!r} handed out, delivery {job.deliveries}")
        line = self._handed_out.setdefault((job.partition, job.key), {})
        line.setdefault(job.offset, self.world.now)
        if job.deliveries > _DELIVERIES_MAX:
            self.violated(f"{job!r} is handed out for the {job.deliveries}th time")
        long_ago = max(joined_at, self.world.now - _ON_THE_WAY_SECONDS)
        acked_at = self.acked_at.get(job.value)
        if acked_at is not None and acked_at < long_ago:
            self.violated(f"{job!r} was acked at {acked_at:.6f}, and is handed out again")
        if self._acked_by.get(job.value) is worker:
            self.violated(f"{job!r} was acked by the worker that gets it again")
        failed_at = self.failed_at.get(job.value, [])
        if len(failed_at) >= _DELIVERIES_MAX and failed_at[_DELIVERIES_MAX - 1] < long_ago:
            self.violated(f"{job!r} has failed at {failed_at}, and is handed out again")

    def _check_order(self, job: fanlog.Job, before: float) -> None:
        """A job was not done at this time: no later one of its key was handed out until then."""
        line = self._handed_out[job.partition, job.key]
        early = [offset for offset, at in line.items() if offset > job.offset and at < before]
        if self._ordered and early:
            self.violated(f"{job!r} was not done, and {early} of its key were handed out")

    async def _decide(
        self, client: fanlog.Client, job: fanlog.Job, worker: fanlog.client.aio.Worker
    ) -> None:
        fate = self.dice.random()
        if fate < 0.1:
            await asyncio.sleep(self.dice.uniform(0, 2 * _VISIBILITY_SECONDS))
        if fate < 0.75 and int(job.value) % _HOPELESS == 0:
            fate = 0.8
        begun, reconnects = self.world.now, client.reconnects
        try:
            if fate < 0.75:
                self.unknown.add(job.value)
                await job.ack()
                self.acked_at[job.value] = self.world.now
                self._acked_by[job.value] = worker
                self.acknowledged += 1
            elif fate < 0.85:
                await job.nack(delay_seconds=self.dice.choice((0.0, 0.2)))
            elif fate < 0.9:
                await job.reject("no good")
                self.rejected.add(job.value)
        except fanlog.errors.LeaseLostError:
            self.world.note(f"job {job.value!r} is another's")
            return
        self.world.note(f"job {job.value!r} has its outcome, {fate:.2f}")
        # An outcome that was sent twice may have come too late the second time.
        if fate < 0.85 and client.reconnects == reconnects:
            self._check_order(job, begun)
            if fate >= 0.75:
                self.failed_at.setdefault(job.value, []).append(self.world.now)

    async def settle(self, client: fanlog.Client) -> None:
        """One more worker does all that is left, but for jobs that nobody can do."""
        joined_at = self.world.now
        async with self._join(client) as worker:
            while True:
                try:
                    job = await worker.next(_IDLE_SECONDS)
                except TimeoutError:
                    return
                self._check_handed_out(job, joined_at, worker)
                hopeless = int(job.value) % _HOPELESS == 0
                try:
                    await (job.nack() if hopeless else job.ack())
                except fanlog.errors.LeaseLostError:
                    # Slow disks: it comes again.
                    continue
                if not hopeless:
                    self.acked_at[job.value] = self.world.now
                    self._acked_by[job.value] = worker

    async def check(self, client: fanlog.Client) -> None:
        dead: set[bytes] = set()
        if any(topic.name == DEAD for topic in await client.topics("dead.>")):
            for letters in (await read_all(client, DEAD)).values():
                dead |= {letter.value for letter in letters}
        lost = self.published - self.acked_at.keys() - dead - self.unknown
        ensure(not lost, f"{len(lost)} jobs are neither done nor dead letters: {sorted(lost)[:3]}")
        ensure(self.rejected <= dead, f"no dead letter: {sorted(self.rejected - dead)[:3]}")
        joined_at = self.world.now
        async with self._join(client) as worker:
            try:
                job = await worker.next(_VISIBILITY_SECONDS)
            except TimeoutError:
                return
            self._check_handed_out(job, joined_at, worker)
