"""Views over records: whole frames and events, right offsets, positions that lead on exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Opcode

from fanlog.errors import UnreadableError
from fanlog.format.batch import Batch, encode_batch, split_batches, stamp
from fanlog.format.record_views import FRAME_BYTES_MAX, POSITION_EVERY, Decoded, RecordView
from fanlog.format.sparse import placeholder, thinned
from fanlog.format.web import RenderedRecords, Unreadable
from fanlog.format.web_filters import Filter, make_filter
from fanlog.format.web_frames import binary_frame, sse_event, text_frame
from fanlog.format.web_positions import parse_position
from fanlog.format.web_views import views_for
from tests.format.web_frames import documents, events, frames


class _Topic:
    def __init__(self, name: str = "chat.a", number: int = 9) -> None:
        self.name = name
        self.number = number


def batch_of(values: Sequence[bytes | None], base: int, **columns: Any) -> Batch:
    data = encode_batch(values, partition=2, **columns)
    return Batch(stamp(data, base_offset=base, append_time_us=1, leader_epoch=3, topic=9))


def view(kind: str, filter: Filter | None = None, target: str = "chat.*") -> RecordView:
    return views_for(kind, target, filter)(_Topic())  # type: ignore[arg-type]


def unreadable(base: int, count: int = 1) -> Unreadable:
    return Unreadable(batch_of([b""] * count, base), UnreadableError("no"))


def rendered(kind: str, batches: Sequence[Batch], first: int = 0, **filter: Any) -> bytes:
    decoded: Decoded = [RenderedRecords(batch) for batch in batches]
    return view(kind, make_filter(filter) if filter else None).render_records(decoded, first)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 70000])
def test_frames_of_every_size_are_read_by_another_implementation(size: int) -> None:
    payload = b"x" * size
    assert list(frames(text_frame(payload))) == [(Opcode.TEXT, payload)]
    assert list(frames(binary_frame(payload))) == [(Opcode.BINARY, payload)]


def test_a_piece_is_one_frame_with_the_position_behind_it() -> None:
    (frame,) = documents(rendered("json", [batch_of([b"a", b"b"], 5), batch_of([b'{"c":1}'], 7)]))
    assert frame == {
        "type": "messages",
        "target": "chat.*",
        "topic": "chat.a",
        "partition": 2,
        "position": "8.3.9",
        "messages": [
            {"offset": 5, "time": "1970-01-01T00:00:00.000001Z", "text": "a"},
            {"offset": 6, "time": "1970-01-01T00:00:00.000001Z", "text": "b"},
            {"offset": 7, "time": "1970-01-01T00:00:00.000001Z", "json": {"c": 1}},
        ],
    }


def test_records_before_the_wanted_offset_are_left_out() -> None:
    batches = [batch_of([b"a", b"b", b"c"], 5), batch_of([b"d"], 8)]
    for first in range(10):
        kept = [offset for offset in range(5, 9) if offset >= first]
        shown = documents(rendered("json", batches, first))
        assert [m["offset"] for frame in shown for m in frame["messages"]] == kept
        ids = [event["id"] for event in events(rendered("sse", batches, first))]
        assert ids == [f"{offset + 1}.3.9" for offset in kept]


def test_what_compaction_left_keeps_its_offsets_and_leads_behind_what_it_took() -> None:
    whole = batch_of([b"a", b"b", b"c", b"d"], 5)
    sparse = Batch(thinned(whole, [1, 2]))
    hole = Batch(placeholder(batch_of([b"e"], 9).header, 40))
    (frame,) = documents(rendered("json", [sparse, hole]))
    assert [m["offset"] for m in frame["messages"]] == [6, 7]
    assert frame["position"] == "40.3.9"
    assert [e["id"] for e in events(rendered("sse", [sparse, hole]))] == ["7.3.9", "40.3.9"]
    assert rendered("json", [hole]) == rendered("sse", [hole]) == b""


def test_a_large_piece_is_cut_into_frames_and_each_leads_to_the_next() -> None:
    values = [b"%05d" % i + b"x" * 3000 for i in range(400)]
    shown = documents(rendered("json", [batch_of(values[:300], 10), batch_of(values[300:], 310)]))
    assert len(shown) > 3
    next_offset = 10
    for frame in shown:
        assert frame["messages"][0]["offset"] == next_offset
        next_offset = parse_position(frame["position"]).offset
        assert frame["messages"][-1]["offset"] == next_offset - 1
    assert next_offset == 410
    sizes = [len(payload) for _, payload in frames(rendered("json", [batch_of(values, 10)]))]
    assert max(sizes) < FRAME_BYTES_MAX + 1000


def test_a_message_that_is_larger_than_a_frame_should_be_is_sent_alone() -> None:
    shown = documents(rendered("json", [batch_of([b"a", b"x" * 2 * FRAME_BYTES_MAX, b"c"], 0)]))
    assert [len(frame["messages"]) for frame in shown] == [1, 1, 1]
    assert [frame["position"] for frame in shown] == ["1.3.9", "2.3.9", "3.3.9"]


def test_events_name_topic_and_partition_and_fit_on_one_line() -> None:
    shown = events(rendered("sse", [batch_of([b'{"a":\r\n1}', b"a\nb", None], 0)]))
    messages = [json.loads(event["data"]) for event in shown]
    assert [(m["topic"], m["partition"], m["offset"]) for m in messages] == [
        ("chat.a", 2, 0),
        ("chat.a", 2, 1),
        ("chat.a", 2, 2),
    ]
    assert [messages[0]["json"], messages[1]["text"], messages[2]["deleted"]] == [
        {"a": 1},
        "a\nb",
        True,
    ]
    assert [event["id"] for event in shown] == ["1.3.9", "2.3.9", "3.3.9"]
    assert events(sse_event(b'{\n"a":1}', "gap", "1.2.3")) == [
        {"id": "1.2.3", "event": "gap", "data": '{ "a":1}'}
    ]


def test_a_batch_that_does_not_decode_is_a_gap_that_names_its_positions() -> None:
    decoded: Decoded = [
        RenderedRecords(batch_of([b"a"], 5)),
        unreadable(6, 2),
        RenderedRecords(batch_of([b"b"], 8)),
        unreadable(9),
    ]
    before, gap, behind, last = documents(view("json").render_records(decoded, 0))
    assert [m["offset"] for m in before["messages"]] == [5]
    assert (gap["type"], gap["from"], gap["to"], gap["reason"]) == (
        "gap",
        "6.3.9",
        "8.3.9",
        "unreadable",
    )
    assert [m["offset"] for m in behind["messages"]] == [8]
    assert last["to"] == "10.3.9"
    shown = events(view("sse").render_records(decoded, 7))
    assert [(event.get("event"), event["id"]) for event in shown] == [
        ("gap", "8.3.9"),
        (None, "9.3.9"),
        ("gap", "10.3.9"),
    ]
    assert json.loads(shown[0]["data"])["from"] == "7.3.9"


def test_a_filtered_frame_names_its_filter_and_skips_what_does_not_pass() -> None:
    batch = batch_of([b"0", b"1", b"2"], 5, keys=[b"a", b"b", b"a"])
    (frame,) = documents(rendered("json", [batch], key="a"))
    assert frame["filter"] == '{"key":"a"}'
    assert [m["offset"] for m in frame["messages"]] == [5, 7]
    assert frame["position"] == "8.3.9"
    (frame,) = documents(rendered("json", [batch], 6, key="a"))
    assert [m["offset"] for m in frame["messages"]] == [7]
    assert rendered("json", [batch], key="c") == b""


@settings(deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=12), st.integers(0, 5000))
def test_a_filter_that_lets_nothing_through_shows_a_position_now_and_then(
    counts: list[int], base: int
) -> None:
    told = base
    for count in counts:
        batch = batch_of([b""] * count, base, keys=[b"b"] * count)
        base += count
        for frame in documents(rendered("json", [batch], key="a")):
            assert frame["type"] == "position"
            told = parse_position(frame["position"]).offset
            assert told == base
        only_ids = events(rendered("sse", [batch], key="a"))
        assert [event for event in only_ids if "data" in event] == []
        assert base - told < POSITION_EVERY
    assert base - told < POSITION_EVERY


def test_a_binary_frame_is_the_target_and_the_batches_unchanged() -> None:
    piece = b"".join(bytes(batch_of([b"x" * 1000] * 100, i).data) for i in range(0, 500, 100))
    shown = list(frames(view("binary").render_raw(piece)))
    assert len(shown) > 1
    batches = b""
    for opcode, payload in shown:
        assert opcode is Opcode.BINARY
        assert payload[1 : 1 + payload[0]] == b"chat.*"
        batches += payload[1 + payload[0] :]
    assert batches == piece
    assert view("binary").raw
    assert view("binary").render_raw(b"") == b""


def test_a_filtered_binary_frame_has_sparse_batches() -> None:
    batch = batch_of([b"0", b"1", b"2"], 5, keys=[b"a", b"b", b"a"])
    whole = batch_of([b"3"], 8, keys=[b"a"])
    nothing = batch_of([b"4"], 9, keys=[b"b"])
    bad = unreadable(10)
    filtered = view("binary", make_filter({"key": "a"}))
    assert not filtered.raw
    decoded: Decoded = [
        RenderedRecords(batch),
        RenderedRecords(whole),
        RenderedRecords(nothing),
        bad,
    ]
    ((_, payload),) = frames(filtered.render_records(decoded, 0))
    body = payload[1 + payload[0] :]
    shown = [Batch(body[at : at + h.length], h) for at, h in split_batches(body)]
    assert [list(b.offsets) for b in shown] == [[5, 7], [8], [10]]
    assert [b.next_offset for b in shown] == [8, 9, 11]
    assert filtered.render_records([RenderedRecords(nothing)], 0) == b""


def test_those_with_the_same_target_and_filter_share_a_view() -> None:
    topic = _Topic()
    a, b = make_filter({"key": "a"}), make_filter({"key": "a"})
    first = views_for("json", "chat.*", a)(topic)
    assert views_for("json", "chat.*", b)(topic) is first
    others = [
        views_for("json", "chat.*")(topic),
        views_for("sse", "chat.*", a)(topic),
        views_for("json", "chat.a", a)(topic),
        views_for("json", "chat.*", a)(_Topic("chat.b")),
        views_for("json", "chat.*", a)(_Topic(number=10)),
    ]
    assert first not in others
    assert len(set(others)) == len(others)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.integers(0, 30),
    st.sampled_from(["json", "sse", "sse-vector"]),
    st.booleans(),
)
def test_whoever_goes_on_from_any_position_sees_each_record_once(
    counts: list[int], cut: int, kind: str, filtered: bool
) -> None:
    batches, base = [], 3
    for count in counts:
        batches.append(
            batch_of([b"v"] * count, base, keys=[b"ab"[i % 2 :][:1] for i in range(count)])
        )
        base += count
    chosen = {"key": "a"} if filtered else {}

    def offsets(data: bytes) -> list[int]:
        if kind == "json":
            return [m["offset"] for f in documents(data) for m in f.get("messages", ())]
        return [json.loads(e["data"])["offset"] for e in events(data) if "data" in e]

    first = min(3 + cut, base)
    before = [offset for offset in offsets(rendered(kind, batches, 0, **chosen)) if offset < first]
    behind = offsets(rendered(kind, batches, first, **chosen))
    assert before + behind == offsets(rendered(kind, batches, 0, **chosen))
