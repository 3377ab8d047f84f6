"""Points of a backup: what is new is taken, what is interrupted harms nobody, and what is restored
is a history that went back, which readers notice."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fanlog
from fanlog.broker.backups import POINTS_MAX
from fanlog.cli import backup as backup_command
from fanlog.cli.backup import RemoteSource, pull
from fanlog.client.aio import Client
from fanlog.cluster.mark import FolderMark, load_mark, save_mark
from fanlog.errors import (
    BackupError,
    DiskFullError,
    FanlogError,
    FolderInUseError,
    FolderUnusableError,
    LimitError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.log.backup import keeping, manifest, pinning
from fanlog.log.backup.archive import write_archive
from fanlog.log.backup.keeping import BackupFolder, Kept, load_points
from fanlog.log.backup.point import BackupPoint
from fanlog.log.backup.restoring import next_epoch, restore
from fanlog.log.backup.verify import verify_data
from fanlog.log.backup.verify_backup import verify_backup
from fanlog.model import KIB, Gap
from tests.client.test_reconnect import EAGER, Restartable, running
from tests.client.ways import take, until
from tests.quick_folders import quick_folder

NOW = 1_800_000_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as found:
        yield found


async def take_point(broker: Client, backup: Path) -> Kept:
    with BackupFolder(str(backup)) as kept:
        return await pull(broker, kept.add)


async def fill(broker: Client, topic: str, count: int, size: int = 5000) -> None:
    for i in range(count):
        await broker.publish(topic, f"{topic}-{i} ".ljust(size, "v"))


async def published(broker: Client, topic: str) -> list[str]:
    (info,) = await broker.topics(topic)
    async with broker.subscribe(topic, start="earliest") as reader:
        return [m.text.split()[0] for m in await take(reader, info.records)]


# A cluster


async def test_the_mark_of_a_cluster_is_not_in_a_backup(folder: Path) -> None:
    mark = FolderMark(cluster_name="orders", node="a", incarnation="a.1")
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 3)
        save_mark(str(folder / "data"), mark)
        await take_point(broker, folder / "backup")
    assert not list((folder / "backup").rglob("cluster.json*"))
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    assert load_mark(str(folder / "restored")) is None
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 3


# What is new


async def test_a_second_backup_takes_only_what_is_new(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("grows", segment_bytes=64 * KIB)
        await broker.create_topic("idle", segment_bytes=64 * KIB)
        await fill(broker, "grows", 40)
        await fill(broker, "idle", 20)
        first = await take_point(broker, folder / "backup")
        assert first.linked > 0
        assert first.known == 0
        again = await take_point(broker, folder / "backup")
        late = 0
        while again.linked and late < 5:
            # A file beside a segment, which a thread has written since.
            again = await take_point(broker, folder / "backup")
            late += 1
        assert (again.copied, again.linked) == (0, 0)
        await fill(broker, "grows", 1)
        more = await take_point(broker, folder / "backup")
        assert more.linked == 0
        assert 0 < more.copied < 6000
        await fill(broker, "grows", 20)
        sealed = await take_point(broker, folder / "backup")
        assert sealed.linked > 0
    for number, count in ((1, 40), (2, 40), (3 + late, 41), (4 + late, 61)):
        data = folder / f"restored-{number}"
        restore(str(folder / "backup"), str(data), NOW, number)
        async with fanlog.Broker(data) as broker:
            assert len(await published(broker, "grows")) == count
            assert len(await published(broker, "idle")) == 20


async def test_after_a_restart_unchanged_files_are_not_copied_again(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        await fill(broker, "t", 40)
        await take_point(broker, folder / "backup")
    async with fanlog.Broker(folder / "data") as broker:
        kept = await take_point(broker, folder / "backup")
        # Who the producers are was written down again.
        assert kept.linked + kept.copied < 1000
        assert kept.known > 100_000
        await fill(broker, "t", 1)
        await take_point(broker, folder / "backup")
    assert verify_backup(str(folder / "backup")).findings == []
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 41


async def test_a_deleted_topic_is_in_earlier_points_only_and_goes_with_them(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "stays", 3)
        await fill(broker, "goes", 3)
        await take_point(broker, folder / "backup")
        await broker.delete_topic("goes")
        await take_point(broker, folder / "backup")
        files = folder / "backup" / "files"
        assert list(files.rglob("*-goes/*"))
        with BackupFolder(str(folder / "backup")) as backup:
            assert backup.keep_only(1) == [1]
        assert not list(files.rglob("*-goes/*"))
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert [info.name for info in await broker.topics()] == ["stays"]


async def test_retention_and_deletion_take_nothing_from_a_point_that_is_held(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        await fill(broker, "t", 40)

        def keep(source: RemoteSource, advance: object) -> Kept:
            call = broker.delete_topic("t")
            asyncio.run_coroutine_threadsafe(call, loop).result()
            # Bytes come over the connection, as from another machine.
            source.path_of = lambda entry: None
            with BackupFolder(str(folder / "backup")) as backup:
                return backup.add(source)

        loop = asyncio.get_running_loop()
        kept = await pull(broker, keep)
        assert kept.linked == 0
        assert kept.copied > 200_000
        await until(lambda: not (folder / "data" / ".pinned").exists())
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 40


async def test_a_tar_file_has_the_same_and_is_restored(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", partitions=3, durability="fsync", segment_bytes=64 * KIB)
        await fill(broker, "t", 60)
        with open(folder / "out.tar.gz", "wb") as file:
            await pull(broker, lambda source, _: write_archive(source, file, compress=True))
    assert verify_backup(str(folder / "out.tar.gz")).findings == []
    restore(str(folder / "out.tar.gz"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 60
    whole = (folder / "out.tar.gz").read_bytes()
    (folder / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BackupError):
        restore(str(folder / "cut.tar.gz"), str(folder / "other"), NOW)


async def test_without_hard_links_everything_is_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EPERM, "no links here")

    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        await fill(broker, "t", 40)
        monkeypatch.setattr(os, "link", refused)
        kept = await take_point(broker, folder / "backup")
        assert kept.linked == 0
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 40


async def test_backups_of_two_brokers_do_not_mix(folder: Path) -> None:
    for name in ("one", "two"):
        async with fanlog.Broker(folder / name) as broker:
            await fill(broker, "t", 1)
            if name == "one":
                await take_point(broker, folder / "backup")
            else:
                with pytest.raises(BackupError, match="another broker"):
                    await take_point(broker, folder / "backup")
    # A restored broker continues in the folder that it came from.
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert (await take_point(broker, folder / "backup")).number == 2


# What is interrupted


class Cut(Exception):
    pass


async def test_a_backup_that_is_interrupted_leaves_the_earlier_points_valid(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 30)
        await take_point(broker, folder / "backup")
        await fill(broker, "t", 30)
        await fill(broker, "u", 3)

        def cut(source: RemoteSource, advance: object) -> Kept:
            real, calls = source.read, 0

            def read(file: int, at: int, size: int) -> bytes:
                nonlocal calls
                calls += 1
                if calls > 2:
                    raise Cut
                return real(file, at, min(size, 50_000))

            source.read = read
            source.path_of = lambda entry: None
            with BackupFolder(str(folder / "backup")) as backup:
                return backup.add(source)

        with pytest.raises(Cut):
            await pull(broker, cut)
        assert [number for number, _ in load_points(str(folder / "backup"))] == [1]
        assert verify_backup(str(folder / "backup")).findings == []
        kept = await take_point(broker, folder / "backup")
        assert kept.number == 2
        assert verify_backup(str(folder / "backup")).findings == []
    for number, count in ((1, 30), (2, 60)):
        restore(str(folder / "backup"), str(folder / f"r{number}"), NOW, number)
        async with fanlog.Broker(folder / f"r{number}") as broker:
            assert len(await published(broker, "t")) == count


async def test_links_of_an_interrupted_backup_are_never_written_into(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the broker's own files. While a point can't be read, nothing is swept."""
    backup = folder / "backup"
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        await fill(broker, "t", 3)
        await take_point(broker, backup)
        await fill(broker, "t", 60)
        with monkeypatch.context() as cutting:
            cutting.setattr(keeping, "replace_file", lambda *_, **__: (_ for _ in ()).throw(Cut))
            with pytest.raises(Cut):
                await take_point(broker, backup)
        linked = [path for path in backup.rglob("*.log@2") if path.stat().st_nlink > 1]
        assert linked
        (backup / manifest.point_name(1)).write_bytes(b"damaged")
        assert (await take_point(broker, backup)).number == 2
        assert len(await published(broker, "t")) == 63
    assert verify_data(str(folder / "data")).findings == []
    restore(str(backup), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await published(broker, "t")) == 63


