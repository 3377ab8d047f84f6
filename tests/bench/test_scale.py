"""A stopped reader, very many topics and a large log, each small enough for a test."""

from __future__ import annotations

import io
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from rich.console import Console

from fanlog.bench import (
    STARTUP_SHAPES,
    BenchError,
    Report,
    ScheduleOptions,
    StallOptions,
    StallsOptions,
    StartupOptions,
    TopicsOptions,
    load_report,
    render,
    run_schedule,
    run_stall,
    run_stalls,
    run_startup,
    run_topics,
    save_plot,
    save_report,
)
from fanlog.bench.load import connected
from fanlog.bench.operations import HOUSEKEEPING, OPERATIONS, SMALL
from fanlog.bench.pings import pinging
from fanlog.bench.rebalance import RebalanceOptions, run_rebalance
from fanlog.bench.results import StallRow
from fanlog.bench.stall import StallWire, ratio_of, stopped_reader
from fanlog.bench.startup import check_room
from fanlog.bench.step_operations import STEPS
from fanlog.bench.systems import SystemSpec, resident_bytes, started
from fanlog.bench.topics import TOPICS_MAX, UserTopics
from fanlog.bench.wires import make_payload
from fanlog.model import MIB
from tests.bench.moments import until_counted

# Some start many brokers, one after the other.
pytestmark = pytest.mark.timeout(400)


