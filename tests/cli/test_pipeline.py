"""`fanlog pipeline`: what it says and copies without Spark. Runs are in tests/spark/pipelines."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import msgspec
import pytest
import yaml

from fanlog.spark import pipelines
from fanlog.spark.pipelines.runs import Run
from tests.cli.conftest import Run as Runner
from tests.spark.sessions import need_java

NAMES = ["archive", "clean", "drops", "join", "replay", "rollup"]


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
        assert given[option] == described.default


def test_mistakes_are_told_before_spark_starts(typed: Runner, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    unknown = typed("pipeline", "run", "archives", "--state", state)
    assert unknown.sentence.startswith("There is no pipeline 'archives': use archive, clean,")
    option = typed("pipeline", "run", "clean", "--option", "topics=a", "--state", state)
    assert option.sentence.startswith("The pipeline clean has no option 'topics': it has url,")
    form = typed("pipeline", "run", "clean", "--option", "topic", "--state", state)
    assert form.sentence == "'topic' is no option: write it as name=value."
    needed = typed("pipeline", "run", "replay", "--state", state)
    assert needed.sentence.startswith("The pipeline replay needs the option 'to'")
    assert not Path(state).exists()


def test_a_machine_without_java(
    typed: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ended = typed("pipeline", "run", "clean", "--state", str(tmp_path / "state"))
    assert ended.sentence.startswith("Spark needs Java 17 or newer")


def test_the_status_shows_runs_and_how_far_they_are(typed: Runner, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    for name, pid, code in (("a", os.getpid(), None), ("b", 2**22 + 1, None), ("c", 1, 1)):
        run = Run(pipeline=name, options={}, pid=pid, started=now, exit_code=code)
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(msgspec.json.encode(run))
    checkpoint = tmp_path / "a/checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    offsets = '{"orders": {"log": "3", "offsets": {"0": 12, "1": 8}}}'
    (checkpoint / "offsets/4").write_text(f"v1\n{{}}\n{offsets}\n")
    (checkpoint / "offsets/5").write_text(f"v1\n{{}}\n{offsets}\n")
    (checkpoint / "commits/4").write_text("v1\n{}")
    found = {
        some["pipeline"]: some for some in typed("pipeline", "status", str(tmp_path), "--json").json
    }
    assert [found[name]["state"] for name in "abc"] == ["running", "killed", "failed"]
    (stream,) = found["a"]["streams"]
    assert (stream["batch"], stream["rows"]) == (4, 20)
    assert "killed" in typed("pipeline", "status", str(tmp_path)).out


def test_a_folder_in_which_something_runs_is_left_alone(typed: Runner, tmp_path: Path) -> None:
    need_java()
    run = Run(pipeline="join", options={}, pid=os.getpid(), started=dt.datetime.now(dt.UTC))
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    ended = typed("pipeline", "run", "join", "--state", str(tmp_path))
    assert "join is still running in" in ended.sentence
