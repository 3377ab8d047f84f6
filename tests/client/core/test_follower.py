"""The table of followers: who gets what, and whom a new connection has to bring back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fanlog.client.core import events
from fanlog.client.core.follower import FollowerTable
from fanlog.errors import (
    ConnectionLostError,
    FanlogError,
    ForbiddenError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, Lease, read_frame_header
from fanlog.model import GapReason
from tests.client.core.stepped_client import stored_batch


class Recording:
    """A follower that keeps what it is given."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.attached = False
        self.given: list[object] = []

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.SUBSCRIBE, messages.Goodbye()

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.SUBSCRIBE, messages.Goodbye("again")

    def opened(self, payload: bytes) -> None:
        self.given.append(payload)

    def end(self, error: FanlogError) -> None:
        self.given.append(error)

    def delivered(self, batch: Batch) -> None:
        self.given.append(batch)

    def missed_some(self, notice: messages.GapNotice) -> None:
        self.given.append(notice)

    def joined(self, joined: messages.Joined) -> None:
        self.given.append(joined)

    def left(self, left: messages.Left) -> None:
        self.given.append(left)

    def noticed(self, notice: messages.Notice) -> None:
        self.given.append(notice)

    def revoked(self, revoke: messages.Revoke) -> None:
        self.given.append(revoke)

    def leased(self, lease: Lease) -> None:
        self.given.append(lease)


def following(*keys: int) -> tuple[FollowerTable, list[Recording]]:
    table, followers = FollowerTable(), [Recording(key) for key in keys]
    for follower in followers:
        assert table.begin(follower)[0] is FrameKind.SUBSCRIBE
        table.opened(follower, b"")
        follower.given.clear()
    return table, followers


def test_numbers_are_never_used_again() -> None:
    table = FollowerTable()
    assert [table.take_number() for _ in range(3)] == [1, 2, 3]


def test_each_gets_what_is_for_it_and_the_rest_is_dropped() -> None:
    table, (first, second) = following(1, 2)
    gap = messages.GapNotice(1, 0, 3, 5, GapReason.RETENTION)
    joined, left = messages.Joined(1, "t", 1, ()), messages.Left(1, "t")
    notice, revoke = messages.Notice("missing", "t"), messages.Revoke("t", (0,))
    lease, batch = Lease(1, 0, 1, 0, 0, 1, fresh=True), stored_batch(0, b"tea")
    table.heard(events.MessagesMissed(1, gap))
    table.heard(events.TopicJoined(1, joined))
    table.heard(events.TopicLeft(2, left))
    table.heard(events.Noticed(2, notice))
    table.heard(events.Revoked(1, revoke))
    table.heard(events.Leased(2, lease))
    table.delivered(2, batch)
    for nobody in (events.Noticed(3, notice), events.Ended(3, ForbiddenError("no"))):
        table.heard(nobody)
    table.delivered(3, batch)
    table.heard(events.Draining("stop"))
    assert first.given == [gap, joined, revoke]
    assert second.given == [left, notice, lease, batch]


def test_a_follower_that_the_broker_ends_gets_nothing_more() -> None:
    table, (first, second) = following(1, 2)
    error = TopicNotFoundError("gone")
    table.heard(events.Ended(1, error))
    table.heard(events.RequestFailed(0, error, 2))
    table.delivered(1, stored_batch(0, b"tea"))
    assert first.given == second.given == [error]
    assert not table.has(1)
    assert table.attached() == []


def test_only_followers_with_an_answer_are_brought_back() -> None:
    table, (first, _) = following(1, 2)
    waiting = Recording(3)
    table.begin(waiting)
    assert table.remove(first)
    assert not table.remove(first)
    assert [follower.key for follower in table.attached()] == [2]
    lost = ConnectionLostError("for good")
    table.end_all(lost)
    assert waiting.given == [lost]
    assert first.given == []


@pytest.mark.parametrize(
    ("fault", "unknown"),
    [
        (ForbiddenError("no"), False),
        (ConnectionLostError("lost"), False),
        (RequestTimeoutError("late"), True),
        (asyncio.CancelledError(), True),
    ],
)
def test_a_follower_that_the_broker_may_have_is_taken_back(
    fault: BaseException, unknown: bool
) -> None:
    table, follower = FollowerTable(), Recording(7)
    table.begin(follower)
    data = table.given_up(follower, fault)
    assert bool(data) is unknown
    if unknown:
        header = read_frame_header(data)
        assert (header.kind, header.aux, header.request) == (FrameKind.UNSUBSCRIBE, 7, 0)
    assert not table.has(7)
