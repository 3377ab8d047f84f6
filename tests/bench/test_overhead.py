"""The benchmark of security and telemetry: both brokers run, everything arrives, and messages are
sampled as a client would."""

from __future__ import annotations

from pathlib import Path

from fanlog.bench.marked import Sampler
from fanlog.bench.overhead import OverheadOptions, run_overhead
from fanlog.bench.report import overhead_table


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


def test_a_sampler_samples_its_share_and_no_more_than_it_may() -> None:
    sampler = Sampler(0.01, 10)
    assert sampler.next_unit(0) is None
    sampler.refill(2)
    assert sampler.next_unit(3) == 3
    sampler.send(_Taking(99), b"unit")  # pyright: ignore[reportArgumentType]
    assert sampler.next_unit(4) == 13
    sampler.send(_Taking(99), b"unit")  # pyright: ignore[reportArgumentType]
    assert sampler.next_unit(14) is None
    assert sampler.sampled == 2


def test_a_frame_that_did_not_fit_is_finished_before_anything_else() -> None:
    sampler = Sampler(1.0, 1)
    sampler.refill(1)
    assert sampler.next_unit(0) == 0
    half, rest = _Taking(20), _Taking(99)
    assert not sampler.send(half, b"unit")  # pyright: ignore[reportArgumentType]
    assert sampler.next_unit(0) == 0
    assert sampler.send(rest, b"")  # pyright: ignore[reportArgumentType]
    assert len(half.got + rest.got) == 48


class _Taking:
    """A socket that takes so many bytes at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.got = b""

    def send(self, data: bytes) -> int:
        self.got += data[: self.most]
        return min(len(data), self.most)
