"""Workers as people write them: a loop that survives bad jobs, and a function that gets each job
until the program is told to stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.format.dead_letters import read_death
from tests.client.queues.hands import nothing_comes, work
from tests.client.ways import PATIENCE_SECONDS, WAYS, Blocking, BrokerClock, Way
from tests.scenarios.broker_process import BrokerProcess


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def test_a_loop_survives_a_bad_job_which_becomes_a_dead_letter(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[bytes] = []
    async with way.open() as client:
        await client.publish_many("jobs", [b"1", b"bad", b"2"])
        async with work(client, "jobs", queue="q", max_deliveries=2) as worker:
            async for job in worker:
                async with job:
                    if job.value == b"bad" and len(done) < 3:
                        raise ValueError("no such address")
                    done.append(job.value)
                if worker.failures == 2 and len(done) == 2:
                    break
        assert sorted(done) == [b"1", b"2"]
        async with client.subscribe("dead.jobs", start="earliest") as dead:
            letter = await dead.next(PATIENCE_SECONDS)
        death = read_death(letter.headers)
        assert death is not None
        assert (letter.value, death.reason) == (b"bad", "ValueError: no such address")
    said = [record.getMessage() for record in caplog.records if record.name == "fanlog.client"]
    assert said == [
        "Job jobs/0@1 of queue q failed at delivery 1: ValueError: no such address",
        "Job jobs/0@1 of queue q failed at delivery 2: ValueError: no such address",
    ]


async def test_a_handler_gets_each_job_and_its_errors_end_nothing(way: Way) -> None:
    done: list[bytes] = []
    async with way.open() as client:
        await client.publish_many("jobs", [b"1", b"bad", b"2"])
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def handle(job: Any) -> None:
            if job.value == b"bad" and job.deliveries == 1:
                raise ValueError("not yet")
            done.append(job.value)
            if len(done) == 3:
                loop.call_soon_threadsafe(ended.set)

        until = threading.Event() if isinstance(client, Blocking) else asyncio.Event()
        running = asyncio.ensure_future(
            client.work("jobs", handle, queue="q", concurrency=2, until=until)
        )
        await asyncio.wait_for(ended.wait(), PATIENCE_SECONDS)
        assert sorted(done) == [b"1", b"2", b"bad"]
        until.set()
        await asyncio.wait_for(running, PATIENCE_SECONDS)


async def test_a_handler_works_on_so_many_at_a_time_and_finishes_what_it_has_begun() -> None:
    begun: list[bytes] = []
    done: list[bytes] = []
    release, full, until = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(job: fanlog.Job) -> None:
        begun.append(job.value)
        if len(begun) == 3:
            full.set()
        await release.wait()
        done.append(job.value)

    async with fanlog.Broker() as broker:
        await broker.publish_many("jobs", [b"%d" % i for i in range(10)])
        running = asyncio.ensure_future(
            broker.work("jobs", handle, queue="q", concurrency=3, until=until)
        )
        await asyncio.wait_for(full.wait(), PATIENCE_SECONDS)
        until.set()
        release.set()
        await asyncio.wait_for(running, PATIENCE_SECONDS)
        assert begun == done == [b"0", b"1", b"2"]
        async with broker.work("jobs", queue="q") as worker:
            assert (await worker.next(PATIENCE_SECONDS)).value == b"3"


async def test_a_backoff_decides_when_a_job_comes_again(broker_clock: BrokerClock) -> None:
    hourly = fanlog.Backoff(first_seconds=3600, factor=1, jitter=0)
    async with fanlog.Broker() as broker:
        await broker.publish("jobs", b"1")
        async with broker.work("jobs", queue="q", retry=hourly) as worker:
            async with await worker.next(PATIENCE_SECONDS):
                raise ValueError
            await nothing_comes(worker)
            broker_clock.advance(3601)
            assert (await worker.next(PATIENCE_SECONDS)).deliveries == 2


async def test_a_backoff_is_the_queues_and_survives_a_restart(way: Way) -> None:
    """Whoever works in the queue later, and however a job fails."""
    retry = fanlog.Backoff(first_seconds=5, factor=3, max_seconds=60, jitter=0.25)
    async with way.open() as client:
        async with work(client, "jobs", queue="q", retry=retry) as worker:
            pass
        rule = (await client.groups.describe("q")).queue
        assert (rule.retry_delay_seconds, rule.retry_factor) == (5, 3)
        assert (rule.retry_max_seconds, rule.retry_jitter) == (60, 0.25)
    async with way.open() as client:
        async with work(client, "jobs", queue="q") as worker:
            assert worker.settings.retry_factor == 3
        # A plain delay is a rule of its own.
        async with work(client, "jobs", queue="q", retry_delay_seconds=2) as worker:
            rule = worker.settings
            assert (rule.retry_delay_seconds, rule.retry_factor, rule.retry_jitter) == (2, 1, 0)
        with pytest.raises(errors.InvalidArgumentError, match="not both"):
            async with work(client, "jobs", queue="q", retry=retry, retry_delay_seconds=2):
                pass
        wrong: Any = 5
        with pytest.raises(errors.InvalidArgumentError, match=r"retry is a fanlog\.Backoff"):
            async with work(client, "jobs", queue="q", retry=wrong):
                pass


def test_a_backoff_grows_up_to_its_end_and_its_jitter_only_shortens_it() -> None:
    exact = fanlog.Backoff(first_seconds=1, factor=3, max_seconds=20, jitter=0)
    assert [exact.delay_seconds(failures) for failures in (1, 2, 3, 4, 1000)] == [1, 3, 9, 20, 20]
    loose = fanlog.Backoff(first_seconds=8, jitter=0.5)
    assert all(4 <= loose.delay_seconds(1) <= 8 for _ in range(100))
    with pytest.raises(errors.InvalidArgumentError, match="jitter is 0 to 1"):
        fanlog.Backoff(jitter=2)


async def test_options_that_there_are_none_of_are_answered_with_those_there_are() -> None:
    wrong: Any = {"prefech": 3}
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.InvalidArgumentError, match=r"'prefech'. It has .*prefetch"):
            broker.work("jobs", queue="q", **wrong)
        nothing: Any = "send"
        with pytest.raises(errors.InvalidArgumentError, match="must be a function"):
            await broker.work("jobs", nothing, queue="q")


ASYNC_PROGRAM = """
import asyncio, sys, fanlog