async def test_a_broker_that_is_killed_while_a_point_is_held_forgets_it(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 5)
        answer = await broker.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
        begun = messages.decode(messages.BackupBegun, answer)
        assert Path(begun.folder).is_dir()
        shutil.copytree(folder / "data", folder / "killed")
    async with fanlog.Broker(folder / "killed") as broker:
        assert not (folder / "killed" / ".pinned").exists()
        assert len(await published(broker, "t")) == 5
        with pytest.raises(BackupError, match="gone"):
            await broker.ask(
                FrameKind.BACKUP, messages.BackupRequest("read", begun.point, 0, 0, 10)
            )


async def test_a_full_disk_ends_the_backup_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", segment_bytes=64 * KIB)
        await fill(broker, "t", 30)
        await take_point(broker, folder / "backup")
        await fill(broker, "t", 30)
        with monkeypatch.context() as patch:
            # Where the broker is ...
            patch.setattr(pinning.os, "makedirs", full)
            with pytest.raises(DiskFullError):
                await take_point(broker, folder / "backup")
        with monkeypatch.context() as patch:
            # ... and where the backup is.
            patch.setattr(keeping, "write_all", full)
            with pytest.raises(OSError, match="No space"):
                await take_point(broker, folder / "backup")
        assert verify_backup(str(folder / "backup")).findings == []
        assert [number for number, _ in load_points(str(folder / "backup"))] == [1]
        await fill(broker, "t", 1)
        # Nothing is held back any more: deleted files go.
        await broker.delete_topic("t")
        await until(lambda: not list((folder / "data" / "topics").glob("*-t")))


