"""Every file of a data folder, damaged in every way that disks and people know: the broker starts,
gives out nothing wrong, and says in `health` what is missing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fanlog
from fanlog.config import Config, LogOptions
from fanlog.format.frames import FrameKind
from fanlog.format.messages import ProducerRegistered, RegisterProducer, decode
from fanlog.model import KIB, MIB
from tests.power.steps import PATIENCE_SECONDS
from tests.quick_folders import quick_folder

CONFIG = Config(log=LogOptions(segment_first_bytes=4 * KIB, journal_bytes=1 * MIB))
TOPICS = ("orders", "logs", "prices", "trimmed", "left", "right")


@dataclass
class Seen:
    """What a broker gives out: values by topic, partition and offset, and its own state."""

    values: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    producer: tuple[int, int] = (0, 0)
    state: str = ""
    problems: tuple[str, ...] = ()


async def fill(folder: Path, copy: Path) -> None:
    """A folder with some of everything, stopped cleanly; and a copy as `kill -9` leaves one."""
    async with fanlog.Broker(folder, CONFIG, producer="billing") as broker:
        for topic in ("orders", "left", "right", "trimmed"):
            await broker.create_topic(topic, durability="fsync", segment_bytes=64 * KIB)
        await broker.create_topic("logs", durability="os", segment_bytes=64 * KIB)
        await broker.create_topic(
            "prices", durability="fsync", cleanup="compact", segment_bytes=64 * KIB
        )
        for i in range(30):
            for topic in ("orders", "logs", "trimmed"):
                await broker.publish(topic, b"%d " % i * 2000)
            await broker.publish("prices", b"%d " % i * 2000, key=str(i % 3))
        await broker.compact_topic("prices")
        await broker.delete_records("trimmed", {0: 20})
        for i in range(5):
            async with broker.transaction(f"tx-{i}") as tx:
                await tx.publish("left", b"%d" % i)
                await tx.publish("right", b"%d" % i)
        async with broker.consume("orders", group="g", reset="earliest", commit="manual") as member:
            for _ in range(10):
                await member.next(60)
            await member.commit()
        async with broker.work("orders", queue="q", prefetch=1, reset="earliest") as worker:
            for _ in range(10):
                await (await worker.next(60)).ack()
        shutil.copytree(folder, copy)


async def look(folder: Path) -> Seen:
    seen = Seen()
    async with fanlog.Broker(folder, CONFIG) as broker:
        there = {info.name for info in await broker.topics()}
        for group in ("g", "q"):
            with suppress(fanlog.errors.FanlogError):
                info = await broker.groups.describe(group)
                seen.positions[group] = info.lag
        registered = await broker.ask(FrameKind.REGISTER_PRODUCER, RegisterProducer("billing"))
        found = decode(ProducerRegistered, registered)
        seen.producer = (found.id, found.epoch)
        for topic in sorted(there & set(TOPICS)):
            await _read(broker, topic, seen)
        status = await broker.status()
        seen.state, seen.problems = status.state, status.problems
    return seen


async def _read(broker: fanlog.Broker, topic: str, seen: Seen) -> None:
    """All that there is, over all that is missing. Of damage at the very end a reader hears when
    something comes behind it."""
    reached = 0

    def skip(gap: fanlog.Gap) -> None:
        nonlocal reached
        reached = max(reached, gap.next)

    async with broker.subscribe(topic, start="earliest", on_gap=skip) as reader:
        # It serves: also what is damaged takes new messages.
        end = (await broker.publish(topic, b"new", key="new")).offset
        while reached <= end:
            batch = await reader.next_batch(PATIENCE_SECONDS)
            for message in batch.messages:
                if message.offset < end:
                    seen.values[topic, message.partition, message.offset] = message.value
            reached = max(reached, batch.next_offset)


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, Path]]:
    with quick_folder() as root:
        found = {"stopped": root / "stopped", "killed": root / "killed"}
        asyncio.run(fill(found["stopped"], found["killed"]))
        yield found


def flip(at: float) -> Callable[[Path], None]:
    """One bit, at a share of what is not zeros."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        used = len(content.rstrip(b"\0"))
        if used:
            content[min(used - 1, int(used * at))] ^= 0x10
            path.write_bytes(content)

    return damage


def cut(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content.rstrip(b"\0")) * share)])

    return damage


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flip the first byte": flip(0.0),
    "flip in the middle": flip(0.5),
    "flip the last byte": flip(1.0),
    "cut to nothing": cut(0.0),
    "cut in half": cut(0.5),
    "zeros": zero,
    "delete": Path.unlink,
}
# After a clean stop there is no journal to help, whatever the damage is like.
CLEAN = ("flip in the middle", "cut to nothing")


@pytest.mark.parametrize(
    ("damage", "end"),
    [*((damage, "killed") for damage in DAMAGES), *((damage, "stopped") for damage in CLEAN)],
)
def test_one_damaged_file_keeps_no_broker_from_serving_and_is_reported(
    folders: dict[str, Path], damage: str, end: str
) -> None:
    source = folders[end]
    wrong: list[str] = []
    with quick_folder() as root:
        shutil.copytree(source, root / "whole")
        whole = asyncio.run(look(root / "whole"))
        assert whole.state == "ok"
        for path in sorted(p for p in source.rglob("*") if p.is_file() and p.name != "lock"):
            name = str(path.relative_to(source))
            shutil.rmtree(root / "copy", ignore_errors=True)
            shutil.copytree(source, root / "copy")
            DAMAGES[damage](root / "copy" / name)
            try:
                seen = asyncio.run(look(root / "copy"))
            except Exception as fault:  # noqa: BLE001 - all are told at the end
                wrong.append(f"{name}: {fault!r}")
                continue
            if not (damage == "delete" and looks_like_a_deletion(name)):
                wrong += [f"{name}: {fault}" for fault in faults_of(whole, seen)]
    assert not wrong, "\n".join(["", *wrong])


def looks_like_a_deletion(name: str) -> bool:
    """Retention takes the oldest segment of a log, and a log from which nobody has deleted has no
    start.json: where one of these is missing, nothing shows it."""
    oldest = ("orders/0/00000000000000000000.log", "logs/0/00000000000000000000.log")
    oldest += ("trimmed/0/00000000000000000014.log", "00000000000000000030.1.log", "start.json")
    return name.endswith(oldest)


def _unpromised(place: tuple[str, int, int]) -> bool:
    """Whether it is in the newest segment of a topic with durability os: whether a bad end was
    ever whole is not known there, and it is cut."""
    topic, _, offset = place
    return topic == "logs" and offset >= 24


def faults_of(whole: Seen, seen: Seen) -> Iterator[str]:
    """What is wrong in what a broker with a damaged file gives out."""
    lost = {place for place in whole.values.keys() - seen.values.keys() if not _unpromised(place)}
    more = seen.values.keys() - whole.values.keys()
    both = whole.values.keys() & seen.values.keys()
    changed = [place for place in both if whole.values[place] != seen.values[place]]
    if changed:
        yield f"other values at {changed[:3]}"
    state_lost = (whole.positions, whole.producer) != (seen.positions, seen.producer)
    if seen.state == "ok" and (lost or more or state_lost):
        yield (
            f"not reported: {len(lost)} lost, {len(more)} more than before, "
            f"{seen.positions}, {seen.producer} instead of {whole.positions}, {whole.producer}"
        )
