"""Starting and stopping what is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanlog.bench import systems
from fanlog.bench.environment import describe_environment, filesystem_of
from fanlog.bench.fanout import FanoutOptions, run_fanout
from fanlog.bench.systems import (
    BenchError,
    SystemKind,
    SystemSpec,
    SystemUnavailableError,
    choose_cores,
    find_program,
    started,
)
from tests.bench.programs import need


@pytest.mark.parametrize("kind", ["fanlog", "redis", "nats"])
def test_a_system_ends_with_its_block_and_leaves_no_files(kind: SystemKind, tmp_path: Path) -> None:
    with started(SystemSpec(need(kind)), None, tmp_path) as system:
        os.kill(system.pid, 0)
        assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(system.pid, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_system_is_started_on_the_core_it_was_given() -> None:
    cores = choose_cores(True)
    if cores.system is None:
        pytest.skip("pinning needs two cores")
    before = os.sched_getaffinity(0)
    with started(SystemSpec(need("redis")), cores.system) as system:
        assert os.sched_getaffinity(system.pid) == cores.system
    assert os.sched_getaffinity(0) == before


def test_a_missing_program_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_programs(monkeypatch)
    with pytest.raises(SystemUnavailableError, match="nats-server was not found: run `pip"):
        find_program("nats")


def test_a_missing_program_leaves_its_rows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_programs(monkeypatch)
    report = run_fanout(FanoutOptions(systems=("redis", "nats")))
    assert report.rows == []
    assert [left.system for left in report.left_out] == ["redis", "nats"]


def test_a_program_that_does_not_start_says_what_it_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need("redis")

    def broken(program: Path, spec: SystemSpec, port: int, directory: Path) -> list[str]:
        return [str(program), "--no-such-option", "x"]

    monkeypatch.setitem(systems.COMMANDS, "redis", broken)
    wanted = r"(?s)did not listen.*printed:.*no-such-option"
    with pytest.raises(BenchError, match=wanted), started(SystemSpec("redis"), None):
        pass


def test_a_cell_is_bounded_in_time() -> None:
    with pytest.raises(BenchError, match="at most 30 s"):
        FanoutOptions(run_s=60)


def test_the_environment_names_the_machine(tmp_path: Path) -> None:
    environment = describe_environment(
        pinned=True, directory=tmp_path, programs={"redis": find_program(need("redis"))}
    )
    assert environment.cores >= 1
    assert environment.versions["redis"][0].isdigit()
    assert environment.filesystem == filesystem_of(tmp_path) != ""


def _hide_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanlog.bench.systems.os.access", lambda *_: False)
    monkeypatch.setattr("fanlog.bench.systems.shutil.which", lambda *_: None)
