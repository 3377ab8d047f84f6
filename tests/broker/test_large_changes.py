"""Changes of very many positions: prepared and taken in some at a time, all or none after a
crash, and in order with everything else that is committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fanlog.broker.slices import SLICE_US
from fanlog.broker.state import durable_names, ledger
from fanlog.errors import DiskFullError, FanlogError, GroupActiveError, LogFailedError
from fanlog.format.batch import encode_batch
from fanlog.format.large_batch import LargeBatch
from fanlog.format.messages import Position, ResetGroup
from fanlog.model import GROUP_PREFIX, Start
from tests.broker.groups.members import Member
from tests.broker.stage import HandRuntime, Stage, stage, succeeded

PARTITIONS = 60
A_STEP = 4
STEPS_A_SLICE = 2
G = GROUP_PREFIX + "g"
FIRST = dict.fromkeys(range(PARTITIONS), 1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are small, and each look at the clock is a part of a slice later."""

    def work_us(runtime: HandRuntime) -> int:
        runtime.time_us += SLICE_US // STEPS_A_SLICE
        return runtime.monotonic_us()

    monkeypatch.setattr(durable_names, "_CHANGED_A_STEP", A_STEP)
    monkeypatch.setattr(HandRuntime, "work_us", work_us)


def filled(on: Stage) -> None:
    """A group with a position in each of many partitions."""
    on.core.create_topic("t", {"partitions": PARTITIONS})
    for partition in range(PARTITIONS):
        on.publish("t", [b"x"] * 9, partition=partition)
    on.run()
    on.core.durable.commit_positions([(G, at(1))])
    on.run()


def at(offset: int) -> tuple[Position, ...]:
    return tuple(Position("t", partition, offset) for partition in range(PARTITIONS))


def offsets(on: Stage, name: str = G) -> dict[int, int]:
    return {p.partition: p.offset for p in on.core.durable.positions(name)}


def put(on: Stage, offset: int, got: list[FanlogError | None] | None = None) -> None:
    """As a reset does."""
    done = succeeded if got is None else got.append
    positions = {(p.topic, p.partition): on.core.durable.numbered(p) for p in at(offset)}
    on.core.durable.commit_in_slices(G, positions, done)


def forget(on: Stage) -> None:
    on.core.durable.forget_in_slices(G, succeeded)


def turn(on: Stage) -> None:
    if on.runtime.due:
        on.runtime.due.popleft()()


def until_written(on: Stage) -> None:
    while not on.sync_group.waiting:
        turn(on)


def until_partly_taken_in(on: Stage, before: dict[int, int]) -> None:
    until_written(on)
    on.sync_group.sync()
    turn(on)
    assert offsets(on) != before


@pytest.mark.parametrize("change", [forget, lambda on: put(on, 3)])
def test_very_many_positions_change_a_few_at_a_turn(
    data: Path, change: Callable[[Stage], None]
) -> None:
    with stage(data) as on:
        filled(on)
        states = [offsets(on)]
        change(on)
        until_written(on)
        on.sync_group.sync()
        states.append(offsets(on))
        while on.runtime.due:
            turn(on)
            states.append(offsets(on))
        steps = [len(dict(a.items() - b.items())) for a, b in pairwise(states)]
        assert 0 < max(steps) <= A_STEP * STEPS_A_SLICE
        assert sum(steps) == PARTITIONS
        assert states[-1] in ({}, dict.fromkeys(range(PARTITIONS), 3))


@pytest.mark.parametrize("durable", [False, True])
def test_a_crash_leaves_all_of_a_change_or_nothing(data: Path, durable: bool) -> None:
    with stage(data) as on:
        filled(on)
        put(on, 3)
        if durable:
            until_partly_taken_in(on, FIRST)
            assert set(offsets(on).values()) == {1, 3}
        else:
            turn(on)
            assert offsets(on) == FIRST
    with stage(data) as on:
        assert set(offsets(on).values()) == ({3} if durable else {1})
        assert len(offsets(on)) == PARTITIONS


def test_a_group_that_is_deleted_while_it_is_reset_stays_deleted(data: Path) -> None:
    for first in (turn, until_written, lambda on: until_partly_taken_in(on, FIRST)):
        folder = data / str(id(first))
        with stage(folder) as on:
            filled(on)
            put(on, 3)
            first(on)
            forget(on)
            on.settle()
            assert offsets(on) == {}
            assert on.core.durable.count == 0
            assert not on.core.groups.is_known("g")
        with stage(folder) as on:
            assert offsets(on) == {}


def test_what_is_committed_while_a_group_is_deleted_stays(data: Path) -> None:
    for first in (turn, until_written, lambda on: until_partly_taken_in(on, FIRST)):
        folder = data / str(id(first))
        with stage(folder) as on:
            filled(on)
            forget(on)
            first(on)
            on.core.durable.commit_positions([(G, at(5)[:2])])
            on.settle()
            assert offsets(on) == {0: 5, 1: 5}
        with stage(folder) as on:
            assert offsets(on) == {0: 5, 1: 5}


def test_a_member_that_joins_while_its_group_is_reset_begins_where_that_puts_it(
    data: Path,
) -> None:
    for first in (
        lambda on: None,
        turn,
        until_written,
        lambda on: until_partly_taken_in(on, FIRST),
    ):
        with stage(data / str(id(first))) as on:
            filled(on)
            put(on, 3)
            first(on)
            run, on.run = on.run, lambda: None  # type: ignore[method-assign]
            member = Member(on, "a").join()
            on.run = run  # type: ignore[method-assign]
            for _ in range(20):
                turn(on)
                assert set(member.has.values()) <= {3}
            for _ in range(20):
                on.settle()
                on.core.tick()
            assert member.has == {("t", partition): 3 for partition in range(PARTITIONS)}


