"""Runs that end before their time, by Ctrl-C or by a kill: nothing of them is left, and the next
one goes on where they were. A replay shows it, which writes for as long as its rate says."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import fanlog
from fanlog.cli.exit_codes import ExitCode
from fanlog.spark.pipelines.runs import LastRun, condition, last_run
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.pipelines.running import pipeline_program
from tests.spark.pipelines.test_programs import RECORDS, archived
from tests.spark.processes import PATIENCE_SECONDS, Program
from tests.spark.test_kill import published

AGAIN = "interrupted.again"


def wait_until(done: Callable[[], bool], program: Program, *, may_end: bool = False) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert may_end or program.alive, program.told("has ended")
        assert time.monotonic() < give_up_at, program.told("goes on and on")
        time.sleep(0.05)


def run_of(state: Path) -> LastRun:
    found = last_run(state)
    assert found is not None
    return found


def is_gone(group: int) -> bool:
    """Whether all processes of a run have ended; one that nobody has waited for has as well."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                return False
    return True


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_replay_that_is_interrupted_and_then_killed_writes_every_record_once(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    examples = archived(client, broker.url, "interrupted.orders", tmp_path)
    client.create_topic(AGAIN)
    state = tmp_path / "state"
    # In six chunks: a machine that is slow to interrupt may have begun with the next but one.
    options = {"lake": str(tmp_path / "lake"), "to": AGAIN, "rate": str(RECORDS / 30)}
    program = pipeline_program("replay", broker.url, state, **options)
    at_once = pipeline_program("replay", broker.url, state, **options | {"rate": "0"})

    def written() -> int:
        return client.describe_topic(AGAIN).partitions[0].visible_end

    with program:
        wait_until(lambda: written() > 0, program)
        # A chunk is written, and not noted yet: it is paused for its rate.
        code = program.interrupt()
    assert code == ExitCode.INTERRUPTED, program.said()
    assert program.said().endswith("replay is stopped. Run it again to resume.\n")
    assert condition(state, run_of(state)) == "stopped"
    assert is_gone(run_of(state).pid)
    first = written()
    with program:
        wait_until(lambda: written() > first, program)
        assert condition(state, run_of(state)) == "running"
        os.killpg(run_of(state).pid, signal.SIGKILL)
        wait_until(lambda: is_gone(run_of(state).pid), program, may_end=True)
    with at_once:
        at_once.end_well()
    assert condition(state, run_of(state)) == "done"
    assert published(client, AGAIN) == Counter(some.value.decode() for some in examples)
    plan = msgspec.json.decode((state / "plan.json").read_bytes())
    assert len(plan["chunks"]) == 6
