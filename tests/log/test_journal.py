"""The journal: what was acknowledged comes back after a crash, and nothing stale ever does.

A process crash is a copy of the folder at some point. A power loss is such a copy in which
everything that was not synced is cut, zeroed, older, or gone.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlog.config import LogOptions
from fanlog.errors import FanlogError
from fanlog.log import disk
from fanlog.log.group_commit import GroupCommit
from fanlog.log.journal_file import JournalFound, JournalGroup, group_header, groups, read_journal
from fanlog.log.partition import PartitionLog, ProducerRun
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, Sample, append, make_batch, read_around_damage, read_batches
from tests.quick_folders import quick_folder

SETTINGS = TopicSettings(
    durability="fsync", partitions=3, segment_bytes=64 * KIB, retention_seconds=0
)


def sync(fd: int) -> None:
    """As it is when it is called, and not when group commit was defined."""
    os.fdatasync(fd)


class Broker:
    """A store with one fsync topic, and what it has acknowledged in each partition."""

    def __init__(self, folder: Path, options: LogOptions = OPTIONS) -> None:
        self.store = LogStore(folder, options)
        topics = self.store.open()
        self.topic = topics[0] if topics else self.store.create("t", SETTINGS)
        self.logs: list[PartitionLog] = self.topic.logs
        self.commit = GroupCommit(self.store.get_journal(), lambda callback: None, sync)
        self.samples: list[list[Sample]] = [[] for _ in self.logs]
        self.acknowledged = [log.end_offset for log in self.logs]

    def publish(self, partition: int, *, size: int = 100, batches: int = 1) -> None:
        log = self.logs[partition]
        piece: list[Sample] = []
        for _ in range(batches):
            base = piece[-1].next if piece else log.end_offset
            producer = (partition + 1, 0, base)
            piece.append(
                make_batch(base, size=size, owner=log.owner, time_us=base, producer=producer)
            )
        append(log, *piece)
        self.samples[partition] += piece

        def done(error: FanlogError | None) -> None:
            assert error is None
            self.acknowledged[partition] = piece[-1].next

        self.commit.add(log, b"".join(s.data for s in piece), done)

    def repeat(self, partition: int) -> None:
        """A batch that it has comes again: its answer waits for what is before it."""
        self.commit.add(self.logs[partition], b"", lambda error: None)

    def close(self) -> None:
        self.commit.close()
        self.store.close()


def check(folder: Path, broker: Broker, acknowledged: list[int], options: LogOptions) -> None:
    """A start in `folder` has all that was acknowledged, as it was, and goes on from there."""
    store = LogStore(folder, options)
    (topic,) = store.open()
    for log, samples, least in zip(topic.logs, broker.samples, acknowledged, strict=True):
        assert log.end_offset >= least
        found, lost = read_around_damage(log)
        # What nobody was promised is there as a whole, or it is cut.
        assert lost == []
        assert log.damaged == []
        assert found == [s.data for s in samples if log.start_offset <= s.base < log.end_offset]
        if found:
            assert log.offset_at(0) == log.start_offset
    assert store.problems == []
    store.close()
    again = Broker(folder, options)
    again.samples = [list(s) for s in broker.samples]
    for partition, log in enumerate(again.logs):
        del again.samples[partition][_count_below(again.samples[partition], log.end_offset) :]
        again.publish(partition, size=77)
    again.commit.drain()
    for log, samples in zip(again.logs, again.samples, strict=True):
        assert read_around_damage(log)[0][-1] == samples[-1].data
    again.close()


def _count_below(samples: list[Sample], offset: int) -> int:
    return sum(s.base < offset for s in samples)


def copy_folder(source: Path, target: Path) -> None:
    """Also while a checkpoint runs: what it writes aside does not count."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))


def crashed(path: Path, name: str = "copy") -> Path:
    """The folder that a crash of the broker in `data` leaves now."""
    copy_folder(path / "data", path / name)
    return path / name


def wipe_segments(folder: Path) -> None:
    for path in folder.glob("topics/*/*"):
        if path.is_dir():
            shutil.rmtree(path)


def test_there_is_no_journal_without_a_topic_that_needs_it(tmp_path: Path) -> None:
    store = LogStore(tmp_path, OPTIONS)
    store.open()
    store.create("t", TopicSettings())
    assert store.journal is None
    store.close()
    assert not (tmp_path / "journal").exists()