async def test_a_point_is_let_go_when_the_disk_becomes_full(folder: Path) -> None:
    async with running(folder / "data") as broker, fanlog.connect(broker.url) as client:
        await client.publish("t", "x")
        answer = await client.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
        begun = messages.decode(messages.BackupBegun, answer)
        assert broker.node is not None
        broker.node.core.backups.give_up()
        with pytest.raises(BackupError, match="disk became full"):
            await client.ask(
                FrameKind.BACKUP, messages.BackupRequest("read", begun.point, 0, 0, 10)
            )
        await until(lambda: not (folder / "data" / ".pinned").exists())


async def test_a_point_goes_with_its_connection(folder: Path) -> None:
    async with running(folder / "data") as broker:
        async with fanlog.connect(broker.url) as client:
            await client.publish("t", "x")
            await client.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
            assert (folder / "data" / ".pinned").exists()
        await until(lambda: not (folder / "data" / ".pinned").exists())


async def test_who_asks_for_bytes_that_are_nowhere_gets_none(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 1)
        answer = await broker.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
        point = messages.decode(messages.BackupBegun, answer).point
        for at, size in ((2**63, 10), (2**64 - 1, 1), (0, -1), (0, 0), (0, -(2**63))):
            read = messages.BackupRequest("read", point, 0, at, size)
            answer = await broker.ask(FrameKind.BACKUP, read)
            assert messages.decode(messages.BackupData, answer).data == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_many_clients_hold_few_points(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.publish("t", "x")
        for _ in range(POINTS_MAX):
            await broker.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))
        with pytest.raises(LimitError, match="which is the limit"):
            await broker.ask(FrameKind.BACKUP, messages.BackupRequest("begin"))


async def test_a_thousand_topics_are_one_point(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        for i in range(1000):
            await broker.create_topic(f"t.{i}")
        await broker.publish("t.999", "last")
        kept = await take_point(broker, folder / "backup")
        assert kept.point.topic_count == 1000
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    async with fanlog.Broker(folder / "restored") as broker:
        assert len(await broker.topics("t.*")) == 1000
        assert await published(broker, "t.999") == ["last"]


async def test_a_folder_takes_one_backup_at_a_time_and_lies_outside_of_the_data(
    folder: Path,
) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 1)
        with BackupFolder(str(folder / "backup")), pytest.raises(FolderInUseError):
            await take_point(broker, folder / "backup")
        with pytest.raises(BackupError, match="is a data folder"):
            await take_point(broker, folder / "data" / "backup")


