"""Offset commits of a member without a broker: what is due, what was refused, and what was lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.offset_commits import OffsetCommits, ReachedPositions
from fanlog.client.core.reached import Reached
from fanlog.errors import FencedError, RequestTimeoutError
from fanlog.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
FENCED = FencedError("it is somebody else's")


class Reader:
    """How far an application is."""

    def __init__(self) -> None:
        self.done: ReachedPositions = {}
        self.commits = OffsetCommits(self.done.copy, self.done.__contains__)
        self.due = 0
        self.commits.on_due = self._due

    def _due(self) -> None:
        self.due += 1

    def send(self) -> ReachedPositions:
        wanted = self.commits.next()
        self.commits.stored(wanted)
        return wanted


def at(offset: int, epoch: int = 1) -> Reached:
    return Reached(offset, epoch, 7)


def test_finished_messages_are_committed_once_and_many_wishes_are_one_commit() -> None:
    reader = Reader()
    reader.done[A] = at(5)
    for _ in range(3):
        reader.commits.done_soon()
    assert (reader.due, reader.commits.is_due) == (1, True)
    assert reader.send() == {A: at(5)}
    assert not reader.commits.is_due
    reader.commits.want_done()
    assert reader.send() == {}
    reader.done[A] = at(6)
    reader.commits.done_soon()
    assert (reader.due, reader.send()) == (2, {A: at(6)})


def test_nothing_is_due_before_somebody_can_send_it() -> None:
    reader = Reader()
    reader.commits.on_due = None
    reader.commits.done_soon()
    assert not reader.commits.is_due


def test_a_commit_never_goes_back_unless_the_log_is_another() -> None:
    reader = Reader()
    reader.done[A] = at(5)
    reader.commits.give({A: at(6)})
    assert reader.send() == {A: at(6)}
    reader.commits.want_done()
    assert reader.send() == {}
    reader.done[A] = at(2, epoch=2)
    reader.commits.want_done()
    assert reader.send() == {A: at(2, epoch=2)}


def test_what_was_given_counts_more_than_what_is_finished_and_only_while_it_is_read() -> None:
    reader = Reader()
    reader.done[A] = at(5)
    reader.commits.give({A: at(3), B: at(1)})
    reader.commits.want_done()
    assert reader.send() == {A: at(3)}


def test_a_caller_that_commits_itself_replaces_what_was_given_before() -> None:
    reader = Reader()
    reader.done[A] = at(0)
    reader.commits.give({A: at(3)})
    reader.commits.begin({A: at(4)})
    assert not reader.commits.is_due
    reader.commits.stored({A: at(4)})
    assert not reader.commits.owes(done=True)


def test_a_left_partition_owes_nothing_and_begins_anew() -> None:
    reader = Reader()
    reader.done[A] = at(3)
    reader.commits.give({A: at(3)})
    reader.commits.forget(A)
    assert not reader.commits.owes(done=False)
    assert reader.commits.owes(done=True)


def test_a_failure_in_the_background_is_raised_once_by_the_next_call() -> None:
    reader = Reader()
    reader.done[A] = at(3)
    reader.commits.give({A: at(3)})
    wanted = reader.commits.next()
    assert not reader.commits.failed(wanted, RequestTimeoutError("late"))
    with pytest.raises(RequestTimeoutError, match="late"):
        reader.commits.raise_error()
    reader.commits.raise_error()


def test_a_commit_that_was_refused_for_a_lost_log_goes_out_again_without_it() -> None:
    reader = Reader()
    reader.done |= {A: at(3), B: at(4)}
    reader.commits.want_done()
    wanted = reader.commits.next()
    reader.done[A] = at(1, epoch=2)
    reader.commits.parted(A)
    reader.commits.give({B: at(5)})
    assert reader.commits.failed(wanted, FENCED)
    assert reader.send() == {B: at(5)}
    reader.commits.raise_error()


def test_a_refusal_that_no_lost_log_explains_is_an_error() -> None:
    reader = Reader()
    reader.done |= {A: at(3)}
    reader.commits.parted(B)
    reader.commits.want_done()
    assert not reader.commits.failed(reader.commits.next(), FENCED)
    with pytest.raises(FencedError):
        reader.commits.raise_error()


@given(
    st.lists(
        st.tuples(st.sampled_from(("read", "wish", "send", "fail")), st.sampled_from((A, B))),
        max_size=60,
    )
)
def test_in_the_end_the_broker_has_all_that_was_finished_and_never_goes_back(
    steps: list[tuple[str, TopicPartition]],
) -> None:
    reader = Reader()
    reader.done |= {A: at(0), B: at(0)}
    stored: ReachedPositions = {}

    def send(*, fails: bool = False) -> None:
        wanted = reader.commits.next()
        if fails:
            reader.commits.failed(wanted, RequestTimeoutError("late"))
            return
        reader.commits.stored(wanted)
        assert all(stored.get(p, at(0)) <= reached for p, reached in wanted.items())
        stored.update(wanted)

    for step, partition in steps:
        if step == "read":
            reader.done[partition] = at(reader.done[partition].offset + 1)
        elif step == "wish":
            reader.commits.done_soon()
        else:
            send(fails=step == "fail")
    reader.commits.want_done()
    send()
    assert stored == reader.done
