"""Messages as JSON: whatever was published can be read back, in any frame and as any event."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.sparse import thinned, widened
from fanlog.format.web import OutgoingMessage, RenderedRecords, messages_json, rfc3339
from fanlog.format.web_filters import make_filter

TIME_US = 1_700_000_000_123_456
values = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"[", b"{", b"[1", b'{"a":\n1}', b"[1]\r\n", b'["\xff"]', b'{"a":1}x', b""]),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    ).map(lambda found: json.dumps(found, indent=1, ensure_ascii=False).encode()),
)
keys = st.one_of(st.none(), st.binary(max_size=10), st.text(max_size=6).map(str.encode))
header_maps = st.one_of(
    st.none(),
    st.dictionaries(
        st.one_of(st.sampled_from(["content-type", "Content-Type"]), st.text(max_size=5)),
        st.one_of(st.sampled_from([b"application/json", b"text/plain"]), st.binary(max_size=6)),
        max_size=3,
    ),
)


def batch_of(found: list[bytes | None], base: int = 7, **columns: Any) -> Batch:
    data = encode_batch(found, partition=2, **columns)
    return Batch(
        stamp(data, base_offset=base, append_time_us=TIME_US, leader_epoch=3, topic=9), None, "t"
    )


def value_of(message: dict[str, Any], published: bytes | None) -> bytes | None:
    """The value that a JSON message carries. A value that is JSON is compared by its meaning."""
    carried = [name for name in ("json", "text", "base64", "deleted") if name in message]
    assert len(carried) == 1
    if carried == ["json"]:
        assert published is not None
        assert message["json"] == json.loads(published.decode())
        return published
    if carried == ["text"]:
        return message["text"].encode()
    return base64.b64decode(message["base64"]) if carried == ["base64"] else None


@settings(deadline=None)
@given(st.lists(st.tuples(values, keys, header_maps), min_size=1, max_size=8))
def test_every_record_can_be_read_back(
    records: list[tuple[bytes | None, bytes | None, dict[str, bytes] | None]],
) -> None:
    batch = batch_of(
        [value for value, _, _ in records],
        keys=[key for _, key, _ in records],
        headers=[headers for _, _, headers in records],
    )
    shown = [json.loads(message) for message in RenderedRecords(batch).messages]
    for i, (message, (value, key, headers)) in enumerate(zip(shown, records, strict=True)):
        assert message["offset"] == 7 + i
        assert message["time"] == "2023-11-14T22:13:20.123456Z"
        assert value_of(message, value) == value
        if "key_base64" in message:
            assert base64.b64decode(message["key_base64"]) == key
        else:
            assert message.get("key") == (None if key is None else key.decode())
        texts = {name: text.encode() for name, text in message.get("headers", {}).items()}
        others = message.get("headers_base64", {}).items()
        assert texts | {name: base64.b64decode(text) for name, text in others} == (headers or {})


@given(st.lists(st.text(max_size=30).map(str.encode), min_size=1, max_size=10))
def test_text_stays_text_with_and_without_escapes(found: list[bytes]) -> None:
    for published, message in zip(found, RenderedRecords(batch_of([*found])).messages, strict=True):
        assert value_of(json.loads(message), published) == published


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b'{"a": 1}', "json"),
        (b"[1]", "json"),
        (b"[12:00] hello", "text"),
        (b"{broken", "text"),
        (b'{"a": NaN}', "text"),
        (b"17", "text"),
        (b"", "text"),
        (b"\xff\x00", "base64"),
        (b'["\xff"]', "base64"),
        (b"[" * 100_000, "text"),
        (None, "deleted"),
    ],
)
def test_the_field_says_what_a_value_is(value: bytes | None, field: str) -> None:
    (message,) = RenderedRecords(batch_of([value])).messages
    assert field in json.loads(message)


@pytest.mark.parametrize(
    ("content_type", "is_json"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/vnd.order+json", True),
        (b"text/plain", False),
    ],
)
def test_a_content_type_makes_any_value_json(content_type: bytes, is_json: bool) -> None:
    batch = batch_of([b"17"], headers=[{"Content-Type": content_type}])
    message = json.loads(RenderedRecords(batch).messages[0])
    assert ("json" in message) is is_json


def test_a_content_type_keeps_text_that_looks_like_json() -> None:
    batch = batch_of([b"[1]", b"[1]"], headers=[{"content-type": b"text/plain"}, {}])
    first, second = map(json.loads, RenderedRecords(batch).messages)
    assert (first["text"], second["json"]) == ("[1]", [1])


def test_json_stands_in_a_message_byte_by_byte() -> None:
    value = b'{"a" :  1.0e2, "big": 123456789012345678901234567890}'
    assert value in messages_json(batch_of([value]))[0]


def test_a_publishers_time_stands_beside_the_brokers() -> None:
    batch = batch_of([b"a", b"b"], event_times_us=[0, 2**62])
    first, second = (json.loads(message) for message in RenderedRecords(batch).messages)
    assert first["event_time"] == "1970-01-01T00:00:00.000000Z"
    assert second["event_time"] == "9999-12-31T23:59:59.999999Z"
    assert rfc3339(-(2**62)) == "0001-01-01T00:00:00.000000Z"


def test_a_sparse_batch_keeps_its_offsets() -> None:
    batch = Batch(widened(Batch(thinned(batch_of([b"a", b"b", b"c", b"d"]), [1, 3])), 90))
    shown = [json.loads(message) for message in messages_json(batch, topic="t")]
    assert [(m["topic"], m["partition"], m["offset"], m["text"]) for m in shown] == [
        ("t", 2, 8, "b"),
        ("t", 2, 10, "d"),
    ]
    assert [json.loads(m)["offset"] for m in messages_json(batch, first_offset=9)] == [10]
    assert messages_json(batch, first_offset=11) == []
    assert len(messages_json(batch, limit=1)) == 1


def published(document: bytes) -> tuple[bytes | None, bytes | None, dict[str, bytes] | None]:
    return msgspec.json.decode(document, type=OutgoingMessage).record()


@pytest.mark.parametrize(
    ("document", "record"),
    [
        (b'{"text":"hi"}', (None, b"hi", None)),
        (b'{"key":"k","base64":"/wA="}', (b"k", b"\xff\x00", None)),
        (b'{"key_base64":"/w==","deleted":true}', (b"\xff", None, None)),
        (b'{"json":{"a": 1}}', (None, b'{"a": 1}', {"content-type": b"application/json"})),
        (b'{"json":null}', (None, b"null", {"content-type": b"application/json"})),
        (
            b'{"json":1,"headers":{"Content-Type":"application/vnd.x+json"}}',
            (None, b"1", {"Content-Type": b"application/vnd.x+json"}),
        ),
        (
            b'{"text":"","headers":{"a":"b"},"headers_base64":{"c":"/w=="}}',
            (None, b"", {"a": b"b", "c": b"\xff"}),
        ),
    ],
)
def test_a_json_message_is_published_as_it_says(document: bytes, record: object) -> None:
    assert published(document) == record


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        b'{"key":"k"}',
        b'{"text":"a","json":1}',
        b'{"text":"a","deleted":true}',
        b'{"key":"a","key_base64":"YQ==","text":""}',
    ],
)
def test_a_message_with_no_or_several_values_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        published(document)


# Filters


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"key": "a*"}, [0, 1]),
        ({"key": "*"}, [0, 1, 2, 3]),
        ({"key": "b?"}, [2]),
        ({"headers": {"Type": "x"}}, [0, 2]),
        ({"headers": {"type": ["y", "x"]}}, [0, 1, 2]),
        ({"key": "a*", "headers": {"type": "x"}}, [0]),
        ({"headers": {"missing": "x"}}, []),
    ],
)
def test_a_filter_lets_records_with_fitting_key_and_headers_through(
    spec: dict[str, object], kept: list[int]
) -> None:
    batch = batch_of(
        [b"0", b"1", b"2", b"3", b"4"],
        keys=[b"a1", b"a2", b"b1", b"", None],
        headers=[{"type": b"x"}, {"TYPE": b"y"}, {"type": b"x"}, None, {"type": b"z"}],
    )
    found = make_filter(spec)
    assert found is not None
    assert RenderedRecords(batch).kept(found) == kept


def test_equal_filters_have_one_text() -> None:
    a = make_filter({"headers": {"B": ["2", "1"], "a": "x"}, "key": "k"})
    b = make_filter({"key": "k", "headers": {"A": ["x"], "b": ["1", "2", "1"]}})
    assert a is not None
    assert b is not None
    assert a == b
    assert a.text == b.text == '{"key":"k","headers":{"a":["x"],"b":["1","2"]}}'
    assert make_filter({}) is None
    assert make_filter(None) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"keys": "a"},
        {"key": 5},
        {"key": "a" * 300},
        {"headers": {"a": []}},
        {"headers": {"a": "1", "A": "2"}},
        {"headers": {str(i): "x" for i in range(20)}},
        {"headers": {"a": ["x" * 300 + str(i) for i in range(30)]}},
    ],
)
def test_a_filter_that_makes_no_sense_or_is_too_large_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make_filter(spec)
