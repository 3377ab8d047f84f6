"""What tasks do, without Spark: reading and staging over connections and brokers that are lost."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import fanlog
from fanlog.client.request_connection import RequestConnection
from fanlog.errors import MessagesLostError, TransactionNotFoundError
from fanlog.spark import sink
from fanlog.spark.filters import FilterBounds
from fanlog.spark.offsets import Range
from fanlog.spark.options import read_options, write_options
from fanlog.spark.planning import Planner
from fanlog.spark.pull import read_range
from fanlog.spark.rows import SOURCE_SCHEMA, arrow_schema
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.test_kill import published

RECORDS = 20_000
SCHEMA = arrow_schema(SOURCE_SCHEMA)


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data) as broker:
        yield broker


def fill(broker: BrokerProcess, topic: str = "t") -> None:
    with fanlog.sync.connect(broker.url) as client:
        client.create_topic(topic, retention_seconds=0)
        for i in range(RECORDS):
            client.send(topic, f"{i:0100d}".encode())
        client.flush()


def plan(broker: BrokerProcess, **options: str) -> tuple[Range, Callable[[Range], Iterator[int]]]:
    """The range of the topic's one partition, and a way to read the offsets of a range."""
    given = read_options({"url": broker.url, "topics": "t", "fetchBytes": "100000", **options})
    planner = Planner(given)
    (wanted,) = planner.batch_ranges(FilterBounds())
    planner.close()

    def read(some: Range) -> Iterator[int]:
        for rows in read_range(given, some, SCHEMA):
            yield from rows.column("offset").to_pylist()

    return wanted, read


def test_a_task_goes_on_where_it_was_when_its_broker_comes_back(broker: BrokerProcess) -> None:
    fill(broker)
    wanted, read = plan(broker)
    offsets = read(wanted)
    found = [next(offsets)]
    broker.kill()
    broker.start()
    assert found + list(offsets) == list(range(RECORDS))


class Cutting(threading.Thread):
    """A way to a broker that resets the first connection as soon as it has carried so many frames
    of the broker's, as load balancers do; later ones last."""

    def __init__(self, port: int, frames: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._broker_port = port
        self._frames = frames
        self.url = f"fanlog://127.0.0.1:{self._listener.getsockname()[1]}"
        self.was_cut = threading.Event()

    def run(self) -> None:
        with self._listener:
            for frames in (self._frames, sys.maxsize):
                client, _ = self._listener.accept()
                with client, socket.create_connection(("127.0.0.1", self._broker_port)) as broker:
                    self._carry(client, broker, frames)
                    reset = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                self.was_cut.set()

    @staticmethod
    def _carry(client: socket.socket, broker: socket.socket, frames: int) -> None:
        while frames:
            if client in select.select([client, broker], [], [])[0]:
                data = client.recv(1 << 16)
                if not data:
                    return
                broker.sendall(data)
                continue
            size = broker.recv(4, socket.MSG_WAITALL)
            if not size:
                return
            length = struct.unpack("<I", size)[0]
            client.sendall(size + broker.recv(length - 4, socket.MSG_WAITALL))
            frames -= 1


def test_what_has_come_is_given_though_the_connection_is_lost_behind_it(
    broker: BrokerProcess,
) -> None:
    with fanlog.sync.connect(broker.url) as client:
        for i in range(200):
            client.send("t", f"{i:01000d}".encode())
            if i % 10 == 9:
                client.flush()
    wanted, _ = plan(broker)
    # A greeting, the topic, and two answers, the second of which waits while the first is read.
    way = Cutting(broker.port, frames=4)
    way.start()
    given = read_options({"url": way.url, "topics": "t", "fetchBytes": "4096"})
    given = replace(given, limits=msgspec.structs.replace(given.limits, rows_max=1))
    rows = read_range(given, wanted, SCHEMA)
    found = next(rows).column("offset").to_pylist()
    assert way.was_cut.wait(60)
    for some in rows:
        found += some.column("offset").to_pylist()
    way.join(60)
    assert found == list(range(200))


def test_files_of_another_broker_are_not_taken_for_the_topics(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async def write(number: int) -> int:
        async with fanlog.Broker(tmp_path / "other") as other:
            # The broker has topics of its own, which have numbers, too.
            for before in range(1, number):
                await other.create_topic(f"before-{before}")
            await other.publish("salaries", b"not for everybody")
            return (await other.describe_topic("salaries")).number

    with fanlog.sync.connect(broker.url) as client:
        client.publish("t", b"for everybody")
        number = client.describe_topic("t").number
        assert asyncio.run(write(number)) == number
    given = read_options({"url": broker.url, "topics": "t", "data": str(tmp_path / "other")})
    wanted, _ = plan(broker)
    (rows,) = read_range(given, wanted, SCHEMA)
    assert rows.column("value").to_pylist() == [b"for everybody"]


def test_records_that_go_while_a_task_reads_are_told_of(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker)
    wanted, read = plan(broker)
    _, read_on = plan(broker, failOnDataLoss="false")
    with fanlog.sync.connect(broker.url) as client:
        client.delete_records("t", {0: 5000})
    with pytest.raises(MessagesLostError, match=r"Offsets 0 to 4999 .* are not kept any more"):
        list(read(wanted))
    with caplog.at_level(logging.WARNING, "fanlog.spark"):
        assert list(read_on(wanted)) == list(range(5000, RECORDS))
    assert "Offsets 0 to 4999" in caplog.text


def test_a_topic_that_is_made_anew_while_a_task_reads_is_told_of(broker: BrokerProcess) -> None:
    fill(broker)
    wanted, read = plan(broker)
    with fanlog.sync.connect(broker.url) as client:
        client.delete_topic("t")
    fill(broker)
    with pytest.raises(MessagesLostError, match="is not the one that the query knows"):
        list(read(wanted))


def some_rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([str(first + i) for i in range(count)])})


