"""Where rows go: the partition that every client would choose, in the order that they came."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError, MessageTooLargeError, PartitionNotFoundError
from fanlog.format.keys import fnv1a_32, partition_of
from fanlog.spark.row_batches import TargetTopic, cut_rows, key_hashes

KEYS = st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=60)


def target(name: str, partitions: int = 4) -> TargetTopic:
    return TargetTopic(name, 1, partitions, 1000)


@given(KEYS, st.integers(0, 3))
def test_a_keys_hash_is_the_one_that_all_clients_make(keys: list[bytes | None], cut: int) -> None:
    column = pa.array([b"before"] * cut + keys, pa.binary()).slice(cut)
    assert key_hashes(column).tolist() == [fnv1a_32(key or b"") for key in keys]


@given(KEYS, st.integers(1, 5))
def test_rows_keep_their_order_in_the_partition_of_their_key(
    keys: list[bytes | None], partitions: int
) -> None:
    rows = pa.record_batch(
        {
            "value": pa.array([str(i).encode() for i in range(len(keys))]),
            "key": pa.array(keys, pa.binary()),
        }
    )
    turn = 3
    seen: list[int] = []
    for cut in cut_rows(rows, "t", lambda name: target(name, partitions), turn):
        places = [int(value) for value in cut.rows.column("value").to_pylist()]
        assert places == sorted(places)
        seen += places
        for place in places:
            key = keys[place]
            wanted = turn % partitions if key is None else partition_of(key, partitions)
            assert cut.partition == wanted
    assert sorted(seen) == list(range(len(keys)))


def test_rows_go_to_the_topic_and_partition_that_they_name() -> None:
    rows = pa.record_batch(
        {
            "value": pa.array(["1", "2", "3", "4"]),
            "topic": pa.array(["a", "b", "b", "a"]),
            "partition": pa.array([3, None, 1, 0], pa.int32()),
        }
    )
    found = {
        (cut.target.name, cut.partition): cut.rows.column("value").to_pylist()
        for cut in cut_rows(rows, "", target, 2)
    }
    assert found == {("a", 0): ["4"], ("a", 3): ["1"], ("b", 2): ["2"], ("b", 1): ["3"]}


def test_a_topic_that_is_named_is_for_all_rows() -> None:
    rows = pa.record_batch({"value": pa.array(["1", "2"]), "topic": pa.array(["a", None])})
    (cut,) = cut_rows(rows, "c", target, 0)
    assert (cut.target.name, len(cut.rows)) == ("c", 2)


def test_a_row_that_can_not_be_placed_is_one_sentence() -> None:
    rows = pa.record_batch({"value": pa.array(["x"]), "partition": pa.array([9])})
    with pytest.raises(PartitionNotFoundError, match=r"`partition` is 9.*partitions 0 to 3"):
        list(cut_rows(rows, "t", target, 0))
    rows = pa.record_batch({"value": pa.array(["x"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(InvalidArgumentError, match="`topic` is null"):
        list(cut_rows(rows, "", target, 0))


def test_a_row_that_is_too_large_is_refused_before_it_is_staged() -> None:
    rows = pa.record_batch({"value": pa.array(["x", "y" * 999]), "key": pa.array(["k", "kk"])})
    with pytest.raises(MessageTooLargeError, match="1001 bytes; topic 't' takes 1000"):
        list(cut_rows(rows, "t", target, 0))


def test_headers_count_as_well() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = [[], None, [{"key": "ab", "value": b"c" * 990}, {"key": "d", "value": None}], []]
    headers = pa.array(given, kind)
    rows = pa.record_batch({"value": pa.array(["x" * 7] * 4), "headers": headers})
    assert len(list(cut_rows(rows, "t", target, 0))) == 1
    rows = pa.record_batch({"value": pa.array(["x" * 8] * 4), "headers": headers})
    with pytest.raises(MessageTooLargeError, match="1001 bytes; topic 't' takes 1000"):
        list(cut_rows(rows.slice(1), "t", target, 0))
    assert len(list(cut_rows(rows.slice(3), "t", target, 0))) == 1
