"""A primary and its followers: who is sent what, and what is committed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanlog.cluster.reign import Reign
from fanlog.errors import FanlogError, UnavailableError
from fanlog.format.replication import Applied, Follow
from tests.broker.stage import HandRuntime, Publisher, Stage, stage
from tests.cluster.model_follower import ModelFollower

EPOCH = 7


@contextmanager
def primary(folder: Path, needed: tuple[str, ...] = ("a.1",)) -> Iterator[tuple[Stage, Reign]]:
    runtime = HandRuntime()
    reign = Reign(runtime, "c", EPOCH, "a.1", needed)
    with stage(folder, durability="os", replicas=reign, partitions=2, adopt=reign) as on:
        reign.runtime = on.runtime
        yield on, reign


def follow(reign: Reign, on: Stage, follower: ModelFollower, who: str = "b.1") -> None:
    _, link = reign.follow(Follow("c", who.split(".", maxsplit=1)[0], who, EPOCH), follower)
    follower.link = link
    link.begin()
    on.run()
    if follower.whole:
        follower.answer_topics()
    on.run()


def logs(on: Stage) -> dict[tuple[int, int], bytes]:
    found: dict[tuple[int, int], bytes] = {}
    for topic in on.core.catalog:
        for partition in topic.partitions:
            log, at, data = partition.log, partition.log.start_offset, b""
            while at < log.end_offset:
                block = log.read(at, log.end_offset)
                data += bytes(block.data)
                at = block.next_offset
            if data:
                found[topic.number, partition.index] = data
    return found


def kept(follower: ModelFollower) -> dict[tuple[int, int], bytes]:
    return {key: data for key, data in follower.logs.items() if data}


def test_a_primary_without_followers_commits_what_it_has(data: Path) -> None:
    with primary(data) as (on, _):
        publisher = on.publish("t", [b"x"])
        on.settle()
        assert len(publisher.acks) == 1


def test_nothing_is_committed_before_every_needed_follower_has_it(data: Path) -> None:
    with primary(data, ("a.1", "b.1", "c.1")) as (on, reign):
        b, c = ModelFollower(), ModelFollower()
        follow(reign, on, b, "b.1")
        follow(reign, on, c, "c.1")
        publisher = on.publish("t", [b"x"])
        on.settle()
        b.applied(EPOCH)
        on.settle()
        assert publisher.acks == []
        c.applied(EPOCH)
        on.settle()
        assert len(publisher.acks) == 1
        assert kept(b) == kept(c) == logs(on)


def test_a_commit_asks_for_no_decision(data: Path) -> None:
    with primary(data, ("a.1", "b.1")) as (on, reign):
        b = ModelFollower()
        follow(reign, on, b)
        asked: list[None] = []
        reign.on_change = lambda: asked.append(None)
        publisher = on.publish("t", [b"x"])
        on.settle()
        b.applied(EPOCH)
        on.settle()
        assert len(publisher.acks) == 1
        assert asked == []


def test_a_follower_that_left_the_needed_ones_is_not_waited_for(data: Path) -> None:
    with primary(data, ("a.1", "b.1")) as (on, reign):
        publisher = on.publish("t", [b"x"])
        on.settle()
        assert publisher.acks == []
        reign.set_needed({"a.1"}, 1)
        on.settle()
        assert len(publisher.acks) == 1


def test_what_was_applied_in_another_epoch_does_not_count(data: Path) -> None:
    with primary(data, ("a.1", "b.1")) as (on, reign):
        b = ModelFollower()
        follow(reign, on, b)
        publisher = on.publish("t", [b"x"])
        on.settle()
        b.applied(EPOCH - 1)
        on.settle()
        assert publisher.acks == []
        assert reign.over is None


def test_numbers_of_an_earlier_reign_do_not_count_as_those_of_this_one(data: Path) -> None:
    with primary(data, ("a.1", "b.1")) as (on, reign):
        b = ModelFollower()
        follow(reign, on, b)
        publisher = on.publish("t", [b"x"])
        on.settle()
        assert b.link is not None
        b.link.take_applied(Applied(EPOCH - 1, 1000, 1000, 1000))
        b.link.take_applied(Applied(EPOCH, 0, 0, 0))
        on.settle()
        assert publisher.acks == []
        assert reign.over is None
        b.applied(EPOCH)
        b.link.take_applied(Applied(EPOCH - 1, 0, 0, 0))
        on.settle()
        assert len(publisher.acks) == 1


@pytest.mark.parametrize("by", ["follow", "applied"])
def test_a_higher_epoch_ends_the_reign(data: Path, by: str) -> None:
    with primary(data, ("a.1", "b.1")) as (on, reign):
        b = ModelFollower()
        on.core.create_topic("t", {})
        if by == "follow":
            with pytest.raises(UnavailableError):
                reign.follow(Follow("c", "b", "b.1", EPOCH + 1), b)
        else:
            follow(reign, on, b)
            b.applied(EPOCH + 1)
        assert reign.epoch_heard == EPOCH + 1
        publisher = on.publish("t", [b"x"], Publisher(3))
        on.settle()
        assert publisher.acks == []
        assert isinstance(publisher.refusals[0][2], UnavailableError)


def test_a_follower_of_another_cluster_is_refused(data: Path) -> None:
    with primary(data) as (_, reign), pytest.raises(FanlogError, match="belongs to the cluster"):
        reign.follow(Follow("other", "b", "b.1", EPOCH), ModelFollower())


def test_a_late_follower_gets_what_is_in_the_files_and_what_comes_meanwhile(data: Path) -> None:
    with primary(data) as (on, reign):
        for i in range(40):
            on.publish(f"t{i % 3}", [bytes([i]) * 3000], partition=i % 2)
            on.run()
        for topic in on.core.catalog:
            for partition in topic.partitions:
                while partition.log.tail.bytes:
                    partition.log.tail.drop_first()
        b = ModelFollower()
        _, link = reign.follow(Follow("c", "b", "b.1", EPOCH), b)
        b.link = link
        link.begin()
        on.publish("t1", [b"between"])
        on.core.create_topic("new", {})
        on.run()
        b.answer_topics()
        on.publish("new", [b"first"])
        on.run()
        on.core.delete_topic("t2")
        on.publish("t0", [b"last"])
        on.run()
        reign.tick()
        gone = {key for key in b.logs if key[0] not in b.names}
        assert {key: data for key, data in kept(b).items() if key not in gone} == logs(on)
        assert b.frames[-1].position == on.core.stream.position


def test_a_follower_that_takes_nothing_costs_bounded_memory_and_catches_up(data: Path) -> None:
    with primary(data) as (on, reign):
        b = ModelFollower()
        follow(reign, on, b)
        b.stuck = True
        for _ in range(40):
            on.publish("t", [bytes(1 << 20) for _ in range(1)])
            on.run()
        assert b.kept_bytes < 12 << 20
        while b.waiting:
            b.take()
            reign.resume(b)
            on.run()
        b.stuck = False
        reign.resume(b)
        on.run()
        reign.tick()
        assert kept(b) == logs(on)
        assert b.frames[-1].position == on.core.stream.position


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_a_level_follower_has_the_same_bytes(data: Path, seed: int) -> None:
    dice = random.Random(seed)
    with primary(data) as (on, reign):
        b = ModelFollower()
        follow(reign, on, b)
        for _ in range(120):
            what = dice.random()
            if what < 0.6:
                size = dice.choice((10, 5000, 700_000))
                name = dice.choice("tuv")
                on.publish(name, [dice.randbytes(8) + bytes(size)], partition=dice.randrange(2))
            elif what < 0.7:
                b.stuck = not b.stuck
            elif what < 0.8:
                b.take()
                reign.resume(b)
            elif what < 0.85:
                assert b.link is not None
                b.link.gone()
                b.waiting = []
                b.whole = b.stuck = False
                follow(reign, on, b)
            elif what < 0.9:
                reign.tick()
            if dice.random() < 0.5:
                on.run()
        b.stuck = False
        for _ in range(40):
            b.take()
            reign.resume(b)
            on.run()
        reign.tick()
        assert kept(b) == logs(on)
        assert b.frames[-1].position == on.core.stream.position


def test_a_broken_disk_ends_the_reign(data: Path) -> None:
    with primary(data) as (on, reign):
        on.core.create_topic("f", {"durability": "fsync"})
        on.settle()
        publisher = on.publish("f", [b"x"])
        on.run()
        on.fail_sync()
        on.run()
        assert reign.over is not None
        assert publisher.acks == []
