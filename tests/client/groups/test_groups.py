"""Consumer groups over every implementation of the API: members share, come and go, commit and
seek, and no message is lost or given twice."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import Counter
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.config import BrokerOptions, Config
from fanlog.model import Gap
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, take, take_values, until

# A restart in a test need not wait for members of before.
AT_ONCE = Config(broker=BrokerOptions(group_grace_seconds=0))
# What must not come would come within it.
QUIET_SECONDS = 0.3


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


async def committed(client: Any, group: str) -> dict[int, int | None]:
    return {p.partition: p.committed for p in (await client.groups.describe(group)).partitions}


async def committed_is(client: Any, group: str, expected: dict[int, int]) -> None:
    """Waits for commits in the background."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await committed(client, group) != expected:  # noqa: ASYNC110 - the broker's state
            await asyncio.sleep(0.005)


# Sharing


async def test_two_members_share_and_each_message_goes_to_one_of_them(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=4)
        async with (
            client.consume("t", group="g", reset="earliest") as a,
            client.consume("t", group="g", reset="earliest") as b,
        ):
            readers = Readers(a, b)
            await until(lambda: len(a.partitions) == len(b.partitions) == 2)
            assert {*a.partitions, *b.partitions} == {("t", i) for i in range(4)}
            expected = await spread(client, "t", 4, 100)
            assert Counter(await readers.all_of(len(expected))) == Counter(expected)
            assert all(readers.got)


async def spread(client: Any, topic: str, partitions: int, count: int) -> set[tuple[int, int]]:
    """So many messages in each partition; which ones they are."""
    publishing = [
        client.publish(topic, b"%d" % i, partition=partition)
        for i in range(count)
        for partition in range(partitions)
    ]
    return {(r.partition, r.offset) for r in await asyncio.gather(*publishing)}


class Readers:
    """Takes all that comes to some members, side by side; `got` is what each has, as partitions
    and offsets."""

    def __init__(self, *members: Any) -> None:
        self.got: list[list[tuple[int, int]]] = [[] for _ in members]
        self._enough = False
        self._tasks = [
            asyncio.create_task(self._read(member, got))
            for member, got in zip(members, self.got, strict=True)
        ]

    async def _read(self, member: Any, got: list[tuple[int, int]]) -> None:
        while not self._enough:
            try:
                message = await member.next(0.1)
            except TimeoutError:
                continue
            got.append((message.partition, message.offset))

    async def all_of(self, count: int) -> list[tuple[int, int]]:
        """All that came, once there is so much, and for a moment more: nothing may come twice."""
        tasks = self._tasks
        await until(lambda: sum(map(len, self.got)) >= count or any(t.done() for t in tasks))
        await asyncio.sleep(QUIET_SECONDS)
        self._enough = True
        await asyncio.gather(*tasks)
        return [place for got in self.got for place in got]


async def test_groups_read_independently_and_plain_readers_too(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"1", b"2", b"3"])
        async with (
            client.consume("t", group="g", reset="earliest") as g,
            client.consume("t", group="h", reset="earliest") as h,
            client.subscribe("t", start="earliest") as plain,
        ):
            for reader in (g, h, plain):
                assert await take_values(reader, 3) == [b"1", b"2", b"3"]


async def test_a_pattern_is_shared_and_new_topics_are_read_from_their_first_message(
    way: Way,
) -> None:
    async with way.open() as client:
        await client.publish("in.a", b"old")
        async with client.consume("in.>", group="g") as member:
            await until(lambda: member.partitions == (("in.a", 0),))
            await client.publish("in.b", b"first")
            assert await take_values(member, 1) == [b"first"]
            assert member.partitions == (("in.a", 0), ("in.b", 0))
            await client.delete_topic("in.a")
            await until(lambda: member.partitions == (("in.b", 0),))


