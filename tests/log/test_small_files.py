"""Small files: whatever is wrong with one, the broker starts, keeps all messages, and says so."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fanlog.errors import FolderUnusableError, FormatError
from fanlog.log import small_files
from fanlog.log.files import make_folders
from fanlog.log.group_commit import GroupCommit
from fanlog.log.partition_notes import Compacted, save_compacted
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.pieces import OPTIONS, append, fill, make_batch, read_around_damage, segments
from tests.quick_folders import quick_folder

KEPT = TopicSettings(segment_bytes=64 * KIB, retention_seconds=0)
SYNCED = TopicSettings(durability="fsync", segment_bytes=64 * KIB, retention_seconds=0)
# Deleted before this offset, of 100; and one batch of the same log is damaged.
STARTS_AT = 50
DAMAGED = 60


def open_store(folder: Path) -> LogStore:
    store = LogStore(folder, OPTIONS)
    store.open()
    return store


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(len(data)):
        yield at, data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


@pytest.fixture
def crashed() -> Iterator[Path]:
    """A folder that has every small file, and messages in the journal, as a crash leaves it."""
    with quick_folder() as folder:
        store = open_store(folder / "data")
        kept = store.create("kept", KEPT)
        kept.logs[0].settings = msgspec.structs.replace(KEPT, segment_bytes=4 * KIB)
        fill(kept.logs[0], 100)
        kept.logs[0].delete_before(STARTS_AT)
        log_folder = Path(kept.folder) / "0"
        save_compacted(str(log_folder), Compacted(7, 8, 9))
        damage(log_folder, DAMAGED)
        read_around_damage(kept.logs[0])
        synced = store.create("synced", SYNCED)
        commit = GroupCommit(store.get_journal(), lambda callback: None)
        for base in range(5):
            batch = make_batch(base, owner=synced.logs[0].owner)
            append(synced.logs[0], batch)
            commit.add(synced.logs[0], batch.data, lambda error: None)
        commit.drain()
        shutil.copytree(folder / "data", folder / "crashed")
        commit.close()
        store.close()
        yield folder / "crashed"


def damage(folder: Path, offset: int) -> None:
    for path in segments(folder):
        data = path.read_bytes()
        at = data.find(b"%d.v" % offset)
        if at >= 0:
            path.write_bytes(data[:at] + b"x" + data[at + 1 :])


def check(folder: Path) -> list[str]:
    """All messages are there; what the start says is wrong."""
    store = LogStore(folder, OPTIONS)
    topics = {topic.name: topic for topic in store.open()}
    kept, synced = topics["kept"].logs[0], topics["synced"].logs[0]
    assert kept.end_offset == 100
    # Without `start.json` the log begins with the first file that is there.
    assert kept.start_offset in (STARTS_AT, 46)
    found, lost = read_around_damage(kept)
    assert lost == [(DAMAGED, DAMAGED + 1)]
    assert len(found) == 99 - kept.start_offset
    assert synced.end_offset == 5
    problems = list(store.problems)
    store.close()
    return problems


def small_files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json*") if path.is_file())


def test_a_flipped_bit_in_any_byte_of_any_small_file_takes_no_message(crashed: Path) -> None:
    files = small_files_of(crashed)
    assert {path.name for path in files} == {
        "catalog.json",
        "catalog.json.copy",
        "compacted.json",
        "damaged.json",
        "start.json",
        "topic.json",
        "topic.json.copy",
    }
    for path in files:
        good = path.read_bytes()
        for at, bad in flipped(good):
            path.write_bytes(bad)
            problems = check(crashed)
            # A bit between two fields changes nothing; a copy is not even looked at.
            harmless = path.suffix == ".copy" or same_fields(good, bad)
            assert len(problems) == (not harmless), (path.name, at, problems)
            path.write_bytes(good)
            for aside in crashed.rglob("*.damaged-*"):
                aside.unlink()


def same_fields(good: bytes, bad: bytes) -> bool:
    try:
        return bool(json.loads(good) == json.loads(bad))
    except ValueError:
        return False


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"3", b'{"format": 1}', b"\xff" * 99])
@pytest.mark.parametrize("name", ["catalog.json", "topic.json", "start.json", "compacted.json"])
def test_a_small_file_that_is_gone_or_holds_anything_else_takes_no_message(
    crashed: Path, name: str, content: bytes | None
) -> None:
    (path, *_) = crashed.rglob(name)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    problems = check(crashed)
    if content is not None:
        (problem,) = problems
        assert path.name in problem
        (aside,) = crashed.rglob(f"{name}.damaged-1")
        assert aside.read_bytes() == content
    assert check(crashed) == []


def test_files_of_the_first_format_have_no_checksum_and_still_load(crashed: Path) -> None:
    for path in small_files_of(crashed):
        fields = json.loads(path.read_bytes())
        del fields["crc"]
        path.write_text(json.dumps({**fields, "format": 1}))
    assert check(crashed) == []


def test_a_file_without_its_checksum_is_not_taken_for_one_of_the_first_format(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "a.json")
    small_files.save(path, {"n": 5}, durable=False)
    assert small_files.load(path) == ({"format": 2, "n": 5}, True)
    fields = json.loads(Path(path).read_bytes())
    del fields["crc"]
    Path(path).write_text(json.dumps(fields))
    with pytest.raises(FormatError, match="checksum"):
        small_files.load(path)


def test_a_file_of_a_newer_release_stops_the_start(crashed: Path) -> None:
    for name in ("catalog.json", "topic.json"):
        (path, *_) = crashed.rglob(name)
        good = path.read_bytes()
        fields = json.loads(good)
        del fields["crc"]
        path.write_bytes(small_files.encode({**fields, "format": 3}))
        with pytest.raises(FolderUnusableError, match="newer release"):
            open_store(crashed)
        path.write_bytes(good)
    check(crashed)


def test_a_start_past_the_end_without_a_checksum_is_not_believed(crashed: Path) -> None:
    (path,) = crashed.rglob("start.json")
    path.write_text('{"format": 1, "start_offset": 5000}')
    (problem,) = check(crashed)
    assert "start.json says 5000, but the log ends at 100" in problem
    assert "can be read again" in problem


def test_a_start_past_the_end_hides_records_and_removes_no_file(crashed: Path) -> None:
    (path,) = crashed.rglob("start.json")
    before = {p.name: p.read_bytes().rstrip(b"\0") for p in segments(path.parent)}
    small_files.save(str(path), {"start_offset": 5000}, durable=False)
    store = open_store(crashed)
    store.close()
    after = {p.name: p.read_bytes().rstrip(b"\0") for p in segments(path.parent)}
    assert before.items() <= after.items()
    path.unlink()
    store = open_store(crashed)
    (log,) = (topic.logs[0] for topic in store.topics if topic.name == "kept")
    assert (log.start_offset, log.end_offset) == (46, 5000)
    store.close()


def test_a_lost_catalog_never_leads_to_a_number_or_an_epoch_that_was_used(crashed: Path) -> None:
    store = open_store(crashed)
    epoch = store.epoch
    number = store.create("last", KEPT).number
    store.close()
    (crashed / "catalog.json").unlink()
    (crashed / "catalog.json.copy").write_bytes(b"")
    store = open_store(crashed)
    assert store.epoch > epoch
    assert store.create("next", KEPT).number > number
    assert "catalog.json is missing" in store.problems[0]
    store.close()


def test_a_topic_with_an_older_copy_has_every_partition_that_has_a_folder(crashed: Path) -> None:
    (folder,) = crashed.glob("topics/*-kept")
    shutil.copytree(folder / "0", folder / "7")
    (folder / "topic.json").write_bytes(b"")
    store = LogStore(crashed, OPTIONS)
    (kept,) = (topic for topic in store.open() if topic.name == "kept")
    assert kept.settings.partitions == 8
    store.close()


def test_a_topic_that_nobody_can_describe_keeps_all_its_messages(crashed: Path) -> None:
    (folder,) = crashed.glob("topics/*-synced")
    good = (folder / "topic.json").read_bytes()
    for name in ("topic.json", "topic.json.copy"):
        (folder / name).write_bytes(b"broken")
    shutil.rmtree(folder / "0")
    for _ in range(3):
        store = LogStore(crashed, OPTIONS)
        assert [topic.name for topic in store.open()] == ["kept"]
        (problem,) = store.problems
        assert "topic is missing" in problem
        store.close()
    (folder / "topic.json").write_bytes(good)
    assert check(crashed) == []
    assert not list(crashed.glob("journal/kept-*"))
    assert check(crashed) == []


def test_a_new_data_folder_is_for_its_user_only(tmp_path: Path) -> None:
    make_folders(str(tmp_path / "above" / "data"))
    assert stat.S_IMODE((tmp_path / "above" / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) & 0o500 == 0o500
    (tmp_path / "there").mkdir(0o750)
    make_folders(str(tmp_path / "there"))
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750
