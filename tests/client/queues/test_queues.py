"""Queues, and requests over them, over all ways to the one API."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.broker.queues.queue import Queue
from fanlog.broker.queues.spans import JobState
from fanlog.config import ListenerOptions
from fanlog.format.dead_letters import read_death
from fanlog.node import Node
from tests.client.proxy import proxy_to
from tests.client.queues.hands import nothing_comes, said, take_jobs, work
from tests.client.ways import (
    PATIENCE_SECONDS,
    WAYS,
    Blocking,
    BrokerClock,
    Way,
    until,
)
from tests.servers import free_port


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def fill(client: Any, count: int, topic: str = "jobs") -> list[bytes]:
    values = [b"%d" % i for i in range(count)]
    await client.publish_many(topic, values)
    return values


def queue_of(core: Core) -> Queue:
    """The queue `q`, as the broker has it."""
    queue = core.queues.find("q")
    assert queue is not None
    return queue


def lease_end_us(core: Core) -> int:
    """When the lease of the only job in hand runs out."""
    (part,) = queue_of(core).partitions.values()
    (leased,) = [span for span in part.jobs.spans if span.state is JobState.LEASED]
    return leased.due_us


# Work


async def test_many_workers_get_each_job_once(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("jobs", partitions=3)
        got: list[bytes] = []
        acked: list[bytes] = []
        finished = asyncio.Event()

        async def labour() -> None:
            async with work(client, "jobs", queue="q", prefetch=4) as worker:
                async for job in worker:
                    got.append(job.value)
                    await job.ack()
                    acked.append(job.value)
                    if len(acked) >= 300:
                        finished.set()

        labours = [asyncio.ensure_future(labour()) for _ in range(5)]
        values = await fill(client, 300)
        await asyncio.wait_for(finished.wait(), PATIENCE_SECONDS)
        info = await describe(client, "q")
        for one in labours:
            one.cancel()
        await asyncio.gather(*labours, return_exceptions=True)
        assert sorted(got) == sorted(acked) == sorted(values)
        assert info["lag"] == 0


async def describe(client: Any, name: str) -> dict[str, Any]:
    """A queue as its operators see it."""
    info = await client.groups.describe(name)
    return {"lag": info.lag, "dead": info.dead_lettered, "info": info}


async def test_everything_that_belongs_to_a_job_is_there(way: Way) -> None:
    async with way.open() as client:
        await client.publish("jobs", b'{"a": 1}', key="k", headers={"h": "1"})
        async with work(client, "jobs", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            assert (job.value, job.key, job.headers) == (b'{"a": 1}', b"k", {"h": b"1"})
            assert (job.topic, job.partition, job.offset) == ("jobs", 0, 0)
            assert (job.deliveries, job.message.offset, job.text) == (1, 0, '{"a": 1}')
            await job.ack()
            assert worker.queue == "q"
            assert worker.settings.max_deliveries == 5


async def test_nack_retries_and_reject_makes_a_dead_letter(way: Way) -> None:
    async with way.open() as client:
        await fill(client, 2)
        async with work(client, "jobs", queue="q", prefetch=2) as worker:
            first, second = await take_jobs(worker, 2)
            await first.nack(0, "try again")
            again = await worker.next(PATIENCE_SECONDS)
            assert (again.offset, again.deliveries) == (0, 2)
            await again.ack()
            await second.reject("broken")
            assert (await describe(client, "q"))["dead"] == 1
        async with client.subscribe("dead.jobs", start="earliest") as dead:
            letter = await dead.next(PATIENCE_SECONDS)
            death = read_death(letter.headers)
            assert death is not None
            assert (letter.value, death.offset, death.reason) == (b"1", 1, "broken")


async def test_a_job_acks_itself_at_the_end_of_its_block_and_nacks_on_an_exception(
    way: Way,
) -> None:
    async with way.open() as client:
        await fill(client, 1)
        async with work(client, "jobs", queue="q", max_deliveries=2, raise_errors=True) as worker:
            job = await worker.next(PATIENCE_SECONDS)
            with pytest.raises(ValueError, match="oh no"):
                async with job:
                    raise ValueError("oh no")
            async with await worker.next(PATIENCE_SECONDS) as job:
                assert job.deliveries == 2
            await nothing_comes(worker)
            assert (await describe(client, "q"))["lag"] == 0
        await client.publish("jobs", b"never done")
        async with work(client, "jobs", queue="q", max_deliveries=1, raise_errors=True) as worker:
            with pytest.raises(ValueError, match="oh no"):
                async with await worker.next(PATIENCE_SECONDS):
                    raise ValueError("oh no")
        async with client.subscribe("dead.jobs", start="earliest") as dead:
            death = read_death((await dead.next(PATIENCE_SECONDS)).headers)
            assert death is not None
            assert death.reason == "ValueError: oh no"


async def test_batches_are_acked_at_once(way: Way) -> None:
    async with way.open() as client:
        values = await fill(client, 5000)
        got: list[bytes] = []
        async with work(client, "jobs", queue="q", prefetch=2000) as worker:
            while len(got) < 5000:
                batch = await worker.next_batch(PATIENCE_SECONDS)
                assert len(batch) == len(batch.values) == len(batch.messages)
                got += batch.values
                await said(batch.ack_soon()) if len(got) % 2 else await batch.ack()
            await worker.flush()
            assert (await describe(client, "q"))["lag"] == 0
        assert got == values


async def test_acks_in_the_background_are_with_the_broker_after_a_flush(way: Way) -> None:
    async with way.open() as client:
        await fill(client, 100)
        async with work(client, "jobs", queue="q", prefetch=30) as worker:
            for _ in range(100):
                job = await worker.next(PATIENCE_SECONDS)
                await said(job.ack_soon())
            await worker.flush()
            assert (await describe(client, "q"))["lag"] == 0


async def test_acks_survive_a_restart(way: Way) -> None:
    async with way.open() as client:
        await fill(client, 10)
        async with work(client, "jobs", queue="q", prefetch=10, retry_delay_seconds=0) as worker:
            jobs = await take_jobs(worker, 10)
            for job in jobs[3:7]:
                await job.ack()
            await jobs[0].nack(3600)
    async with way.open() as client, work(client, "jobs", queue="q", prefetch=10) as worker:
        left = await take_jobs(worker, 5)
        assert [job.offset for job in left] == [1, 2, 7, 8, 9]
        await nothing_comes(worker)


async def test_a_worker_that_leaves_gives_its_jobs_to_others_at_once(way: Way) -> None:
    async with way.open() as client:
        await fill(client, 6)
        async with work(client, "jobs", queue="q", prefetch=6) as first:
            await take_jobs(first, 3)
            async with work(client, "jobs", queue="q", prefetch=10) as second:
                await first.close()
                assert [(j.offset, j.deliveries) for j in await take_jobs(second, 6)] == [
                    (offset, 1) for offset in range(6)
                ]


async def test_a_long_job_is_kept_alive(way: Way, broker_clock: BrokerClock) -> None:
    async with way.open() as client:
        await fill(client, 1)
        async with (
            work(client, "jobs", queue="q", visibility_seconds=0.2) as worker,
            work(client, "jobs", queue="q") as other,
        ):
            takers = {
                asyncio.ensure_future(one.next(PATIENCE_SECONDS)): one for one in (worker, other)
            }
            done, waiting = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
            (job,) = [task.result() for task in done]
            for _ in range(5):
                broker_clock.advance(0.15)
                await until(lambda: lease_end_us(way.core) == broker_clock.monotonic_us + 200_000)
            assert not any(task.done() for task in waiting)
            assert queue_of(way.core).redelivered == 0
            await job.ack()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_without_keeping_alive_a_job_goes_to_others_and_a_late_ack_says_so(
    way: Way, broker_clock: BrokerClock
) -> None:
    async with way.open() as client:
        await fill(client, 1)
        async with work(
            client, "jobs", queue="q", visibility_seconds=0.2, keep_alive=False
        ) as slow:
            job = await slow.next(PATIENCE_SECONDS)
            async with work(client, "jobs", queue="q") as other:
                broker_clock.advance(0.3)
                again = await other.next(PATIENCE_SECONDS)
                assert (again.offset, again.deliveries) == (0, 2)
                await again.ack()
            with pytest.raises(errors.LeaseLostError, match="too late"):
                await job.ack()


async def test_ordered_keys_are_done_in_order_by_many_workers(way: Way) -> None:
    async with way.open() as client:
        for i in range(200):
            await client.send("jobs", b"%d" % i, key=b"%d" % (i % 7))
        await client.flush()
        done: dict[bytes, list[int]] = {}
        busy: set[bytes] = set()
        count = 0
        finished = asyncio.Event()

        async def labour() -> None:
            nonlocal count
            async with work(client, "jobs", queue="q", prefetch=3, ordered=True) as worker:
                async for job in worker:
                    assert job.key not in busy
                    busy.add(job.key)
                    await asyncio.sleep(0)
                    busy.discard(job.key)
                    done.setdefault(job.key, []).append(int(job.value))
                    await job.ack()
                    count += 1
                    if count == 200:
                        finished.set()

        labours = [asyncio.ensure_future(labour()) for _ in range(4)]
        await asyncio.wait_for(finished.wait(), PATIENCE_SECONDS)
        for one in labours:
            one.cancel()
        await asyncio.gather(*labours, return_exceptions=True)
        for key, numbers in done.items():
            assert numbers == list(range(int(key), 200, 7))


async def test_a_queue_can_be_listed_reset_and_deleted(way: Way) -> None:
    async with way.open() as client:
        await fill(client, 5)
        async with work(client, "jobs", queue="q", prefetch=5) as worker:
            for job in await take_jobs(worker, 5):
                await job.ack()
        (info,) = await client.groups.list()
        assert (info.name, info.kind, info.state, info.lag) == ("q", "queue", "inactive", 0)
        (step,) = await client.groups.reset("q", 3)
        assert (step.before, step.after) == (5, 3)
        assert (await describe(client, "q"))["lag"] == 2
        await client.groups.delete("q")
        assert await client.groups.list() == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"queue": ""}, errors.InvalidArgumentError),
        ({"queue": "q", "prefetch": 0}, errors.InvalidArgumentError),
        ({"queue": "q", "max_deliveries": 0}, errors.InvalidArgumentError),
        ({"queue": "q", "reset": "none"}, errors.NoPositionError),
    ],
)
async def test_what_cannot_be_a_worker_is_said_at_the_start(
    way: Way, given: dict[str, Any], error: type[errors.FanlogError]
) -> None:
    async with way.open() as client:
        await client.create_topic("jobs")
        with pytest.raises(error):
            async with work(client, "jobs", **given):
                raise AssertionError("it began")


async def test_jobs_that_the_application_drops_go_out_again(
    way: Way, broker_clock: BrokerClock
) -> None:
    async with way.open() as client:
        await fill(client, 1)
        async with work(client, "jobs", queue="q", visibility_seconds=0.2) as worker:
            job = await worker.next(PATIENCE_SECONDS)
            assert job.deliveries == 1
            # As long as it is in hand, more time is asked for it.
            broker_clock.advance(0.15)
            await until(lambda: lease_end_us(way.core) == broker_clock.monotonic_us + 200_000)
            del job
            waiting = asyncio.ensure_future(worker.next(PATIENCE_SECONDS))
            while not queue_of(way.core).redelivered and not waiting.done():
                # The thread that handed it over may let go of it a moment later.
                gc.collect()
                await asyncio.sleep(0.05)
                broker_clock.advance(0.05)
            again = await waiting
            assert again.deliveries == 2
            await again.ack()


# Requests


async def test_a_request_gets_its_answer(way: Way) -> None:
    async with way.open() as client, work(client, "svc.double", queue="doublers") as worker:
        asked = asyncio.ensure_future(
            client.request(
                "svc.double", b"21", headers={"h": "1"}, timeout_seconds=PATIENCE_SECONDS
            )
        )
        job = await worker.next(PATIENCE_SECONDS)
        assert (job.value, job.headers["h"]) == (b"21", b"1")
        await job.reply(b"42", {"extra": "yes"})
        answer = await asked
        assert (answer.value, answer.headers["extra"]) == (b"42", b"yes")
        assert (await describe(client, "doublers"))["lag"] == 0


async def test_many_requests_in_flight_get_each_its_own_answer(way: Way) -> None:
    async with way.open() as client:
        service = asyncio.ensure_future(client.serve("svc.up", handler_for(client), prefetch=8))
        await ready(client, "svc.up")
        answers = await asyncio.gather(
            *(
                client.request("svc.up", b"x%d" % i, timeout_seconds=PATIENCE_SECONDS)
                for i in range(40)
            )
        )
        assert [answer.value for answer in answers] == [b"X%d" % i for i in range(40)]
        await end(service)


def handler_for(client: Any) -> Any:
    if isinstance(client, Blocking):
        return lambda job: job.value.upper()

    async def handle(job: fanlog.Job) -> bytes:
        return job.value.upper()

    return handle


async def ready(client: Any, queue: str) -> None:
    """Until somebody works in the queue."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                if (await describe(client, queue))["info"].members:
                    return
            except errors.GroupNotFoundError:
                pass
            await asyncio.sleep(0.02)


