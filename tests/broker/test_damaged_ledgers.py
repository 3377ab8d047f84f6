"""Ledgers that the disk has damaged: the broker starts, serves, and says what was lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fanlog.broker.state import ledger
from fanlog.errors import FencedError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import Position, RegisterProducer
from fanlog.log.partition import PartitionLog
from fanlog.model import KIB, Start
from tests.broker.queues.workers import hire
from tests.broker.stage import Publisher, Stage, stage
from tests.broker.transactions.staging import Staging, checkpoint, settle

LEDGERS = ("cursors", "queues", "producers", "transactions", "transaction-ids")


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    data[int(used * at)] ^= 0x10
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit in the first header": lambda path: flip(path, 0.0),
    "a bit in the middle": lambda path: flip(path, 0.5),
    "a bit near the end": lambda path: flip(path, 0.95),
    "cut in the middle": lambda path: path.write_bytes(
        path.read_bytes().rstrip(b"\0")[: len(path.read_bytes().rstrip(b"\0")) // 2]
    ),
    "cut to nothing": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(b"\xa5\x5a\x01\x80" * (path.stat().st_size // 4)),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every ledger has something to lose, in more than one segment."""
    data = tmp_path_factory.mktemp("ledgers") / "data"
    settings, ledger.LEDGER_SETTINGS = (
        ledger.LEDGER_SETTINGS,
        ledger.LEDGER_SETTINGS.__class__(
            durability="fsync", segment_bytes=64 * KIB, tail_bytes=4 * KIB, retention_seconds=0
        ),
    )
    with stage(data) as on:
        fill(on)
        on.core.close()
    ledger.LEDGER_SETTINGS = settings
    # The ends that are known are those of the last stop.
    with stage(data) as on:
        settle(on)
        assert on.core.status().problems == ()
        on.core.close()
    assert len(files_of(data, "cursors")) > 1
    return data


def fill(on: Stage) -> None:
    on.publish("t", [b"%d" % i for i in range(100)])
    on.run()
    worker = hire(on, "ann", prefetch=100)
    for job in worker.jobs():
        worker.ack([job])
    for i in range(100):
        on.core.commit_positions(f"name-{i}", [Position("t", 0, i, on.core.epoch)])
        for _ in range(8):
            on.core.commit_positions("me", [Position("t", 0, i, on.core.epoch)])
        on.core.producers.register(RegisterProducer("billing"))
        on.core.producers.register(RegisterProducer(f"producer-{i}"))
    for i in range(12):
        mine = Staging(on, f"id-{i}")
        mine.stage("out", b"%d" % i)
        mine.commit()
        settle(on)
        checkpoint(on)
    # One whose intent stays.
    mine = Staging(on, "last")
    mine.stage("out", b"last")
    mine.commit()
    settle(on)


def files_of(data: Path, name: str) -> list[Path]:
    (folder,) = data.glob(f"topics/*-_fanlog.{name}")
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix == ".log")


def serves(on: Stage) -> None:
    """Everything that needs a ledger works."""
    settle(on)
    by = on.publish("t", [b"more"], Publisher())
    settle(on)
    assert len(by.acks) == 1
    on.core.commit_positions("me", [Position("t", 0, 50, on.core.epoch)])
    on.core.producers.register(RegisterProducer("another"))
    worker = hire(on, "bob", prefetch=1000)
    worker.ack(worker.jobs())
    mine = Staging(on)
    mine.stage("out", b"more")
    outcomes = mine.commit()
    settle(on)
    assert outcomes.only.records == 1
    checkpoint(on)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", LEDGERS)
def test_a_broker_starts_serves_and_reports_whatever_has_happened_to_a_ledger(
    whole: Path, tmp_path: Path, name: str, damage: str
) -> None:
    for i, source in enumerate(files_of(whole, name)):
        data = tmp_path / str(i)
        shutil.copytree(whole, data)
        path = data / source.relative_to(whole)
        DAMAGES[damage](path)
        with stage(data) as on:
            (problem,) = [p for p in on.core.status().problems if f"_fanlog.{name} has" in p]
            assert "remove that folder to clear" in problem
            assert on.core.status().state == "degraded"
            serves(on)
            positions = on.core.durable.positions("me")
            on.core.close()
        # What was recovered stands, and so does the report, until somebody has cleared it.
        with stage(data) as on:
            settle(on)
            assert list(on.core.status().problems) == [problem]
            assert on.core.durable.positions("me") == positions
            (kept,) = data.glob("damaged/*")
            shutil.rmtree(kept)
            assert on.core.status().problems == ()
            on.core.close()
        with stage(data) as on:
            assert on.core.status().problems == ()
            serves(on)
        shutil.rmtree(data)