async def test_nothing_is_lost_or_given_twice_while_members_come_and_go_under_load(
    way: Way,
) -> None:
    got: Counter[tuple[int, int]] = Counter()
    sent: set[tuple[int, int]] = set()
    async with way.open() as client:
        await client.create_topic("t", partitions=8)

        async def publish() -> None:
            """As long as somebody waits for more: the others may have taken what there was."""
            while not all(task.done() for task in consuming):
                sent.update(await spread(client, "t", 8, 3))
                await asyncio.sleep(0.003)

        async def consume(index: int, count: int) -> None:
            mode = ("auto", "iterate")[index % 2]
            async with client.consume("t", group="g", reset="earliest", commit=mode) as member:
                for _ in range(count):
                    message = await member.next(PATIENCE_SECONDS)
                    got[message.partition, message.offset] += 1
                await member.commit()

        async def rest() -> None:
            async with client.consume("t", group="g", reset="earliest") as member:
                while not (publishing.done() and got.keys() >= sent):
                    try:
                        message = await member.next(0.1)
                    except TimeoutError:
                        continue
                    got[message.partition, message.offset] += 1

        consuming = [asyncio.create_task(consume(i, 60 + 40 * i)) for i in range(6)]
        publishing = asyncio.create_task(publish())
        await asyncio.gather(rest(), *consuming)
        assert got.keys() == sent
        assert [place for place, times in got.items() if times > 1] == []


async def test_from_history_to_live_under_load_nothing_is_lost_or_repeated(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(3000)])

        async def publish() -> None:
            for i in range(3000, 6000, 50):
                await client.publish_many("t", [b"%d" % j for j in range(i, i + 50)])

        async with client.consume("t", group="g", reset="earliest") as member:
            publishing = asyncio.create_task(publish())
            assert await take_values(member, 6000) == [b"%d" % i for i in range(6000)]
            await publishing


# Assignment and revocation


async def test_the_application_is_told_what_comes_and_goes(way: Way) -> None:
    told: list[tuple[str, tuple[Any, ...]]] = []
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        whole, half = (("t", 0), ("t", 1)), 1
        first = client.consume(
            "t",
            group="g",
            on_assign=lambda places: told.append(("+", places)),
            on_revoke=lambda places: told.append(("-", places)),
        )
        async with first:
            await until(lambda: told == [("+", whole)])
            async with client.consume("t", group="g") as second:
                await until(lambda: len(second.partitions) == half)
                assert told[1:] == [("-", second.partitions)]
                moved = second.partitions
            await until(lambda: told[2:] == [("+", moved)])
        assert told[3:] == [("-", whole)]


async def test_a_callback_may_seek_before_the_first_message_comes(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"0", b"1", b"2", b"3"])
        holder: list[Any] = []

        def blocking(_: Any) -> None:
            holder[0]._member.seek(2)

        async def awaited(_: Any) -> None:
            await holder[0].seek(2)

        assigned = blocking if way.name == "blocking" else awaited
        member = client.consume("t", group="g", reset="earliest", on_assign=assigned)
        holder.append(member)
        async with member:
            assert await take_values(member, 2) == [b"2", b"3"]


