"""Members, workers and the broker are killed at random, for two minutes, under load. Nothing that
was acknowledged is lost; what is transactional happens once; what is acked stays acked."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import fanlog
from tests.forking import Program, fork
from tests.power.machine import OUTAGES, Machine
from tests.scenarios.broker_process import BrokerProcess

# The two minutes of the promise; a developer in a hurry may ask for less.
SECONDS = float(os.environ.get("FANLOG_CHAOS_SECONDS", "120"))
POWER_CUTS_SECONDS = SECONDS / 6
PARTITIONS = 6
CREW = {"follow": 3, "transform": 2, "work": 3}
# What a job may be on its way to a worker while another's acknowledgement is answered.
ON_THE_WAY_NS = 500_000_000
# How long nothing at all may be done by the consumers before they have not caught up.
PATIENCE_SECONDS = 60.0
CATCH_UP_SECONDS_MAX = 600.0


class Consumer:
    """A consumer's process, and the notes of all its lives."""

    def __init__(self, kind: str, number: int, url: str, folder: Path) -> None:
        self.kind = kind
        self._command = [kind, url, str(folder / f"{kind}-{number}"), f"{kind}-{number}"]
        self._process: Program | None = None
        self._errors = folder / f"{kind}-{number}.err"

    def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = fork(
                "tests.scenarios.consumers", *self._command, stderr=errors.fileno()
            )

    def check(self) -> None:
        """That it lives: a consumer that dies by itself is a fault."""
        if self._process is not None and self._process.poll() is not None:
            errors = self._errors.read_text()[-3000:]
            raise AssertionError(f"{self.kind} ended by itself:\n{errors}")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


async def publish(client: fanlog.Client, topic: str, over: asyncio.Event) -> set[bytes]:
    """One message after the other; those that were acknowledged."""
    acknowledged: set[bytes] = set()
    number = 0
    while not over.is_set():
        values = [b"%s-%d" % (topic.encode(), number + i) for i in range(5)]
        number += len(values)
        receipts = await asyncio.gather(*(client.publish(topic, v, key=v) for v in values))
        assert all(receipt.durability == "fsync" for receipt in receipts)
        acknowledged.update(values)
        await asyncio.sleep(0.02)
    return acknowledged


async def kill_at_random(
    broker: BrokerProcess, crew: list[Consumer], dice: random.Random, seconds: float
) -> Counter[str]:
    loop = asyncio.get_running_loop()
    kills: Counter[str] = Counter()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(dice.uniform(0.3, 1.5))
        for consumer in crew:
            consumer.check()
        killed = dice.sample(crew, dice.choice([0, 1, 1, 2]))
        for consumer in killed:
            consumer.kill()
            kills[consumer.kind] += 1
        if not killed or dice.random() < 0.2:
            broker.kill()
            kills["broker"] += 1
            await asyncio.sleep(dice.uniform(0, 0.5))
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(dice.uniform(0, 0.5))
        for consumer in killed:
            consumer.start()
    return kills


Notes = list[tuple[int, str, bytes]]


def notes_of_each(folder: Path, kind: str) -> list[Notes]:
    """What each consumer has noted, in its order."""
    each: list[Notes] = []
    for path in folder.glob(f"{kind}-*"):
        if path.suffix == ".err":
            continue
        lines = [line.split(b" ", 2) for line in path.read_bytes().splitlines()]
        each.append([(int(moment), word.decode(), value) for moment, word, value in lines])
    return each


def notes_of(folder: Path, kind: str) -> Notes:
    return sorted(note for notes in notes_of_each(folder, kind) for note in notes)


