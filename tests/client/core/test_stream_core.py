"""A reader of a resumable stream, without a socket: pieces, positions, and the end."""

from __future__ import annotations

import pytest

from fanlog.client.core.stream_core import StreamReadProgress
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import MessagesLostError, StreamFailedError
from fanlog.format import streams
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.messages import Position, Subscribe
from fanlog.format.requests import ERROR
from fanlog.model import GapReason, Start

TOPIC = "_fanlog.stream.answer"


def record(offset: int, **headers: bytes) -> Message:
    data = encode_batch([b"piece"], headers=[{k.replace("_", "-"): v for k, v in headers.items()}])
    stamped = stamp(data, base_offset=offset, append_time_us=1, leader_epoch=3, topic=7)
    return MessageBatch(Batch(stamped)).messages[0]


def at(offset: int) -> Position:
    return Position(TOPIC, 0, offset, 3, 7)


def reader(resume: Position | None = None) -> StreamReadProgress:
    wanted = Subscribe(target=TOPIC, start=Start("offset", 0), resume=resume and (resume,))
    return StreamReadProgress(wanted)


def test_a_new_reader_takes_all_pieces_and_no_sign_of_life() -> None:
    progress = reader()
    assert progress.begin().resume is None
    assert progress.take(record(0), at(1))
    assert not progress.take(record(1, fanlog_stream=streams.ALIVE), at(2))
    assert progress.at == at(2)


def test_a_reader_that_continues_looks_at_the_record_before_its_position_and_skips_it() -> None:
    progress = reader(at(5))
    assert progress.begin().resume == (at(4),)
    assert not progress.take(record(4), at(5))
    assert progress.take(record(5), at(6))


def test_a_reader_that_continues_behind_the_last_piece_finds_the_end() -> None:
    progress = reader(at(5))
    progress.begin()
    assert not progress.take(record(4, fanlog_stream=streams.END), at(5))
    assert progress.ended
    assert progress.at == at(5)


def test_the_end_of_a_failed_stream_raises_the_error_of_its_writer() -> None:
    progress = reader()
    progress.begin()
    headers = {streams.MARK.replace("-", "_"): streams.END, ERROR.replace("-", "_"): b"no model"}
    with pytest.raises(StreamFailedError, match="no model"):
        progress.take(record(0, **headers), at(1))
    assert progress.ended


@pytest.mark.parametrize(
    ("reason", "next_offset", "unwanted"),
    [
        (GapReason.RETENTION, 5, True),
        (GapReason.RETENTION, 6, False),
        (GapReason.DAMAGED, 5, False),
    ],
)
def test_only_pieces_behind_the_position_are_missed(
    reason: GapReason, next_offset: int, unwanted: bool
) -> None:
    progress = reader(at(5))
    progress.begin()
    lost = MessagesLostError("", first=4, next=next_offset, reason=reason)
    assert progress.is_unwanted(lost) is unwanted