async def test_a_commit_in_a_callback_leaves_out_the_message_that_is_worked_on(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        holder: list[Any] = []

        def blocking(_: Any) -> None:
            holder[0]._member.commit()

        async def awaited(_: Any) -> None:
            await holder[0].commit()

        revoked = blocking if way.name == "blocking" else awaited
        first = client.consume("t", group="g", reset="earliest", commit="manual", on_revoke=revoked)
        holder.append(first)
        async with first:
            for partition, value in enumerate((b"done", b"in hand")):
                await client.publish("t", value, partition=partition)
                assert await take_values(first, 1) == [value]
            async with client.consume("t", group="g") as second:
                await until(lambda: second.partitions == (("t", 0),))
                assert await committed(client, "g") == {0: 1, 1: 0}
            await first.commit()
            assert await committed(client, "g") == {0: 1, 1: 1}


@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_revocation_waits_for_what_is_in_hand_and_repeats_nothing(
    way: Way, by_batch: bool
) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        await spread(client, "t", 2, 10)
        async with client.consume("t", group="g", reset="earliest") as first:
            got: list[tuple[int, int]] = []
            # Of two, the first partition is the one that moves.
            while not got or got[-1][0] != 0:
                if by_batch:
                    batch = await first.next_batch(PATIENCE_SECONDS)
                    got += [(m.partition, m.offset) for m in batch]
                else:
                    message = await first.next(PATIENCE_SECONDS)
                    got.append((message.partition, message.offset))
            async with client.consume("t", group="g", reset="earliest") as second:
                await until(lambda: first.partitions == (("t", 1),))
                await asyncio.sleep(0.1)
                assert second.partitions == ()
                got += await Readers(first, second).all_of(20 - len(got))
                await until(lambda: second.partitions == (("t", 0),))
            assert sorted(got) == [(p, offset) for p in range(2) for offset in range(10)]


async def test_a_slow_consumer_is_overruled_after_revoke_seconds_and_its_commit_fenced(
    way: Way,
) -> None:
    config = Config(broker=BrokerOptions(revoke_seconds=0.3))
    async with way.open(config) as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", b"x", partition=0)
        async with client.consume("t", group="g", reset="earliest") as slow:
            message = await slow.next(PATIENCE_SECONDS)
            async with client.consume("t", group="g", reset="earliest") as quick:
                assert await take_values(quick, 1) == [b"x"]
                with pytest.raises(errors.FencedError, match="nothing was committed"):
                    await slow.commit(message)
                await slow.commit()


async def test_what_was_read_before_a_loss_is_not_committed_after_it(way: Way) -> None:
    """The partition was taken by force, moved on by another member, and given back."""
    config = Config(broker=BrokerOptions(revoke_seconds=0.3))
    async with way.open(config) as client:
        await client.create_topic("t", partitions=2)
        for i in range(10):
            await client.publish("t", b"%d" % i, partition=0)
        async with client.consume("t", group="g", reset="earliest", commit="manual") as slow:
            old = await slow.next(PATIENCE_SECONDS)
            transaction = client.transaction()
            await transaction.begin()
            transaction.commit_offsets(slow, old)
            async with client.consume("t", group="g", commit="manual") as quick:
                assert await take_values(quick, 5) == [b"%d" % i for i in range(5)]
                await quick.commit()
            await until(lambda: len(slow.partitions) == 2)
            with pytest.raises(errors.FencedError):
                await slow.commit(old)
            with pytest.raises(errors.FencedError):
                await transaction.commit()
            await committed_is(client, "g", {0: 5, 1: 0})
            assert await take_values(slow, 2) == [b"5", b"6"]
            await slow.commit()
            await committed_is(client, "g", {0: 7, 1: 0})


# Liveness


async def test_a_consumer_that_blocks_longer_than_its_session_loses_nothing(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        told: list[Any] = []
        member = client.consume(
            "t", group="g", reset="earliest", session_seconds=0.2, on_revoke=told.append
        )
        async with member, client.consume("t", group="g", reset="earliest") as other:
            await until(lambda: len(member.partitions) == len(other.partitions) == 1)
            had, before = member.partitions, list(told)
            # Blocks the loop of the asyncio clients; a blocking one has a loop of its own.
            time.sleep(0.6)  # noqa: ASYNC251
            await client.publish("t", b"x", partition=had[0][1])
            assert await take_values(member, 1) == [b"x"]
            assert (member.partitions, told) == (had, before)


async def test_a_second_member_of_the_same_name_fences_the_first(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"x")
        async with client.consume("t", group="g", member="one", reset="earliest") as first:
            await take(first, 1)
            async with client.consume("t", group="g", member="one", reset="earliest") as second:
                with pytest.raises(errors.FencedError, match="a name of its own"):
                    await first.next(PATIENCE_SECONDS)
                assert await take_values(second, 1) == [b"x"]
            with pytest.raises(errors.FencedError):
                await first.commit()


# Commits


async def test_by_iterating_the_last_message_counts_when_the_next_is_asked_for(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(5)])
        async with client.consume("t", group="g", reset="earliest", commit="iterate") as member:
            await take(member, 3)
            await committed_is(client, "g", {0: 2})
        async with client.consume("t", group="g", commit="iterate") as member:
            assert await take_values(member, 3) == [b"2", b"3", b"4"]
            with pytest.raises(TimeoutError):
                await member.next(0.01)
            await committed_is(client, "g", {0: 5})


async def test_automatic_commits_come_now_and_then_and_at_the_close(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(5)])
        often: Any = {"group": "g", "reset": "earliest", "commit_interval_seconds": 0.05}
        async with client.consume("t", **often) as member:
            await take(member, 3)
            await committed_is(client, "g", {0: 2})
            await take(member, 1)
            await committed_is(client, "g", {0: 3})
        seldom: Any = {"group": "h", "reset": "earliest", "commit_interval_seconds": 60}
        async with client.consume("t", **seldom) as member:
            await take(member, 3)
            assert await committed(client, "h") == {0: 0}
        assert await committed(client, "h") == {0: 2}


