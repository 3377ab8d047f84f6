"""Handlers of groups, as people write them: a function that gets each message of its partitions in
order, until the program is told to stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import BrokerOptions, Config
from tests.client.groups.test_groups import committed, committed_is
from tests.client.ways import PATIENCE_SECONDS, WAYS, Blocking, Way, until
from tests.scenarios.broker_process import BrokerProcess

AT_ONCE = fanlog.Backoff(first_seconds=0)
NEVER = fanlog.Backoff(first_seconds=3600, factor=1, jitter=0)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


@asynccontextmanager
async def handling(
    client: Any, topic: str, handler: Callable[[Any], Any], **options: Any
) -> AsyncIterator[asyncio.Future[fanlog.Handled]]:
    """A handler that runs meanwhile, in whatever way the client has."""
    stop = threading.Event() if isinstance(client, Blocking) else asyncio.Event()
    options = {"group": "g", "reset": "earliest", "until": stop, **options}
    running = asyncio.ensure_future(client.consume(topic, handler, **options))
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.wait([running]), PATIENCE_SECONDS)


class Got:
    """What a handler got, by partition; and whether any of them had two in hand."""

    def __init__(self) -> None:
        self.values: dict[int, list[bytes]] = defaultdict(list)

    def __call__(self, message: Any) -> None:
        self.values[message.partition].append(message.value)

    def __len__(self) -> int:
        return sum(map(len, self.values.values()))


async def test_a_handler_gets_each_message_in_order_and_commits_what_it_has_done(way: Way) -> None:
    got = Got()
    async with way.open() as client:
        await client.create_topic("t", partitions=3)
        for i in range(60):
            await client.publish("t", b"%d" % i, partition=i % 3)
        async with handling(client, "t", got, concurrency=3) as running:
            await until(lambda: len(got) == 60)
        assert (await running).messages == 60
        for partition in range(3):
            assert got.values[partition] == [b"%d" % i for i in range(partition, 60, 3)]
        assert await committed(client, "g") == {0: 20, 1: 20, 2: 20}


async def test_a_message_that_fails_is_tried_again_before_the_next_of_its_partition(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []

    def handle(message: Any) -> None:
        got.append(message.value)
        if message.value == b"bad" and got.count(b"bad") < 3:
            raise ValueError("not yet")

    async with way.open() as client:
        await client.publish_many("t", [b"1", b"bad", b"2"])
        async with handling(client, "t", handle, retry=AT_ONCE, concurrency=4) as running:
            await until(lambda: b"2" in got)
        handled = await running
    assert got == [b"1", b"bad", b"bad", b"bad", b"2"]
    assert (handled.messages, handled.failures, handled.dead_letters) == (3, 2, 0)
    said = [r.getMessage() for r in caplog.records if r.name == "fanlog.client"]
    assert said == [
        f"Message t/0@1 of group g failed at attempt {i}: ValueError: not yet" for i in (1, 2)
    ]


async def test_what_fails_too_often_becomes_a_dead_letter_that_can_be_replayed(way: Way) -> None:
    got: list[bytes] = []
    broken = True

    def handle(message: Any) -> None:
        if message.value == b"bad" and broken:
            raise ValueError("no such customer")
        got.append(message.value)

    async with way.open() as client:
        await client.create_topic("t", durability="memory", message_bytes_max=2000)
        await client.publish("t", b"bad", key="k", headers={"h": b"x"})
        await client.publish("t", b"2")
        async with handling(client, "t", handle, retry=AT_ONCE, max_attempts=2) as running:
            await until(lambda: got == [b"2"])
            await committed_is(client, "g", {0: 2})
            letters: Any = client.dead_letters
            if isinstance(client, Blocking):
                letters = client._client.dead_letters
                (letter,) = await asyncio.to_thread(letters.list, "dead.t")
            else:
                (letter,) = await letters.list("dead.t")
            death = letter.death
            assert (death.topic, death.partition, death.offset) == ("t", 0, 0)
            assert (death.queue, death.deliveries) == ("g", 2)
            assert (death.reason, death.key) == ("ValueError: no such customer", b"k")
            assert (letter.value, letter.headers) == (b"bad", {"h": b"x"})
            info = await client.describe_topic("dead.t")
            assert (info.settings.role, info.settings.durability) == ("dead-letter", "memory")
            broken = False
            if isinstance(client, Blocking):
                await asyncio.to_thread(letters.replay, "dead.t")
            else:
                await letters.replay("dead.t")
            await until(lambda: got == [b"2", b"bad"])
        handled = await running
        assert (handled.failures, handled.dead_letters, handled.messages) == (2, 1, 2)


async def test_a_letter_that_is_too_large_with_its_headers_has_no_content(data: Path) -> None:
    def handle(_: Any) -> None:
        raise ValueError("x" * 5000)

    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t")
        await broker.create_topic("my.dead", message_bytes_max=6000)
        await broker.publish("t", b"v" * 4000)
        options: Any = {"max_attempts": 1, "dead_letter": "my.dead"}
        async with handling(broker, "t", handle, **options):
            await committed_is(broker, "g", {0: 1})
        (letter,) = await broker.dead_letters.list("my.dead")
        assert letter.value is None
        assert letter.death.offset == 0


async def test_a_dead_letter_that_fails_again_stays_where_it_is(way: Way) -> None:
    """A pattern takes dead letters in. None of them may become another."""
    failed: list[str] = []

    def handle(message: Any) -> None:
        failed.append(message.topic)
        raise ValueError("no")

    async with way.open() as client:
        await client.publish("t", b"bad")
        options: Any = {"max_attempts": 2, "retry": AT_ONCE}
        async with handling(client, ">", handle, **options) as running:
            await until(lambda: failed == ["t", "t", "dead.t", "dead.t"])
        handled = await running
        assert (handled.dead_letters, handled.skipped, handled.failures) == (1, 1, 4)
        assert [info.name for info in await client.topics()] == ["dead.t", "t"]


async def test_what_is_skipped_is_said_and_the_partition_goes_on(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    got = Got()

    def handle(message: Any) -> None:
        if message.value == b"bad":
            raise ValueError("no")
        got(message)

    async with way.open() as client:
        await client.publish_many("t", [b"bad", b"2"])
        async with handling(client, "t", handle, max_attempts=1, on_failure="skip") as running:
            await until(lambda: len(got) == 1)
        handled = await running
        assert (handled.skipped, handled.failures, handled.messages) == (1, 1, 1)
        assert await committed(client, "g") == {0: 2}
        assert not await client.topics("dead.*")
    assert "Message t/0@0 of group g is skipped after 1 attempts." in caplog.messages


async def test_stop_raises_the_handlers_error_and_commits_nothing_of_it(way: Way) -> None:
    got = Got()

    def handle(message: Any) -> None:
        if message.value == b"bad":
            raise KeyError("no such customer")
        got(message)

    async with way.open() as client:
        await client.publish_many("t", [b"1", b"bad", b"2"])
        options: Any = {"max_attempts": 2, "retry": AT_ONCE, "on_failure": "stop"}
        with pytest.raises(KeyError, match="no such customer") as raised:
            await asyncio.wait_for(
                client.consume("t", handle, group="g", reset="earliest", **options),
                PATIENCE_SECONDS,
            )
        assert "t/0@1 failed 2 times" in raised.value.__notes__[0]
        assert await committed(client, "g") == {0: 1}
        assert got.values == {0: [b"1"]}


async def test_partitions_run_side_by_side_and_one_that_waits_holds_up_no_other() -> None:
    got = Got()
    begun: list[int] = []
    together = asyncio.Event()

    async def handle(message: fanlog.Message) -> None:
        begun.append(message.partition)
        if len(set(begun)) == 3:
            together.set()
        await together.wait()
        if message.partition == 0:
            raise ValueError("waits for an hour")
        got(message)

    async with fanlog.Broker() as broker:
        await broker.create_topic("t", partitions=3)
        for i in range(30):
            await broker.publish("t", b"%d" % i, partition=i % 3)
        # A partition that waits takes none of the three places.
        async with handling(broker, "t", handle, concurrency=3, retry=NEVER):
            await until(lambda: len(got) == 20)
            await committed_is(broker, "g", {0: 0, 1: 10, 2: 10})
        assert begun.count(0) == 1


async def test_a_partition_that_waits_does_not_fill_the_window_of_the_others() -> None:
    """The one that waits has far more than the window behind it."""
    got = Got()
    broken = True

    def handle(message: fanlog.Message) -> None:
        if broken and message.partition == 0:
            raise ValueError("waits")
        got(message)

    async with fanlog.Broker(window_bytes=64 * 1024) as broker:
        await broker.create_topic("t", partitions=2)
        for i in range(100):
            for partition in range(2):
                await broker.publish("t", b"%05d" % i + bytes(5000), partition=partition)
        retry = fanlog.Backoff(first_seconds=0.2, factor=1, jitter=0)
        async with handling(broker, "t", handle, concurrency=2, retry=retry, max_attempts=None):
            await until(lambda: len(got.values[1]) == 100)
            await broker.publish("t", b"more", partition=1)
            await until(lambda: got.values[1][-1] == b"more")
            assert not got.values[0]
            broken = False
            await until(lambda: len(got.values[0]) == 100)
            await broker.publish("t", b"last", partition=0)
            await until(lambda: got.values[0][-1] == b"last")
        assert [value[:5] for value in got.values[0][:100]] == [b"%05d" % i for i in range(100)]
        assert len(got) == 202
        assert await committed(broker, "g") == {0: 101, 1: 101}


async def test_keys_run_side_by_side_each_in_order_and_commits_leave_no_gap() -> None:
    got: dict[bytes | None, list[bytes]] = defaultdict(list)

    async def handle(message: fanlog.Message) -> None:
        if message.key == b"slow" and message.value == b"0":
            raise ValueError("waits for an hour")
        got[message.key].append(message.value)

    async with fanlog.Broker() as broker:
        await broker.publish("t", b"first", key="a")
        for i in range(10):
            for key in ("slow", "b", None):
                await broker.publish("t", b"%d" % i, key=key)
        async with handling(broker, "t", handle, concurrency=4, order="key", retry=NEVER):
            await until(lambda: sum(map(len, got.values())) == 21)
            assert got[b"b"] == got[None] == [b"%d" % i for i in range(10)]
            assert got[b"slow"] == []
        # Up to the one that waits, although much behind it is done.
        assert await committed(broker, "g") == {0: 1}


async def test_messages_of_a_key_are_never_in_hand_together() -> None:
    in_hand: set[bytes | None] = set()
    done: dict[bytes | None, list[int]] = defaultdict(list)
    most = 0

    async def handle(message: fanlog.Message) -> None:
        nonlocal most
        assert message.key not in in_hand
        in_hand.add(message.key)
        most = max(most, len(in_hand))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        in_hand.discard(message.key)
        number = int(message.value)
        if number % 7 == 0 and done[message.key].count(-number) == 0:
            done[message.key].append(-number)
            raise ValueError("once")
        done[message.key].append(number)

    async with fanlog.Broker() as broker:
        for i in range(1, 3001):
            await broker.send("t", b"%d" % i, key=b"%d" % (i % 10))
        await broker.flush()
        options: Any = {"concurrency": 5, "order": "key", "retry": AT_ONCE}
        async with handling(broker, "t", handle, **options) as running:
            await until(lambda: sum(1 for v in done.values() for n in v if n > 0) == 3000)
        assert (await running).messages == 3000
        assert await committed(broker, "g") == {0: 3000}
    assert 1 < most <= 5
    for key, numbers in done.items():
        assert key is not None
        assert [n for n in numbers if n > 0] == [i for i in range(1, 3001) if i % 10 == int(key)]


# Rebalances


async def test_a_partition_that_waits_for_a_retry_is_let_go_at_once() -> None:
    """The next owner tries the message again; the first one does not, and commits nothing of it."""
    first: list[tuple[int, bytes]] = []
    second = Got()

    def fail(message: fanlog.Message) -> None:
        first.append((message.partition, message.value))
        raise ValueError("waits for an hour")

    async with fanlog.Broker() as broker:
        await broker.create_topic("t", partitions=2)
        for partition in range(2):
            await broker.publish("t", b"1", partition=partition)
            await broker.publish("t", b"2", partition=partition)
        async with handling(broker, "t", fail, concurrency=2, retry=NEVER):
            await until(lambda: len(first) == 2)
            async with handling(broker, "t", second):
                await until(lambda: len(second) == 2)
                (moved,) = second.values
                assert second.values[moved] == [b"1", b"2"]
                await committed_is(broker, "g", {moved: 2, 1 - moved: 0})
        assert sorted(first) == [(0, b"1"), (1, b"1")]
        assert await committed(broker, "g") == {moved: 2, 1 - moved: 0}


async def test_a_message_in_hand_is_finished_and_committed_before_its_partition_goes() -> None:
    release = asyncio.Event()
    begun: list[tuple[int, bytes]] = []
    second = Got()

    async def slow(message: fanlog.Message) -> None:
        begun.append((message.partition, message.value))
        await release.wait()

    async with fanlog.Broker() as broker:
        await broker.create_topic("t", partitions=2)
        for partition in range(2):
            await broker.publish("t", b"1", partition=partition)
            await broker.publish("t", b"2", partition=partition)
        async with handling(broker, "t", slow, concurrency=2):
            await until(lambda: len(begun) == 2)
            async with handling(broker, "t", second):
                await until_rebalancing(broker)
                assert len(second) == 0
                release.set()
                await until(lambda: len(second) == 1 and len(begun) == 3)
                (moved,) = second.values
                assert second.values[moved] == [b"2"]
                assert (moved, b"2") not in begun
                await committed_is(broker, "g", {0: 2, 1: 2})


async def until_rebalancing(broker: fanlog.Broker) -> None:
    """Until a partition is asked for; its owner is told on the same connection, before."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await broker.groups.describe("g")).state != "rebalancing":  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_lost_partition_is_handled_no_further_and_not_committed() -> None:
    """A handler takes longer than its member may keep a partition that goes to another."""
    release = asyncio.Event()
    begun: list[tuple[int, bytes]] = []
    second = Got()

    async def slow(message: fanlog.Message) -> None:
        begun.append((message.partition, message.value))
        await release.wait()

    config = Config(broker=BrokerOptions(revoke_seconds=0.1))
    async with fanlog.Broker(config=config) as broker:
        await broker.create_topic("t", partitions=2)
        for partition in range(2):
            for value in (b"1", b"2", b"3"):
                await broker.publish("t", value, partition=partition)
        async with handling(broker, "t", slow, concurrency=2) as running:
            await until(lambda: len(begun) == 2)
            async with handling(broker, "t", second):
                await until(lambda: len(second) == 3)
                (moved,) = second.values
                await committed_is(broker, "g", {moved: 3, 1 - moved: 0})
                release.set()
                await until(lambda: (1 - moved, b"3") in begun)
                await committed_is(broker, "g", {moved: 3, 1 - moved: 3})
                assert [value for partition, value in begun if partition == moved] == [b"1"]
        assert (await running).messages == 4