async def end(service: asyncio.Future[None]) -> None:
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)


async def test_a_request_that_nobody_answers_in_time_says_so(way: Way) -> None:
    async with way.open() as client, work(client, "svc", queue="svc") as worker:
        # With an inbox that is there already the request goes out at once, and only the answer
        # can be late.
        asked = asyncio.ensure_future(
            client.request("svc", b"first", timeout_seconds=PATIENCE_SECONDS)
        )
        await (await worker.next(PATIENCE_SECONDS)).reply(b"at once")
        assert (await asked).value == b"at once"
        with pytest.raises(errors.RequestTimeoutError, match=r"within 0\.2 s"):
            await client.request("svc", b"?", timeout_seconds=0.2)
        # The late answer is dropped, and the next request gets its own.
        late = await worker.next(PATIENCE_SECONDS)
        await late.reply(b"late")
        asked = asyncio.ensure_future(client.request("svc", b"!", timeout_seconds=PATIENCE_SECONDS))
        await (await worker.next(PATIENCE_SECONDS)).reply(b"in time")
        assert (await asked).value == b"in time"


async def test_a_request_that_fails_raises_what_the_worker_said(way: Way) -> None:
    async with way.open() as client, work(client, "svc", queue="svc") as worker:
        asked = asyncio.ensure_future(client.request("svc", b"?", timeout_seconds=PATIENCE_SECONDS))
        await (await worker.next(PATIENCE_SECONDS)).fail("no such picture")
        with pytest.raises(errors.RequestError, match="no such picture"):
            await asked


