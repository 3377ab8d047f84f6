"""`fanlog pipeline`: what it says and copies without Spark. Runs are in tests/spark/pipelines."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import fanlog
from fanlog.cli.exit_codes import ExitCode
from fanlog.errors import ConfigError
from fanlog.spark import pipelines
from fanlog.spark.pipelines.runs import LastRun
from tests.cli.conftest import Run as Runner
from tests.cli.conftest import Serving
from tests.spark.sessions import need_java

NAMES = ["archive", "clean", "drops", "join", "replay", "rollup"]


def leave_run(state: Path, *, pid: int = 1, **more: Any) -> None:
    """A state folder as a run leaves it."""
    now = dt.datetime.now(dt.UTC)
    more = {"options": {}, **more}
    run = LastRun(pipeline="archive", pid=pid, started=now, **more)
    state.mkdir()
    (state / "run.json").write_bytes(msgspec.json.encode(run))


@contextmanager
def held_lock(state: Path) -> Generator[None]:
    """The lock that a run holds as long as it lives."""
    with (state / "run.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_the_list_tells_what_each_does_with_its_options(typed: Runner) -> None:
    listed = typed("pipeline", "list", "--json")
    assert [some["name"] for some in listed.json] == NAMES
    shown = typed("pipeline", "list")
    for name in NAMES:
        for option in pipelines.find(name).options:
            assert option in shown.out


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_a_pipeline_of_ones_own(typed: Runner, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"
    assert typed("pipeline", "init", name, str(folder)).code == 0
    copied = pipelines.find(str(folder))
    assert (copied.name, copied.options) == (name, pipelines.find(name).options)
    assert (folder / "README.md").exists()
    again = typed("pipeline", "init", name, str(folder))
    assert again.sentence.endswith("is not empty: name another, or empty it first.")


@pytest.mark.parametrize("name", ["clean", "join", "rollup"])
def test_a_projects_spec_has_the_defaults_of_its_options(tmp_path: Path, name: str) -> None:
    pipelines.copy(pipelines.find(name), tmp_path / name)
    spec = yaml.safe_load((tmp_path / name / "spark-pipeline.yml").read_text())
    assert spec["storage"] == f"file://{tmp_path}/{name}/checkpoints"
    given = {key.removeprefix("fanlog."): value for key, value in spec["configuration"].items()}
    for option, described in pipelines.find(name).options.items():
        own = {"group": f"pipeline.{name}"}
        assert given[option] == own.get(option, described.default)


def test_mistakes_are_told_before_spark_starts(typed: Runner, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    unknown = typed("pipeline", "run", "archives", "--state", state)
    assert unknown.sentence.startswith("There is no pipeline 'archives': use archive, clean,")
    option = typed("pipeline", "run", "clean", "--option", "topics=a", "--state", state)
    assert option.sentence.startswith("The pipeline clean has no option 'topics': it has url,")
    form = typed("pipeline", "run", "clean", "--option", "topic", "--state", state)
    assert form.sentence == "'topic' is not an option: write it as name=value."
    needed = typed("pipeline", "run", "replay", "--state", state)
    assert needed.sentence.startswith("The pipeline replay needs the option 'to'")
    kind = typed("pipeline", "run", "rollup", "--option", "window=long", "--state", state)
    assert kind.sentence.startswith("The option 'window' is 'long': give an interval such as")
    assert not Path(state).exists()


def test_a_broker_or_a_topic_that_is_not_there_is_told_before_spark_starts(
    typed: Runner, broker: Serving, tmp_path: Path
) -> None:
    need_java()
    state = tmp_path / "state"
    nobody = typed(
        "pipeline", "run", "join", "--url", "fanlog://127.0.0.1:1", "--state", str(state)
    )
    assert nobody.sentence.startswith("No broker answers at 127.0.0.1:1")
    given = ("--url", broker.url, "--state", str(state), "--option", "topics=nosuch.topic")
    missing = typed("pipeline", "run", "archive", *given)
    assert missing.sentence.startswith("There is no topic 'nosuch.topic'.")
    assert missing.code == ExitCode.NOT_FOUND
    assert not state.exists()


def test_a_state_folder_that_the_engine_would_miss_is_refused(
    typed: Runner, tmp_path: Path
) -> None:
    need_java()
    ended = typed("pipeline", "run", "join", "--state", str(tmp_path / "my state"))
    assert ended.sentence.endswith("name a folder without spaces, %, # and ? with --state.")


def test_each_state_folder_has_a_group_of_its_own(tmp_path: Path) -> None:
    archive = pipelines.find("archive")
    assert archive.settle({}, tmp_path / "archive")["group"] == "pipeline.archive"
    assert archive.settle({}, tmp_path / "the other")["group"] == "pipeline.the-other"
    assert archive.settle({"group": "mine"}, tmp_path)["group"] == "mine"
    assert "group" not in pipelines.find("drops").settle({}, tmp_path)


def test_a_state_is_for_what_its_first_run_has_decided(tmp_path: Path) -> None:
    archive, join = pipelines.find("archive"), pipelines.find("join")
    state = tmp_path / "state"
    lake = str(tmp_path / "lake")

    def run_with(**given: str) -> None:
        pipelines.check_same(archive, archive.settle(given, state), state)

    run_with(topics="orders", lake=lake)
    # How it is done may change, and topics may be added.
    run_with(topics="orders", lake=f"{state}/../lake", batch_records="7", group="mine")
    run_with(topics="payments, orders", lake=lake)
    with pytest.raises(ConfigError, match="give another --state for topics='payments'"):
        run_with(topics="payments", lake=lake)
    with pytest.raises(ConfigError, match="give another --state for lake="):
        run_with(topics="orders,payments", lake=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="holds the progress of archive: give another --state"):
        pipelines.check_same(join, join.settle({}, state), state)


def test_a_run_that_decides_otherwise_is_refused(
    typed: Runner, broker: Serving, tmp_path: Path
) -> None:
    need_java()
    archive = pipelines.find("archive")
    state = tmp_path / "state"
    pipelines.check_same(archive, archive.settle({"topics": "some.>"}, state), state)
    given = ("--state", str(state), "--url", broker.url, "--option", "topics=>")
    ended = typed("pipeline", "run", "archive", *given)
    assert ended.sentence.endswith("with topics='some.>': give another --state for topics='>'.")
    assert not (state / "run.json").exists()


def test_a_machine_without_java(
    typed: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ended = typed("pipeline", "run", "clean", "--state", str(tmp_path / "state"))
    assert ended.sentence.startswith("Spark needs Java 17 or newer")


def test_the_status_shows_runs_and_how_far_they_are(typed: Runner, tmp_path: Path) -> None:
    # The process id of b is in use, but by somebody else: a run is what holds the lock.
    leave_run(tmp_path / "a", pid=1)
    leave_run(tmp_path / "b", pid=os.getpid())
    leave_run(tmp_path / "c", exit_code=1)
    leave_run(tmp_path / "d", exit_code=-2, stopped=True)
    checkpoint = tmp_path / "a/checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    offsets = '{"orders": {"log": "3", "offsets": {"0": 12, "1": 8}}}'
    (checkpoint / "offsets/4").write_text(f"v1\n{{}}\n{offsets}\n")
    (checkpoint / "offsets/5").write_text(f"v1\n{{}}\n{offsets}\n")
    (checkpoint / "commits/4").write_text("v1\n{}")
    with held_lock(tmp_path / "a"):
        found = {
            Path(some["folder"]).name: some
            for some in typed("pipeline", "status", str(tmp_path), "--json").json
        }
    states = [found[name]["state"] for name in "abcd"]
    assert states == ["running", "killed", "failed", "stopped"]
    (stream,) = found["a"]["streams"]
    assert (stream["batch"], stream["rows"]) == (4, 20)
    assert "killed" in typed("pipeline", "status", str(tmp_path)).out


def test_the_status_asks_the_broker_of_the_run_or_the_one_that_is_named(
    typed: Runner, client: fanlog.sync.Client, broker: Serving, tmp_path: Path
) -> None:
    """The run may have known the broker by another name, as in a container."""
    client.create_topic("lagging")
    for _ in range(5):
        client.publish("lagging", "x")
    leave_run(tmp_path / "a", exit_code=0, options={"url": "fanlog://127.0.0.1:1"})
    for folder in ("offsets", "commits"):
        (tmp_path / "a/checkpoint" / folder).mkdir(parents=True)
    offsets = '{"lagging": {"log": "3", "offsets": {"0": 2}}}'
    (tmp_path / "a/checkpoint/offsets/0").write_text(f"v1\n{{}}\n{offsets}\n")
    (tmp_path / "a/checkpoint/commits/0").write_text("v1\n{}")
    alone = typed("pipeline", "status", str(tmp_path), "--json")
    assert alone.json[0]["streams"][0]["lag"] is None
    assert "The lag is unknown: No broker answers at 127.0.0.1:1" in alone.err
    named = typed("pipeline", "status", str(tmp_path), "--url", broker.url, "--json")
    assert named.json[0]["streams"][0]["lag"] == 3
    assert not named.err


def test_a_folder_in_which_something_runs_is_left_alone(
    typed: Runner, broker: Serving, tmp_path: Path
) -> None:
    need_java()
    leave_run(tmp_path / "state", pid=17)
    given = ("--state", str(tmp_path / "state"), "--url", broker.url, "--option", "topics=>")
    with held_lock(tmp_path / "state"):
        ended = typed("pipeline", "run", "archive", *given)
    assert ended.sentence.startswith("archive (process 17) is still running in")