async def test_a_reset_is_refused_if_a_member_joins_before_it_is_checked(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        wanted = ResetGroup(group="g", start=Start("offset", 3))
        resetting = asyncio.ensure_future(on.core.groups.reset(wanted))
        await asyncio.sleep(0)
        Member(on, "a").join()
        while not resetting.done():
            turn(on)
            await asyncio.sleep(0)
        with pytest.raises(GroupActiveError):
            await resetting
        assert set(offsets(on).values()) == {1}


async def test_a_reset_is_over_when_all_of_it_has_taken_effect(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        wanted = ResetGroup(group="g", start=Start("offset", 3))
        resetting = asyncio.ensure_future(on.core.groups.reset(wanted))
        while not resetting.done():
            if on.runtime.due:
                turn(on)
            else:
                on.sync_group.sync()
            for _ in range(3):
                await asyncio.sleep(0)
        assert [step.before for step in await resetting] == [1] * PARTITIONS
        assert offsets(on) == dict.fromkeys(range(PARTITIONS), 3)


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_change_that_can_not_be_stored_changes_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFullError("no room")

    with stage(data) as on:
        filled(on)
        got: list[FanlogError | None] = []
        put(on, 3, got)
        if fails == "write":
            monkeypatch.setattr(on.core.internal, "write_internal", refuse)
            on.runtime.run()
        else:
            until_written(on)
            on.fail_sync()
        assert isinstance(got[0], DiskFullError if fails == "write" else LogFailedError)
        assert offsets(on) == FIRST
        assert not on.core.durable.is_pending(G, "t", 0)


def test_a_promise_that_a_reset_overtakes_is_not_kept(data: Path) -> None:
    with stage(data) as on:
        filled(on)
        promised = (Position("t", 0, 7),)
        on.core.durable.promise(G, promised, "mark")
        put(on, 3)
        on.settle()
        assert not on.core.durable.is_promised(G, promised[0])
        assert on.core.durable.is_overtaken(G, promised[0], "mark")
        assert offsets(on)[0] == 3
    with stage(data) as on:
        assert on.core.durable.is_overtaken(G, promised[0], "mark")
        assert offsets(on)[0] == 3


def test_a_snapshot_of_the_ledger_loses_nothing_of_a_change_that_is_being_taken_in(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_SNAPSHOT_AFTER_RECORDS", 1)
    monkeypatch.setattr(ledger, "_SLICE_RECORDS", 5)
    with stage(data) as on:
        filled(on)
        put(on, 3)
        until_partly_taken_in(on, FIRST)
        for number in range(10):
            on.core.durable.commit_positions([(f"other{number}", at(2)[:1])])
            turn(on)
        on.settle()
        on.core.durable.commit_positions([("last", at(2)[:1])])
        on.settle()
        # A snapshot was written, which the next start begins with.
        assert on.core.describe("_fanlog.cursors").partitions[0].visible_end > 2 * PARTITIONS + 11
    with stage(data) as on:
        assert offsets(on) == dict.fromkeys(range(PARTITIONS), 3)
        assert offsets(on, "other9") == {0: 2}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_in_memory_is_what_a_restart_finds(
    data: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything counts in the order in which it was asked for."""
    chance = random.Random(seed)
    monkeypatch.setattr(ledger, "_SNAPSHOT_AFTER_RECORDS", 200)
    expected: dict[str, dict[tuple[str, int], int]] = {"a": {}, "b": {}}
    with stage(data) as on:
        for name in ("t", "u"):
            on.core.create_topic(name, {"partitions": 20})
        durable = on.core.durable
        for _ in range(120):
            name = chance.choice("ab")
            topic = chance.choice("tu")
            some = chance.sample(range(20), chance.randrange(1, 20))
            offset = chance.randrange(1000)
            number = on.core.catalog.get(topic).number
            positions = {(topic, i): Position(topic, i, offset, 0, number) for i in some}
            match chance.randrange(10):
                case 0:
                    durable.commit_in_slices(name, positions, succeeded)
                    expected[name] |= dict.fromkeys(positions, offset)
                case 1:
                    durable.commit_positions([(name, tuple(positions.values()))])
                    expected[name] |= dict.fromkeys(positions, offset)
                case 2:
                    durable.forget_in_slices(name, succeeded)
                    expected[name] = {}
                case 3 if chance.random() < 0.3:
                    on.core.delete_topic(topic)
                    on.core.create_topic(topic, {"partitions": 20})
                    for known in expected.values():
                        for gone in [one for one in known if one[0] == topic]:
                            del known[gone]
                case 4:
                    on.sync_group.sync()
                case _:
                    for _ in range(chance.randrange(6)):
                        turn(on)
        on.settle()
        found = {n: {(p.topic, p.partition): p.offset for p in durable.positions(n)} for n in "ab"}
        assert found == expected
        assert durable.count == sum(map(len, expected.values()))
        assert not durable.is_forgotten("a")
    with stage(data) as on:
        durable = on.core.durable
        found = {n: {(p.topic, p.partition): p.offset for p in durable.positions(n)} for n in "ab"}
        assert found == expected


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 500])
def test_a_batch_that_is_made_in_parts_is_the_same_as_one_that_is_made_at_once(count: int) -> None:
    chance = random.Random(count)
    keys = [b"k%d" % i for i in range(count)]
    for values in (
        [b"v%d" % i for i in range(count)],
        [None] * count,
        [None if chance.random() < 0.5 else b"" for _ in range(count)],
    ):
        batch, first = LargeBatch(), 0
        while first < count:
            end = first + chance.randrange(1, 50)
            batch.add(keys[first:end], values[first:end])
            first = end
        assert batch.encode() == encode_batch(values, keys=keys)