async def test_a_request_with_nobody_to_answer_fails_at_once(way: Way) -> None:
    async with way.open() as client:
        with pytest.raises(errors.NoRespondersError, match="'svc' has no worker or reader"):
            await client.request("svc", b"?")
        async with client.subscribe("svc") as reader:
            asked = asyncio.ensure_future(
                client.request("svc", b"?", timeout_seconds=PATIENCE_SECONDS)
            )
            await client.reply(await reader.next(PATIENCE_SECONDS), b"read")
            assert (await asked).value == b"read"


async def test_a_reply_to_what_is_no_request_is_only_an_ack(way: Way) -> None:
    async with way.open() as client:
        await client.publish("svc", b"plain")
        async with work(client, "svc", queue="svc") as worker:
            await (await worker.next(PATIENCE_SECONDS)).reply(b"nobody hears it")
            assert (await describe(client, "svc"))["lag"] == 0


async def test_inboxes_are_nobody_elses_business_and_go_with_their_client(way: Way) -> None:
    async with way.open() as client, client.subscribe(">") as everything:
        async with work(client, "svc", queue="svc") as worker:
            asked = asyncio.ensure_future(
                client.request("svc", b"?", timeout_seconds=PATIENCE_SECONDS)
            )
            await (await worker.next(PATIENCE_SECONDS)).reply(b"!")
            await asked
        assert (await everything.next(PATIENCE_SECONDS)).topic == "svc"
        with pytest.raises(TimeoutError):
            await everything.next(0.1)
        assert [topic.name for topic in await client.topics()] == ["svc"]
        assert len(await client.topics("_inbox.>")) == 1


