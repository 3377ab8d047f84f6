"""`verify`: whatever bit is flipped in a file that matters, it is found; and a folder as a stop or
a crash leaves it has no faults."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fanlog
from fanlog.broker.transactions.execution import TransactionExecution
from fanlog.cli.verify import LEDGER, staged_of
from fanlog.config import Config
from fanlog.log.backup.check_files import check_small_file
from fanlog.log.backup.findings import CheckReport, Meaning
from fanlog.log.backup.verify import verify_data
from fanlog.log.journal_file import JournalGroup, groups
from fanlog.model import KIB
from tests.client.ways import PATIENCE_SECONDS
from tests.quick_folders import quick_folder

# What nobody reads, or whose being there is all that counts.
WITHOUT_CONTENT = {"lock", "reserve", "priorities"}


def check(folder: Path) -> CheckReport:
    return verify_data(str(folder), ledger=LEDGER, staged_of=staged_of)


def small_config() -> Config:
    config = Config()
    log = msgspec.structs.replace(
        config.log, segment_first_bytes=4 * KIB, journal_bytes=1024 * KIB, reserve_bytes=64 * KIB
    )
    broker = msgspec.structs.replace(config.broker, transaction_memory_bytes=64 * KIB)
    return msgspec.structs.replace(config, log=log, broker=broker)


async def fill(broker: fanlog.Broker) -> None:
    """Topics of every kind, with several segments each; a group, a queue and transactions."""
    await broker.create_topic("plain", partitions=2, segment_bytes=64 * KIB)
    await broker.create_topic("safe", durability="fsync", segment_bytes=64 * KIB)
    await broker.create_topic("prices", cleanup="compact", segment_bytes=64 * KIB)
    for i in range(40):
        await broker.publish("plain", bytes(range(256)) * 20, key=f"k{i}")
        await broker.publish("safe", f"é{i}" * 1000)
        await broker.publish("prices", "p" * 3000, key=f"k{i % 3}")
    await broker.compact_topic("prices")
    await broker.delete_records("plain", {0: 3})
    async with broker.consume("plain", group="readers", reset="earliest") as member:
        await member.commit(await anext(aiter(member)))
    async with broker.transaction("small") as transaction:
        await transaction.publish("safe", "in a transaction")
        await transaction.publish("plain", "in a transaction", partition=0)


async def leave_staged(broker: fanlog.Broker, patch: pytest.MonkeyPatch) -> None:
    """Commits a transaction that is too large for memory, and of which nothing is stored yet."""
    committed = asyncio.Event()
    # It is about to be stored, and is not.
    patch.setattr(TransactionExecution, "_read", lambda *_: committed.set())
    transaction = broker.transaction("large")
    await transaction.begin()
    for _ in range(20):
        await transaction.publish("safe", "x" * 8000)
    committing = asyncio.ensure_future(transaction.commit())
    await asyncio.wait_for(committed.wait(), PATIENCE_SECONDS)
    committing.cancel()


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, Path]]:
    """The same broker's folder as a stop leaves it, and as a crash would have."""

    async def run(folder: Path) -> None:
        async with fanlog.Broker(folder / "stopped", small_config()) as broker:
            await fill(broker)
            with pytest.MonkeyPatch.context() as patch:
                await leave_staged(broker, patch)
                shutil.copytree(folder / "stopped", folder / "crashed")

    with quick_folder() as folder:
        asyncio.run(run(folder))
        yield {name: folder / name for name in ("stopped", "crashed")}


@pytest.mark.parametrize("kind", ["stopped", "crashed"])
def test_a_folder_without_damage_has_no_faults(folders: dict[str, Path], kind: str) -> None:
    report = check(folders[kind])
    assert report.findings == []
    assert report.files > 20


@given(data=st.data())
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.parametrize("kind", ["stopped", "crashed"])
def test_every_flipped_bit_that_matters_is_found(
    folders: dict[str, Path], kind: str, data: st.DataObject
) -> None:
    folder = folders[kind]
    path = data.draw(st.sampled_from(files_that_matter(folder)))
    before = path.read_bytes()
    at = data.draw(st.integers(0, matters_until(path, before) - 1))
    bit = data.draw(st.integers(0, 7))
    path.write_bytes(before[:at] + bytes([before[at] ^ 1 << bit]) + before[at + 1 :])
    try:
        report = check(folder)
    finally:
        path.write_bytes(before)
    name = str(path.relative_to(folder))
    # The first messages of one log were deleted: damage to them is no fault.
    noted = any(note.startswith(name) for note in report.notes)
    assert noted or name in {finding.file for finding in report.findings}


def files_that_matter(folder: Path) -> list[Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in files if path.name not in WITHOUT_CONTENT and path.stat().st_size]


def matters_until(path: Path, content: bytes) -> int:
    """Behind the last group of the journal is room, or what an earlier use has left."""
    if path.suffix != ".journal":
        return len(content)
    end = 32
    for item in groups(content):
        assert isinstance(item, JournalGroup)
        if not item.body:
            return end
        end = item.at + 32 + len(item.body)
    return end


def test_every_bit_of_a_small_file_counts(folders: dict[str, Path]) -> None:
    path = next((folders["stopped"] / "topics").glob("*-plain/topic.json"))
    before = path.read_bytes()
    report = CheckReport(str(path.parent))
    for at in range(8 * len(before)):
        flipped = before[at // 8] ^ 1 << at % 8
        path.write_bytes(before[: at // 8] + bytes([flipped]) + before[at // 8 + 1 :])
        assert not check_small_file(str(path), report, Meaning.LOST), at
    path.write_bytes(before)
    assert check_small_file(str(path), report, Meaning.LOST)


async def test_what_somebody_else_has_put_into_the_folder_is_no_fault_of_ours() -> None:
    with quick_folder() as folder:
        data = folder / "data"
        async with fanlog.Broker(data) as broker:
            await broker.publish("t", "hello")
        (topic,) = (data / "topics").glob("*-t")
        (data / "topics" / "README").write_text("mine")
        (topic / "5").write_text("no partition")
        (data / "transactions").mkdir(exist_ok=True)
        (data / "transactions" / "gone").symlink_to("/nowhere")
        (data / "clean").unlink()
        (data / "clean").mkdir()
        report = check(data)
        assert report.findings == []
        assert [note.split()[0] for note in report.notes] == [
            "clean",
            "topics/README",
            "transactions/gone",
        ]