def test_all_that_was_acknowledged_comes_back_from_the_journal_alone(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for i in range(30):
        broker.publish(i % 3, batches=1 + i % 4)
        if i % 5 == 0:
            broker.commit.drain()
    broker.commit.drain()
    copy = crashed(tmp_path)
    wipe_segments(copy)
    check(copy, broker, broker.acknowledged, OPTIONS)
    broker.close()


def test_producers_come_back_from_the_journal_too(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for _ in range(5):
        broker.publish(0)
    broker.commit.drain()
    copy = crashed(tmp_path)
    wipe_segments(copy)
    store = LogStore(copy, OPTIONS)
    (topic,) = store.open()
    assert topic.logs[0].recovered == [ProducerRun(1, 0, 0, 5, 0)]
    store.close()
    broker.close()


def test_a_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    for i in range(9):
        broker.publish(i % 3)
    broker.close()
    assert read_journal(str(tmp_path / "journal")).batches == []
    # Also not after somebody has removed the segments: that is a loss, and no offset comes again.
    wipe_segments(tmp_path)
    store = LogStore(tmp_path, OPTIONS)
    (topic,) = store.open()
    assert [(log.start_offset, log.end_offset) for log in topic.logs] == [(3, 3)] * 3
    assert [(lost.first, lost.next) for log in topic.logs for lost in log.damaged] == [(0, 3)] * 3
    store.close()


def test_a_replay_happens_once(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.publish(0)
    broker.commit.drain()
    copy = crashed(tmp_path)
    broker.close()
    LogStore(copy, OPTIONS).open()
    assert read_journal(str(copy / "journal")).batches == []


def test_a_hole_in_the_journaled_range_is_repaired_and_not_quarantined(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for _ in range(50):
        broker.publish(0)
    broker.commit.drain()
    copy = crashed(tmp_path)
    (path,) = copy.glob("topics/*/0/*.log")
    data = bytearray(path.read_bytes())
    data[2048:4096] = bytes(2048)
    path.write_bytes(data)
    check(copy, broker, broker.acknowledged, OPTIONS)
    broker.close()


def test_batches_of_a_deleted_topic_are_ignored(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.publish(0)
    broker.commit.drain()
    broker.store.delete(broker.topic)
    other = broker.store.create("other", SETTINGS)
    copy = crashed(tmp_path)
    store = LogStore(copy, OPTIONS)
    (topic,) = store.open()
    assert topic.number == other.number
    assert [log.end_offset for log in topic.logs] == [0, 0, 0]
    store.close()
    broker.close()


def test_the_two_files_are_used_in_turn_and_never_grow_past_their_limit(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, journal_bytes=4 * KIB)
    broker = Broker(tmp_path / "data", options)
    generations: set[int] = set()
    for i in range(200):
        broker.publish(i % 3)
        broker.commit.drain()
        generations.add(broker.commit.journal.generation)
        if i % 7 == 0:
            copy = crashed(tmp_path, f"copy-{i}")
            check(copy, broker, broker.acknowledged, options)
    assert len(generations) > 5
    sizes = [path.stat().st_size for path in (tmp_path / "data" / "journal").glob("*.journal")]
    assert sizes == [4 * KIB] * 2
    broker.close()


def bodies(data: bytes, generation_min: int | None = None) -> list[bytes]:
    return [bytes(g.body) for g in groups(data, generation_min) if isinstance(g, JournalGroup)]


def test_a_group_of_an_older_generation_ends_a_file() -> None:
    def group(generation: int, content: bytes) -> bytes:
        return group_header(generation, content) + content

    data = group(5, b"a" * 16) + group(5, b"b" * 8) + group(4, b"stale---") + group(5, b"c")
    assert bodies(data) == [b"a" * 16, b"b" * 8]
    assert bodies(group(6, b"") + group(5, b"stale---")) == [b""]
    assert list(groups(bytes(100))) == []
    assert list(groups(b"")) == []


def test_a_group_that_is_torn_or_flipped_anywhere_ends_a_file() -> None:
    whole = group_header(5, b"first---") + b"first---" + group_header(5, b"second--") + b"second--"
    first = len(whole) // 2
    for at in range(first, len(whole)):
        assert bodies(whole[:at]) == [b"first---"]
        flipped = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        assert bodies(flipped) == [b"first---"], at - first


def test_stale_groups_are_not_replayed_even_when_the_file_was_not_overwritten(
    tmp_path: Path,
) -> None:
    options = msgspec.structs.replace(OPTIONS, journal_bytes=4 * KIB)
    broker = Broker(tmp_path, options)
    for _ in range(40):
        broker.publish(0)
        broker.commit.drain()
    broker.close()
    store = LogStore(tmp_path, options)
    (topic,) = store.open()
    store.delete(topic)
    store.close()
    # All those groups are still in the files, behind the mark that says "nothing here".
    assert b"39.vvv" in b"".join(p.read_bytes() for p in (tmp_path / "journal").glob("*.journal"))
    assert read_journal(str(tmp_path / "journal")).batches == []


def test_records_that_neither_log_nor_journal_has_are_a_gap_and_not_used_again(
    tmp_path: Path,
) -> None:
    options = msgspec.structs.replace(OPTIONS, journal_bytes=4 * KIB)
    broker = Broker(tmp_path / "data", options)
    for _ in range(100):
        broker.publish(0)
        broker.commit.drain()
    copy = crashed(tmp_path)
    broker.close()
    (path,) = copy.glob("topics/*/0/*.log")
    os.truncate(path, len(broker.samples[0][0].data) * 5)
    store = LogStore(copy, options)
    (topic,) = store.open()
    log = topic.logs[0]
    assert log.end_offset == 100
    (lost,) = log.damaged
    assert lost.first == 5
    assert 50 < lost.next < 100
    assert list(read_batches(log, lost.next)) == [s.data for s in broker.samples[0][lost.next :]]
    store.close()


def test_a_piece_larger_than_the_journal_goes_to_its_own_file(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, journal_bytes=4 * KIB)
    broker = Broker(tmp_path / "data", options)
    for size in (100, 10_000, 100, 20_000, 100):
        broker.publish(0, size=size)
        broker.commit.drain()
        copy = crashed(tmp_path, f"copy-{broker.acknowledged[0]}")
        check(copy, broker, broker.acknowledged, options)
    broker.close()


class PowerLoss:
    """Remembers what was synced of every file, and makes the copy that a power loss leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[str, bytes] = {}
        self.named: set[str] = set()
        real_file, real_folder = disk.sync_file, disk.sync_folder

        def sync_file(path: str) -> None:
            self.synced[path] = Path(path).read_bytes()
            real_file(path)

        def sync_folder(path: str) -> None:
            self.named.update(str(p) for p in Path(path).iterdir())
            real_folder(path)

        monkeypatch.setattr(disk, "sync_file", sync_file)
        monkeypatch.setattr(disk, "sync_folder", sync_folder)

    def settle(self, folder: Path) -> None:
        """What is in the folder now is on the disk."""
        for path in folder.glob("topics/*/*/*.log"):
            self.synced[str(path)] = path.read_bytes()
            self.named.add(str(path))

    def carry(self, source: Path, target: Path) -> None:
        """The process died and nothing else: what was synced, and what was not, is as before."""
        copy_folder(source, target)
        for path in source.glob("topics/*/*/*.log"):
            moved = str(target / path.relative_to(source))
            self.synced[moved] = self.synced.get(str(path), b"")
            if str(path) in self.named:
                self.named.add(moved)

    def copy(self, source: Path, target: Path, rng: random.Random) -> None:
        """What is left of `source`; of the journal that is all, because commits were awaited."""
        copy_folder(source, target)
        for path in target.glob("topics/*/*/*"):
            original = str(source / path.relative_to(target))
            if path.suffix == ".log":
                self._spoil(path, original, rng)
            elif rng.random() < 0.3:
                path.write_bytes(b"" if rng.random() < 0.5 else bytes(path.stat().st_size))

    def _spoil(self, path: Path, original: str, rng: random.Random) -> None:
        safe = self.synced.get(original, b"")
        if original not in self.named and not safe and self._is_newest(path) and rng.random() < 0.3:
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 512):
            page = data[at : at + 512]
            kept = safe[at : at + 512].ljust(len(page), b"\0")
            if page != kept and rng.random() < 0.4:
                data[at : at + 512] = kept
        if len(safe) < len(data) and rng.random() < 0.3:
            del data[rng.randrange(len(safe), len(data)) :]
        path.write_bytes(data)

    def _is_newest(self, path: Path) -> bool:
        # Names of one folder become durable in the order in which they were made.
        return path == max(path.parent.glob("*.log"))


# Where memory has no room for its folders, it is as slow as the disk is.
@pytest.mark.timeout(600)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["publish"] * 6 + ["commit"] * 3 + ["repeat", "crash", "retain"]),
            st.integers(0, 2),
            st.sampled_from([20, 300, 1500, 20_000]),
        ),
        min_size=20,
        max_size=80,
    ),
)
def test_a_power_loss_at_any_point_takes_back_nothing_that_was_acknowledged(
    seed: int, steps: list[tuple[str, int, int]]
) -> None:
    rng = random.Random(seed)
    options = msgspec.structs.replace(OPTIONS, journal_bytes=16 * KIB)
    small = msgspec.structs.replace(SETTINGS, segment_bytes=4 * KIB)
    with quick_folder() as folder, pytest.MonkeyPatch.context() as patch:
        power = PowerLoss(patch)
        broker = Broker(folder / "data", options)
        for log in broker.logs:
            log.settings = small
        crashes = 0
        for step, partition, size in [*steps, ("crash", 0, 0)]:
            if step == "publish":
                broker.publish(partition, size=size, batches=rng.randrange(1, 4))
            elif step == "commit":
                broker.commit.drain()
            elif step == "repeat":
                broker.repeat(partition)
            elif step == "retain":
                log = broker.logs[partition]
                log.settings = msgspec.structs.replace(small, retention_bytes=8 * KIB)
                log.retain(0)
                log.settings = small
            else:
                crashes += 1
                copy = folder / f"copy-{crashes}"
                if rng.random() < 0.5:
                    power.copy(folder / "data", copy, rng)
                    power.settle(copy)
                else:
                    power.carry(folder / "data", copy)
                # The power goes again, just when the journal has been replayed and emptied.
                store = LogStore(copy, options)
                store.open()
                again = folder / f"again-{crashes}"
                power.copy(copy, again, rng)
                store.close()
                check(again, broker, broker.acknowledged, options)
                shutil.rmtree(copy)
                shutil.rmtree(again)
        broker.close()


def test_a_torn_last_group_is_as_if_it_had_never_been_written(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.publish(0)
    broker.commit.drain()
    path = tmp_path / "data" / "journal" / "0.journal"
    before = path.read_bytes()
    broker.publish(0)
    broker.commit.drain()
    after = path.read_bytes()
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for cut in range(changed[0], changed[-1] + 1, 5):
        copy = crashed(tmp_path)
        (copy / "journal" / "0.journal").write_bytes(after[:cut] + before[cut:])
        wipe_segments(copy)
        store = LogStore(copy, OPTIONS)
        (topic,) = store.open()
        assert topic.logs[0].end_offset == 1
        store.close()
        shutil.rmtree(copy)
    broker.close()


def test_a_repeated_batch_that_begins_a_file_hides_nothing_behind_it(tmp_path: Path) -> None:
    """It has nothing to write. An empty group at the start says that a file holds nothing."""
    broker = Broker(tmp_path / "data")
    broker.repeat(0)
    broker.commit.drain()
    broker.publish(0)
    broker.commit.drain()
    copy = crashed(tmp_path)
    wipe_segments(copy)
    check(copy, broker, broker.acknowledged, OPTIONS)
    broker.close()


def test_groups_behind_an_empty_first_one_are_found(tmp_path: Path) -> None:
    batch = make_batch(0, owner=Owner(1, 0)).data
    old = group_header(1 << 32 | 1, batch) + batch
    (tmp_path / "1.journal").write_bytes(group_header(1 << 32 | 3, b"") + old)
    assert read_journal(str(tmp_path)).batches == []
    new = group_header(1 << 32 | 2, batch) + batch
    (tmp_path / "0.journal").write_bytes(group_header(1 << 32 | 2, b"") + new)
    assert [bytes(body) for body in read_journal(str(tmp_path)).batches] == [batch]


def test_owners_are_told_apart_by_topic_and_partition() -> None:
    from fanlog.log.replay import by_partition  # noqa: PLC0415

    first = make_batch(3, owner=Owner(1, 0))
    second = make_batch(9, owner=Owner(1, 1))
    third = make_batch(4, owner=Owner(1, 0))
    groups = [memoryview(first.data + second.data), memoryview(third.data)]
    found = by_partition(JournalFound(groups, [], [], complete=True, faults=[]))
    assert {
        owner: [header.base_offset for header in journaled.headers]
        for owner, journaled in found.items()
    } == {
        Owner(1, 0): [3, 4],
        Owner(1, 1): [9],
    }
    assert found[Owner(1, 0)].promised_end == 5


def test_a_checkpoint_that_fails_in_whatever_way_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    journal = broker.commit.journal

    def no_memory(*_: object) -> None:
        raise MemoryError

    broker.publish(0)
    broker.commit.drain()
    with monkeypatch.context() as patched:
        patched.setattr(journal, "_sync_logs", no_memory)
        journal._switch(sync)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(MemoryError):
            journal._await_checkpoint()  # pyright: ignore[reportPrivateUsage]
    journal.failed = True
    broker.commit.close()
    broker.store.close()
