"""A disk that is full to the last byte: reading, deleting and starting work, and when there is room
again, publishing goes on by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import fanlog
from fanlog.errors import DiskFullError
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.small_disk import MIB, SmallDisk, small_disk

PATIENCE_SECONDS = 60
SMALL = {
    "FANLOG_TOPIC_SEGMENT_BYTES": "65536",
    "FANLOG_LOG_JOURNAL_BYTES": "1048576",
    "FANLOG_LOG_RETENTION_CHECK_SECONDS": "1",
}


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, tmp_path, 24 * MIB) as disk:
        yield disk


@pytest.fixture
def broker(disk: SmallDisk, tmp_path: Path) -> Iterator[BrokerProcess]:
    env = os.environ | SMALL
    with BrokerProcess(disk.folder / "data", env=env, log=tmp_path / "log") as broker:
        yield broker


def said_of_the_disk(tmp_path: Path) -> list[str]:
    """What the broker has logged about its disk."""
    return [line for line in (tmp_path / "log").read_text().splitlines() if "The disk of" in line]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def command(broker: BrokerProcess, *words: str) -> str:
    """What a command says; it must work."""
    ended = subprocess.run(
        [sys.executable, "-m", "fanlog", *words, "--url", broker.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def filled(broker: BrokerProcess, disk: SmallDisk, durability: str) -> int:
    """Topics `a`, `b` and `c` with messages, on a disk that takes no more; how many `a` has."""
    with fanlog.sync.connect(broker.url) as client:
        for name in "abc":
            client.create_topic(name, durability=durability)
            for _ in range(60):
                client.publish(name, bytes(20_000))
        # A position is in the ledger before there is no room for it.
        with client.subscribe("a", start="earliest", durable="me") as reader:
            reader.next(PATIENCE_SECONDS)
            reader.commit()
        disk.fill()
        publish_until_refused(client)
        return client.describe_topic("a").records


def publish_until_refused(client: fanlog.sync.Client) -> None:
    with pytest.raises(DiskFullError, match="fanlog topic alter"):  # noqa: PT012 - one of them
        for _ in range(1000):
            client.publish("a", bytes(20_000))


def check_reading(client: fanlog.sync.Client, topic: str, records: int) -> None:
    with client.subscribe(topic, start="earliest") as reader:
        for _ in range(records):
            assert reader.next(PATIENCE_SECONDS).value == bytes(20_000)


def check_continues(broker: BrokerProcess, tmp_path: Path) -> None:
    """Publishing works by itself, and health says so."""
    with fanlog.sync.connect(broker.url) as client:
        until(lambda: client.status().state == "ok")
        for _ in range(5):
            client.publish("a", bytes(20_000))
        assert client.status().problems == ()
    assert "has room again" in said_of_the_disk(tmp_path)[-1]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_is_reported_once_and_serves_reads_until_there_is_room(
    broker: BrokerProcess, disk: SmallDisk, tmp_path: Path, durability: str
) -> None:
    records = filled(broker, disk, durability)
    with fanlog.sync.connect(broker.url) as client:
        for _ in range(20):
            with pytest.raises(DiskFullError):
                client.publish("a", bytes(20_000))
        status = client.status()
        assert status.state == "degraded"
        assert "the disk is full" in status.problems[0]
        assert "fanlog topic truncate" in status.problems[0]
        check_reading(client, "a", records)
    (begin,) = said_of_the_disk(tmp_path)
    assert "is full: messages for topics on disk are refused" in begin
    disk.free()
    check_continues(broker, tmp_path)
    assert len(said_of_the_disk(tmp_path)) == 2
    with fanlog.sync.connect(broker.url) as client:
        check_reading(client, "a", records + 5)


def test_commits_and_acks_are_refused_in_words_on_a_full_disk_and_work_when_there_is_room(
    broker: BrokerProcess, disk: SmallDisk
) -> None:
    filled(broker, disk, "fsync")
    with fanlog.sync.connect(broker.url) as client:
        position = client.committed("me")[0]

        def commit_much() -> None:
            # There may be room for some, in files that the ledger has already.
            for i in range(5000):
                client.commit("me", (msgspec.structs.replace(position, offset=i % 50),))

        with pytest.raises(DiskFullError, match="fanlog topic alter"):
            commit_much()
        assert client.status().state == "degraded"
        known = client.committed("me")
        with pytest.raises(DiskFullError):
            client.create_topic("new")
        with pytest.raises(DiskFullError), client.transaction() as tx:  # noqa: PT012 - any of it
            tx.publish("a", bytes(3 * MIB // 4))
            tx.publish("a", bytes(3 * MIB // 4))
        assert client.committed("me") == known
        disk.free()
        until(lambda: client.status().state == "ok")
        client.commit("me", (msgspec.structs.replace(position, offset=55),))
        assert client.committed("me")[0].offset == 55
    broker.kill()
    broker.start()
    with fanlog.sync.connect(broker.url) as client:
        assert client.committed("me")[0].offset == 55


@pytest.mark.parametrize("remedy", ["truncate", "delete", "age", "size"])
def test_what_frees_space_works_on_a_full_disk_and_publishing_goes_on(
    broker: BrokerProcess, disk: SmallDisk, tmp_path: Path, remedy: str
) -> None:
    filled(broker, disk, "fsync")
    # Nothing that was freed is left for the remedy itself.
    disk.fill()
    match remedy:
        case "truncate":
            command(broker, "topic", "truncate", "b", "--before", "latest", "--yes")
        case "delete":
            command(broker, "topic", "delete", "b", "--yes")
        case "age":
            command(broker, "topic", "alter", "b", "--retention", "1s")
        case _:
            command(broker, "topic", "alter", "b", "--retention-bytes", "64KiB")
    check_continues(broker, tmp_path)
    with fanlog.sync.connect(broker.url) as client:
        assert {info.name for info in client.topics()} == (
            {"a", "c"} if remedy == "delete" else {"a", "b", "c"}
        )
        check_reading(client, "c", 60)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_starts_on_a_full_disk_serves_reads_and_can_be_freed(
    broker: BrokerProcess, disk: SmallDisk, tmp_path: Path, end: str
) -> None:
    records = filled(broker, disk, "fsync")
    for _ in range(2):
        disk.fill()
        broker.kill() if end == "kill" else broker.stop()
        disk.fill()
        broker.start()
        with fanlog.sync.connect(broker.url) as client:
            check_reading(client, "a", records)
            assert client.committed("me")[0].offset == 1
            publish_until_refused(client)
            records = client.describe_topic("a").records
            assert client.status().state == "degraded"
    disk.fill()
    command(broker, "topic", "truncate", "b", "--before", "latest", "--yes")
    command(broker, "topic", "delete", "c", "--yes")
    check_continues(broker, tmp_path)
    broker.kill()
    broker.start()
    with fanlog.sync.connect(broker.url) as client:
        check_reading(client, "a", records + 5)
        assert {info.name: info.records for info in client.topics()} == {"a": records + 5, "b": 0}
