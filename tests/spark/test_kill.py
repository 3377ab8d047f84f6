"""Kills at random: a stream from topic to topic, whose driver and whose Python workers are killed
ten times while data flows, has every record in the end exactly once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.processes import Driver
from tests.spark.sessions import need_java

KILLS = 10
PATIENCE_SECONDS = 120.0
RECORDS_PER_SECOND = 300


class Publishing(threading.Thread):
    """Publishes numbers until it is told to stop."""

    def __init__(self, url: str, topic: str) -> None:
        super().__init__()
        self._url = url
        self._topic = topic
        self._over = threading.Event()
        self.count = 0

    def run(self) -> None:
        with fanlog.sync.connect(self._url) as client:
            while not self._over.wait(0.1):
                for _ in range(RECORDS_PER_SECOND // 10):
                    client.send(self._topic, str(self.count).encode(), key=str(self.count % 50))
                    self.count += 1
                client.flush()

    def stop(self) -> None:
        self._over.set()
        self.join()


def records_in(client: fanlog.sync.Client, topic: str) -> int:
    return client.describe_topic(topic).records


def wait_for_more(client: fanlog.sync.Client, topic: str, driver: Driver) -> None:
    """Until the stream has committed something; it is started again if it has died."""
    before = records_in(client, topic)
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while records_in(client, topic) == before:
        if not driver.alive:
            driver.start()
        assert time.monotonic() < give_up_at, driver.said()[-5000:]
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_a_stream_that_is_killed_ten_times_has_copied_every_record_once(
    broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    need_java()
    source, target = "killed.in", "killed.out"
    client.create_topic(source, partitions=2)
    client.create_topic(target, partitions=2)
    publishing = Publishing(broker.url, source)
    publishing.start()
    chance = random.Random(4)
    checkpoint = str(tmp_path / "checkpoint")
    try:
        with Driver(tmp_path, "copying", broker.url, source, target, checkpoint) as driver:
            for kill in range(KILLS):
                wait_for_more(client, target, driver)
                time.sleep(chance.uniform(0.0, 1.5))
                if kill % 2 == 0:
                    driver.kill_worker(chance)
                else:
                    driver.kill()
            publishing.stop()
            while records_in(client, target) < publishing.count:
                wait_for_more(client, target, driver)
    finally:
        publishing.stop()
    assert published(client, target) == Counter(str(i) for i in range(publishing.count))


def published(client: fanlog.sync.Client, topic: str) -> Counter[str]:
    """How often each value is in a topic."""
    found: Counter[str] = Counter()
    for partition in client.describe_topic(topic).partitions:
        offset = partition.start_offset
        while offset < partition.visible_end:
            fetched = client.fetch(topic, partition.partition, offset)
            for batch in fetched.batches:
                found.update(value.decode() for value in batch.values if value is not None)
                offset = batch.next_offset
    return found