async def handle(job):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)

async def main():
    async with fanlog.connect(sys.argv[1]) as client:
        await client.work("jobs", handle, queue="q")
    print("stopped", flush=True)

asyncio.run(main())
"""
PLAIN_PROGRAM = """
import sys, fanlog.sync

def handle(job):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", flush=True)

with fanlog.sync.connect(sys.argv[1]) as client:
    client.work("jobs", handle, queue="q")
print("stopped", flush=True)
"""


@pytest.mark.parametrize("program", [ASYNC_PROGRAM, PLAIN_PROGRAM], ids=["asyncio", "plain"])
def test_sigterm_lets_a_program_finish_its_job_and_leave(data: Path, program: str) -> None:
    with BrokerProcess(data) as broker, fanlog.sync.connect(broker.url) as client:
        client.publish_many("jobs", [b"%d" % i for i in range(10_000)])
        worker = subprocess.Popen(
            [sys.executable, "-c", program, broker.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate("go on\n", timeout=PATIENCE_SECONDS)
        # Some more may have begun before the signal was heard.
        *lines, last = said.splitlines()
        done = lines.count("done")
        assert lines == ["done", "begun"] * (done - 1) + ["done"]
        assert (last, worker.returncode) == ("stopped", 0)
        with client.work("jobs", queue="q") as rest:
            assert rest.next(PATIENCE_SECONDS).value == b"%d" % done
