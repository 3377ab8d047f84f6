"""A primary's clients hear of jobs and partitions only when all of the in-sync set have answered a
round that began after these were assigned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from fanlog.cluster.reign import Reign
from fanlog.cluster.rounds import Rounds
from fanlog.errors import UnavailableError
from fanlog.format.messages import OutcomeKind, Settled
from fanlog.format.replication import Applied
from tests.broker.groups.members import Member
from tests.broker.queues.workers import Hand, hire, later
from tests.broker.stage import Stage
from tests.cluster.model_follower import ModelFollower
from tests.cluster.test_reign import EPOCH, follow, primary

_KINDS = pytest.mark.parametrize("kind", ["queue", "group"])


def test_a_round_counts_only_for_those_who_waited_when_it_began() -> None:
    rounds = Rounds()
    rounds.wait(_nothing)
    rounds.begin()
    rounds.wait(_nothing)
    assert rounds.wanted
    assert len(rounds.answered(rounds.newest)) == 1
    rounds.begin()
    assert rounds.answered(1) == []
    assert len(rounds.answered(2)) == 1
    assert not rounds.wanted
    assert not rounds.awaited


def test_a_later_round_counts_for_all_before_in_their_order() -> None:
    rounds, heard = Rounds(), list[int]()
    for i in range(3):
        rounds.wait(lambda i=i: heard.append(i))
        rounds.begin()
    for resume in rounds.answered(3):
        resume()
    assert heard == [0, 1, 2]


def _nothing() -> None:
    pass


class _Cluster(NamedTuple):
    """A primary with two followers that have everything and have just answered."""

    on: Stage
    reign: Reign
    b: ModelFollower
    c: ModelFollower

    def answer(self) -> None:
        """Everything is durable, and both followers say what they have."""
        for _ in range(6):
            self.on.settle()
            self.b.applied(EPOCH)
            self.c.applied(EPOCH)
        self.on.settle()


@contextmanager
def _cluster(folder: Path) -> Iterator[_Cluster]:
    with primary(folder, ("a.1", "b.1", "c.1")) as (on, reign):
        cluster = _Cluster(on, reign, ModelFollower(), ModelFollower())
        follow(reign, on, cluster.b, "b.1")
        follow(reign, on, cluster.c, "c.1")
        on.publish("t", [b"x"])
        on.publish("t", [b"y"])
        # A queue and a group that are known: what comes next has nothing else to wait for.
        on.core.queues.leave(hire(on).subscription)
        cluster.answer()
        member = Member(on, "first").join()
        cluster.answer()
        assert member.partitions == [0, 1]
        member.leave()
        reign.tick()
        cluster.answer()
        yield cluster


def _ask(cluster: _Cluster, kind: str) -> Callable[[], bool]:
    """Somebody comes. Whether they have heard of a job, or of a partition."""
    if kind == "group":
        member = Member(cluster.on, "m").join()
        cluster.on.settle()
        return lambda: member.partitions != []
    worker = hire(cluster.on, "ann", prefetch=1)
    cluster.on.settle()
    return lambda: worker.jobs() != []


@_KINDS
def test_answers_from_before_do_not_count(data: Path, kind: str) -> None:
    with _cluster(data) as cluster:
        b, c = cluster.b.link, cluster.c.link
        assert b is not None
        assert c is not None
        known = cluster.reign.state
        heard = _ask(cluster, kind)
        before = Applied(EPOCH, known.position, known.position, known.beat)
        b.take_applied(before)
        c.take_applied(before)
        cluster.on.settle()
        assert not heard()
        # One that has gone over to another primary says nothing.
        cluster.b.applied(EPOCH)
        cluster.on.settle()
        assert not heard()
        cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert heard()


def test_what_becomes_possible_while_a_round_is_on_its_way_waits_for_the_next(data: Path) -> None:
    with _cluster(data) as cluster:
        ann = hire(cluster.on, "ann", prefetch=1)
        cluster.on.settle()
        b, c = cluster.b.link, cluster.c.link
        assert b is not None
        assert c is not None
        asked = cluster.reign.state
        bob = hire(cluster.on, "bob", prefetch=1)
        cluster.on.settle()
        answer = Applied(EPOCH, asked.position, asked.position, asked.beat)
        b.take_applied(answer)
        c.take_applied(answer)
        cluster.on.settle()
        assert [job.value for job in ann.jobs()] == [b"x"]
        assert bob.jobs() == []
        cluster.answer()
        assert [job.value for job in bob.jobs()] == [b"y"]


@_KINDS
def test_a_follower_that_lost_its_connection_answers_anew(data: Path, kind: str) -> None:
    with _cluster(data) as cluster:
        heard = _ask(cluster, kind)
        cluster.b.applied(EPOCH)
        link = cluster.b.link
        assert link is not None
        link.gone()
        cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert not heard()
        again = ModelFollower()
        follow(cluster.reign, cluster.on, again, "b.1")
        cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert not heard()
        again.applied(EPOCH)
        cluster.on.settle()
        assert heard()


@_KINDS
def test_nobody_hears_of_anything_when_the_reign_is_over(data: Path, kind: str) -> None:
    with _cluster(data) as cluster:
        heard = _ask(cluster, kind)
        cluster.reign.end(UnavailableError("Another node is the primary now."))
        cluster.answer()
        assert not heard()


@_KINDS
def test_who_is_left_out_is_not_asked(data: Path, kind: str) -> None:
    with _cluster(data) as cluster:
        heard = _ask(cluster, kind)
        cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert not heard()
        cluster.reign.set_needed({"a.1", "c.1"}, 1)
        cluster.on.settle()
        assert heard()


@_KINDS
def test_a_primary_without_others_in_sync_asks_nobody(data: Path, kind: str) -> None:
    with _cluster(data) as cluster:
        cluster.reign.set_needed({"a.1"}, 1)
        assert _ask(cluster, kind)()


def test_the_time_of_a_lease_begins_when_its_worker_hears_of_it(data: Path) -> None:
    with _cluster(data) as cluster:
        ann = hire(cluster.on, "ann", prefetch=1, visibility_seconds=5)
        cluster.on.settle()
        cluster.answer()
        cluster.on.core.queues.leave(ann.subscription)
        bob = hire(cluster.on, "bob", prefetch=1)
        for _ in range(5):
            later(cluster.on, 10)
        assert bob.jobs() == []
        cluster.answer()
        (job,) = bob.jobs()
        assert job.deliveries == 1
        later(cluster.on, 4)
        cluster.answer()
        assert bob.jobs() == []
        later(cluster.on, 2)
        later(cluster.on, 60)
        cluster.answer()
        assert [job.deliveries for job in bob.jobs()] == [2]


def test_the_turn_that_has_an_ack_asks_for_the_next_job(data: Path) -> None:
    with _cluster(data) as cluster:
        ann = hire(cluster.on, "ann", prefetch=1)
        cluster.answer()
        _say_done(ann)
        frames = len(cluster.b.frames)
        cluster.on.settle()
        assert len(cluster.b.frames) == frames + 1
        assert ann.jobs() == []
        cluster.b.applied(EPOCH)
        cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert [job.value for job in ann.jobs()] == [b"y"]


def test_an_ack_that_is_sent_again_is_answered_behind_the_lease_that_it_makes_void(
    data: Path,
) -> None:
    """The worker drops the job then, if it is leased once more; it can't know of a later one."""
    with _cluster(data) as cluster:
        ann = hire(cluster.on, "ann", prefetch=1)
        cluster.answer()
        (job,) = ann.jobs()
        cluster.on.core.queues.leave(ann.subscription)
        cluster.on.settle()
        again = hire(cluster.on, "ann", prefetch=1)
        cluster.on.settle()
        answers = again.say(OutcomeKind.ACK, [job])
        reign, b = cluster.reign, cluster.b.link
        assert b is not None
        for _ in range(6):
            # b has everything, and connects again before it has answered the round.
            cluster.on.settle()
            position = reign.end_position.synced
            b.take_applied(Applied(EPOCH, position, position, 0))
            cluster.c.applied(EPOCH)
        cluster.on.settle()
        assert not reign.waits
        assert (again.jobs(), answers) == ([], [])
        cluster.answer()
        assert again.jobs()[0] == job._replace(deliveries=1)
        assert answers == [Settled(())]


def _say_done(worker: Hand) -> None:
    worker.say(OutcomeKind.ACK, worker.jobs())
