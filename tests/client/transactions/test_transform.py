"""A group's positions in transactions, and consume-transform-produce as one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.config import BrokerOptions, Config
from fanlog.errors import FencedError
from tests.client.transactions.test_transactions import restarted, values_of
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, until
from tests.servers import free_port


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


async def committed(client: Any, group: str) -> dict[int, int]:
    return {p.partition: p.offset for p in await client.committed(f"group/{group}")}


async def transformed(client: Any, count: int, function: Any, **given: Any) -> None:
    """Transforms `in` to `out` while messages come: so many, in one go unless the machine is so
    slow that one takes longer than `idle_seconds`."""
    done = 0
    while done < count:
        done += await client.transform("in", "out", function, group="g", **given)
    assert done == count


# Positions in transactions


async def test_positions_are_committed_with_the_messages(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("in", [b"%d" % i for i in range(6)])
        async with client.consume("in", group="g", reset="earliest", commit="manual") as member:
            messages = [await member.next(PATIENCE_SECONDS) for _ in range(6)]
            async with client.transaction() as tx:
                await tx.publish("out", b"up to here")
                tx.commit_offsets(member, messages[2])
                assert await committed(client, "g") == {0: 0}
            assert await committed(client, "g") == {0: 3}
            async with client.transaction() as tx:
                tx.commit_offsets(member, messages[3:5])
            assert await committed(client, "g") == {0: 5}
            async with client.transaction() as tx:
                tx.commit_offsets(member)
                await tx.abort()
            assert await committed(client, "g") == {0: 5}
            async with client.transaction() as tx:
                tx.commit_offsets(member)
            assert await committed(client, "g") == {0: 6}
        assert await values_of(client, "out") == [b"up to here"]
    async with way.open() as client:
        assert await committed(client, "g") == {0: 6}


async def test_one_who_lost_the_partition_commits_neither_positions_nor_messages(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("in", [b"%d" % i for i in range(6)])
        first = client.consume("in", group="g", reset="earliest", commit="manual", member="one")
        await first.start()
        assert (await first.next(PATIENCE_SECONDS)).value == b"0"

        async def commit_late() -> None:
            async with client.transaction() as tx:
                await tx.publish("out", b"late")
                tx.commit_offsets(first)

        async with client.consume(
            "in", group="g", reset="earliest", commit="manual", member="one"
        ) as second:
            message = await second.next(PATIENCE_SECONDS)
            with pytest.raises(FencedError):
                await commit_late()
            assert await committed(client, "g") == {0: 0}
            async with client.transaction() as tx:
                await tx.publish("out", message.value)
                tx.commit_offsets(second)
        await first.close()
        assert await values_of(client, "out") == [b"0"]
        assert await committed(client, "g") == {0: 1}


@pytest.mark.parametrize("back", [False, True])
async def test_a_message_in_hand_whose_partition_was_lost_is_not_stored_with_what_is_left(
    data: Path, back: bool
) -> None:
    """By hand: the member has another partition, and the lost one may be back already."""
    config = Config(broker=BrokerOptions(revoke_seconds=0.1))
    async with fanlog.Broker(data, config) as broker:
        await broker.create_topic("in", partitions=2)
        await broker.publish("in", b"in hand", partition=0)
        slow = broker.consume("in", group="g", reset="earliest", commit="manual")
        async with slow, broker.transaction() as late, broker.transaction() as early:
            message = await slow.next(PATIENCE_SECONDS)
            await early.publish("out", message.value)
            early.commit_offsets(slow)
            quick = broker.consume("in", group="g", commit="manual")
            async with quick, broker.transaction() as tx:
                message = await quick.next(PATIENCE_SECONDS)
                await tx.publish("out", message.value)
                tx.commit_offsets(quick)
                await tx.commit()
                await until(lambda: len(slow.partitions) == 1)
                if back:
                    await quick.close()
                    await until(lambda: len(slow.partitions) == 2)
                await late.publish("out", message.value)
                with pytest.raises(FencedError, match="taken from this member"):
                    late.commit_offsets(slow)
                await late.abort()
                with pytest.raises(FencedError):
                    await early.commit()
                await early.abort()
        assert await values_of(broker, "out") == [b"in hand"]


# The one call


def shout(message: fanlog.Message) -> bytes:
    return message.value.upper()


async def test_a_transformation_reads_makes_and_commits(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("in", partitions=3)
        await client.create_topic("out", partitions=2)
        for i in range(100):
            await client.send("in", b"v%d" % i, key=b"k%d" % i, headers={"h": b"%d" % i})
        await client.flush()
        await transformed(client, 100, shout, batch_records=30, idle_seconds=0.3)
        assert sorted(await values_of(client, "out")) == sorted(b"V%d" % i for i in range(100))
        assert sum((await committed(client, "g")).values()) == 100
        async with client.subscribe("out", start="earliest") as out:
            message = await out.next(PATIENCE_SECONDS)
            assert message.key == message.value.lower().replace(b"v", b"k")
            assert message.headers == {"h": message.value[1:]}
        assert await client.transform("in", "out", shout, group="g", idle_seconds=0.1) == 0


async def test_a_function_makes_nothing_one_or_many_for_any_topic(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("in", [b"%d" % i for i in range(5)])

        def make(message: fanlog.Message) -> Any:
            match int(message.value):
                case 0:
                    return None
                case 1:
                    return [b"a", "b", fanlog.Outgoing("", b"c")]
                case 2:
                    return fanlog.Outgoing("other", b"d", key="k", headers={"x": "y"})
                case 3:
                    return []
                case _:
                    return "e"

        await transformed(client, 5, make, idle_seconds=0.2)
        assert await values_of(client, "out") == [b"a", b"b", b"c", b"e"]
        async with client.subscribe("other", start="earliest") as other:
            message = await other.next(PATIENCE_SECONDS)
            assert (message.value, message.key, message.headers) == (b"d", b"k", {"x": b"y"})
        assert await committed(client, "g") == {0: 5}


async def test_a_function_that_fails_leaves_its_batch_undone(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("in", [b"%d" % i for i in range(5)])
        broken = True

        def make(message: fanlog.Message) -> bytes:
            if broken and message.value == b"3":
                raise RuntimeError("not this one")
            return message.value

        whole: Any = {"group": "g", "batch_records": 2, "batch_seconds": PATIENCE_SECONDS}
        with pytest.raises(RuntimeError, match="not this one"):
            await client.transform("in", "out", make, **whole, idle_seconds=PATIENCE_SECONDS)
        assert await values_of(client, "out") == [b"0", b"1"]
        assert await committed(client, "g") == {0: 2}
        broken = False
        await transformed(client, 3, make, idle_seconds=0.2)
        assert await values_of(client, "out") == [b"%d" % i for i in range(5)]


async def test_it_ends_when_it_is_told_to(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("in", [b"x"] * 10)
        seen: list[bytes] = []

        def note(message: fanlog.Message) -> None:
            seen.append(message.value)

        whole: Any = {"group": "g", "batch_records": 4, "batch_seconds": PATIENCE_SECONDS}
        done = await client.transform("in", "out", note, **whole, until=lambda: len(seen) >= 8)
        assert done == len(seen) == 8
        assert await committed(client, "g") == {0: 8}


async def test_a_group_that_begins_at_the_end_misses_nothing_after_a_failure(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.publish("in", b"old")
        broken = asyncio.Event()

        async def make(message: fanlog.Message) -> bytes:
            if not broken.is_set():
                broken.set()
                raise RuntimeError("at the first message")
            return message.value

        running = asyncio.create_task(
            broker.transform("in", "out", make, group="g", reset="latest")
        )
        while await committed(broker, "g") != {0: 1}:  # noqa: ASYNC110 - the broker knows
            await asyncio.sleep(0.01)
        await broker.publish("in", b"new")
        with pytest.raises(RuntimeError):
            await running
        await broker.publish("in", b"newer")
        await transformed(broker, 2, make, reset="latest", idle_seconds=0.3)
        assert await values_of(broker, "out") == [b"new", b"newer"]


async def test_members_that_come_and_go_in_the_middle_lose_and_double_nothing(data: Path) -> None:
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("in", partitions=8)
        await broker.create_topic("out", partitions=4)
        sent = 0
        worked: Counter[str] = Counter()
        workers: dict[str, asyncio.Task[int]] = {}

        def start(name: str) -> None:
            async def make(message: fanlog.Message) -> bytes:
                worked[name] += 1
                if worked[name] % 20 == 0:
                    await asyncio.sleep(0.001)
                return message.value

            workers[name] = asyncio.create_task(
                broker.transform("in", "out", make, group="g", batch_records=50)
            )

        async def send_until_it_works(name: str) -> None:
            nonlocal sent
            before = worked[name]
            async with asyncio.timeout(40):
                while worked[name] == before:
                    for i in range(sent, sent + 200):
                        await broker.send("in", b"%d" % i, key=str(i))
                    sent += 200
                    await asyncio.sleep(0.01)

        for name in "abcd":
            start(name)
            await send_until_it_works(name)
        # One ends in the middle of what it does.
        await send_until_it_works("b")
        workers["b"].cancel()
        start("e")
        await send_until_it_works("e")
        await broker.flush()
        async with asyncio.timeout(40):
            while sum((await committed(broker, "g")).values()) < sent:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for task in workers.values():
            task.cancel()
        await asyncio.gather(*workers.values(), return_exceptions=True)
        # A commit moves the positions first, and stores its batches in the turns after that.
        async with asyncio.timeout(40):
            while len(values := await values_of(broker, "out")) < sent:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert len(set(values)) == len(values) == sent


def hearing_late(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's members hear of a loss together with what they get after it, as when both come
    behind the answer to their claims."""
    consume = client.consume

    def consume_late(*given: Any, **options: Any) -> Any:
        member = consume(*given, **options)
        lost: list[Any] = []
        core = member._member_core
        revoked, joined = core.revoked, core.joined

        def come(coming: Any) -> None:
            for revoke in lost:
                revoked(revoke)
            lost.clear()
            joined(coming)

        core.revoked = lambda revoke: lost.append(revoke) if revoke.lost else revoked(revoke)
        core.joined = come
        return member

    monkeypatch.setattr(client, "consume", consume_late)


