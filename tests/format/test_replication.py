"""Frames between a primary and its followers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import FanlogError
from fanlog.format.frames import FRAME_HEADER_BYTES, read_frame_header
from fanlog.format.replication import (
    Applied,
    ReplicaEvent,
    ReplicaPiece,
    Replicated,
    applied_frame,
    read_applied,
    read_replicated,
    replicate_frame,
)
from fanlog.model import TopicSettings

_u64 = st.integers(0, 2**64 - 1)
_u32 = st.integers(0, 2**32 - 1)
_pieces = st.builds(ReplicaPiece, _u32, _u32, _u64, _u64, st.binary(max_size=50))
_events = st.one_of(
    st.builds(ReplicaEvent, _u32, deleted=st.just(True)),
    st.builds(ReplicaEvent, _u32, partition=_u32, start=_u64),
    st.builds(ReplicaEvent, _u32, name=st.text(max_size=9), settings=st.just(TopicSettings())),
)
_frames = st.builds(
    Replicated, _u64, _u64, _u64, _u64, _u64, st.lists(_events, max_size=3), st.lists(_pieces)
)


def _payload(sent: Replicated) -> bytes:
    whole = b"".join(replicate_frame(sent))
    assert read_frame_header(whole).length == len(whole)
    return whole[FRAME_HEADER_BYTES:]


@given(_frames)
def test_what_is_replicated_comes_out_as_it_went_in(sent: Replicated) -> None:
    assert read_replicated(memoryview(_payload(sent))) == sent


@given(_frames, st.data())
def test_a_flipped_bit_before_the_pieces_is_found(sent: Replicated, data: st.DataObject) -> None:
    payload = bytearray(_payload(sent))
    head = len(payload) - sum(len(piece.data) for piece in sent.pieces)
    at = data.draw(st.integers(0, head * 8 - 1))
    payload[at // 8] ^= 1 << at % 8
    with pytest.raises(FanlogError):
        read_replicated(memoryview(bytes(payload)))


@given(_frames, st.data())
def test_a_frame_that_ends_early_is_refused(sent: Replicated, data: st.DataObject) -> None:
    payload = _payload(sent)
    with pytest.raises(FanlogError):
        read_replicated(memoryview(payload)[: data.draw(st.integers(0, len(payload) - 1))])


def test_how_far_a_follower_is_comes_out_as_it_went_in() -> None:
    applied = Applied(3, 2, 1, 9)
    assert read_applied(applied_frame(applied)[FRAME_HEADER_BYTES:]) == applied
    with pytest.raises(FanlogError):
        read_applied(b"short")
