"""`traceparent` comes from anybody: a bad one is as good as none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import ProtocolError
from fanlog.format.frames import FRAME_HEADER_BYTES
from fanlog.format.trace_context import (
    TRACED_RECORDS_MAX,
    SampledRecord,
    TraceContext,
    context_of,
    maybe_context,
    read_traced,
    traced_frame,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ids = st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)).filter(
    lambda pair: any(pair[0]) and any(pair[1])
)


@given(ids, st.booleans())
def test_what_is_written_is_read(pair: tuple[bytes, bytes], sampled: bool) -> None:
    context = TraceContext(*pair, sampled)
    assert maybe_context(context.traceparent) == context
    assert context_of({"traceparent": context.traceparent.encode()}) == context


@given(st.one_of(st.text(), st.binary()))
def test_anything_else_is_no_context_and_no_fault(text: str | bytes) -> None:
    found = maybe_context(text)
    assert found is None or isinstance(found, TraceContext)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-zz",
    ],
)
def test_a_bad_traceparent_is_none(bad: str) -> None:
    assert maybe_context(bad) is None
    assert maybe_context(bad.encode()) is None


def test_a_later_version_may_say_more_and_other_flags_do_not_count() -> None:
    expected = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), True)
    assert maybe_context(f"01-{TRACE}-{SPAN}-01-what-ever") == expected
    assert maybe_context(f"00-{TRACE}-{SPAN}-03") == expected
    assert maybe_context(f"00-{TRACE}-{SPAN}-02") == expected._replace(sampled=False)


@given(st.lists(ids, min_size=1, max_size=2 * TRACED_RECORDS_MAX))
def test_a_traced_frame_has_the_first_entries(pairs: list[tuple[bytes, bytes]]) -> None:
    marks = [SampledRecord(index, *pair) for index, pair in enumerate(pairs)]
    payload = memoryview(traced_frame(marks))[FRAME_HEADER_BYTES:]
    assert read_traced(payload) == marks[:TRACED_RECORDS_MAX]


@pytest.mark.parametrize("size", [0, 27, 29, 28 * (TRACED_RECORDS_MAX + 1)])
def test_a_traced_frame_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        read_traced(memoryview(bytes(size)))


def test_an_entry_of_zeros_is_left_out() -> None:
    assert read_traced(memoryview(bytes(28))) == []
