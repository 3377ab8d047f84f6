"""The data folder: its lock, its catalog, its topics, and what happens when it can't be used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fanlog.config import LogOptions
from fanlog.errors import (
    FolderInUseError,
    FolderUnusableError,
    InvalidArgumentError,
    TopicDeletedError,
)
from fanlog.log import catalog, disk, files, journal, opening
from fanlog.log.store import MEMORY_NUMBERS_FROM, LogStore
from fanlog.model import Durability, TopicSettings
from tests.log.pieces import OPTIONS, append, fill, make_batch, read_batches


def open_store(folder: Path | None, options: LogOptions = OPTIONS) -> LogStore:
    store = LogStore(folder, options)
    store.open()
    return store


def reopen(store: LogStore) -> tuple[LogStore, dict[str, TopicSettings]]:
    store.close()
    assert store.folder is not None
    again = LogStore(Path(store.folder), store.options)
    return again, {topic.name: topic.settings for topic in again.open()}


def test_topics_and_their_messages_come_back(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    topic = store.create("orders", TopicSettings(partitions=3, segment_bytes=1 << 20))
    samples = [fill(log, 10) for log in topic.logs]
    store.close()
    store = LogStore(tmp_path / "data", OPTIONS)
    (again,) = store.open()
    assert (again.name, again.number, again.settings) == ("orders", topic.number, topic.settings)
    assert [log.durability for log in again.logs] == [Durability.OS] * 3
    for log, written in zip(again.logs, samples, strict=True):
        assert list(read_batches(log)) == [s.data for s in written]
    store.close()


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "..", "../../etc", "ü€\U0001f600", "\ud800", "x" * 255, ".deleted-1", "a\nb\0"],
)
def test_any_name_is_kept_and_none_leaves_the_folder(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / "data")
    topic = store.create(name, TopicSettings())
    fill(topic.logs[0], 1)
    assert Path(topic.folder).parent == tmp_path / "data" / "topics"
    store, found = reopen(store)
    assert list(found) == [name]
    store.close()


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    numbers = [store.create(f"t{i}", TopicSettings()).number for i in range(3)]
    assert numbers == [1, 2, 3]
    store.delete(store.create("gone", TopicSettings()))
    store, _ = reopen(store)
    assert store.create("t3", TopicSettings()).number == 5
    # A crash: the numbers that were taken ahead are lost, and none comes twice.
    copy = tmp_path.parent / "copy"
    shutil.copytree(tmp_path, copy)
    store.close()
    store = open_store(copy)
    assert store.create("t4", TopicSettings()).number > 5
    store.close()


def test_the_epoch_rises_with_every_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for epoch in (1, 2, 3):
        assert store.epoch == epoch
        store, _ = reopen(store)
    store.close()
    assert json.loads((tmp_path / "catalog.json").read_text())["epoch"] == 4


def test_without_a_folder_there_are_only_topics_in_memory() -> None:
    store = LogStore(None, OPTIONS)
    assert store.open() == []
    assert 1 <= store.epoch <= 0xFFFFFFFF
    topic = store.create("live", TopicSettings(durability="memory", partitions=2))
    assert (topic.number, len(topic.logs)) == (MEMORY_NUMBERS_FROM, 2)
    for durability in ("os", "fsync"):
        with pytest.raises(InvalidArgumentError, match=r"no data folder.*use durability memory"):
            store.create("kept", TopicSettings(durability=durability))
    with pytest.raises(InvalidArgumentError, match="no data folder"):
        store.get_journal()
    store.delete(topic)
    with pytest.raises(TopicDeletedError):
        append(topic.logs[0], make_batch(0))
    store.close()


def test_a_topic_in_memory_leaves_no_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    topic = store.create("live", TopicSettings(durability="memory"))
    fill(topic.logs[0], 10)
    assert os.listdir(tmp_path / "topics") == []
    assert not (tmp_path / "journal").exists()
    store, found = reopen(store)
    assert found == {}
    assert store.create("live", TopicSettings(durability="memory")).number == MEMORY_NUMBERS_FROM
    store.close()


def test_numbers_of_topics_in_memory_begin_again_when_all_were_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanlog.log.store._MEMORY_NUMBERS_MAX", MEMORY_NUMBERS_FROM + 9)
    store = LogStore(None, OPTIONS)
    store.open()
    memory = TopicSettings(durability="memory")
    topics = [store.create(f"t{i}", memory) for i in range(10)]
    for i in (3, 4, 8):
        store.delete(topics[i])
    for i in (3, 4, 8):
        assert store.create("again", memory).number == topics[i].number
    # One that comes and goes does not get the same number twice in a row.
    store.delete(topics[0])
    store.delete(topics[5])
    first = store.create("inbox", memory)
    store.delete(first)
    second = store.create("inbox", memory)
    assert {first.number, second.number} == {topics[0].number, topics[5].number}
    store.close()


def test_settings_change_and_stay_changed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    topic = store.create("t", TopicSettings())
    fill(topic.logs[0], 3)
    changed = TopicSettings(partitions=4, retention_bytes=5)
    store.update(topic, changed)
    assert len(topic.logs) == 4
    assert all(log.settings is changed for log in topic.logs)
    append(topic.logs[3], make_batch(0, owner=topic.logs[3].owner))
    with pytest.raises(InvalidArgumentError, match="can only grow"):
        store.update(topic, TopicSettings(partitions=3))
    with pytest.raises(InvalidArgumentError, match="durability can't change"):
        store.update(topic, msgspec.structs.replace(changed, durability="fsync"))
    store, found = reopen(store)
    assert found == {"t": changed}
    store.close()


def test_a_deleted_topic_is_gone_with_its_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    topic = store.create("t", TopicSettings())
    fill(topic.logs[0], 10)
    store.delete(topic)
    assert os.listdir(tmp_path / "topics") == []
    with pytest.raises(TopicDeletedError):
        topic.logs[0].read(0, 10)
    store, found = reopen(store)
    assert found == {}
    store.close()


def test_a_crash_in_a_deletion_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    topic = store.create("t", TopicSettings())
    fill(topic.logs[0], 10)

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            store.delete(topic)
    assert len(os.listdir(tmp_path / "topics")) == 1
    store, found = reopen(store)
    assert found == {}
    assert os.listdir(tmp_path / "topics") == []
    store.close()


@pytest.mark.parametrize("content", [None, "", "{", '{"format": 1}', '{"format": 1, "name": 3}'])
def test_a_half_created_topic_is_left_aside_with_a_log_line(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    store.create("whole", TopicSettings())
    half = tmp_path / "topics" / "9-half"
    half.mkdir()
    if content is not None:
        (half / "topic.json").write_text(content)
    store, found = reopen(store)
    assert list(found) == ["whole"]
    assert "9-half is skipped" in caplog.text
    assert half.exists()
    assert store.create("next", TopicSettings()).number == 10
    store.close()


def test_a_second_broker_is_told_who_has_the_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}: stop that one"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_a_broker_in_another_process_is_named_and_its_end_frees_the_folder(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from fanlog.config import LogOptions; from fanlog.log.store import LogStore\n"
        "LogStore(Path(sys.argv[1]), LogOptions()).open()\n"
        "print('open', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(FolderInUseError, match=f"process {other.pid}:"):
            open_store(tmp_path)
        other.kill()
        other.wait()
    open_store(tmp_path).close()


def test_a_folder_that_can_not_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnusableError, match=r"file/data.*choose another data folder"):
        open_store(tmp_path / "file" / "data")


@pytest.mark.parametrize("names", [[], ["lost+found"], ["topics"], ["lock", "topics", "journal"]])
def test_a_fresh_volume_and_what_a_crash_left_of_the_first_start_are_taken(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).touch() if name == "lock" else (tmp_path / name).mkdir()
    open_store(tmp_path).close()
    open_store(tmp_path).close()


@pytest.mark.parametrize("names", [["photos"], ["topics", "photos"], ["lost+found", "photos"]])
def test_somebody_elses_folder_is_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(FolderUnusableError, match="it is not a Fanlog data folder"):
        open_store(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_a_file_among_the_topics_is_nobodys(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create("t", TopicSettings())
    (tmp_path / "topics" / "note.txt").touch()
    store, found = reopen(store)
    assert list(found) == ["t"]
    store.close()


def test_the_names_of_a_new_data_folder_and_all_above_it_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: set[Path] = set()
    real = files.sync_folder

    def sync_folder(path: str) -> None:
        named.update(Path(path).iterdir())
        real(path)

    for module in (files, catalog, disk, journal):
        monkeypatch.setattr(module, "sync_folder", sync_folder)
    folder = tmp_path / "a" / "b" / "data"
    store = open_store(folder)
    log = store.create("t", TopicSettings(durability="fsync")).logs[0]
    kept = store.create("kept", TopicSettings()).logs[0]
    kept.track_unsynced()
    for each in (log, kept):
        fill(each, 1)
        each.sync()
    store.get_journal()
    made = {path for path in (tmp_path / "a").rglob("*") if path.suffix != ".copy"}
    assert {tmp_path / "a", *made} <= named
    store.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_start_syncs_the_names_of_synced_topics_that_a_killed_broker_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """It may have been killed before it could: nobody knows."""
    store = open_store(tmp_path / "data")
    made = Path(store.create("t", TopicSettings(durability="fsync")).folder)
    fill(store.create("u", TopicSettings()).logs[0], 1)
    store.close(clean=clean)
    synced: list[Path] = []
    real = files.sync_folder

    def sync_folder(path: str) -> None:
        synced.append(Path(path))
        real(path)

    monkeypatch.setattr(opening, "sync_folder", sync_folder)
    again = open_store(tmp_path / "data")
    assert (made in synced) == (made.parent in synced) == (not clean)
    again.close()


def test_thousands_of_topics_open_with_no_descriptor_held(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    topics = [store.create(f"t{i}", TopicSettings()) for i in range(200)]
    assert len(os.listdir("/proc/self/fd")) == before
    for topic in topics[:5]:
        fill(topic.logs[0], 1)
    store, found = reopen(store)
    assert len(found) == 200
    assert len(os.listdir("/proc/self/fd")) == before
    store.close()
