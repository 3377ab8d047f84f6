"""The benchmark of security and telemetry: both brokers run, everything arrives, and messages are
sampled as a client would."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fanlog.bench.overhead import OverheadOptions, run_overhead
from fanlog.bench.sampled_load import FrameMarker
from fanlog.bench.tables import overhead_table


def test_both_brokers_are_measured_in_turn(tmp_path: Path) -> None:
    options = OverheadOptions(
        features=("metrics", "audit", "tracing"),
        subscribers=(0, 3),
        batches=(4,),
        rounds=2,
        slice_s=0.1,
        pin=False,
        directory=tmp_path,
    )
    report = run_overhead(options)
    assert [(row.subscribers, row.batch) for row in report.rows] == [(0, 4), (3, 4)]
    for row in report.rows:
        assert row.off_per_s > 0 < row.on_per_s
        assert len(row.ratios) == 2
        assert row.sampled_per_s > 0
    assert overhead_table(report).row_count == 2


def test_dashboards_are_open_on_the_second_broker(tmp_path: Path) -> None:
    options = OverheadOptions(
        features=(),
        dashboards=10,
        subscribers=(3,),
        batches=(4,),
        rounds=2,
        slice_s=0.1,
        pin=False,
        directory=tmp_path,
    )
    (row,) = run_overhead(options).rows
    assert row.features == ["10 dashboards"]
    assert row.off_per_s > 0 < row.on_per_s
    assert len(row.ratios) == 2


UNIT = b"unit"


class Pipe:
    """A socket that takes so many bytes at a time, and keeps them."""

    def __init__(self, *takes: int) -> None:
        self.takes = list(takes)
        self.got = b""

    def send(self, data: memoryview) -> int:
        return self.sendmsg([data])

    def sendmsg(self, pieces: list[bytes | memoryview]) -> int:
        if not self.takes:
            raise BlockingIOError
        taken = b"".join(pieces)[: self.takes.pop(0)]
        self.got += taken
        return len(taken)


def send_all(sampler: FrameMarker, pipe: Pipe, sent: int, limit: int) -> int:
    block = memoryview(UNIT * 4)
    while sent < limit:
        try:
            sent = sampler.send(pipe, block, len(UNIT), sent, limit)  # pyright: ignore[reportArgumentType]
        except BlockingIOError:
            break
    return sent


def test_without_a_refill_nothing_is_sampled() -> None:
    sampler, pipe = FrameMarker(1.0, 1), Pipe(99, 99, 99)
    assert send_all(sampler, pipe, 0, 40) == 40
    assert (pipe.got, sampler.sampled) == (UNIT * 10, 0)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=60), st.integers(1, 5))
def test_frames_stand_between_units_however_the_socket_takes_them(
    takes: list[int], most: int
) -> None:
    sampler, pipe = FrameMarker(1.0, 1), Pipe(*takes)
    sampler.refill(most, 0.0)
    sent = send_all(sampler, pipe, 0, 400)
    rest, units, frames = pipe.got, 0, 0
    while rest:
        if rest[:4] == UNIT[: len(rest[:4])]:
            rest, units = rest[4:], units + 1
        else:
            # A TRACED frame with one entry has 44 bytes.
            rest, frames = rest[44:], frames + 1
    assert frames <= min(most, sampler.sampled)
    assert -(-sent // 4) == units


def test_a_sampler_takes_its_share() -> None:
    sampler, pipe = FrameMarker(0.01, 10), Pipe(*[4096] * 400)
    sampler.refill(1000, 0.0)
    assert send_all(sampler, pipe, 0, 4 * 100) == 400
    # One for each call at most.
    assert 8 <= sampler.sampled <= 10