async def test_a_manual_commit_counts_the_message_in_hand_and_nothing_else_is_committed(
    way: Way,
) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(5)])
        async with client.consume("t", group="g", reset="earliest", commit="manual") as member:
            first, *_ = await take(member, 3)
            await member.commit()
            assert await committed(client, "g") == {0: 3}
            await member.commit(first)
            assert await committed(client, "g") == {0: 1}
            message = await member.next(PATIENCE_SECONDS)
            member.commit_soon(message)
            await committed_is(client, "g", {0: 4})
            member.commit_soon()
            await take(member, 1)
            await member.commit()
            assert await committed(client, "g") == {0: 5}
            offsets = member.offsets_for_commit()
            assert [(p.topic, p.partition, p.offset) for p in offsets.positions] == [("t", 0, 5)]
            await take_values(client.consume("t", group="h", reset="earliest"), 1)
        async with client.consume("t", group="k", reset="earliest", commit="manual") as member:
            await take(member, 5)
        assert await committed(client, "k") == {0: 0}


async def test_an_explicit_commit_is_not_taken_back_by_an_automatic_one(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(5)])
        often: Any = {"group": "g", "reset": "earliest", "commit_interval_seconds": 0.02}
        async with client.consume("t", **often) as member:
            await take(member, 3)
            await member.commit()
            await asyncio.sleep(0.2)
            assert await committed(client, "g") == {0: 3}
        assert await committed(client, "g") == {0: 3}


async def test_whole_batches_and_single_messages_can_be_taken_in_turn(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(6)])
        async with client.consume("t", group="g", reset="earliest", commit="manual") as member:
            got = await take_values(member, 2)
            while len(got) < 6:
                got += (await member.next_batch(PATIENCE_SECONDS)).values
                await member.commit()
                assert await committed(client, "g") == {0: len(got)}
            assert got == [b"%d" % i for i in range(6)]
            await client.publish("t", b"6")
            assert await take_values(member, 1) == [b"6"]


async def test_a_group_goes_on_after_a_restart_where_it_committed(way: Way) -> None:
    async with way.open(AT_ONCE) as client:
        await client.publish_many("t", [b"%d" % i for i in range(6)])
        async with client.consume("t", group="g", reset="earliest", commit="iterate") as member:
            await take(member, 4)
            await member.commit()
    async with way.open(AT_ONCE) as client, client.consume("t", group="g") as member:
        assert await take_values(member, 2) == [b"4", b"5"]


# Where it begins