# With a network in between


async def serving(data: Path) -> tuple[Node, str]:
    # A port that nobody is given by chance between two starts.
    node = Node(data, fanlog.Config(listener=ListenerOptions(port=free_port())))
    node.start()
    return node, f"fanlog://127.0.0.1:{node.listen().port}"


async def test_a_client_deletes_its_inbox_when_it_closes(data: Path) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as other, other.work("svc", queue="svc") as worker:
            async with fanlog.connect(url) as client:
                asked = asyncio.ensure_future(
                    client.request("svc", b"?", timeout_seconds=PATIENCE_SECONDS)
                )
                await (await worker.next(PATIENCE_SECONDS)).reply(b"!")
                await asked
                assert len(await other.topics("_inbox.>")) == 1
                asked = asyncio.ensure_future(
                    client.request("svc", b"?", timeout_seconds=PATIENCE_SECONDS)
                )
                last = await worker.next(PATIENCE_SECONDS)
                asked.cancel()
            assert await other.topics("_inbox.>") == []
            await last.reply(b"nobody is there any more")
            assert await other.topics("_inbox.>") == []
    finally:
        await node.stop()


async def test_a_killed_workers_jobs_go_to_others(data: Path, broker_clock: BrokerClock) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as client, proxy_to(node.listeners[0].port) as proxy:
            await fill(client, 20)
            killed = await fanlog.connect(f"fanlog://127.0.0.1:{proxy.port}", reconnect=False)
            victim = killed.work("jobs", queue="q", prefetch=20, visibility_seconds=1)
            await take_jobs(victim, 5)
            queue = queue_of(node.core)
            await until(lambda: queue.leased == 20)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not queue.present())
            async with client.work("jobs", queue="q", prefetch=20) as worker:
                broker_clock.advance(1.1)
                jobs = await take_jobs(worker, 20)
                assert sorted(job.offset for job in jobs) == list(range(20))
                assert {job.deliveries for job in jobs} == {2}
            await killed.close(flush=False)
    finally:
        await node.stop()