async def test_a_lost_connection_and_a_restart_repeat_nothing_that_was_done(data: Path) -> None:
    got: list[int] = []
    with BrokerProcess(data) as process:
        async with fanlog.connect(process.url) as client:
            await client.create_topic("t", partitions=2, durability="fsync")

            def handle(message: fanlog.Message) -> None:
                got.append(int(message.value))

            async with handling(client, "t", handle, concurrency=2):
                for i in range(200):
                    await client.publish("t", b"%d" % i, partition=i % 2)
                await until(lambda: len(got) == 200)
                process.kill()
                process.start()
                for i in range(200, 400):
                    await client.publish("t", b"%d" % i, partition=i % 2)
                await until(lambda: len(got) >= 400)
            assert sorted(got) == list(range(400))
            assert await committed(client, "g") == {0: 200, 1: 200}


# Stopping, and mistakes


async def test_what_was_begun_is_finished_and_what_was_not_is_left_to_others() -> None:
    release, stop = asyncio.Event(), asyncio.Event()
    begun: list[bytes] = []

    async def handle(message: fanlog.Message) -> None:
        begun.append(message.value)
        await release.wait()

    async with fanlog.Broker() as broker:
        await broker.publish_many("t", [b"1", b"2", b"3"])
        running = asyncio.ensure_future(
            broker.consume("t", handle, group="g", reset="earliest", until=stop)
        )
        await until(lambda: len(begun) == 1)
        stop.set()
        release.set()
        assert (await asyncio.wait_for(running, PATIENCE_SECONDS)).messages == 1
        assert begun == [b"1"]
        assert await committed(broker, "g") == {0: 1}