@pytest.mark.parametrize("what", ["folder", "topic.json", "partition"])
@pytest.mark.parametrize("name", LEDGERS)
def test_a_broker_starts_without_a_ledger(
    whole: Path, tmp_path: Path, name: str, what: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    (folder,) = data.glob(f"topics/*-_fanlog.{name}")
    if what == "folder":
        shutil.rmtree(folder)
    elif what == "partition":
        shutil.rmtree(folder / "0")
    else:
        (folder / "topic.json").write_bytes(b"\0" * 100)
    with stage(data) as on:
        lost = [p for p in on.core.status().problems if f"_fanlog.{name} has lost" in p]
        # Where the folder's name is enough to make its description again, nothing is lost.
        assert len(lost) == 1 or what == "topic.json"
        serves(on)


def test_damaged_files_are_kept_and_the_rest_goes_on(whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    path = files_of(data, "cursors")[0]
    damaged = bytearray(path.read_bytes())
    damaged[30_000:34_000] = bytes(4000)
    path.write_bytes(damaged)
    with stage(data) as on:
        # The last commit of this name is intact, and some names have lost theirs.
        assert on.core.durable.positions("me")[0].offset == 99
        known = set(on.core.durable.names())
        assert 90 < len(known) < 101
    kept = min(data.glob("damaged/*/*.log"))
    assert kept.read_bytes().rstrip(b"\0") == damaged.rstrip(b"\0")
    with stage(data) as on:
        assert set(on.core.durable.names()) == known


def test_entries_that_nobody_understands_are_left_out_and_reported(
    whole: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    with stage(data) as on:
        for name in LEDGERS:
            partition = on.core.internal.find_internal(f"_fanlog.{name}")
            assert partition is not None
            odd = encode_batch([b"\xc1", b"", b"\x93"], keys=[b"\xff\xfe", b"", b"\x93"])
            on.core.internal.write_internal(partition, odd, None)
    with stage(data) as on:
        assert len(on.core.status().problems) == len(LEDGERS)
        assert all("has lost" in problem for problem in on.core.status().problems)
        assert on.core.durable.positions("me")[0].offset == 99
        serves(on)


def test_damage_before_a_whole_snapshot_has_lost_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A crash came before the old segments went.
    monkeypatch.setattr(PartitionLog, "drop_before", lambda *_: 0)
    with stage(data) as on:
        on.keep_journal()
        on.publish("t", [b"x"])
        for i in range(25_000):
            on.core.durable.commit_positions([(f"name-{i % 50}", (Position("t", 0, i, 1),))])
            if not i % 100:
                settle(on)
        settle(on)
        expected = {name: on.core.durable.positions(name) for name in on.core.durable.names()}
    first, *others = files_of(data, "cursors")
    assert others
    flip(first, 0.1)
    with stage(data) as on:
        found = {name: on.core.durable.positions(name) for name in on.core.durable.names()}
        assert found == expected
        assert [p for p in on.core.status().problems if "has lost" in p] == []


# What is safe when something is missing


def test_a_group_whose_position_is_lost_leaves_nothing_out(whole: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    for path in files_of(data, "cursors"):
        path.write_bytes(b"")
    with stage(data) as on:
        assert on.core.durable.may_have_lost(on.core.catalog.get("t").number)
        new = on.core.create_topic("new", {})
        assert not on.core.durable.may_have_lost(new.number)


async def test_a_durable_name_whose_position_is_lost_begins_with_the_earliest(
    whole: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    for path in files_of(data, "cursors"):
        path.write_bytes(b"")
    with stage(data) as on:
        reader = await on.subscribe("t", durable="me", start=Start("latest"))
        on.run()
        assert reader.offsets == list(range(100))


def test_a_queue_that_has_lost_its_place_hands_all_jobs_out_again(
    whole: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    for path in files_of(data, "queues"):
        path.write_bytes(b"")
    with stage(data) as on:
        worker = hire(on, "bob", prefetch=1000, reset="latest")
        assert len(worker.jobs()) == 100


def test_nobody_that_was_shut_out_comes_in_again_by_a_lost_registration(data: Path) -> None:
    with stage(data) as on:
        on.keep_journal()
        first = on.core.producers.register(RegisterProducer("billing"))
        settle(on)
        (path,) = files_of(data, "producers")
        registered_once = len(path.read_bytes().rstrip(b"\0"))
        second = on.core.producers.register(RegisterProducer("billing"))
        for i in range(5):
            on.core.producers.register(RegisterProducer(f"other-{i}"))
        settle(on)
        assert (second.id, second.epoch) == (first.id, first.epoch + 1)
    content = bytearray(path.read_bytes())
    content[registered_once + 70] ^= 1
    path.write_bytes(content)
    with stage(data) as on:
        assert on.core.status().problems != ()
        by = Publisher(first.id)
        on.publish("t", [b"old"], by, epoch=first.epoch)
        on.run()
        (refusal,) = by.refusals
        assert isinstance(refusal[2], FencedError)
        for known in (first, second):
            with pytest.raises(FencedError):
                on.core.producers.register(RegisterProducer("billing", known.id, known.epoch))
        anew = on.core.producers.register(RegisterProducer("billing"))
        assert (anew.id, anew.epoch > second.epoch) == (first.id, True)


def test_a_name_that_is_lost_is_not_taken_over_by_who_says_it_had_it(data: Path) -> None:
    with stage(data) as on:
        first = on.core.producers.register(RegisterProducer("billing"))
        settle(on)
        on.core.close()
    (path,) = files_of(data, "producers")
    path.write_bytes(b"")
    with stage(data) as on:
        with pytest.raises(FencedError, match="start the producer again"):
            on.core.producers.register(RegisterProducer("billing", first.id, first.epoch))
        assert on.core.producers.register(RegisterProducer("billing")).id != first.id


def test_an_epoch_that_a_log_has_seen_counts(data: Path) -> None:
    """The ledger was put back from an older backup."""
    with stage(data) as on:
        first = on.core.producers.register(RegisterProducer("billing"))
        settle(on)
        backup = data.parent / "backup"
        (folder,) = data.glob("topics/*-_fanlog.producers")
        shutil.copytree(folder, backup)
        second = on.core.producers.register(RegisterProducer("billing"))
        on.publish("t", [b"new"], Publisher(second.id), epoch=second.epoch)
        settle(on)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    (data / "ledgers.json").unlink(missing_ok=True)
    with stage(data) as on:
        by = Publisher(first.id)
        on.publish("u", [b"old"], by, epoch=first.epoch)
        on.run()
        assert [type(error) for _, _, error in by.refusals] == [FencedError]
        assert on.core.producers.register(RegisterProducer("billing")).epoch > second.epoch
