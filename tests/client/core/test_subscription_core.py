"""Subscriptions without a socket: gaps, windows, positions, and a connection that is cut at any
byte."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.client.core.reached import Partings, Reached
from fanlog.client.core.receiving import OnGap
from fanlog.client.core.subscription_core import SubscriptionCore
from fanlog.client.message import MessageBatch
from fanlog.errors import ClosedError, InvalidArgumentError, MessagesLostError
from fanlog.format import messages
from fanlog.format.batch import Batch
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, read_credit
from fanlog.model import Gap, GapReason, SlowPolicy, Start, TopicPartition
from tests.client.core.stepped_client import SteppedClient, stepped, stored_batch

EARLIEST = Start("earliest")


class WrittenBytes:
    """The host of a subscription: keeps what is written."""

    def __init__(self) -> None:
        self.grants: list[int] = []

    def write(self, data: bytes) -> None:
        self.grants.append(read_credit(memoryview(data)[FRAME_HEADER_BYTES:]))

    def decoded(self, batch: Batch) -> MessageBatch:
        return MessageBatch(batch)


def subscribed(
    *, on_gap: OnGap | None = None, first: int = 0, **options: object
) -> tuple[SubscriptionCore, WrittenBytes]:
    """A subscription to topic 1, `t`, whose partition 0 begins at `first`."""
    host = WrittenBytes()
    wanted = msgspec.structs.replace(messages.Subscribe(target="t"), **options)
    core = SubscriptionCore(host, 1, wanted, on_gap)
    core.joined(starting_at(first))
    return core, host


def starting_at(offset: int, *, number: int = 1, epoch: int = 1) -> messages.Joined:
    return messages.Joined(number, "t", epoch, (messages.PartitionOffset(0, offset),))


def taken(core: SubscriptionCore) -> list[bytes]:
    """All that has come."""
    values: list[bytes] = []
    while core.arrivals.items:
        batch = core.source.maybe_next()
        values += [message.value for message in batch or ()]
    return values


def resumes_at(core: SubscriptionCore) -> list[messages.Position]:
    kind, wanted = core.resuming()
    assert kind is FrameKind.SUBSCRIBE
    assert isinstance(wanted, messages.Subscribe)
    assert wanted.missing == "wait"
    return list(wanted.resume or ())


# Offsets


def test_each_offset_is_given_once_whatever_comes_twice() -> None:
    core, _ = subscribed(first=2)
    core.delivered(stored_batch(0, b"0", b"1"))
    core.delivered(stored_batch(2, b"2", b"3"))
    core.delivered(stored_batch(2, b"2", b"3"))
    core.delivered(stored_batch(3, b"3", b"4"))
    core.delivered(stored_batch(9, b"x", topic=9))
    assert taken(core) == [b"2", b"3", b"4"]
    assert resumes_at(core) == [messages.Position("t", 0, 5, 1, 1)]


def test_it_resumes_behind_what_has_come_and_positions_are_of_what_was_taken() -> None:
    core, _ = subscribed()
    core.delivered(stored_batch(0, b"0", b"1"))
    core.delivered(stored_batch(2, b"2"))
    assert core.source.positions() == (messages.Position("t", 0, 0, 1, 1),)
    batch = core.source.maybe_next()
    assert batch is not None
    assert core.source.positions() == (messages.Position("t", 0, 2, 1, 1),)
    core.receiving.current = batch.messages[0]
    assert core.source.positions() == (messages.Position("t", 0, 1, 1, 1),)
    assert resumes_at(core) == [messages.Position("t", 0, 3, 1, 1)]


def test_a_commit_needs_a_durable_name() -> None:
    core, _ = subscribed(durable="billing")
    core.delivered(stored_batch(0, b"0", b"1"))
    batch = core.source.maybe_next()
    assert batch is not None
    first = batch.messages[0]
    assert core.positions_for_commit(first) == (messages.Position("t", 0, 1, 1, 1),)
    assert core.positions_for_commit(None) == (messages.Position("t", 0, 2, 1, 1),)
    with pytest.raises(InvalidArgumentError):
        subscribed()[0].positions_for_commit(None)


def test_messages_before_the_offset_that_was_asked_for_are_left_out_of_a_new_topic() -> None:
    host = WrittenBytes()
    wanted = messages.Subscribe(target="t", start=Start("offset", 2))
    core = SubscriptionCore(host, 1, wanted, None)
    core.notices.on_notice = lambda _: None
    core.noticed(messages.Notice("missing", "t"))
    core.joined(starting_at(0))
    core.delivered(stored_batch(0, b"0"))
    core.delivered(stored_batch(1, b"1", b"2"))
    assert taken(core) == [b"2"]


# Gaps


def test_a_gap_is_raised_in_its_turn_and_counted() -> None:
    core, _ = subscribed()
    core.delivered(stored_batch(0, b"0"))
    core.missed_some(messages.GapNotice(1, 0, 1, 4, GapReason.RETENTION))
    core.delivered(stored_batch(4, b"4"))
    assert [m.value for m in core.source.maybe_next() or ()] == [b"0"]
    with pytest.raises(MessagesLostError, match="Offsets 1 to 3"):
        core.source.maybe_next()
    assert taken(core) == [b"4"]
    assert (core.receiving.gaps, core.receiving.missed) == (1, 3)
    assert resumes_at(core) == [messages.Position("t", 0, 5, 1, 1)]


def test_a_gap_goes_to_whoever_asked_for_gaps_and_one_that_was_chosen_is_no_error() -> None:
    gaps: list[Gap] = []
    core, _ = subscribed(on_gap=gaps.append)
    core.missed_some(messages.GapNotice(1, 0, 0, 2, GapReason.DAMAGED))
    assert gaps == [Gap("t", 0, 0, 2, GapReason.DAMAGED)]
    skipping, _ = subscribed(policy=SlowPolicy.SKIP)
    skipping.missed_some(messages.GapNotice(1, 0, 0, 2, GapReason.SKIPPED))
    for one in (core, skipping):
        assert taken(one) == []
        assert one.receiving.missed == 2


# Epochs


def test_what_is_held_of_a_lost_log_is_given_and_does_not_count() -> None:
    core, _ = subscribed()
    core.delivered(stored_batch(0, b"0", b"1"))
    core.delivered(stored_batch(2, b"lost"))
    core.source.maybe_next()
    # A power cut took offset 2: the broker continues there with other messages.
    core.joined(starting_at(2, epoch=2))
    core.delivered(stored_batch(2, b"new", epoch=2))
    assert [m.value for m in core.source.maybe_next() or ()] == [b"lost"]
    assert core.source.positions() == (messages.Position("t", 0, 2, 2, 1),)
    assert taken(core) == [b"new"]
    assert core.source.positions() == (messages.Position("t", 0, 3, 2, 1),)


def test_a_topic_that_was_created_again_begins_anew() -> None:
    core, _ = subscribed()
    core.notices.on_notice = lambda _: None
    core.delivered(stored_batch(0, b"old"))
    core.left(messages.Left(1, "t"))
    assert core.source.positions() == ()
    core.joined(starting_at(0, number=2))
    core.delivered(stored_batch(0, b"new", topic=2))
    assert taken(core) == [b"old", b"new"]
    assert resumes_at(core) == [messages.Position("t", 0, 1, 1, 2)]


@pytest.mark.parametrize(
    ("first", "epoch", "number", "stale"),
    [(5, 1, 1, True), (3, 1, 1, False), (5, 2, 1, False), (5, 1, 2, False)],
)
def test_a_batch_is_stale_if_it_is_of_the_log_that_is_gone(
    first: int, epoch: int, number: int, stale: bool
) -> None:
    partings = Partings()
    batch = stored_batch(first, b"x", topic=number, epoch=epoch)
    batch.topic_name = "t"
    assert not partings.is_stale(batch)
    partings.note(TopicPartition("t", 0), Reached(9, 1, 1), Reached(5, 2, 1))
    assert partings.is_stale(batch) is stale


# The window


def test_the_broker_is_granted_what_is_done_with_in_steps_of_half_a_window() -> None:
    size = stored_batch(0, b"0").header.length
    core, host = subscribed(window_bytes=4 * size)
    for i in range(4):
        core.delivered(stored_batch(i, b"%d" % i))
    assert host.grants == []
    assert len(taken(core)) == 4
    assert host.grants == [6 * size, 8 * size]
    # It is done with at once: nobody wants it.
    core.delivered(stored_batch(0, b"0"))
    core.delivered(stored_batch(0, b"0"))
    assert host.grants == [6 * size, 8 * size, 10 * size]


def test_what_came_on_a_connection_before_is_not_granted_on_the_new_one() -> None:
    size = stored_batch(0, b"0").header.length
    core, host = subscribed(window_bytes=2 * size)
    core.delivered(stored_batch(0, b"0"))
    core.delivered(stored_batch(1, b"1"))
    core.resuming()
    core.joined(starting_at(2))
    assert len(taken(core)) == 2
    assert host.grants == []
    core.delivered(stored_batch(2, b"2"))
    assert taken(core) == [b"2"]
    assert host.grants == [3 * size]


def test_a_closed_subscription_grants_nothing_and_gives_what_is_there() -> None:
    size = stored_batch(0, b"0").header.length
    core, host = subscribed(window_bytes=size)
    core.delivered(stored_batch(0, b"0"))
    core.end(ClosedError("closed"))
    assert taken(core) == [b"0"]
    assert host.grants == []


# Partitions that come and go


def test_what_is_dropped_of_a_partition_is_granted_again_as_far_as_it_is_new() -> None:
    size = stored_batch(0, b"0").header.length
    core, host = subscribed(window_bytes=2 * size)
    place = TopicPartition("t", 0)
    core.delivered(stored_batch(0, b"0"))
    core.receiving.window.reconnect()
    core.delivered(stored_batch(1, b"1"))
    core.receiving.arrivals.put(MessagesLostError("a gap stays"))
    core.receiving.drop_queued(place)
    assert host.grants == [3 * size]
    assert core.receiving.window.queued_bytes == core.receiving.window.stale_bytes == 0
    with pytest.raises(MessagesLostError):
        core.source.maybe_next()


def test_a_partition_that_is_held_back_gives_its_batches_later() -> None:
    core, _ = subscribed()
    place = TopicPartition("t", 0)
    core.receiving.hold_back(place)
    core.delivered(stored_batch(0, b"0"))
    assert taken(core) == []
    core.receiving.let_through(place)
    assert taken(core) == [b"0"]


# Against the broker's session

Cut = tuple[int, int, int, int]
cuts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 120), st.integers(0, 400), st.integers(0, 3)),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(cuts, st.sampled_from([0, 150, 1 << 20]))
def test_a_connection_that_is_cut_at_any_byte_gives_every_message_once_in_order(
    given: list[Cut], window_bytes: int
) -> None:
    async def steps(client: SteppedClient) -> None:
        await client.create("t")
        wanted = messages.Subscribe(target="t", start=EARLIEST, window_bytes=window_bytes)
        core = SubscriptionCore(client, client.followers.take_number(), wanted, None)
        await client.attach(core)
        count, values = 0, list[bytes]()
        for more, there, back, takes in given:
            for _ in range(more):
                client.publish("t", b"%d" % count, b"%d" % (count + 1))
                count += 2
            client.move(there, back)
            for _ in range(takes):
                batch = core.source.maybe_next()
                values += [message.value for message in batch or ()]
            client.lose()
            await client.connect()
        while len(values) < count:
            await client.exchange()
            before = len(values)
            values += taken(core)
            assert len(values) > before
        assert values == [b"%d" % i for i in range(count)]
        assert [p.offset for p in core.source.positions()] == [count]

    stepped(steps)