async def test_a_handler_that_runs_ends_with_its_client(way: Way) -> None:
    got = Got()
    async with way.open() as client:
        await client.publish("t", b"1")
        running = asyncio.ensure_future(client.consume("t", got, group="g", reset="earliest"))
        await until(lambda: len(got) == 1)
        await client.close()
        assert (await asyncio.wait_for(running, PATIENCE_SECONDS)).messages == 1


async def test_options_that_make_no_sense_are_refused() -> None:
    async with fanlog.Broker() as broker:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"concurency": 3}, r"'concurency'. It has .*concurrency"),
            ({"order": "topic"}, "no order 'topic': use one of partition, key"),
            ({"on_failure": "retry"}, "use one of dead-letter, skip, stop"),
            ({"commit": "manual"}, "no commit option"),
            ({"max_attempts": 0}, "1 or more"),
            ({"dead_letter": "t"}, "The group reads 't'"),
            ({"concurrency": 0}, "1 or more"),
        ]
        for options, said in wrong:
            with pytest.raises(errors.InvalidArgumentError, match=said):
                await broker.consume("t", print, group="g", **options)
        only_handlers: Any = {"retry": None}
        with pytest.raises(errors.InvalidArgumentError, match=r"'retry'. It has .*session"):
            broker.consume("t", group="g", **only_handlers)
        nothing: Any = "bill"
        with pytest.raises(errors.InvalidArgumentError, match="takes a message"):
            await broker.consume("t", nothing, group="g")