async def caught_up(
    client: fanlog.Client, folder: Path, acknowledged: dict[str, set[bytes]]
) -> None:
    """Waits until all consumers have done everything, or none of them gets on any more."""
    loop = asyncio.get_running_loop()
    end, before = loop.time() + PATIENCE_SECONDS, None
    while loop.time() < end:
        done = {value for _, _, value in notes_of(folder, "follow")}
        out = (await client.describe_topic("out")).records
        groups = await client.groups.list()
        lag = sum(group.lag for group in groups if group.name != "followers")
        if acknowledged["in"] <= done and out >= len(acknowledged["in"]) and lag == 0:
            return
        if before != (now := (len(done), out, lag)):
            end, before = loop.time() + PATIENCE_SECONDS, now
        await asyncio.sleep(0.5)


async def read_values(client: fanlog.Client, topic: str) -> list[bytes]:
    records = (await client.describe_topic(topic)).records
    found: list[bytes] = []
    async with client.subscribe(topic, start="earliest") as everything:
        while len(found) < records:
            found += [value or b"" for value in (await everything.next_batch(20)).values]
    return found


@pytest.mark.timeout(SECONDS + CATCH_UP_SECONDS_MAX)
@pytest.mark.parametrize("machine", OUTAGES, indirect=True)
def test_killing_members_workers_and_broker_loses_nothing_and_doubles_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    dice = random.Random(3)
    broker = machine.broker()
    seconds = SECONDS if machine.backend == "kill" else POWER_CUTS_SECONDS
    folder = tmp_path / "notes"
    folder.mkdir()
    crew: list[Consumer] = []

    async def scenario() -> None:
        broker.start()
        async with fanlog.connect(broker.url, backoff_max_seconds=0.2) as client:
            for topic in ("in", "out", "jobs"):
                await client.create_topic(topic, partitions=PARTITIONS, durability="fsync")
            for kind, count in CREW.items():
                crew.extend(Consumer(kind, i, broker.url, folder) for i in range(count))
            for consumer in crew:
                consumer.start()
            over = asyncio.Event()
            publishing = {
                topic: asyncio.create_task(publish(client, topic, over)) for topic in ("in", "jobs")
            }
            kills = await kill_at_random(broker, crew, dice, seconds)
            over.set()
            acknowledged = {topic: await task for topic, task in publishing.items()}
            await caught_up(client, folder, acknowledged)
            for consumer in crew:
                consumer.check()
                consumer.kill()
            print(f"kills: {dict(kills)}; acknowledged: {len(acknowledged['in'])} messages")
            queue = await client.groups.describe("workers")
            assert queue.lag == queue.dead_lettered == 0
            check_followers(folder, acknowledged["in"])
            check_workers(folder, acknowledged["jobs"])
            out = Counter(await read_values(client, "out"))
            assert acknowledged["in"] - out.keys() == set(), "lost between in and out"
            assert {v: n for v, n in out.items() if n > 1} == {}, "doubled between in and out"

    try:
        asyncio.run(scenario())
    finally:
        for consumer in crew:
            consumer.kill()
        broker.kill()


def check_followers(folder: Path, acknowledged: set[bytes]) -> None:
    done = {value for _, _, value in notes_of(folder, "follow")}
    assert acknowledged - done == set(), "the group has lost these"


def check_workers(folder: Path, acknowledged: set[bytes]) -> None:
    got: dict[bytes, list[int]] = defaultdict(list)
    acked: dict[bytes, int] = {}
    for notes in notes_of_each(folder, "work"):
        what_follows = [(word, value) for _, word, value in notes[1:]] + [("", b"")]
        for (moment, word, value), follows in zip(notes, what_follows, strict=True):
            if word == "got":
                # A worker that stood still until its lease was over notes late what had come long
                # before, and is told that it is too late: that is no new delivery.
                got[value].append(0 if follows == ("late", value) else moment)
            elif word == "acked":
                acked[value] = min(moment, acked.get(value, moment))
    assert acknowledged - got.keys() == set(), "the queue has lost these"
    again = {
        value: moment for value, moment in acked.items() if max(got[value]) > moment + ON_THE_WAY_NS
    }
    assert again == {}, "delivered again after the ack"