@pytest.mark.parametrize(
    ("records", "left", "late"), [(10, 10, False), (1, 7, False), (1, 1, True), (4, 4, True)]
)
async def test_what_was_read_of_a_partition_that_was_taken_away_is_dropped(
    data: Path, monkeypatch: pytest.MonkeyPatch, records: int, left: int, late: bool
) -> None:
    """Also if the partition has come back meanwhile, after others have gone on in it, if they have
    gone as far as it had, and if nothing was done yet with the one message that was read."""
    config = Config(broker=BrokerOptions(revoke_seconds=0.1))
    async with fanlog.Broker(data, config) as broker:
        await broker.create_topic("in", partitions=2)
        for i in range(20):
            await broker.publish("in", b"%d" % i, partition=i % 2)
        reading, resume = asyncio.Event(), asyncio.Event()
        first_did: list[bytes] = []
        second_did: list[bytes] = []

        async def slow(message: fanlog.Message) -> bytes:
            first_did.append(message.value)
            if message.offset == 3:
                reading.set()
                await resume.wait()
            return message.value

        def quick(message: fanlog.Message) -> bytes:
            second_did.append(message.value)
            return message.value

        if late:
            hearing_late(broker, monkeypatch)
        # It gets no further than within its first ten, and ten are left to it in the end.
        whole: Any = {"group": "g", "batch_records": records, "batch_seconds": PATIENCE_SECONDS}
        first = asyncio.create_task(broker.transform("in", "out", slow, **whole))
        await reading.wait()
        # The other takes a partition away from the first, which is busy, and leaves again.
        monkeypatch.undo()
        whole["batch_records"] = min(records, left)
        await broker.transform("in", "out", quick, until=lambda: len(second_did) >= left, **whole)
        assert set(first_did) & set(second_did)
        assert broker._node is not None
        group = broker._node.core.groups.find("g")
        assert group is not None
        (alone,) = group.members.values()
        await until(lambda: [owned.member for owned in group.owned.values()] == [alone] * 2)
        for _ in range(10):  # so that it hears of it
            await asyncio.sleep(0.01)
        resume.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum((await committed(broker, "g")).values()) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            # Positions are told as soon as their transaction is committed, and before it is stored.
            while len(await values_of(broker, "out")) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        values = Counter(await values_of(broker, "out"))
        assert values == Counter(b"%d" % i for i in range(20))


