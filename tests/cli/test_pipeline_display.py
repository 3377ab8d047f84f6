"""A pipeline's progress: what its state folder and the broker say together. No Spark is needed: a
checkpoint is some files."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from threading import Event, Thread

import pytest
from rich.console import Console

import fanlog
from fanlog.cli.pipeline import watch
from fanlog.cli.pipeline_display import Lines, LiveDisplay, Watching
from fanlog.spark import pipelines
from fanlog.spark.pipelines.progress import look
from fanlog.spark.pipelines.runs import RunningPipeline
from tests.cli.conftest import Serving
from tests.spark.sessions import need_java

ERASE_LINE = "\x1b[2K"


def commit(state: Path, name: str, batch: int, topic: str, **offsets: int) -> None:
    """What Spark leaves when a batch is done: p0=12 is offset 12 of partition 0."""
    places = {partition.removeprefix("p"): offset for partition, offset in offsets.items()}
    checkpoint = state / "checkpoints" / name
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    source = json.dumps({topic: {"log": "3", "offsets": places}})
    (checkpoint / f"offsets/{batch}").write_text(f"v1\n{{}}\n{source}\n")
    (checkpoint / f"commits/{batch}").write_text("v1\n{}")


@pytest.fixture
def topic(client: fanlog.sync.Client, request: pytest.FixtureRequest) -> str:
    """A topic with 100 records in each of two partitions, the first 10 of one of them gone."""
    name = request.node.name
    client.create_topic(name, partitions=2)
    for number in range(200):
        client.send(name, str(number), partition=number % 2)
    client.flush()
    client.delete_records(name, {0: 10})
    return name


def test_records_and_lag_come_from_checkpoints_and_the_broker(
    broker: Serving, topic: str, tmp_path: Path
) -> None:
    watching = Watching(broker.url, tmp_path)
    assert watching.look() == []
    assert watching.summary().startswith(" in ")
    commit(tmp_path, "good", 0, topic, p0=60, p1=50)
    (seen,) = watching.look()
    # What was gone before was not read.
    assert (seen.records, seen.lag, seen.batch) == (100, 90, 0)
    assert seen.share == pytest.approx(100 / 190)
    assert seen.per_second > 0
    assert watching.look() == [seen]


def test_what_an_earlier_run_has_read_does_not_count(
    broker: Serving, topic: str, tmp_path: Path
) -> None:
    commit(tmp_path, "good", 0, topic, p0=60, p1=50)
    watching = Watching(broker.url, tmp_path)
    assert watching.summary().startswith(": there was nothing new")
    commit(tmp_path, "good", 1, topic, p0=70, p1=50)
    (seen,) = watching.look()
    assert seen.records == 10
    assert watching.summary().startswith(": 10 records in ")


def test_two_streams_over_the_same_records_take_them_once(
    broker: Serving, topic: str, tmp_path: Path
) -> None:
    watching = Watching(broker.url, tmp_path)
    commit(tmp_path, "good", 0, topic, p0=100, p1=100)
    commit(tmp_path, "bad", 0, topic, p0=100, p1=50)
    assert [(some.name, some.records, some.lag) for some in watching.look()] == [
        ("bad", 140, 50),
        ("good", 190, 0),
    ]
    assert watching.records == 190


def test_a_broker_that_is_gone_leaves_the_lag_unknown(tmp_path: Path) -> None:
    watching = Watching("fanlog://127.0.0.1:1", tmp_path)
    commit(tmp_path, "good", 0, "orders", p0=60)
    (seen,) = watching.look()
    assert (seen.records, seen.lag, seen.share) == (60, None, None)


def test_a_replay_knows_how_much_there_is(tmp_path: Path) -> None:
    watching = Watching("fanlog://127.0.0.1:1", tmp_path)
    written = {"chunks": 4, "chunks_done": 1, "records": 400, "records_done": 100}
    (tmp_path / "progress.json").write_text(json.dumps(written))
    (seen,) = watching.look()
    assert (seen.records, seen.lag, seen.share) == (100, 300, 0.25)
    assert watching.records == 100


def test_each_batch_is_a_line_where_no_person_looks(
    broker: Serving, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show = Lines(Watching(broker.url, tmp_path))
    for batch in (0, 1):
        commit(tmp_path, "good", batch, topic, p0=60, p1=50 + batch)
        show("")
        show("")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(", ")[0] for line in said] == ["good: batch 0", "good: batch 1"]
    assert said[1].endswith(", 89 behind")


def test_a_person_sees_a_table_that_is_gone_at_the_end(
    broker: Serving, topic: str, tmp_path: Path
) -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=100)
    with LiveDisplay(Watching(broker.url, tmp_path), screen) as show:
        commit(tmp_path, "good", 0, topic, p0=60, p1=50)
        show("Flow good is RUNNING.")
    assert isinstance(screen.file, StringIO)
    shown = screen.file.getvalue()
    for word in ("STREAM", "52 %", "Flow good is RUNNING."):
        assert word in shown
    *_, after = shown.split("Flow good is RUNNING.")
    assert after.count(ERASE_LINE) >= 3
    assert "STREAM" not in after


@contextmanager
def coming_and_going(folder: Path) -> Generator[None]:
    """Folders that are made and dropped all the time, as Spark's are."""
    over = Event()

    def churn() -> None:
        while not over.is_set():
            (folder / "a/b/commits").mkdir(parents=True, exist_ok=True)
            (folder / "a/b/offsets").mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / "a", ignore_errors=True)

    thread = Thread(target=churn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_folders_that_vanish_meanwhile_are_passed_over(tmp_path: Path) -> None:
    commit(tmp_path, "good", 0, "orders", p0=60)
    with coming_and_going(tmp_path):
        for _ in range(300):
            assert [some.name for some in look(tmp_path)] == ["good"]


def test_looking_again_leaves_nothing_behind(tmp_path: Path) -> None:
    watching = Watching("fanlog://127.0.0.1:1", tmp_path)
    commit(tmp_path, "good", 0, "orders", p0=60)
    watching.look()
    handlers = list(logging.getLogger().handlers)
    watching.look()
    assert logging.getLogger().handlers == handlers


def test_a_display_that_fails_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_java()
    pipelines.copy(pipelines.find("drops"), tmp_path / "mine")
    # It leaves what nobody can read, and goes on until that was looked at.
    (tmp_path / "mine/drops.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('progress.json').write_text('{')\n"
        "time.sleep(2)\n"
        "pathlib.Path('end').touch()\n"
    )
    state = tmp_path / "state"
    watching = Watching("fanlog://127.0.0.1:1", state)
    pipeline = pipelines.find(str(tmp_path / "mine"))
    running = RunningPipeline(pipeline, {}, state, "local[1]", os.environ)
    assert watch(running, watching) == ""
    assert running.run.exit_code == 0, running.why()
    assert (state / "end").exists()
    said = capsys.readouterr().err
    assert said.count("The progress can't be shown, but the run continues") == 1
