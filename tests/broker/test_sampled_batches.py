"""Sampled batches in the middle of a read: one call takes all of it, and each span has the offset
of its own record, whatever happens to the batches around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import FormatError, LogFailedError
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind, frame
from fanlog.format.trace_context import SampledRecord, traced_frame
from tests.broker.stage import Publisher, Stage, stage

SPAN_ID = bytes(range(1, 9))


def mark(number: int, record: int = 0) -> SampledRecord:
    return SampledRecord(record, number.to_bytes(16, "big"), SPAN_ID)


def traced(number: int, record: int = 0) -> bytes:
    return traced_frame([mark(number, record)])


def appended(on: Stage) -> dict[int, object]:
    """Offsets of the records with an append span, by the number of their trace."""
    return {
        int.from_bytes(span.trace_id, "big"): span.attributes["messaging.fanlog.offset"]
        for span in on.core.traces.spans.newest()
        if span.name.startswith("append") and not span.error
    }


def count_calls(on: Stage) -> list[int]:
    """How far each call of the intake came."""
    calls: list[int] = []
    take = on.core._intake.take

    def counted(*given: object, **more: object) -> int:
        calls.append(take(*given, **more))  # type: ignore[arg-type]
        return calls[-1]

    on.core._intake.take = counted  # type: ignore[method-assign]
    return calls


def test_one_call_takes_a_read_with_sampled_batches_in_it() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"a", b"b"], topic=number)
        data = batch + traced(1, 1) + batch + batch + traced(2) + batch
        calls, publisher = count_calls(on), Publisher()
        assert on.core.take(data, 0, publisher) == len(data)
        assert calls == [len(data)]
        on.run()
        assert appended(on) == {1: 3, 2: 6}
        assert [ack.base_offset for ack in publisher.acks] == [0, 2, 4, 6]


def test_batches_that_are_not_taken_have_no_span_and_those_behind_them_their_own() -> None:
    with stage(message_bytes_max=4096) as on:
        number = on.core.open_topic("t", create=True).number
        small = encode_batch([b"x"], topic=number)
        large = encode_batch([bytes(9000)], topic=number)
        once = encode_batch([b"p"], topic=number, producer_id=7)
        later = encode_batch([b"q"], topic=number, producer_id=7, first_sequence=5)
        elsewhere = encode_batch([b"x"], topic=999)
        data = b"".join(
            traced(n) + batch
            for n, batch in enumerate([large, small, elsewhere, once, once, later, small], 1)
        )
        publisher = Publisher()
        assert on.core.take(data, 0, publisher) == len(data)
        on.run()
        # Too large, in a topic that is not there, a repeat, and out of sequence.
        assert appended(on) == {2: 0, 4: 1, 7: 2}
        assert len(publisher.refusals) == 3


def test_a_frame_whose_batch_is_not_whole_yet_is_left_to_the_session() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"x"], topic=number)
        for cut in (0, 5, 63, len(batch) - 1):
            data = batch + traced(1) + batch[:cut]
            assert on.core.take(data, 0, Publisher()) == len(batch)
        assert on.core.take(batch + traced(1) + frame(FrameKind.PING), 0, Publisher()) == len(batch)
        on.run()
        assert not on.core.traces.following


def test_a_malformed_frame_is_left_to_the_session_too() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"x"], topic=number)
        for payload in (b"", bytes(27), bytes(29), bytes(28 * 65)):
            data = batch + frame(FrameKind.TRACED, payload) + batch
            assert on.core.take(data, 0, Publisher()) == len(batch)
        # One that claims to be shorter than its own head, or of no length at all.
        for length in (0, 5, 15):
            lying = length.to_bytes(4, "little") + frame(FrameKind.TRACED, bytes(28))[4:]
            assert on.core.take(batch + lying + batch, 0, Publisher()) == len(batch)


@pytest.mark.parametrize("bad", ["the sampled one", "the one behind it"])
def test_a_bad_batch_does_not_give_its_trace_to_others(bad: str) -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"x"], topic=number)
        broken = batch[:-1] + b"!"
        first, second = (broken, batch) if bad == "the sampled one" else (batch, broken)
        with pytest.raises(FormatError):
            on.core.take(traced(1) + first + second, 0, Publisher())
        on.core.take(batch, 0, Publisher())
        on.run()
        assert appended(on) == ({} if bad == "the sampled one" else {1: 0})


def test_past_the_bound_of_a_second_nothing_is_kept_and_all_is_counted() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        most = on.core.traces.per_second_max
        data = b"".join(
            traced(n) + encode_batch([b"x"], topic=number) for n in range(1, most + 301)
        )
        assert on.core.take(data, 0, Publisher()) == len(data)
        on.run()
        assert len(appended(on)) == most
        assert on.core.traces.spans.left_out == 300
        # From here on, nothing is written down of them.
        on.core.take(data[: len(data) // 2], 0, Publisher())
        assert not on.core.traces.sampled.pending


def test_what_waits_for_spans_is_bounded_without_anybody_looking() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        for n in range(1, 101):
            on.core.take(traced(n) + encode_batch([b"x"], topic=number), 0, Publisher())
            on.run()
            assert len(on.core.traces.sampled.pending) < 64
        assert on.core.traces.spans.recorded > 60
        on.core.tick()
        assert on.core.traces.spans.recorded == 100


def test_sampled_batches_that_wait_for_the_disk_are_shown_with_it(tmp_path: Path) -> None:
    with stage(tmp_path, durability="fsync") as on:
        number = on.core.open_topic("t", create=True).number
        on.run()
        on.sync_group.sync()
        on.core.take(traced(1) + encode_batch([b"x"], topic=number), 0, Publisher())
        on.run()
        on.core.take(traced(2) + encode_batch([b"y"], topic=number), 0, Publisher())
        assert appended(on) == {}
        first, on.sync_group.waiting = on.sync_group.waiting, []
        on.run()
        on.sync_group.finish(first)
        on.run()
        assert appended(on) == {1: 0}
        assert on.core.traces.sampled.hidden
        on.sync_group.sync(LogFailedError("the disk is broken"))
        on.run()
        assert appended(on) == {1: 0}
        assert not on.core.traces.sampled.hidden


def test_a_session_that_knows_of_a_sampled_batch_hands_on_the_rest_with_it() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"x"], topic=number)
        data = batch + traced(2) + batch
        calls = count_calls(on)
        assert on.core.take_traced(data, 0, Publisher(), [mark(1)]) == len(data)
        assert calls == [len(data)]
        on.run()
        assert appended(on) == {1: 0, 2: 1}


BATCHES = st.lists(st.booleans(), min_size=1, max_size=40)


@given(BATCHES, st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_each_sampled_batch_has_one_trace_whoever_began_it(
    sampled: list[bool], ratio: float, known: bool
) -> None:
    """`known`: the session has got the first frame with the read before."""
    with stage() as on:
        on.core.traces._ratio, on.core.traces.begins_some = ratio, ratio > 0
        number = on.core.open_topic("t", create=True).number
        batch = encode_batch([b"x"], topic=number)
        data = b"".join((traced(n) if s else b"") + batch for n, s in enumerate(sampled, 1))
        if known and sampled[0]:
            data = data[len(traced(1)) :]
            assert on.core.take_traced(data, 0, Publisher(), [mark(1)]) == len(data)
        else:
            assert on.core.take(data, 0, Publisher()) == len(data)
        on.run()
        found = appended(on)
        assert [found.pop(n) for n, s in enumerate(sampled, 1) if s] == [
            n for n, s in enumerate(sampled) if s
        ]
        # Those that the broker began are in other batches.
        assert set(found.values()) <= {n for n, s in enumerate(sampled) if not s}
        if ratio in (0.0, 1.0):
            assert len(found) == ratio * sampled.count(False)