async def test_a_worker_comes_back_to_its_jobs_after_a_lost_connection(data: Path) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as client, proxy_to(node.listeners[0].port) as proxy:
            await fill(client, 10)
            flaky = await fanlog.connect(
                f"fanlog://127.0.0.1:{proxy.port}", backoff_first_seconds=0.01
            )
            async with flaky, flaky.work("jobs", queue="q", prefetch=4) as worker:
                seen: list[int] = []
                for _ in range(10):
                    job = await worker.next(PATIENCE_SECONDS)
                    seen.append(job.offset)
                    assert job.deliveries == 1
                    proxy.cut()
                    await job.ack()
                assert seen == list(range(10))
                info = await client.groups.describe("q")
                assert (info.lag, info.redelivered) == (0, 0)
    finally:
        await node.stop()


async def test_under_cuts_at_random_bytes_every_job_is_done_and_none_after_its_ack(
    data: Path,
) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as client, proxy_to(node.listeners[0].port) as proxy:
            await fill(client, 400)
            proxy.cut_after = (300, 6000)
            acked: set[int] = set()
            again: list[int] = []

            async def labour() -> None:
                flaky = await dial(proxy.port)
                async with flaky.work("jobs", queue="q", prefetch=10, max_deliveries=100) as worker:
                    while len(acked) < 400:
                        try:
                            job = await worker.next(0.5)
                        except TimeoutError:
                            continue
                        if job.offset in acked:
                            again.append(job.offset)
                        try:
                            await job.ack()
                        except errors.LeaseLostError:
                            continue
                        acked.add(job.offset)
                    proxy.cut_after = None
                await flaky.close()

            await asyncio.wait_for(
                asyncio.gather(*(labour() for _ in range(3))), 2 * PATIENCE_SECONDS
            )
            assert acked == set(range(400))
            assert again == []
            assert proxy.cuts > 3
            assert (await client.groups.describe("q")).lag == 0
    finally:
        await node.stop()


