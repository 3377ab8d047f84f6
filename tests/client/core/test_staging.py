"""Staging without a connection: everything is staged once and in order, whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.client.core.outbox import ProducerIdentity
from fanlog.client.core.staging import StagedBatches, StagingFrame
from fanlog.errors import ConnectionLostError, FormatError

LOST = ConnectionLostError("lost")


def staged_batches(
    *, frame_bytes: int = 10, frames_max: int = 2, rounds_max: int | None = None
) -> StagedBatches:
    return StagedBatches(
        ProducerIdentity(7),
        frame_bytes=frame_bytes,
        frames_max=frames_max,
        rounds_max=rounds_max,
        ticket=b"T",
    )


def test_batches_are_joined_into_frames_behind_the_ticket() -> None:
    staged = staged_batches()
    for data in (b"aaaa", b"bbbb", b"cccc", b"x" * 20, b"d"):
        assert staged.number == len(staged._waiting)
        staged.add(data, size=len(data))
    first, second = staged.frames_due()
    assert (first.parts, first.size) == ((b"T", b"aaaa", b"bbbb"), 8)
    assert second.parts == (b"T", b"cccc")
    assert staged.is_full()
    assert staged.frames_due() == ()
    staged.answered(first)
    (large,) = staged.frames_due()
    assert large.parts == (b"T", b"x" * 20)
    assert staged.oldest is second


def test_a_loss_is_met_with_a_new_connection_so_many_times_in_a_row() -> None:
    staged = staged_batches(rounds_max=2)
    staged.add(b"a")
    staged.add(b"b" * 10)
    for _ in range(2):
        assert len(staged.frames_due()) == 2
        staged.lost(LOST)
    first, _ = staged.frames_due()
    with pytest.raises(ConnectionLostError):
        staged.lost(LOST)
    staged.answered(first)
    staged.lost(LOST)


def test_a_lost_connection_counts_once_however_many_frames_it_had() -> None:
    staged = staged_batches(rounds_max=1)
    for _ in range(2):
        staged.add(b"a" * 10)
    frames = staged.frames_due()
    for _ in frames:
        staged.lost(LOST)
    assert staged.frames_due() == frames


def test_a_frame_that_was_answered_before_the_loss_is_not_sent_again() -> None:
    staged = staged_batches(frames_max=3)
    for data in (b"a", b"b", b"c", b"d"):
        staged.add(data * 10)
    first, second, third = staged.frames_due()
    staged.lost(LOST)
    staged.answered(first)
    assert [frame.parts[1][:1] for frame in staged.frames_due()] == [b"b", b"c", b"d"]
    assert staged.frames_due() == ()
    assert staged.oldest is second
    staged.answered(second)
    staged.answered(third)
    assert staged


def test_without_another_connection_a_loss_is_the_end() -> None:
    staged = staged_batches()
    staged.add(b"a")
    staged.frames_due()
    with pytest.raises(ConnectionLostError):
        staged.lost(LOST, comes_back=False)


def test_bytes_that_the_broker_can_not_read_are_not_sent_again() -> None:
    unread = ConnectionLostError("lost")
    unread.__cause__ = FormatError("bytes")
    with pytest.raises(ConnectionLostError):
        staged_batches().lost(unread)


@given(
    st.lists(st.integers(1, 12), max_size=20),
    st.lists(st.sampled_from(("answer", "lose", "send")), max_size=60),
    st.integers(1, 4),
)
def test_a_broker_gets_every_batch_in_order_and_once_by_its_number(
    sizes: list[int], steps: list[str], frames_max: int
) -> None:
    """The model of a broker: it takes frames in order, and drops those that it has."""
    staged = staged_batches(frames_max=frames_max)
    for number, size in enumerate(sizes):
        staged.add(bytes([number]) * size, size)
    wire: list[tuple[bytes, ...]] = []
    sent: list[StagingFrame] = []
    taken: list[int] = []

    def deliver() -> None:
        for parts in wire:
            taken.extend(data[0] for data in parts[1:] if data[0] not in taken)
        wire.clear()

    for step in [*steps, *(["send", "answer"] * 30)]:
        if step == "send":
            for frame in staged.frames_due():
                wire.append(frame.parts)
                sent.append(frame)
        elif step == "answer" and sent:
            deliver()
            assert sent[0] is staged.oldest
            staged.answered(sent.pop(0))
        elif step == "lose":
            staged.lost(LOST)
            del wire[1:]
            deliver()
            sent.clear()
    assert taken == list(range(len(sizes)))
    assert not staged


def test_what_nobody_wants_any_more_is_dropped() -> None:
    staged = staged_batches()
    staged.add(b"a")
    staged.frames_due()
    staged.add(b"b")
    staged.clear()
    assert not staged
    assert staged.number == 2