async def test_a_manifest_never_leads_out_of_the_folder(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 1)
        await take_point(broker, folder / "backup")
    path = folder / "backup" / manifest.point_name(1)
    ((_, point),) = load_points(str(folder / "backup"))
    for wrong in ("../outside", "/etc/passwd", "topics/../../outside", "", "topics//x"):
        point.topics[0].logs[0].files[0].path = wrong
        path.write_bytes(manifest.encode_point(point))
        with pytest.raises(BackupError):
            restore(str(folder / "backup"), str(folder / "restored"), NOW)
    point.topics[0].folder = "../outside"
    path.write_bytes(manifest.encode_point(point))
    with pytest.raises(BackupError):
        restore(str(folder / "backup"), str(folder / "restored"), NOW)
    assert not (folder / "outside").exists()


async def test_a_broker_that_lies_does_not_lead_out_of_the_backup(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backup_command.decode_listing

    def lie(data: bytes) -> BackupPoint:
        point = real(data)
        point.topics[0].logs[0].files[0].path = "../../outside"
        return point

    monkeypatch.setattr(backup_command, "decode_listing", lie)
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 1)
        with pytest.raises(BackupError, match="outside"):
            await take_point(broker, folder / "backup")
    assert not list(folder.glob("outside*"))


def test_a_tar_file_of_somebody_else_is_refused(folder: Path) -> None:
    with tarfile.open(folder / "x.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(BackupError, match="not a Fanlog backup"):
        restore(str(folder / "x.tar"), str(folder / "restored"), NOW)
    assert not (folder / "outside").exists()


# Checksums


@pytest.fixture(scope="module")
def backed_up() -> Iterator[Path]:
    async def run(folder: Path) -> None:
        async with fanlog.Broker(folder / "data") as broker:
            await broker.create_topic("t", segment_bytes=64 * KIB)
            for _ in range(2):
                await fill(broker, "t", 20)
                await broker.subscribe("t", durable="d").close()
                await take_point(broker, folder / "backup")

    with quick_folder() as folder:
        asyncio.run(run(folder))
        yield folder / "backup"


@given(data=st.data())
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_flipped_bit_of_a_backup_is_found(backed_up: Path, data: st.DataObject) -> None:
    files = sorted(p for p in backed_up.rglob("*") if p.is_file() and p.stat().st_size)
    path = data.draw(st.sampled_from(files))
    before = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
    path.write_bytes(before[:at] + bytes([before[at] ^ 1 << bit]) + before[at + 1 :])
    try:
        found = {finding.file for finding in verify_backup(str(backed_up)).findings}
    finally:
        path.write_bytes(before)
    assert str(path.relative_to(backed_up)) in found


async def test_a_damaged_backup_is_not_restored(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 3)
        with open(folder / "out.tar", "wb") as file:
            await pull(broker, lambda source, _: write_archive(source, file))
    data = bytearray((folder / "out.tar").read_bytes())
    data[data.index(b"t-1 ")] ^= 1
    (folder / "out.tar").write_bytes(data)
    assert [f.meaning for f in verify_backup(str(folder / "out.tar")).findings] == ["lost"]
    with pytest.raises(BackupError, match="damaged in the backup"):
        restore(str(folder / "out.tar"), str(folder / "restored"), NOW)
    # Half a folder is no data folder, for nobody.
    with pytest.raises(FanlogError, match="interrupted"):
        async with fanlog.Broker(folder / "restored"):
            pass
    with pytest.raises(FolderUnusableError, match="not empty"):
        restore(str(folder / "out.tar"), str(folder / "restored"), NOW)


# A history that went back


def test_the_epoch_of_a_restored_folder_is_past_all_that_were_used() -> None:
    # As a rule it is the time, which rises.
    assert next_epoch(7, 0, NOW) == NOW
    assert next_epoch(NOW, 0, NOW + 5000) == NOW + 5000
    # Soon after another restore, and with a clock that was set back.
    assert next_epoch(NOW, 0, NOW + 10) > NOW + 10_000
    assert next_epoch(7, 0, 100) > 10_000
    assert next_epoch(7, 900_000, 100) > 900_000
    assert next_epoch((1 << 32) - 5, 0, NOW) < 1 << 32


async def test_two_restores_of_one_point_never_share_an_epoch(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await fill(broker, "t", 1)
        await take_point(broker, folder / "backup")
    epochs = [
        restore(str(folder / "backup"), str(folder / f"r{i}"), now).epoch
        for i, now in enumerate((NOW, 50, 50, NOW))
    ]
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("new", [5, 200])
async def test_a_reader_past_the_point_gets_one_reset_and_then_what_is_new(
    folder: Path, new: int
) -> None:
    gaps: list[Gap] = []
    async with (
        running(folder / "data") as broker,
        fanlog.connect(broker.url, **EAGER) as client,
    ):
        await client.publish_many("t", [b"old-%d" % i for i in range(40)])
        await take_point(client, folder / "backup")
        await client.publish_many("t", [b"lost-%d" % i for i in range(60)])
        async with (
            client.subscribe("t", start="earliest", on_gap=gaps.append) as reader,
            client.consume("t", group="g", reset="earliest", on_gap=gaps.append) as member,
        ):
            assert len(await take(reader, 100)) == 100
            assert len(await take(member, 100)) == 100
            await member.commit()
            await go_back(broker, folder, new)
            await until(lambda: client.connected and client.reconnects > 0)
            assert [m.text for m in await take(reader, new)] == [f"new-{i}" for i in range(new)]
            assert [m.text for m in await take(member, new)] == [f"new-{i}" for i in range(new)]
            await member.commit()
        assert [(gap.first, gap.next, gap.reason) for gap in gaps] == [(100, 40, "reset")] * 2
        (place,) = (await client.groups.describe("g")).partitions
        assert place.committed == 40 + new


async def go_back(broker: Restartable, folder: Path, new: int) -> None:
    """The broker is restored, and gets other messages before anybody comes back."""
    await broker.stop()
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    broker.folder = folder / "restored"
    port, broker.port = broker.port, 0
    await broker.start()
    async with fanlog.connect(broker.url) as other:
        await other.publish_many("t", [b"new-%d" % i for i in range(new)])
    await broker.stop()
    broker.port = port
    await broker.start()


async def test_a_publisher_that_was_past_the_point_goes_on(folder: Path) -> None:
    async with (
        running(folder / "data") as broker,
        fanlog.connect(broker.url, producer="p", **EAGER) as client,
    ):
        await client.publish_many("t", [b"old-%d" % i for i in range(40)])
        await take_point(client, folder / "backup")
        await client.publish_many("t", [b"lost-%d" % i for i in range(60)])
        await go_back(broker, folder, 0)
        await client.publish_many("t", [b"new-%d" % i for i in range(10)])
        async with client.subscribe("t", start="earliest") as reader:
            got = [m.text for m in await take(reader, 50)]
        assert got == [*(f"old-{i}" for i in range(40)), *(f"new-{i}" for i in range(10))]


async def test_a_restored_folder_is_whole_and_starts_clean(folder: Path) -> None:
    async with fanlog.Broker(folder / "data") as broker:
        await broker.create_topic("t", durability="fsync", segment_bytes=64 * KIB)
        await broker.create_topic("empty", partitions=2)
        await fill(broker, "t", 40)
        await broker.delete_records("t", {0: 5})
        await take_point(broker, folder / "backup")
    restore(str(folder / "backup"), str(folder / "restored"), NOW)
    assert verify_data(str(folder / "restored")).findings == []
    async with fanlog.Broker(folder / "restored") as broker:
        assert (await broker.status()).problems == ()
        info = await broker.describe_topic("t")
        assert (info.partitions[0].start_offset, info.partitions[0].visible_end) == (5, 40)
        assert len((await broker.describe_topic("empty")).partitions) == 2
        await broker.publish("t", "more")
    report = verify_data(str(folder / "restored"))
    assert msgspec.to_builtins(report.findings) == []
