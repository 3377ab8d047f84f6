"""Members whose connections are cut, whose broker restarts, or who die: what they had they find
again, and what they lose others get."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog import errors
from tests.client.groups.test_groups import QUIET_SECONDS, Readers, committed, spread
from tests.client.proxy import proxy_to
from tests.client.test_reconnect import EAGER, Restartable, running, through
from tests.client.ways import PATIENCE_SECONDS, BrokerClock, take, take_values, until


def present(broker: Restartable) -> int:
    """How many members the group has that are connected."""
    assert broker.node is not None
    group = broker.node.core.groups.find("g")
    return 0 if group is None else len(group.present())


async def test_a_cut_connection_repeats_and_loses_nothing_and_moves_nothing(data: Path) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
    ):
        await calm.create_topic("t", partitions=4)
        told: list[Any] = []
        async with (
            through(proxy) as client,
            client.consume("t", group="g", reset="earliest", on_revoke=told.append) as cut,
            calm.consume("t", group="g", reset="earliest") as other,
        ):
            others = Readers(other)
            await until(lambda: len(cut.partitions) == len(other.partitions) == 2)
            had, before = cut.partitions, list(told)
            got: list[tuple[int, int]] = []
            sent: set[tuple[int, int]] = set()
            for _ in range(10):
                sent |= await spread(calm, "t", 4, 10)
                for _ in range(5):
                    message = await cut.next(PATIENCE_SECONDS)
                    got.append((message.partition, message.offset))
                cuts = client.reconnects
                proxy.cut()
                await until(lambda: client.connected and client.reconnects > cuts)  # noqa: B023
            mine = Readers(cut)
            await until(lambda: len(got) + len(mine.got[0]) + len(others.got[0]) >= len(sent))
            got += await mine.all_of(0) + await others.all_of(0)
            assert Counter(got) == Counter(sent)
            assert (cut.partitions, told) == (had, before)
        assert (await calm.groups.describe("g")).state == "inactive"


async def test_under_cuts_at_random_bytes_each_message_is_given_once(data: Path) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port, seed=5) as proxy,
        fanlog.connect(broker.url) as calm,
    ):
        await calm.create_topic("t", partitions=3)
        sent = await spread(calm, "t", 3, 300)
        proxy.cut_after = (200, 3000)
        async with (
            through(proxy) as client,
            client.consume("t", group="g", reset="earliest", commit="iterate") as member,
        ):
            got: Counter[tuple[int, int]] = Counter()
            while len(got) < len(sent) or proxy.cuts <= 3:
                if len(got) == len(sent):
                    sent |= await spread(calm, "t", 3, 100)
                message = await member.next(PATIENCE_SECONDS)
                got[message.partition, message.offset] += 1
            assert got == Counter(sent)
            proxy.cut_after = None


async def test_a_lost_member_is_gone_when_its_session_ends(
    data: Path, broker_clock: BrokerClock
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
    ):
        await calm.create_topic("t", partitions=2)
        await spread(calm, "t", 2, 5)
        async with (
            through(proxy) as client,
            client.consume("t", group="g", reset="earliest", session_seconds=0.3) as lost,
            calm.consume("t", group="g", reset="earliest") as other,
        ):
            others = Readers(other)
            await until(lambda: len(lost.partitions) == len(other.partitions) == 1)
            message = await lost.next(PATIENCE_SECONDS)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: present(broker) == 1)
            broker_clock.advance(0.2)
            await asyncio.sleep(QUIET_SECONDS)
            assert len(other.partitions) == 1
            broker_clock.advance(0.2)
            await until(lambda: len(other.partitions) == 2)
            proxy.refusing = False
            # It comes back, is told that what it had is gone, and gets its share again.
            await until(lambda: client.connected and len(other.partitions) == 1)
            with pytest.raises(errors.FencedError):
                await lost.commit(message)
            moved = message.partition
            await until(lambda: {o for p, o in others.got[0] if p == moved} == set(range(5)))
            await others.all_of(0)


async def test_a_static_member_comes_back_from_another_connection(data: Path) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url) as calm,
    ):
        await calm.create_topic("t", partitions=2)
        async with calm.consume("t", group="g", reset="earliest") as other:
            others = Readers(other)
            client = await through(proxy)
            first = client.consume("t", group="g", member="one", reset="earliest")
            await first.start()
            await until(lambda: len(first.partitions) == len(other.partitions) == 1)
            had = first.partitions
            await spread(calm, "t", 2, 3)
            await take(first, 2)
            await first.commit()
            proxy.refusing = True
            proxy.cut()
            async with calm.consume("t", group="g", member="one") as second:
                await until(lambda: second.partitions == had)
                assert (await second.next(PATIENCE_SECONDS)).offset == 2
                # The first finds its place taken when it comes back.
                proxy.refusing = False
                with pytest.raises(errors.FencedError):
                    await asyncio.wait_for(drained(first), PATIENCE_SECONDS)
                await others.all_of(3)
            await client.close()


async def drained(member: Any) -> None:
    while True:
        await member.next(PATIENCE_SECONDS)


async def test_a_broker_restart_moves_nothing_and_repeats_nothing(
    data: Path, broker_clock: BrokerClock
) -> None:
    async with running(data) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await client.create_topic("t", partitions=4)
        told: list[Any] = []
        async with (
            client.consume("t", group="g", reset="earliest", on_revoke=told.append) as a,
            client.consume("t", group="g", reset="earliest", on_revoke=told.append) as b,
        ):
            readers = Readers(a, b)
            await until(lambda: len(a.partitions) == len(b.partitions) == 2)
            had, before = (a.partitions, b.partitions), list(told)
            sent = await spread(client, "t", 4, 20)
            await broker.restart()
            sent |= await spread(client, "t", 4, 20)
            await until(lambda: present(broker) == 2)
            # Now the broker waits for nobody any more, and may share out anew.
            broker_clock.advance(60)
            assert Counter(await readers.all_of(len(sent))) == Counter(sent)
            assert (a.partitions, b.partitions) == had
            assert told == before


async def test_a_group_on_a_topic_in_memory_is_told_when_it_begins_anew() -> None:
    gaps: list[fanlog.Gap] = []
    async with running(None) as broker, fanlog.connect(broker.url, **EAGER) as client:
        await client.publish_many("t", [b"1", b"2"])
        async with client.consume("t", group="g", reset="earliest", on_gap=gaps.append) as member:
            assert await take_values(member, 2) == [b"1", b"2"]
            await broker.restart()
            await client.publish("t", b"new")
            assert await take_values(member, 1) == [b"new"]
            await member.commit()
            assert await committed(client, "g") == {0: 1}


async def test_a_client_that_closes_leaves_its_groups_at_once(data: Path) -> None:
    async with running(data) as broker, fanlog.connect(broker.url) as calm:
        await calm.publish_many("t", [b"1", b"2", b"3"])
        client = await fanlog.connect(broker.url)
        member = client.consume("t", group="g", reset="earliest", commit_interval_seconds=60)
        await take(member, 3)
        await client.close()
        info = await calm.groups.describe("g")
        assert (info.state, info.partitions[0].committed) == ("inactive", 2)
        with pytest.raises(errors.ClosedError):
            await member.next(PATIENCE_SECONDS)


async def test_a_revocation_survives_a_cut_and_a_restart(
    data: Path, broker_clock: BrokerClock
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        fanlog.connect(broker.url, **EAGER) as calm,
        through(proxy) as client,
    ):
        await calm.create_topic("t", partitions=2)
        await spread(calm, "t", 2, 5)
        async with client.consume("t", group="g", reset="earliest") as first:
            got: list[tuple[int, int]] = []
            while not got or got[-1][0] != 0:
                message = await first.next(PATIENCE_SECONDS)
                got.append((message.partition, message.offset))
            async with calm.consume("t", group="g", reset="earliest") as second:
                await until(lambda: first.partitions == (("t", 1),))
                proxy.cut()
                await until(lambda: client.reconnects == 1)
                await broker.restart()
                await until(lambda: present(broker) == 2)
                readers = Readers(first, second)
                # Those of before are back: the broker shares out what nobody has.
                broker_clock.advance(60)
                got += await readers.all_of(10 - len(got))
                assert len(first.partitions) == len(second.partitions) == 1
            assert Counter(got) == Counter((p, o) for p in range(2) for o in range(5))
