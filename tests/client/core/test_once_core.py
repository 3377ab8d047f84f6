"""Idempotency keys without a connection: which producer, which partition, and whether a repeat is
the same request."""

from __future__ import annotations

import pytest

from fanlog.client.core.once_core import (
    ONCE_KEY_BYTES_MAX,
    OnceReceipt,
    OnceRecord,
    RepeatCheck,
    partition_for,
    producer_of,
    receipts_of,
)
from fanlog.errors import InvalidArgumentError, KeyReusedError, LimitError, OutOfSequenceError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.header import HEADER_BYTES
from fanlog.format.sparse import thinned
from fanlog.model import Receipt

PRODUCER = producer_of("order 7")
EPOCH = 4


def receipt(offset: int, *, partition: int = 0, duplicate: bool = True) -> Receipt:
    return Receipt("t", partition, offset, "os", 1, duplicate)


def stored(
    offset: int,
    *values: bytes,
    epoch: int = EPOCH,
    producer_id: int = PRODUCER.id,
    headers: dict[str, bytes] | None = None,
) -> Batch:
    encoded = None if headers is None else [headers] * len(values)
    data = encode_batch(list(values), headers=encoded, producer_id=producer_id)
    return Batch(stamp(data, base_offset=offset, append_time_us=1, leader_epoch=epoch, topic=3))


def check(values: list[bytes], receipts: list[Receipt]) -> RepeatCheck:
    return RepeatCheck(PRODUCER, "t", [OnceRecord(value) for value in values], receipts)


def test_a_key_makes_up_the_same_producer_each_time() -> None:
    assert producer_of("order 7") == PRODUCER
    assert producer_of("order 8") != PRODUCER
    for wrong in ("", "x" * (ONCE_KEY_BYTES_MAX + 1)):
        with pytest.raises(InvalidArgumentError, match="idempotency key"):
            producer_of(wrong)


def test_a_message_without_a_key_and_a_partition_goes_where_its_repeat_would() -> None:
    chosen = partition_for(OnceRecord(b"a"), PRODUCER, 5)
    assert chosen == partition_for(OnceRecord(b"b"), PRODUCER, 5)
    assert chosen in range(5)
    assert partition_for(OnceRecord(b"a", partition=3), PRODUCER, 5) == 3
    assert partition_for(OnceRecord(b"a", key=b"k"), PRODUCER, 5) is None


def test_a_request_that_does_not_fit_the_producers_batches_is_another_one() -> None:
    assert receipts_of("t", [receipt(0), receipt(1)]) == [receipt(0), receipt(1)]
    with pytest.raises(KeyReusedError):
        receipts_of("t", [receipt(0), OutOfSequenceError("no")])
    with pytest.raises(LimitError):
        receipts_of("t", [LimitError("full"), OutOfSequenceError("no")])


def test_new_messages_need_no_look_at_the_log() -> None:
    one = check([b"a"], [receipt(5, duplicate=False)])
    assert one.wanted is None
    assert one.receipts(3, 9) == [OnceReceipt(receipt(5, duplicate=False), 3, 9)]


def test_a_repeat_gets_the_epochs_of_the_first_messages() -> None:
    one = check([b"a", b"b", b"c"], [receipt(5), receipt(6), receipt(2, partition=1)])
    assert one.wanted == (0, 5)
    one.take([stored(4, b"before", producer_id=1), stored(5, b"a", b"b", epoch=2)])
    assert one.wanted == (1, 2)
    one.take([stored(2, b"c", epoch=3)])
    assert one.wanted is None
    assert [it.epoch for it in one.receipts(3, 9)] == [2, 2, 3]


def test_messages_in_several_batches_are_read_one_after_the_other() -> None:
    one = check([b"a", b"b"], [receipt(5), receipt(8)])
    one.take([stored(5, b"a")])
    assert one.wanted == (0, 8)
    one.take([stored(8, b"b")])
    assert one.wanted is None


@pytest.mark.parametrize("first", [[b"x", b"b"], [b"a", b"b", b"c"]])
def test_a_repeat_with_other_messages_is_refused(first: list[bytes]) -> None:
    one = check([b"a", b"b"], [receipt(5), receipt(6)])
    with pytest.raises(KeyReusedError, match="'t'"):
        one.take([stored(5, *first)])


def test_other_headers_are_another_message_unless_they_are_of_a_trace() -> None:
    span = {"traceparent": b"00-1"}
    one = check([b"a"], [receipt(5)])
    one.take([stored(5, b"a", headers=span)])
    assert one.wanted is None
    with pytest.raises(KeyReusedError):
        check([b"a"], [receipt(5)]).take([stored(5, b"a", headers={"by": b"ann"})])


def test_what_no_longer_exists_can_not_differ() -> None:
    whole = bytes(stored(5, b"a").data)
    torn = whole[:HEADER_BYTES] + b"\xff" * (len(whole) - HEADER_BYTES)
    for found in ([], [stored(6, b"a")], [stored(5, b"x", producer_id=1)], [Batch(torn)]):
        one = check([b"a", b"b"], [receipt(5), receipt(6)])
        one.take(found)
        assert one.wanted is None
        assert [it.epoch for it in one.receipts(3, 9)] == [9, 9]


def test_a_message_that_was_compacted_away_may_have_been_the_same() -> None:
    one = check([b"x", b"b"], [receipt(5), receipt(6)])
    one.take([Batch(thinned(stored(5, b"a", b"b"), [1]))])
    assert one.wanted is None
    with pytest.raises(KeyReusedError):
        check([b"a", b"x"], [receipt(5), receipt(6)]).take(
            [Batch(thinned(stored(5, b"a", b"b"), [1]))]
        )