async def test_without_a_position_the_reset_policy_decides(way: Way) -> None:
    async with way.open() as client:
        await client.publish("t", b"old")
        async with client.consume("t", group="late") as member:
            await until(lambda: member.partitions != ())
            await client.publish("t", b"new")
            assert await take_values(member, 1) == [b"new"]
        async with client.consume("t", group="early", reset="earliest") as member:
            assert await take_values(member, 2) == [b"old", b"new"]
        async with client.consume("t", group="none", reset="none") as member:
            with pytest.raises(errors.NoPositionError, match="reset policy is 'none'"):
                await member.next(PATIENCE_SECONDS)
        await client.groups.reset("none", 1, "t")
        async with client.consume("t", group="none", reset="none") as member:
            assert await take_values(member, 1) == [b"new"]


async def test_a_position_that_is_not_kept_any_more_is_a_gap_and_never_silence(way: Way) -> None:
    gaps: list[Gap] = []
    config = Config(broker=BrokerOptions(group_grace_seconds=0))
    async with way.open(config, in_memory=True) as client:
        await client.create_topic("t", tail_bytes=4096)
        await client.publish("t", b"x")
        async with client.consume("t", group="g", reset="earliest") as member:
            await take(member, 1)
            await member.commit()
        for _ in range(10):
            await client.publish("t", b"x" * 4000)
        async with client.consume("t", group="g", on_gap=gaps.append) as member:
            message = await member.next(PATIENCE_SECONDS)
            assert [(gap.first, gap.next) for gap in gaps] == [(1, message.offset)]


# Seeking


async def test_a_seek_goes_to_an_offset_a_time_and_both_ends(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        moments: list[dt.datetime] = []
        for i in range(4):
            moments.append(dt.datetime.now(dt.UTC))
            for partition in range(2):
                await client.publish("t", b"%d" % i, partition=partition)
            await asyncio.sleep(0.005)
        async with client.consume("t", group="g", reset="earliest") as member:
            await take(member, 3)
            await member.seek("earliest")
            assert Counter(await take_values(member, 8)) == Counter([b"0", b"1", b"2", b"3"] * 2)
            await member.seek(moments[2])
            assert Counter(await take_values(member, 4)) == Counter([b"2", b"3"] * 2)
            moved = await member.seek(1, "t", 1)
            assert [(p.partition, p.offset) for p in moved] == [(1, 1)]
            await member.commit()
            assert await committed(client, "g") == {0: 4, 1: 1}
            assert await take_values(member, 3) == [b"1", b"2", b"3"]
            await member.seek("earliest")
            await member.seek("latest")
            await client.publish("t", b"live", partition=0)
            assert await take_values(member, 1) == [b"live"]
            with pytest.raises(errors.OffsetOutOfRangeError):
                await member.seek(99)
            with pytest.raises(errors.InvalidArgumentError, match="no partition 7"):
                await member.seek("earliest", "t", 7)


async def test_after_a_seek_nothing_from_before_it_is_given_or_committed(way: Way) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"%d" % i for i in range(2000)])
        async with client.consume("t", group="g", reset="earliest", commit="iterate") as member:
            for target in (1500, 10, 700):
                await take(member, 5)
                await member.seek(target)
                assert (await member.next(PATIENCE_SECONDS)).offset == target
                await member.commit()
                assert await committed(client, "g") == {0: target + 1}


# Operators


