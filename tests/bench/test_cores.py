"""The benchmark of workers: every number of them is measured, with the time of each process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fanlog.bench import cores, load_report, save_report
from fanlog.bench.cores import CoresOptions, listening_sockets, run_cores, worker_pids
from fanlog.bench.systems import BenchError, SystemSpec, started
from tests.bench.moments import until_counted
from tests.bench.programs import need
from tests.servers import find_program

pytestmark = pytest.mark.timeout(400)


def test_every_number_of_workers_has_a_row_with_the_time_of_each_process(tmp_path: Path) -> None:
    need("redis")
    find_program(cores.PROGRAM, "Debian's package redis-tools has it")
    steps: list[tuple[int, int, str]] = []
    report = until_counted(
        lambda seconds: run_cores(
            CoresOptions(
                workers=(0, 2),
                subscribers=(20,),
                batches=(8,),
                pipelines=(1, 16),
                publishes=200,
                warmup_s=0.02,
                run_s=seconds,
                directory=tmp_path,
            ),
            lambda done, total, label: steps.append((done, total, label)),
        ),
        lambda report: [row.delivered_per_s for row in report.rows],
    )
    assert [(row.workers, row.batch, row.subscribers) for row in report.rows] == [
        (0, 8, 20),
        (2, 8, 20),
    ]
    assert [len(row.workers_s) for row in report.rows] == [0, 2]
    assert all(row.delivered_per_s > 0 and row.core_s > 0 for row in report.rows)
    # The kernel gives each worker some of the subscribers.
    assert sum(report.rows[1].workers_s) > 0
    assert [(row.system, row.pipeline, row.workers) for row in report.publishing] == [
        (system, pipeline, workers)
        for pipeline in (1, 16)
        for system, workers in (
            ("fanlog, redis port", 0),
            ("fanlog, redis port", 2),
            ("redis", 0),
        )
    ]
    assert all(row.published_per_s > 0 and row.core_s > 0 for row in report.publishing)
    assert steps[0] == (0, 8, "0 workers, 8 a batch, 20 subscribers")
    assert steps[-1] == (8, 8, "done")
    save_report(report, tmp_path / "cores.json")
    assert load_report(tmp_path / "cores.json") == report


def test_without_redis_benchmark_its_rows_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores.shutil, "which", lambda _: None)
    options = CoresOptions(
        workers=(0,), subscribers=(2,), batches=(8,), against_redis=False, run_s=0.05, warmup_s=0.0
    )
    report = run_cores(options)
    assert len(report.rows) == 1
    assert report.publishing == []
    (left,) = report.left_out
    assert "install redis-tools" in left.reason


def test_a_benchmark_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    program = tmp_path / "redis-benchmark"
    program.write_text("#!/bin/sh\necho ERROR: no such thing >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BenchError, match="no such thing"):
        cores.publish_with_redis_benchmark(str(program), 1, 10, 1, CoresOptions())


def test_every_socket_that_listens_on_a_port_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as first:
        port = first.getsockname()[1]
        assert listening_sockets(port) == 1
        with socket.create_server(("127.0.0.1", port), reuse_port=True):
            assert listening_sockets(port) == 2
    assert listening_sockets(port) == 0


def test_a_broker_without_workers_has_started_no_process(tmp_path: Path) -> None:
    with started(SystemSpec("fanlog"), None, tmp_path) as system:
        assert worker_pids(system.pid) == []
