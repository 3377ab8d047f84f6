"""Positions as text: what was printed is read back, and nothing else passes for a position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.header import OFFSET_MAX
from fanlog.format.messages import Position
from fanlog.format.web import RenderedRecords
from fanlog.format.web_positions import (
    Vectors,
    parse_event_id,
    parse_position,
    parse_positions,
    print_position,
    print_positions,
)
from fanlog.format.web_views import views_for
from tests.format.web_frames import events

uint32 = st.integers(0, 2**32 - 1)
names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
positions = st.lists(
    st.builds(Position, names, st.integers(0, 4095), st.integers(0, OFFSET_MAX), uint32, uint32),
    unique_by=lambda p: (p.topic, p.partition),
    max_size=6,
)


@given(st.integers(0, OFFSET_MAX), uint32, uint32)
def test_a_position_is_read_back(offset: int, epoch: int, number: int) -> None:
    text = print_position(offset, epoch, number)
    assert parse_position(text, "t", 3) == Position("t", 3, offset, epoch, number)


@given(positions)
def test_positions_are_read_back(found: list[Position]) -> None:
    assert parse_positions(print_positions(found)) == tuple(found)


@given(positions)
def test_a_vector_is_read_back_and_fits_a_header(found: list[Position]) -> None:
    text = Vectors().of(found).text
    assert text.isascii()
    assert text.isprintable() or not text
    assert " " not in text
    assert sorted(parse_event_id(text), key=str) == sorted(found, key=str)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5.1",
        "-1.1.1",
        "5.1.1.1",
        "5.1.x",
        " 5.1.1",
        "5.1.1\n",
        "٥.1.1",
        f"{2**63}.1.1",
        f"5.{2**32}.1",
        "1" * 5000,
    ],
)
def test_what_is_not_a_position_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a position") as caught:
        parse_position(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text", ["a:1:", "a:x:0.1.1", ":1:0.1.1", "a:1:0.1", "a:1:0.1.1,", "a:1:0.1.1;", "a:1:9999.1.1"]
)
def test_what_is_not_an_event_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a position"):
        parse_event_id(text)


@pytest.mark.parametrize("place", ["", "t", "/0", "t/", "t/x", "t/-1", "t/12345"])
def test_a_key_that_names_no_partition_is_refused(place: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_positions({place: "1.1.1"})


def test_an_event_id_of_one_partition_is_a_position() -> None:
    assert parse_event_id("5.2.7", "chat") == (Position("chat", 0, 5, 2, 7),)
    assert parse_event_id("") == ()


# Stamping


class _Topic:
    name = "chat, all; of: them"
    number = 9


def piece(values: list[bytes | None], base: int, partition: int = 1) -> bytes:
    data = stamp(
        encode_batch(values, partition=partition),
        base_offset=base,
        append_time_us=0,
        leader_epoch=3,
        topic=9,
    )
    return views_for("sse-vector", "chat.*")(_Topic()).render_records(
        [RenderedRecords(Batch(data))], 0
    )


def test_each_event_of_several_partitions_has_the_whole_vector_as_its_id() -> None:
    vectors = Vectors()
    start = [
        Position(_Topic.name, 0, 4, 2, 9),
        Position(_Topic.name, 1, 7, 2, 9),
        Position(_Topic.name, 10, 1, 2, 9),
        Position("aaa", 0, 1, 1, 2),
        Position("zzz", 0, 1, 1, 3),
    ]
    vector = vectors.of(start)
    after, data = vectors.stamp(vector, piece([b"x", b"y\n", b'["\\u0000"]'], 7))
    for i, event in enumerate(events(data)):
        expected = [*start[:1], Position(_Topic.name, 1, 8 + i, 3, 9), *start[2:]]
        assert sorted(parse_event_id(event["id"]), key=str) == sorted(expected, key=str)
    assert after.text == events(data)[-1]["id"]
    assert sorted(after.positions, key=str) == sorted(parse_event_id(after.text), key=str)


def test_pieces_that_are_stamped_together_are_as_if_one_by_one() -> None:
    vectors = Vectors()
    begin = vectors.of([Position("a", 0, 7, 3, 9), Position("a", 1, 2, 3, 9)])
    pieces = [piece([b"x", b"y"], 7), piece([b"z"], 9)]
    vector, singles = begin, list[bytes]()
    for one in pieces:
        vector, data = vectors.stamp(vector, one)
        singles.append(data)
    after, data = vectors.stamp(begin, *pieces)
    assert (after, data) == (vector, b"".join(singles))
    assert vectors.stamp(begin, *map(memoryview, pieces))[1] is data


def test_readers_at_the_same_place_share_the_stamped_bytes() -> None:
    vectors = Vectors()
    start = [Position(_Topic.name, 1, 7, 2, 9), Position("a", 0, 1, 1, 2)]
    first, second = vectors.of(start), vectors.of(reversed(start))
    assert first is second
    shared = piece([b"x"], 7)
    results = [
        vectors.stamp(first, shared),
        vectors.stamp(second, shared),
        vectors.stamp(second, memoryview(shared)),
    ]
    assert len({id(data) for _, data in results}) == 1
    assert len({id(vector) for vector, _ in results}) == 1
    behind = vectors.moved(first, Position("a", 0, 0, 1, 2))
    assert vectors.stamp(behind, shared)[1] != results[0][1]


def test_a_topic_that_went_and_came_again_has_one_place() -> None:
    vectors = Vectors()
    vector = vectors.of([Position("a", 0, 5, 1, 2), Position("b", 0, 1, 1, 3)])
    assert vectors.moved(vector, Position("a", 0, 0, 1, 8)).text == "a:8:0.0.1;b:3:0.1.1"
    assert vectors.without(vector, "a").text == "b:3:0.1.1"
    with pytest.raises(InvalidArgumentError):
        vectors.stamp(vector, piece([b"x"], 7))
