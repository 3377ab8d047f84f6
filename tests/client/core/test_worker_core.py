"""Workers of a queue without a socket: epochs, the batch cache, and what comes back with them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.client.core.leases import LeaseInHand
from fanlog.client.core.worker_core import WorkerCore
from fanlog.client.message import MessageBatch
from fanlog.errors import ClosedError, InvalidArgumentError, LeaseLostError
from fanlog.format import messages
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import OutcomeKind
from fanlog.format.sparse import placeholder
from fanlog.model import QueueSettings
from tests.client.core.stepped_client import SteppedClient, stepped, stored_batch

WORK = messages.Work(queue="q", worker="w", target="jobs", prefetch=10)
BATCH = stored_batch(0, b"0", b"1", b"2", b"3", topic=3)


def greeting(epoch: int) -> messages.Welcome:
    return messages.Welcome(1, "tests", epoch, 1 << 24, 1 << 24, 60.0)


class FixedHost:
    """The host of a worker: a broker of an epoch."""

    def __init__(self) -> None:
        self.welcome: messages.Welcome | None = greeting(1)

    def decoded(self, batch: Batch) -> MessageBatch:
        return MessageBatch(batch)


def working() -> tuple[WorkerCore, FixedHost]:
    """A worker of topic 3, `jobs`."""
    host = FixedHost()
    core = WorkerCore(host, 1, WORK)
    core.notices.on_notice = lambda _: None
    assert core.opening() == (FrameKind.WORK, WORK)
    core.opened(msgspec.msgpack.encode(messages.Working(QueueSettings(visibility_seconds=9))))
    core.joined(messages.Joined(3, "jobs", 1, ()))
    return core, host


def hand_out(core: WorkerCore, first: int, next: int, *, fresh: bool, batch: Batch = BATCH) -> None:
    base_offset = batch.header.base_offset
    core.leased(Lease(3, 0, 1, base_offset, first, next, fresh=fresh))
    if fresh:
        core.delivered(batch)


def taken(core: WorkerCore) -> list[LeaseInHand]:
    return [lease for _ in range(len(core.arrivals.items)) if (lease := core.maybe_take())]


def said(core: WorkerCore) -> list[tuple[int, int, int]]:
    """What goes out at the end of this turn: verb and offsets."""
    turn = core.outcomes.take_turn()
    frames = [] if turn is None else turn.settles()
    return [(v.verb, v.first, v.next) for settle in frames for v in settle.outcomes]


def test_a_batch_that_is_cached_is_not_sent_again() -> None:
    core, _ = working()
    hand_out(core, 0, 1, fresh=True)
    hand_out(core, 1, 3, fresh=False)
    leases = taken(core)
    assert [[m.value for m in lease.messages] for lease in leases] == [[b"0"], [b"1", b"2"]]
    core.leased(Lease(3, 0, 1, 99, 99, 100, fresh=False))
    core.delivered(BATCH)
    assert taken(core) == []


def test_jobs_that_can_not_be_done_get_their_outcome_at_once() -> None:
    core, _ = working()
    hand_out(core, 0, 4, fresh=True, batch=Batch(placeholder(BATCH.header, 4)))
    assert taken(core) == []
    assert said(core) == [(OutcomeKind.ACK, 0, 4)]
    packed = Batch(encode_batch([b"x" * 5000], codec=Codec.ZLIB), limits=UnpackLimits(100))
    hand_out(core, 0, 1, fresh=True, batch=packed)
    assert taken(core) == []
    assert said(core) == [(OutcomeKind.REJECT, 0, 1)]


def test_an_outcome_that_the_broker_does_not_have_is_taken_back() -> None:
    core, _ = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    core.report(lease, OutcomeKind.ACK, 0, 2)
    assert list(core.held.ranges()) == []
    core.take_back(lease, OutcomeKind.ACK, 0, 2)
    assert list(core.held.ranges()) == [((3, 0, 1), 0, 2)]
    core.report(lease, OutcomeKind.EXTEND, 0, 2, delay_ms=5)
    assert lease.left == 2
    with pytest.raises(InvalidArgumentError):
        core.report(lease, OutcomeKind.NACK, 0, 1, reason=ValueError())  # pyright: ignore[reportArgumentType]


def test_an_outcome_that_came_late_is_an_error_unless_it_was_sent_twice() -> None:
    core, host = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    for again in (True, False):
        turn = core.report(lease, OutcomeKind.ACK, 0, 2)
        core.outcomes.take_turn()
        before = greeting(1) if again else host.welcome
        (settle,) = turn.settles()
        answer = msgspec.msgpack.encode(messages.Settled(settle.outcomes))
        core.settled(turn, settle, answer, before)
        if again:
            core.check_in_time(turn, lease, OutcomeKind.ACK, 0, 2)
            continue
        with pytest.raises(LeaseLostError, match="too late for 2 of 2"):
            core.check_in_time(turn, lease, OutcomeKind.ACK, 0, 2)


def test_a_reject_that_was_sent_twice_and_came_late_is_an_error() -> None:
    """Nobody knows whether the first one made a dead letter: another worker may have the job."""
    core, _ = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    turn = core.report(lease, OutcomeKind.REJECT, 0, 1)
    core.outcomes.take_turn()
    (settle,) = turn.settles()
    answer = msgspec.msgpack.encode(messages.Settled(settle.outcomes))
    core.settled(turn, settle, answer, greeting(1))
    with pytest.raises(LeaseLostError, match="too late for 1 of 1"):
        core.check_in_time(turn, lease, OutcomeKind.REJECT, 0, 1)


def test_jobs_that_were_acked_twice_are_not_done_again() -> None:
    core, _ = working()
    hand_out(core, 0, 4, fresh=True)
    (lease,) = taken(core)
    turn = core.report(lease, OutcomeKind.ACK, 1, 2)
    core.outcomes.take_turn()
    # A restarted broker hands all of them out again before it gets the ack a second time.
    hand_out(core, 0, 4, fresh=True)
    (settle,) = turn.settles()
    core.settled(turn, settle, msgspec.msgpack.encode(messages.Settled(())), greeting(1))
    assert [(one.first, one.next) for one in taken(core)] == [(0, 1), (2, 4)]


def test_jobs_whose_lease_ran_out_while_their_ack_was_on_its_way_are_not_done_again() -> None:
    core, host = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    turn = core.report(lease, OutcomeKind.ACK, 0, 1)
    (settle,) = turn.settles()
    # The broker heard nothing for a while, and gives both jobs to the same worker once more.
    core.leased(Lease(3, 0, 2, 0, 0, 2, fresh=False))
    # What else was said in the same frame may have come too late.
    extended = messages.JobOutcome(3, 0, OutcomeKind.EXTEND, 0, 1)
    answer = msgspec.msgpack.encode(messages.Settled((extended,)))
    core.settled(turn, settle, answer, host.welcome)
    assert [(lease.first, lease.next) for lease in core.waiting()] == [(1, 2)]


@pytest.mark.parametrize("again", [True, False])
def test_jobs_whose_ack_came_late_are_done_and_not_done_again(*, again: bool) -> None:
    core, host = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    turn = core.report(lease, OutcomeKind.ACK, 0, 1)
    (settle,) = turn.settles()
    core.leased(Lease(3, 0, 2, 0, 0, 2, fresh=False))
    answer = msgspec.msgpack.encode(messages.Settled(settle.outcomes))
    core.settled(turn, settle, answer, greeting(1) if again else host.welcome)
    assert [(lease.first, lease.next) for lease in core.waiting()] == [(1, 2)]


def test_jobs_that_a_restarted_broker_hands_out_again_before_their_ack_are_done_once() -> None:
    core, host = working()
    hand_out(core, 0, 2, fresh=True)
    (lease,) = taken(core)
    host.welcome = greeting(2)
    core.resuming()
    hand_out(core, 0, 2, fresh=True)
    turn = core.report(lease, OutcomeKind.ACK, 0, 1)
    (settle,) = turn.settles()
    core.settled(turn, settle, msgspec.msgpack.encode(messages.Settled(())), host.welcome)
    assert [(lease.first, lease.next) for lease in core.waiting()] == [(1, 2)]


def test_a_late_ack_from_before_a_restart_drops_no_job_that_has_its_offset_now() -> None:
    core, host = working()
    hand_out(core, 0, 3, fresh=True)
    (lease,) = taken(core)
    turn = core.report(lease, OutcomeKind.ACK, 0, 3)
    (settle,) = turn.settles()
    before, host.welcome = host.welcome, greeting(2)
    core.resuming()
    hand_out(core, 0, 4, fresh=True)
    # A crash has taken the end of the log.
    late = messages.JobOutcome(3, 0, OutcomeKind.ACK, 1, 3)
    core.settled(turn, settle, msgspec.msgpack.encode(messages.Settled((late,))), before)
    assert [(lease.first, lease.next) for lease in core.waiting()] == [(1, 4)]


def test_a_job_whose_lease_ran_out_before_it_was_taken_waits_once() -> None:
    core, _ = working()
    hand_out(core, 0, 3, fresh=True)
    core.leased(Lease(3, 0, 2, 0, 1, 2, fresh=False))
    core.leased(Lease(3, 0, 3, 0, 1, 2, fresh=False))
    found = [(lease.first, lease.next, lease.deliveries) for lease in core.waiting()]
    assert found == [(0, 1, 1), (2, 3, 1), (1, 2, 3)]
    assert len(list(core.held.ranges())) == 3


def test_all_jobs_in_hand_are_extended_in_their_epochs() -> None:
    core, _ = working()
    core.extend_all()
    assert said(core) == []
    hand_out(core, 0, 2, fresh=True)
    hand_out(core, 2, 3, fresh=False)
    leases = taken(core)
    core.extend_all()
    assert sorted(said(core)) == [(OutcomeKind.EXTEND, 0, 2), (OutcomeKind.EXTEND, 2, 3)]
    assert core.settings.visibility_seconds == 9
    del leases
    core.extend_all()
    assert said(core) == []


def holds(core: WorkerCore) -> list[tuple[int, int]]:
    kind, wanted = core.resuming()
    assert kind is FrameKind.WORK
    assert isinstance(wanted, messages.Work)
    return sorted((held.first, held.next) for held in wanted.holds)


def test_it_comes_back_with_its_jobs_and_with_outcomes_that_are_not_answered() -> None:
    core, _ = working()
    hand_out(core, 0, 1, fresh=True)
    hand_out(core, 1, 2, fresh=False)
    hand_out(core, 2, 3, fresh=False)
    in_hand, acked = core.maybe_take(), core.maybe_take()
    assert in_hand is not None
    assert acked is not None
    core.report(acked, OutcomeKind.ACK, 1, 2)
    assert holds(core) == [(0, 1), (1, 2), (2, 3)]
    # The cache is empty on both sides.
    hand_out(core, 3, 4, fresh=False)
    assert len(core.waiting()) == 1


def test_a_restarted_broker_hears_of_no_jobs_from_before_and_hands_out_the_waiting_ones() -> None:
    core, host = working()
    hand_out(core, 0, 1, fresh=True)
    hand_out(core, 1, 2, fresh=False)
    in_hand = core.maybe_take()
    host.welcome = greeting(2)
    assert holds(core) == []
    assert core.waiting() == []
    hand_out(core, 1, 2, fresh=True)
    assert holds(core) == [(1, 2)]
    # What was in hand is settled in the epoch in which it was handed out.
    assert in_hand is not None
    (settle,) = core.report(in_hand, OutcomeKind.ACK, 0, 1).settles()
    assert settle.epoch == 1


def test_a_request_that_was_sent_again_to_a_restarted_broker_has_its_epoch() -> None:
    """The simulation found jobs whose epoch was that of the broker before."""
    core, host = working()
    host.welcome = greeting(2)
    core.opened(msgspec.msgpack.encode(messages.Working(QueueSettings())))
    hand_out(core, 0, 1, fresh=True)
    ((stretch, _, _),) = core.held.ranges()
    assert stretch == (3, 0, 2)


def test_jobs_of_a_topic_that_is_gone_are_dropped() -> None:
    core, _ = working()
    hand_out(core, 0, 1, fresh=True)
    core.left(messages.Left(3, "jobs"))
    hand_out(core, 1, 2, fresh=False)
    assert taken(core) == []
    assert list(core.held.ranges()) == []


def test_a_worker_that_has_ended_takes_nothing_more() -> None:
    core, _ = working()
    core.end(ClosedError("closed"))
    hand_out(core, 0, 1, fresh=True)
    assert taken(core) == []


Cut = tuple[int, int, int, int]
cuts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 500), st.integers(0, 3)),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(cuts)
def test_a_connection_that_is_cut_at_any_byte_loses_no_job_and_repeats_none_that_was_acked(
    given: list[Cut],
) -> None:
    async def steps(client: SteppedClient) -> None:
        await client.create("jobs")
        wanted = msgspec.structs.replace(WORK, prefetch=2, settings={"reset": "earliest"})
        core = WorkerCore(client, client.followers.take_number(), wanted)
        await client.attach(core)
        done: list[bytes] = []
        sure: set[bytes] = set()

        def work(limit: int) -> None:
            for _ in range(min(limit, len(core.arrivals.items))):
                lease = core.maybe_take()
                assert lease is not None
                values = [message.value for message in lease.messages]
                assert not sure.intersection(values)
                done.extend(values)
                core.report(lease, OutcomeKind.ACK, lease.first, lease.next)

        def settle() -> None:
            turn, values, before = core.outcomes.take_turn(), list(done), client.welcome
            if turn is None:
                return
            (frame,) = turn.settles()

            def answered(payload: bytes) -> None:
                core.settled(turn, frame, payload, before)
                core.outcomes.finished(turn)
                assert client.welcome is not before or turn.late_acks() == 0
                sure.update(values)

            client.request(FrameKind.SETTLE, frame, core.key, answered)

        count = 0
        for more, there, back, takes in given:
            for _ in range(more):
                client.publish("jobs", b"%d" % count, b"%d" % (count + 1))
                count += 2
            client.move(there, back)
            work(takes)
            settle()
            client.move(there, back)
            client.lose()
            await client.connect()
        while len(set(done)) < count:
            await client.exchange()
            before = len(done)
            work(10)
            settle()
            assert len(done) > before
        assert set(done) == {b"%d" % i for i in range(count)}

    stepped(steps)
