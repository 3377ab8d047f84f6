"""Slow work of a log goes to somebody else; what a crash in between leaves is one of two states."""

from __future__ import annotations

import errno
import os
import shutil
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

import pytest

from fanlog.config import LogOptions
from fanlog.errors import DamagedError, FanlogError, TopicDeletedError
from fanlog.log import disk as disk_module
from fanlog.log.lookup import read_block
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import ProducerHistory, read_producers
from fanlog.log.store import LogStore, StoredTopic
from fanlog.model import KIB, TopicSettings
from tests.log.compacting import put
from tests.log.pieces import append, fill, make_batch

T = TypeVar("T")


class HandRun:
    """Does one errand whenever the test says so."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()

    def in_background(
        self, work: Callable[[], T], done: Callable[[T | Exception], None], /
    ) -> None:
        def both() -> None:
            try:
                result: T | Exception = work()
            except Exception as fault:  # noqa: BLE001 - handed on, as the interface says
                result = fault
            done(result)

        self.due.append(both)

    def in_slices(self, steps: Iterator[None], /) -> None:
        def resume() -> None:
            if next(steps, steps) is not steps:
                self.due.append(resume)

        self.due.append(resume)

    def run(self) -> None:
        while self.due:
            self.due.popleft()()


def open_store(folder: Path) -> tuple[LogStore, HandRun]:
    store = LogStore(folder, LogOptions())
    store.open()
    background = HandRun()
    store.employ(background)
    return store, background


def names_after_a_crash(folder: Path, copy: Path) -> list[str]:
    """The topics that a start finds in what is on disk now."""
    shutil.copytree(folder, copy)
    store = LogStore(copy, LogOptions())
    names = [topic.name for topic in store.open()]
    store.close()
    return names


def test_a_deleted_topic_is_there_as_a_whole_until_it_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store, background = open_store(folder)
    topic = store.create("t", TopicSettings())
    log = topic.logs[0]
    fill(log, 1)
    heard: list[FanlogError | None] = []
    store.delete(topic, heard.append)
    with pytest.raises(TopicDeletedError):
        append(log, make_batch(1, owner=log.owner))
    assert not heard
    assert names_after_a_crash(folder, tmp_path / "before") == ["t"]
    while not heard:
        background.due.popleft()()
    assert heard == [None]
    assert names_after_a_crash(folder, tmp_path / "after") == []
    assert len(os.listdir(folder / "topics")) == 1
    background.run()
    assert os.listdir(folder / "topics") == []
    store.close()


def test_a_deleted_topics_name_is_free_before_its_files_are_gone(tmp_path: Path) -> None:
    store, background = open_store(tmp_path)
    old = store.create("t", TopicSettings())
    fill(old.logs[0], 1)
    store.delete(old, lambda _: None)
    new = store.create("t", TopicSettings())
    fill(new.logs[0], 1)
    background.run()
    assert new.logs[0].read(0, 1).next_offset == 1
    assert len(os.listdir(tmp_path / "topics")) == 1
    store.close()


def test_a_name_is_used_again_only_when_its_last_topic_is_durably_gone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store, background = open_store(folder)
    old = store.create("t", TopicSettings())
    heard: list[FanlogError | None] = []
    store.delete(old, heard.append)
    new = store.create("t", TopicSettings())
    assert names_after_a_crash(folder, tmp_path / "copy") == ["t"]
    assert not Path(old.folder).exists()
    assert Path(new.folder).exists()
    background.run()
    assert heard == [None]
    store.close()


def test_of_two_topics_with_one_name_the_newer_counts_and_the_other_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    store, _ = open_store(folder)
    # As a broker left them that made the second before the first was durably gone.
    monkeypatch.setattr(store, "_finish_deletion_of", lambda name: None)
    others = [store.create(f"other{i}", TopicSettings()) for i in range(8)]
    old = store.create("t", TopicSettings())
    store.delete(old, lambda _: None)
    new = store.create("t", TopicSettings())
    assert (old.number, new.number) == (9, 10)
    shutil.copytree(folder, tmp_path / "copy")
    store.close()
    again = LogStore(tmp_path / "copy", LogOptions())
    assert {topic.number for topic in again.open()} == {new.number, *(t.number for t in others)}
    (problem,) = again.problems
    assert "9-t is skipped: there is a newer topic 't'" in problem
    again.close()
    assert (tmp_path / "copy/topics/9-t").exists()


def test_a_log_that_is_being_deleted_is_still_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = open_store(tmp_path)
    topic = store.create("t", TopicSettings(durability="fsync"))
    log = topic.logs[0]
    fill(log, 1)
    store.delete(topic, lambda _: None)
    synced: list[str] = []
    monkeypatch.setattr(disk_module, "sync_file", synced.append)
    log.sync()
    assert [os.path.basename(path) for path in synced] == ["00000000000000000000.log"]
    store.close()


def test_offsets_that_were_skipped_past_an_empty_segment_are_found_missing(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    log = store.create("t", TopicSettings()).logs[0]
    fill(log, 5)
    end = log.begin_segment()
    disk = log._disk
    assert disk is not None
    disk.roll(end + 5)
    with pytest.raises(DamagedError) as missing:
        read_block(disk, end, end + 7)
    assert (missing.value.first, missing.value.next) == (end, end + 5)
    store.close()


def test_a_stop_finishes_a_deletion(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    topic = store.create("t", TopicSettings())
    fill(topic.logs[0], 1)
    store.delete(topic, lambda _: None)
    store.close()
    assert os.listdir(tmp_path / "topics") == []


def test_a_folder_that_can_not_be_renamed_is_told_to_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    store, background = open_store(folder)
    topic = store.create("t", TopicSettings())
    heard: list[FanlogError | None] = []
    store.delete(topic, heard.append)

    def fail(*_: object) -> None:
        raise PermissionError(1, "on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", fail)
        background.run()
    assert isinstance(heard[0], FanlogError)
    store.close()
    assert names_after_a_crash(folder, tmp_path / "copy") == ["t"]


def test_segments_go_in_their_order_and_after_the_log_has_let_go_of_them(tmp_path: Path) -> None:
    store, background = open_store(tmp_path)
    topic = store.create("t", TopicSettings(segment_bytes=64 * KIB))
    log = topic.logs[0]
    fill(log, 10, size=40 * KIB)
    folder = Path(topic.folder) / "0"
    background.run()
    assert len(list(folder.glob("*.log"))) == 10
    log.drop_before(3)
    log.drop_before(6)
    assert log.start_offset == 6
    assert len(list(folder.glob("*.log"))) == 10
    background.due.popleft()()
    assert min(int(path.stem) for path in folder.glob("*.log")) == 3
    background.run()
    assert min(int(path.stem) for path in folder.glob("*.log")) == 6
    store.close()


def test_a_stop_removes_the_segments_that_still_wait(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    topic = store.create("t", TopicSettings(segment_bytes=64 * KIB))
    log = topic.logs[0]
    fill(log, 4, size=40 * KIB)
    log.drop_before(2)
    log.drop_before(3)
    store.close()
    assert len(list((Path(topic.folder) / "0").glob("*.log"))) == 1


def producer_files(topic: StoredTopic) -> list[int]:
    return sorted(int(path.stem) for path in (Path(topic.folder) / "0").glob("*.producers"))


def filled_by_two(store: LogStore) -> StoredTopic:
    """A topic with a segment for each record, to which two producers write in turn."""
    topic = store.create("t", TopicSettings(segment_bytes=64 * KIB))
    log = topic.logs[0]

    def histories() -> Iterator[ProducerHistory]:
        for producer in (1, 2):
            offsets = range(producer - 1, log.end_offset, 2)
            runs = chain.from_iterable((offset // 2, offset, 1) for offset in offsets)
            yield ProducerHistory(producer, 1, array("Q", runs))

    log.keep_producers(histories)
    return topic


def test_producers_are_asked_in_slices_and_the_old_file_stays_until_the_new_one_is_durable(
    tmp_path: Path,
) -> None:
    store, background = open_store(tmp_path)
    topic = filled_by_two(store)
    fill(topic.logs[0], 2, size=40 * KIB)
    background.run()
    assert producer_files(topic) == [1]
    fill(topic.logs[0], 1, size=40 * KIB)
    for _ in range(3):
        assert producer_files(topic) == [1]
        background.due.popleft()()
    background.due.popleft()()
    assert producer_files(topic) == [1, 2]
    background.run()
    assert producer_files(topic) == [2]
    store.close()


def test_segments_that_begin_while_producers_are_asked_get_their_file_afterwards(
    tmp_path: Path,
) -> None:
    store, background = open_store(tmp_path)
    topic = filled_by_two(store)
    fill(topic.logs[0], 6, size=40 * KIB)
    background.run()
    assert producer_files(topic) == [5]
    # What came after a segment's begin is not in its file.
    told = read_producers(f"{topic.folder}/0/{5:020d}.producers", 5)
    assert max(run.base_offset for run in told.runs) == 4
    store.close()


def test_no_segment_goes_before_it_is_durable_who_wrote_it(tmp_path: Path) -> None:
    store, background = open_store(tmp_path)
    topic = filled_by_two(store)
    log = topic.logs[0]
    fill(log, 6, size=40 * KIB)
    log.drop_before(5)
    assert log.start_offset == 5
    names = {path.name for path in (Path(topic.folder) / "0").glob("*.log")}
    while producer_files(topic) != [5]:
        before = producer_files(topic)[:1]
        names = {path.name for path in (Path(topic.folder) / "0").glob("*.log")}
        kept = [int(name[:20]) for name in names]
        assert min(kept) <= (before[0] if before else 0)
        background.due.popleft()()
    background.run()
    assert len(list((Path(topic.folder) / "0").glob("*.log"))) == 1
    store.close()


def test_segments_wait_when_there_is_no_room_for_the_file_of_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, background = open_store(tmp_path)
    topic = filled_by_two(store)
    log = topic.logs[0]
    fill(log, 3, size=40 * KIB)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "write_producers", fail)
        log.drop_before(2)
        background.run()
    assert len(list((Path(topic.folder) / "0").glob("*.log"))) == 3
    log.retain(0)
    background.run()
    assert producer_files(topic) == [2]
    assert len(list((Path(topic.folder) / "0").glob("*.log"))) == 1
    store.close()


def test_a_stop_writes_the_file_of_producers_that_nobody_has_got_to(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    topic = filled_by_two(store)
    fill(topic.logs[0], 4, size=40 * KIB)
    store.close()
    assert producer_files(topic) == [3]


def test_a_log_that_is_emptied_knows_its_producers_after_a_crash_at_any_moment(
    tmp_path: Path,
) -> None:
    """What is synced is there; of the file that is being written nothing may be."""
    store, background = open_store(tmp_path / "data")
    topic = filled_by_two(store)
    log = topic.logs[0]
    fill_by_two(log, 6)
    background.run()
    log.delete_before(log.end_offset)
    for step in range(20):
        copy = tmp_path / f"crash-{step}"
        shutil.copytree(tmp_path / "data", copy)
        found = LogStore(copy, LogOptions())
        (again,) = found.open()
        assert again.logs[0].end_offset == 6
        last = {
            run.producer_id: run.first_sequence + run.record_count
            for run in again.logs[0].recovered
        }
        assert last == {1: 3, 2: 3}
        found.close()
        if not background.due:
            break
        background.due.popleft()()
    assert len(list((Path(topic.folder) / "0").glob("*.log"))) == 1
    store.close()


def fill_by_two(log: PartitionLog, count: int) -> None:
    for offset in range(count):
        producer = (1 + offset % 2, 1, offset // 2)
        append(log, make_batch(offset, size=40 * KIB, producer=producer, owner=log.owner))


def test_compaction_takes_no_segment_away_before_it_is_durable_who_wrote_it(
    tmp_path: Path,
) -> None:
    store, background = open_store(tmp_path)
    topic = store.create("t", TopicSettings(segment_bytes=64 * KIB, cleanup="compact"))
    log = topic.logs[0]
    for i in range(4):
        put(log, (b"key", b"%d" % i), owner=log.owner)
    run = log.compaction(log.end_offset, 0, lambda: False, everything=True)
    assert run is not None
    rewritten = run.step()
    assert rewritten is not None
    run.swap(rewritten)
    assert run.step() is None
    assert run.freed_bytes == 0
    told: list[Exception | None] = []
    log.when_proven(told.append)
    assert told == []
    background.run()
    assert told == [None]
    run = log.compaction(log.end_offset, 0, lambda: False, everything=True)
    assert run is not None
    while (rewritten := run.step()) is not None:
        run.swap(rewritten)
    assert run.freed_bytes > 0
    store.close()


def test_who_waits_for_the_file_of_producers_of_a_deleted_log_is_told(tmp_path: Path) -> None:
    store, background = open_store(tmp_path)
    topic = filled_by_two(store)
    fill(topic.logs[0], 2, size=40 * KIB)
    told: list[Exception | None] = []
    topic.logs[0].when_proven(told.append)
    topic.logs[0].delete()
    assert isinstance(told[0], TopicDeletedError)
    background.run()
    store.close()
