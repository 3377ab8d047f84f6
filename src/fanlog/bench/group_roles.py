"""What the processes of the groups' benchmark do: read a backlog, and work jobs off.

Law: each role is one coroutine, written as that client's users would write it. What it does before
`start()` is not measured; it returns what it counted and when it had the last of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import fanlog
from fanlog.bench.crew import RoleResult, StartSignal
from fanlog.bench.systems import HOST, BenchError

Iteration = Literal["batches", "messages"]
Acking = Literal["batch.ack", "batch.ack_soon", "job.ack_soon", "msg.ack", "msg.ack_sync"]

ASSIGNED_TIMEOUT_S = 30.0
ASSIGNED_POLL_S = 0.005
DRY_TIMEOUT_S = 30.0
ACK_TIMEOUT_S = 60.0
# As `wires/nats.py` makes it.
NATS_STREAM = "BENCH"


def url_of(port: int) -> str:
    return f"fanlog://{HOST}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLoad:
    """One reader of a backlog: its partition, and the number of messages. A member of a `group`
    takes the partition that it is assigned."""

    port: int
    topic: str
    partition: int
    messages: int
    iteration: Iteration
    group: str = ""


async def read_partition(given: ReaderLoad, start: StartSignal) -> RoleResult:
    """A plain reader of its own partition."""
    async with fanlog.connect(url_of(given.port)) as client:
        await start()
        reader = client.subscribe(given.topic, start="earliest", partitions=(given.partition,))
        async with reader:
            return await _read(reader, given)


async def read_as_member(given: ReaderLoad, start: StartSignal) -> RoleResult:
    """A member of a group that has been given its partition, and begins at the log's start."""
    async with fanlog.connect(url_of(given.port)) as client:
        member = client.consume(given.topic, group=given.group, reset="latest")
        async with member:
            await _assigned_one(member)
            await start()
            await member.seek("earliest")
            return await _read(member, given)


async def _assigned_one(member: fanlog.GroupMember) -> None:
    """Waits until each member has one partition."""
    async with asyncio.timeout(ASSIGNED_TIMEOUT_S):
        while len(member.partitions) != 1:  # noqa: ASYNC110 - the broker says when
            await asyncio.sleep(ASSIGNED_POLL_S)


async def _read(reader: fanlog.Subscription, given: ReaderLoad) -> RoleResult:
    count = 0
    if given.iteration == "batches":
        async for batch in reader.batches():
            count += len(batch.values)
            if count >= given.messages:
                break
    else:
        async for _ in reader:
            count += 1
            if count >= given.messages:
                break
    return RoleResult(count, time.perf_counter())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker of a queue: its working time, and how it acks. `prefetch` is the most jobs it
    holds, or fetches at once."""

    port: int
    topic: str
    queue: str
    acking: Acking
    prefetch: int
    seconds: float


async def work_fanlog(given: WorkerLoad, start: StartSignal) -> RoleResult:
    """A worker that joins its queue when it starts: nothing is in hand before."""
    async with fanlog.connect(url_of(given.port)) as client:
        await start()
        until = time.perf_counter() + given.seconds
        worker = client.work(
            given.topic, queue=given.queue, prefetch=given.prefetch, reset="earliest"
        )
        async with worker, _dry_after(given.seconds):
            count = await WORK[given.acking](worker, until)
            # A job counts as acked when the broker has answered.
            await worker.flush()
            return RoleResult(count, time.perf_counter())


async def ack_batches(worker: fanlog.Worker, until: float) -> int:
    count = 0
    async for batch in worker.batches():
        await batch.ack()
        count += len(batch)
        if time.perf_counter() >= until:
            break
    return count


async def ack_batches_soon(worker: fanlog.Worker, until: float) -> int:
    count = 0
    async for batch in worker.batches():
        batch.ack_soon()
        count += len(batch)
        if time.perf_counter() >= until:
            break
    return count


async def ack_jobs_soon(worker: fanlog.Worker, until: float) -> int:
    count = 0
    async for job in worker:
        job.ack_soon()
        count += 1
        if time.perf_counter() >= until:
            break
    return count


WORK: dict[Acking, Callable[[fanlog.Worker, float], Awaitable[int]]] = {
    "batch.ack": ack_batches,
    "batch.ack_soon": ack_batches_soon,
    "job.ack_soon": ack_jobs_soon,
}


@contextlib.asynccontextmanager
async def _dry_after(seconds: float) -> AsyncGenerator[None]:
    """A worker that is idle when its time is up has no job left."""
    try:
        async with asyncio.timeout(seconds + DRY_TIMEOUT_S):
            yield
    except TimeoutError:
        raise BenchError(
            "All jobs were done before the time was up: choose more messages, or fewer seconds."
        ) from None


async def jobs_left(port: int, queue: str) -> int:
    """The number of jobs without an outcome."""
    async with fanlog.connect(url_of(port)) as client:
        return (await client.groups.describe(queue)).lag


async def work_nats(given: WorkerLoad, start: StartSignal) -> RoleResult:
    """A pull consumer of JetStream, shared by all workers: fetch many, ack each."""
    nats: Any = importlib.import_module("nats")
    client = await nats.connect(f"nats://{HOST}:{given.port}")
    pull = await client.jetstream().pull_subscribe_bind(given.queue, NATS_STREAM)
    await start()
    until = time.perf_counter() + given.seconds
    count = 0
    async with _dry_after(given.seconds):
        while time.perf_counter() < until:
            messages = await pull.fetch(given.prefetch, timeout=None)
            if given.acking == "msg.ack":
                for message in messages:
                    await message.ack()
            else:
                await asyncio.gather(*(message.ack_sync(ACK_TIMEOUT_S) for message in messages))
            count += len(messages)
        # After this answer, the server has all acks sent before.
        await client.flush()
    ended = time.perf_counter()
    await client.close()
    return RoleResult(count, ended)


async def add_nats_consumer(port: int, name: str, in_flight: int) -> None:
    """A durable pull consumer that begins with the first message."""
    nats: Any = importlib.import_module("nats")
    api: Any = importlib.import_module("nats.js.api")
    client = await nats.connect(f"nats://{HOST}:{port}")
    config = api.ConsumerConfig(
        durable_name=name, ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=in_flight
    )
    await client.jetstream().add_consumer(NATS_STREAM, config)
    await client.close()


async def nats_left(port: int, name: str) -> int:
    """Messages neither acked nor with an ack on its way."""
    nats: Any = importlib.import_module("nats")
    client = await nats.connect(f"nats://{HOST}:{port}")
    info = await client.jetstream().consumer_info(NATS_STREAM, name)
    await client.close()
    return int(info.num_pending) + int(info.num_ack_pending)