async def test_what_was_read_before_a_loss_is_dropped_though_the_other_went_just_as_far(
    data: Path,
) -> None:
    """And though the message in hand is of a partition that was never lost."""
    config = Config(broker=BrokerOptions(revoke_seconds=0.1))
    async with fanlog.Broker(data, config) as broker:
        await broker.create_topic("in", partitions=2)
        read, reading, resume = asyncio.Event(), asyncio.Event(), asyncio.Event()
        second_did: list[bytes] = []

        async def slow(message: fanlog.Message) -> bytes:
            read.set()
            if message.value == b"kept":
                reading.set()
                await resume.wait()
            return message.value

        def quick(message: fanlog.Message) -> bytes:
            second_did.append(message.value)
            return message.value

        whole: Any = {"group": "g", "batch_records": 2, "batch_seconds": PATIENCE_SECONDS}
        whole["reset"] = "earliest"
        first = asyncio.create_task(broker.transform("in", "out", slow, **whole))
        await broker.publish("in", b"lost", partition=0)
        await read.wait()
        await broker.publish("in", b"kept", partition=1)
        await reading.wait()
        whole["batch_records"] = 1
        await broker.transform("in", "out", quick, until=lambda: bool(second_did), **whole)
        assert second_did == [b"lost"]
        assert broker._node is not None
        group = broker._node.core.groups.find("g")
        assert group is not None
        (alone,) = group.members.values()
        await until(lambda: [owned.member for owned in group.owned.values()] == [alone] * 2)
        for _ in range(10):  # so that it hears of it
            await asyncio.sleep(0.01)
        await broker.publish("in", b"last", partition=1)
        resume.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(await values_of(broker, "out")) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert sorted(await values_of(broker, "out")) == [b"kept", b"last", b"lost"]


