"""Kills at random: one driver that copies a topic to another and archives it as well, which is
killed, or whose Python workers are, while data flows.

Law: between two kills both streams have committed something, so that each kill hits both at work.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

import fanlog
from fanlog.spark.lake import LakeState
from tests.spark.processes import PATIENCE_SECONDS, Driver, Program

# Half of them kill the driver, half of them Python workers.
KILLS = 10
# Both streams use the same workers: two at once, so that neither is left alone.
WORKERS_AT_ONCE = 2
RECORDS_PER_SECOND = 100
# Past it nothing is published: on a slow machine it would never be done.
AHEAD_RECORDS_MAX = 3000
SOURCE, TARGET, GROUP = "killed.in", "killed.out", "killed.archive"


class Publishing(threading.Thread):
    """Publishes numbers until it is told to stop, no faster than they are copied."""

    def __init__(self, url: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._topic = topic
        self._over = threading.Event()
        self.count = 0

    def run(self) -> None:
        with fanlog.sync.connect(self._url) as client:
            while not self._over.wait(0.1):
                if self.count - client.describe_topic(TARGET).records > AHEAD_RECORDS_MAX:
                    continue
                for _ in range(RECORDS_PER_SECOND // 10):
                    client.send(self._topic, str(self.count).encode(), key=str(self.count % 50))
                    self.count += 1
                client.flush()

    def stop(self) -> None:
        self._over.set()
        self.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What is left of it: so many records, from 0 on, should be in the topic and in the lake."""

    records: int
    driver_kills: int
    worker_kills: int
    topic: str
    lake: Path


class Streams:
    """The driver with both streams, and how far these are."""

    def __init__(self, client: fanlog.sync.Client, driver: Program, lake: Path) -> None:
        self._client = client
        self._driver = driver
        self._lake = lake

    def copied(self) -> int:
        return self._client.describe_topic(TARGET).records

    def archived(self) -> int:
        """The last batch that is in the lake."""
        path = self._lake / "_archive/state.json"
        return msgspec.json.decode(path.read_bytes(), type=LakeState).done if path.exists() else -1

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        """Starts the driver again whenever it has died."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if not self._driver.alive:
                self._driver.start()
            seen = f"{self.copied()} copied, {self.archived()} batches archived"
            assert time.monotonic() < give_up_at, self._driver.told(f"{what}: not yet; {seen}")
            time.sleep(0.05)

    def wait_for_more(self) -> None:
        copied, archived = self.copied(), self.archived()
        self.wait_until("copies more", lambda: self.copied() > copied)
        self.wait_until("archives more", lambda: self.archived() > archived)

    def wait_for_all(self, records: int) -> None:
        self._wait_for_none("copies all", lambda: records - self.copied())
        # The group has what is in the lake: it is told after each batch.
        self._wait_for_none("archives all", lambda: self._client.groups.describe(GROUP).lag)

    def _wait_for_none(self, what: str, left: Callable[[], int]) -> None:
        """However long it takes, as long as there is less and less left."""
        before = left()
        while before > 0:
            self.wait_until(what, lambda most=before: left() < most)
            before = left()


def kill_while_data_flows(url: str, folder: Path) -> Killed:
    """Ten kills, and then all that was published has its time to arrive."""
    lake = folder / "lake"
    chance = random.Random(4)
    publishing = Publishing(url, SOURCE)
    names = (SOURCE, TARGET, str(folder / "checkpoint"))
    archive = {"lake": str(lake), "group": GROUP, "state": str(folder / "state")}
    given = [f"{name}={value}" for name, value in archive.items()]
    drivers = workers = 0
    with (
        fanlog.sync.connect(url) as client,
        Driver(folder, "flowing", url, *names, *given) as driver,
    ):
        client.create_topic(SOURCE, partitions=2)
        client.create_topic(TARGET, partitions=2)
        streams = Streams(client, driver, lake)
        publishing.start()
        try:
            for kill in range(KILLS):
                streams.wait_for_more()
                time.sleep(chance.uniform(0.0, 1.5))
                if kill % 2 == 1:
                    driver.kill()
                    drivers += 1
                    continue
                while not driver.kill_workers(chance, WORKERS_AT_ONCE):
                    # It had died by itself a moment ago.
                    streams.wait_for_more()
                workers += 1
        finally:
            publishing.stop()
        streams.wait_for_all(publishing.count)
    return Killed(
        records=publishing.count,
        driver_kills=drivers,
        worker_kills=workers,
        topic=TARGET,
        lake=lake,
    )