async def dial(port: int) -> fanlog.Client:
    while True:
        try:
            return await fanlog.connect(
                f"fanlog://127.0.0.1:{port}", backoff_first_seconds=0.01, backoff_max_seconds=0.1
            )
        except errors.LinkError:
            continue


async def test_a_worker_that_does_nothing_hurts_nobody(data: Path) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as client, fanlog.connect(url) as lazy:
            slow = lazy.work("jobs", queue="q", prefetch=50)
            await slow.start()
            values = [bytes(1000) for _ in range(2000)]
            await client.publish_many("jobs", values)
            held = 50
            async with client.work("jobs", queue="q", prefetch=100) as worker:
                done = 0
                while done < 2000 - held:
                    batch = await worker.next_batch(PATIENCE_SECONDS)
                    done += len(batch)
                    await batch.ack()
                assert (await client.groups.describe("q")).lag == held
            await slow.close()
    finally:
        await node.stop()


async def test_a_worker_of_the_same_name_fences_the_one_before(data: Path) -> None:
    node, url = await serving(data)
    try:
        async with fanlog.connect(url) as one, fanlog.connect(url) as two:
            first = one.work("jobs", queue="q", worker="ann")
            await first.start()
            async with two.work("jobs", queue="q", worker="ann"):
                with pytest.raises(errors.FencedError, match="replaced this one"):
                    await first.next(PATIENCE_SECONDS)
            await first.close()
    finally:
        await node.stop()


@pytest.mark.parametrize("first", [0, 2, 4])
async def test_what_was_acked_before_a_restart_is_not_seen_again_after_it(
    data: Path, first: int
) -> None:
    """The broker dies before it hears of the acks, and hands the jobs out again before it does."""
    node, url = await serving(data)
    port = node.listeners[0].port
    config = fanlog.Config(listener=ListenerOptions(port=port))
    async with fanlog.connect(url, backoff_first_seconds=0.01, backoff_max_seconds=0.1) as client:
        await fill(client, 8)
        async with client.work("jobs", queue="q", prefetch=8) as worker:
            jobs = await take_jobs(worker, 8)
            await node.stop()
            acks = [asyncio.ensure_future(job.ack()) for job in jobs[first : first + 3]]
            await asyncio.sleep(0.05)
            node = Node(data, config)
            node.start()
            node.listen()
            await asyncio.gather(*acks)
            again = [job.offset for job in await take_jobs(worker, 5)]
            assert again == [o for o in range(8) if not first <= o < first + 3]
            await nothing_comes(worker)
    await node.stop()


async def test_a_queue_over_a_compacted_topic_does_what_is_left_and_is_done(
    way: Way,
) -> None:
    async with way.open() as client:
        await client.create_topic("jobs", cleanup="compact")
        for i in range(40):
            await client.publish("jobs", b"%d" % i, key=b"key-%d" % (i % 7 if i < 35 else i))
        await client.compact_topic("jobs")
        got: list[bytes] = []
        async with work(client, "jobs", queue="q", prefetch=3) as worker:
            while len(got) < 12:
                job = await worker.next(PATIENCE_SECONDS)
                got.append(job.value)
                await job.ack()
            await nothing_comes(worker)
            info = await client.groups.describe("q")
            assert info.lag == 0
        assert sorted(got, key=int) == [b"%d" % i for i in range(28, 40)]