async def test_a_broker_that_restarts_in_the_middle_loses_and_doubles_nothing(data: Path) -> None:
    # Whoever comes after a restart need not wait for members of before.
    options = BrokerOptions(group_grace_seconds=0.2)
    port = free_port()
    node = await restarted(data, port, options)
    async with fanlog.connect(f"fanlog://127.0.0.1:{port}", backoff_max_seconds=0.05) as client:
        await client.create_topic("in", partitions=4, durability="fsync")
        await client.create_topic("out", partitions=2, durability="fsync")
        count = 3000
        for i in range(count):
            await client.send("in", b"%d" % i, key=str(i))
        await client.flush()

        worked = 0

        async def make(message: fanlog.Message) -> bytes:
            nonlocal worked
            worked += 1
            if message.offset % 20 == 0:
                await asyncio.sleep(0.001)
            return message.value

        over = asyncio.Event()
        running = asyncio.create_task(
            client.transform("in", "out", make, group="g", batch_records=100, until=over.is_set)
        )
        for _ in range(3):
            before = worked
            await until(lambda: worked >= before + 250)  # noqa: B023
            await node.stop()
            node = await restarted(data, port, options)
        while sum((await committed(client, "g")).values()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        over.set()
        await running
        values = Counter(await values_of(client, "out"))
        assert len(values) == count
        assert set(values.values()) == {1}
    await node.stop()