async def test_operators_list_describe_reset_and_delete_groups(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", b"x", partition=0)
        async with client.consume("t", group="a.b", member="m", reset="earliest") as member:
            await take(member, 1)
            (info,) = await client.groups.list("a.*")
            assert (info.name, info.kind, info.state) == ("a.b", "stream", "active")
            assert [(m.id, m.static, m.partitions) for m in info.members] == [("m", True, 2)]
            assert [(p.partition, p.committed, p.lag) for p in info.partitions] == [
                (0, 0, 1),
                (1, 0, 0),
            ]
            assert info.partitions[0].lag_seconds > 0
            with pytest.raises(errors.GroupActiveError, match=r"\(m\)"):
                await client.groups.reset("a.b", "latest")
            await member.commit()
        assert (await client.groups.describe("a.b")).state == "inactive"
        steps = await client.groups.reset("a.b", "earliest", dry_run=True)
        assert [(s.partition, s.before, s.after) for s in steps] == [(0, 1, 0), (1, 0, 0)]
        assert (await client.groups.describe("a.b")).partitions[0].committed == 1
        assert await client.groups.reset("a.b", "earliest") == steps
        assert (await client.groups.describe("a.b")).lag == 1
        await client.groups.delete("a.b")
        assert await client.groups.list() == []
        with pytest.raises(errors.GroupNotFoundError):
            await client.groups.describe("a.b")


async def test_easy_mistakes_are_answered_with_a_sentence(way: Way) -> None:
    async with way.open() as client:
        for wrong, match in (
            ({"group": ""}, "needs a name"),
            ({"group": "g", "reset": "oldest"}, "no reset policy 'oldest'"),
            ({"group": "g", "commit": "never"}, "no commit mode 'never'"),
        ):
            with pytest.raises(errors.InvalidArgumentError, match=match):
                client.consume("t", **wrong)
        with pytest.raises(errors.InvalidArgumentError, match="session_seconds_max"):
            await client.consume("t", group="g", session_seconds=1e6).start()


async def test_fifty_members_on_64_partitions_stay_balanced_and_do_not_disturb_each_other(
    data: Any,
) -> None:
    """Messages flow all the while, and each comes once, whoever joins and leaves."""
    async with fanlog.Broker(data) as broker:
        await broker.create_topic("t", partitions=64, durability="memory")
        members: list[Any] = []
        got: Counter[tuple[int, int]] = Counter()
        tasks: list[asyncio.Task[None]] = []
        publishing = asyncio.create_task(publish_rounds(broker, 64))

        async def consume(member: Any) -> None:
            async for message in member:
                got[message.partition, message.offset] += 1

        for count in range(50):
            before = {place: m for m in members for place in m.partitions}
            member = broker.consume("t", group="g", reset="earliest", commit="iterate")
            await member.start()
            tasks.append(asyncio.create_task(consume(member)))
            members.append(member)
            await until(lambda: balanced(members))
            after = {place: m for m in members for place in m.partitions}
            moved = [place for place, m in before.items() if after[place] is not m]
            assert len(moved) <= 64 // (count + 1) + 1
        while len(members) > 1:
            leaving = members.pop(len(members) // 2)
            stays = {place: m for m in members for place in m.partitions}
            await leaving.close()
            await until(lambda: balanced(members))
            after = {place: m for m in members for place in m.partitions}
            assert all(after[place] is m for place, m in stays.items())
        publishing.cancel()
        await asyncio.wait([publishing])
        ends = {p.partition: p.visible_end for p in (await broker.describe_topic("t")).partitions}
        await until(lambda: len(got) == sum(ends.values()))
        assert set(got.values()) == {1}
        await members[0].close()
        await asyncio.gather(*tasks)


async def publish_rounds(broker: Any, partitions: int) -> None:
    while True:
        await spread(broker, "t", partitions, 1)
        await asyncio.sleep(0.005)


def balanced(members: list[Any]) -> bool:
    loads = [len(member.partitions) for member in members]
    return sum(loads) == 64 and max(loads) - min(loads) <= 1


async def test_while_a_partition_changes_hands_the_others_go_on(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        await client.publish("t", b"in hand", partition=0)
        async with client.consume("t", group="g", reset="earliest") as first:
            (held,) = await take(first, 1)
            async with client.consume("t", group="g", reset="earliest") as second:
                await until(lambda: first.partitions == (("t", 1),))
                assert held.partition == 0
                assert second.partitions == ()
                await client.publish("t", b"flows", partition=1)
                assert await take_values(first, 1) == [b"flows"]
                await until(lambda: second.partitions == (("t", 0),))