def check_shape(report: Report, folder: Path, *words: str) -> None:
    """Survives JSON, and has a table with these words and a picture."""
    save_report(report, folder / "report.json")
    assert load_report(folder / "report.json") == report
    text = io.StringIO()
    Console(width=200, file=text).print(render(report))
    for word in words:
        assert word in text.getvalue()
    save_plot(report, folder / "report.png")
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_stopped_reader_gets_every_byte_that_the_others_got_meanwhile(tmp_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    # It stops until enough is written for it to fall behind, however long that takes.
    options = StallOptions(
        subscribers=3, warmup_s=0.1, run_s=0.3, stop_s=40.0, log_bytes_max=128 * MIB
    )
    report = run_stall(options, lambda done, total, label: steps.append((done, total, label)))
    label = "3 subscribers, one more stops for 40 s"
    assert steps == [(0, 1, label), (1, 1, "done")]
    phases = [row.phase for row in report.rows]
    assert phases == ["without", "stopped", "catching up", "without"]
    stopped, catching_up = report.rows[1:3]
    assert stopped.reader_bytes == 0
    assert stopped.published_bytes > 0
    assert catching_up.reader_bytes > 0
    assert report.catch_ups >= 1
    assert report.ratio > 0
    assert {sample.phase for sample in report.samples} == set(phases)
    assert max(sample.behind_bytes for sample in report.samples) > 0
    assert all(row.resident_bytes_max > 0 for row in report.rows)
    check_shape(report, tmp_path, "A stopped reader beside 3 others", "catching up")


def test_a_stopped_reader_whose_count_is_off_by_a_byte_fails_the_run(tmp_path: Path) -> None:
    with started(SystemSpec("fanlog"), None, tmp_path) as system:
        wire = StallWire(make_payload(128), 8)
        with (
            connected(wire, system.port, 1, 64) as load,
            stopped_reader(system.port, load, wire.received_bytes) as reader,
        ):
            load.publish_one_ns()
            reader.sock.settimeout(30)
            assert reader.sock.recv(1)
            reader.sock.setblocking(False)
            reader.received_bytes = 2
            with pytest.raises(BenchError, match="the stopped reader received"):
                reader.drain()


def test_the_ratio_compares_with_the_phases_on_both_sides() -> None:
    rates = [("without", 100.0), ("stopped", 90.0), ("catching up", 1.0), ("without", 80.0)]
    rows = [
        StallRow(
            phase=phase,
            seconds=1.0,
            delivered_per_s=rate,
            published_bytes=1,
            reader_bytes=0,
            resident_bytes_max=1,
        )
        for phase, rate in rates
    ]
    assert ratio_of(rows) == pytest.approx(1.0)


def test_a_run_that_would_take_an_hour_is_refused() -> None:
    with pytest.raises(BenchError, match="at most 600 s"):
        StallOptions(stop_s=3600)


def test_brokers_with_few_and_many_topics_are_measured_in_turn(tmp_path: Path) -> None:
    report = until_counted(
        lambda seconds: run_topics(
            TopicsOptions(topics=(1200, 10), repeat=2, warmup_s=0.02, run_s=seconds)
        ),
        lambda report: [row.published_per_s for row in report.rows],
    )
    few, many = report.rows
    assert (few.topics, many.topics) == (10, 1200)
    assert few.bytes_per_topic is None
    assert many.bytes_per_topic is not None
    assert many.bytes_per_topic > 0
    assert all(len(row.runs) == len(row.p50_runs_us) == 2 for row in report.rows)
    assert all(row.p50_us > 0 and row.published_per_s > 0 for row in report.rows)
    check_shape(report, tmp_path, "1,200", "One reader for each topic")


def test_only_the_chosen_topic_of_many_is_published_to(tmp_path: Path) -> None:
    with started(SystemSpec("fanlog", "memory"), None, tmp_path) as system:
        wire = UserTopics(make_payload(16), 200, system.pid)
        with connected(wire, system.port, 1, 64) as load:
            for _ in range(5):
                load.publish_one_ns()
            wire.keep_alive()
            load.drain()
            assert load.received_bytes() == 5 * wire.received_bytes
        assert resident_bytes(system.pid) > 0


@pytest.mark.parametrize("topics", [(), (0,), (TOPICS_MAX + 1,)])
def test_more_topics_than_one_connection_may_read_are_refused(topics: tuple[int, ...]) -> None:
    with pytest.raises(BenchError, match="choose fewer topics"):
        TopicsOptions(topics=topics)


def test_a_broker_starts_with_every_record_after_a_kill_and_after_a_stop(tmp_path: Path) -> None:
    options = StartupOptions(
        sizes_bytes=(4 * MIB, 16 * MIB), segment_bytes=1 * MIB, repeat=1, directory=tmp_path
    )
    steps: list[tuple[int, int, str]] = []
    report = run_startup(options, lambda done, total, label: steps.append((done, total, label)))
    assert [step[:2] for step in steps] == [(done, 6) for done in range(7)]
    assert steps[2][2] == "filling a log of 16 MiB"
    sizes = [0, 4 * MIB + MIB // 2, 16 * MIB + MIB // 2]
    assert [(row.after, row.log_bytes) for row in report.rows] == [
        (after, size) for after in ("kill", "stop") for size in sizes
    ]
    assert all(len(row.runs_ms) == 1 and row.start_ms > 0 for row in report.rows)
    assert [row.segments > 1 for row in report.rows] == [False, True, True] * 2
    assert all(row.read_bytes > 0 for row in report.rows)
    assert list(tmp_path.iterdir()) == []
    check_shape(report, tmp_path, "empty", "16.5 MiB", "a kill")


def test_a_broker_starts_with_folders_of_any_shape(tmp_path: Path) -> None:
    options = StartupOptions(
        sizes_bytes=(1 * MIB,),
        segment_bytes=2 * MIB,
        repeat=1,
        directory=tmp_path,
        shapes=STARTUP_SHAPES,
        topics=20,
        segments=30,
    )
    report = run_startup(options)
    rows = {(row.shape, row.after): row for row in report.rows if row.shape}
    assert len(rows) == 6
    assert rows["30 segments", "stop"].segments == 30
    assert rows["20 topics", "kill"].start_ms > 0
    # After a stop the batches are not read.
    batches = "2 MiB of small batches"
    assert rows[batches, "stop"].read_bytes < rows[batches, "kill"].read_bytes - 1 * MIB // 2
    check_shape(report, tmp_path, "20 topics", batches)


def test_logs_end_half_way_into_a_segment_and_none_is_smaller_than_asked_for() -> None:
    assert StartupOptions(sizes_bytes=(4096 * MIB, 400 * MIB)).log_bytes() == [
        0,
        448 * MIB,
        4160 * MIB,
    ]
    assert StartupOptions(sizes_bytes=(1, 64 * MIB)).log_bytes() == [0, 64 * MIB]


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="choose smaller sizes, or another directory"):
        check_room(tmp_path, 1 << 60)


def test_a_memory_broker_keeps_no_folder(tmp_path: Path) -> None:
    with started(SystemSpec("fanlog", "memory"), None, tmp_path) as system:
        socket.create_connection(("127.0.0.1", system.port), timeout=30).close()
        (folder,) = tmp_path.iterdir()
        assert [path.name for path in folder.iterdir()] == ["output.txt"]


def test_pings_are_measured_during_every_operation(tmp_path: Path) -> None:
    steps: list[str] = []
    options = StallsOptions(scale=SMALL, pin=False, directory=tmp_path)
    report = run_stalls(options, lambda done, total, label: steps.append(label))
    operations = [row.operation for row in report.rows]
    assert operations == [o.label(SMALL) for o in (*OPERATIONS, *HOUSEKEEPING, *STEPS)]
    assert steps == [*operations, "done"]
    for row in report.rows:
        assert row.pings > 0
        assert 0 < row.p50_ms <= row.p99_ms <= row.worst_ms
    assert [row.operation for row in report.rows if row.step_ms] == [o.label(SMALL) for o in STEPS]
    check_shape(report, tmp_path, "delete a topic", "list 200 topics", "worst", "longest step")


def test_a_group_is_shared_out_as_its_members_come_and_go(tmp_path: Path) -> None:
    options = RebalanceOptions(topics=50, members=3, pin=False, directory=tmp_path)
    report = run_rebalance(options)
    operations = [row.operation for row in report.rows]
    assert operations[1:] == ["3 members join 50 topics", "one more joins", "one leaves"]
    check_shape(report, tmp_path, "members join", "one leaves", "worst")


def test_a_ping_that_waits_behind_another_is_late_from_the_time_it_was_due(tmp_path: Path) -> None:
    """A broker that stands still for a while is seen by all pings that were due meanwhile."""
    with (
        started(SystemSpec("fanlog", "memory"), None, tmp_path) as system,
        pinging(system.port, None) as pinger,
    ):
        os.kill(system.pid, signal.SIGSTOP)
        try:
            time.sleep(0.2)
        finally:
            os.kill(system.pid, signal.SIGCONT)
        waits_s = pinger.take()
    assert max(waits_s) >= 0.15
    assert sum(wait >= 0.05 for wait in waits_s) >= 50


def test_delayed_messages_survive_a_kill_and_come_once_and_in_time(tmp_path: Path) -> None:
    options = ScheduleOptions(pending=20_000, due=500, payload_bytes=16, directory=tmp_path)
    steps: list[str] = []
    report = run_schedule(options, lambda done, total, label: steps.append(label))
    (row,) = report.rows
    assert (row.lost, row.early, row.twice) == (0, 0, 0)
    assert row.scheduled_per_s > 0
    assert row.late_max_ms >= row.late_p50_ms >= 0
    assert len(steps) == 5
    check_shape(report, tmp_path, "20,000", "memory each")


def test_of_the_messages_that_wait_some_must_be_due() -> None:
    with pytest.raises(BenchError, match="1 or more must be due"):
        ScheduleOptions(pending=10, due=11)