def test_rows_are_staged_once_over_a_connection_that_is_lost(broker: BrokerProcess) -> None:
    options = write_options({"url": broker.url, "topic": "t"}, streaming=False)
    with RequestConnection(broker.url) as connection:
        stager = sink.SinkStager(connection, options, "once")
        for turn in range(20):
            stager.add(some_rows(turn * 100, 100))
            if turn % 5 == 2:
                connection.close()
        stager.flush()
    staged = sink.StagedAttempt(stager.ticket, stager.rows)
    writer = sink.BatchSink(options, overwrite=False)
    writer.commit([staged, None])
    with fanlog.sync.connect(broker.url) as client:
        found = published(client, "t")
    assert len(found) == 2000
    assert set(found.values()) == {1}


def test_what_is_staged_when_a_broker_goes_has_to_be_staged_again(broker: BrokerProcess) -> None:
    options = write_options({"url": broker.url, "topic": "t"}, streaming=False)
    writer = sink.BatchSink(options, overwrite=False)
    staged = writer.write(iter([some_rows(0, 100)]))
    broker.kill()
    broker.start()
    with pytest.raises(TransactionNotFoundError, match="Begin and stage again"):
        writer.commit([staged])
    writer.commit([writer.write(iter([some_rows(0, 100)]))])
    with fanlog.sync.connect(broker.url) as client:
        assert client.describe_topic("t").records == 100


def test_an_id_is_committed_once_whoever_stages_for_it(broker: BrokerProcess) -> None:
    given = {"url": broker.url, "topic": "t", "transactionId": "a job"}
    writer = sink.BatchSink(write_options(given, streaming=False), overwrite=False)
    first = [writer.write(iter([some_rows(i * 10, 10)])) for i in range(3)]
    late = writer.write(iter([some_rows(0, 10)]))
    writer.commit([*first, None])
    writer.commit([late])
    writer.abort([late])
    again = writer.write(iter([some_rows(0, 10)]))
    assert again.ticket == ""
    writer.commit([again])
    with fanlog.sync.connect(broker.url) as client:
        assert sorted(published(client, "t").values()) == [1] * 30