def test_plain_handlers_run_so_many_at_a_time_as_was_asked_for(data: Path) -> None:
    """More than Python's own threads for such calls."""
    many = 40
    together = threading.Barrier(many)
    stop = threading.Event()
    with BrokerProcess(data) as broker, fanlog.sync.connect(broker.url) as client:
        client.create_topic("t", partitions=many)
        for i in range(many):
            client.publish("t", b"x", partition=i)

        def handle(_: object) -> None:
            together.wait(PATIENCE_SECONDS)
            stop.set()

        client.consume("t", handle, group="g", reset="earliest", concurrency=many, until=stop)
        stop.clear()
        client.work("t", handle, queue="q", concurrency=many, until=stop)


ASYNC_PROGRAM = """
import asyncio, sys, fanlog

async def handle(message):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)

async def main():
    async with fanlog.connect(sys.argv[1]) as client:
        await client.consume("t", handle, group="g", reset="earliest")
    print("stopped", flush=True)

asyncio.run(main())
"""
PLAIN_PROGRAM = """
import sys, fanlog.sync

def handle(message):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", flush=True)

with fanlog.sync.connect(sys.argv[1]) as client:
    client.consume("t", handle, group="g", reset="earliest")
print("stopped", flush=True)
"""


@pytest.mark.parametrize("program", [ASYNC_PROGRAM, PLAIN_PROGRAM], ids=["asyncio", "plain"])
def test_sigterm_lets_a_program_finish_its_message_commit_and_leave(
    data: Path, program: str
) -> None:
    with BrokerProcess(data) as broker, fanlog.sync.connect(broker.url) as client:
        client.publish_many("t", [b"%d" % i for i in range(1000)])
        member = subprocess.Popen(
            [sys.executable, "-c", program, broker.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert member.stdout is not None
        assert member.stdout.readline() == "begun\n"
        member.send_signal(signal.SIGTERM)
        said, _ = member.communicate("go on\n", timeout=PATIENCE_SECONDS)
        *lines, last = said.splitlines()
        done = lines.count("done")
        assert lines == ["done", "begun"] * (done - 1) + ["done"]
        assert (last, member.returncode) == ("stopped", 0)
        (partition,) = client.groups.describe("g").partitions
        assert partition.committed == done
