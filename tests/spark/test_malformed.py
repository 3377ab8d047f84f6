"""Batches that a task can't read: the query says where, or leaves them out, as it was told to."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fanlog
from fanlog.client.core.events import Acked, BrokerEventReader
from fanlog.client.core.handshake import hello
from fanlog.config import SparkOptions
from fanlog.errors import MessagesLostError, UnreadableError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.codecs import Codec
from fanlog.format.columns import HEADERS, KEYS, SIZES
from fanlog.model import KIB
from fanlog.spark.arrow import RowsBuilder
from fanlog.spark.filters import FilterBounds
from fanlog.spark.options import read_options
from fanlog.spark.planning import Planner
from fanlog.spark.pull import read_range
from fanlog.spark.rows import SOURCE_SCHEMA, arrow_schema
from tests.format.crafted import bomb, column, crafted, flipped
from tests.scenarios.broker_process import BrokerProcess

SCHEMA = arrow_schema(SOURCE_SCHEMA)
GOOD = column([0, 1, 2], b"ab")
MALFORMED = [
    crafted(column([0, 9, 2], b"xy"), count=2),
    crafted(GOOD + column([0, 9, 2], b"ab"), count=2, flags=KEYS),
    crafted(GOOD + column([0, 9, 2]) + GOOD + GOOD, count=2, flags=HEADERS),
    crafted(SIZES.pack(64, 64) + b"\xee" * 64, count=2, codec=Codec.ZSTD),
]


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data) as broker:
        yield broker


def publish(broker: BrokerProcess, make: Callable[[int], list[bytes]]) -> None:
    """Publishes batches as they are; they are made for the topic's number."""
    with fanlog.sync.connect(broker.url) as client:
        number = client.create_topic("t").number
    batches = make(number)
    core = BrokerEventReader()
    with socket.create_connection(("127.0.0.1", broker.port), timeout=40) as sock:
        sock.sendall(hello("test") + b"".join(batches))
        acked = 0
        while acked < len(batches):
            for event in core.feed(sock.recv(65536)):
                acked += len(event.acks) if isinstance(event, Acked) else 0


def read(
    broker: BrokerProcess,
    data: str = "",
    *,
    limits: SparkOptions | None = None,
    **options: str,
) -> Iterator[bytes]:
    """The values of the topic; from the files in `data`, if that is given."""
    if data:
        options["data"] = data
    given = read_options({"url": broker.url, "topics": "t", **options})
    given = replace(given, limits=limits or given.limits)
    planner = Planner(given)
    (wanted,) = planner.batch_ranges(FilterBounds())
    planner.close()
    for rows in read_range(given, wanted, SCHEMA):
        yield from rows.column("value").to_pylist()


def with_number(data: bytes, number: int) -> bytes:
    return data[:8] + number.to_bytes(4, "little") + data[12:]


@pytest.mark.parametrize("beside", [False, True])
def test_a_batch_that_does_not_decode_fails_the_query_or_is_left_out(
    broker: BrokerProcess, data: Path, *, beside: bool
) -> None:
    def batches(number: int) -> list[bytes]:
        bad = [with_number(one, number) for one in MALFORMED]
        good = [encode_batch([b"%d" % i], topic=number) for i in range(len(bad) + 1)]
        return [good[0], *(one for pair in zip(bad, good[1:], strict=True) for one in pair)]

    publish(broker, batches)
    options = [str(data)] if beside else []
    with pytest.raises(MessagesLostError, match="Offsets 1 to 2 of partition 0 of 't'"):
        list(read(broker, *options))
    found = list(read(broker, *options, failOnDataLoss="false"))
    assert found == [b"%d" % i for i in range(len(MALFORMED) + 1)]


def test_a_bomb_is_not_unpacked(broker: BrokerProcess) -> None:
    publish(broker, lambda n: [bomb(900 * KIB, topic=n), encode_batch([b"behind"], topic=n)])
    limits = SparkOptions(batch_unpacked_bytes_max=100_000)
    assert list(read(broker, limits=limits, failOnDataLoss="false")) == [b"behind"]


def test_whatever_is_flipped_rows_are_made_or_an_error_is_raised() -> None:
    """As many as fit into a few seconds; Arrow would crash the task where it trusts an offset."""
    chance = random.Random(11)
    until = time.monotonic() + 4
    outcomes = {True: 0, False: 0}
    while time.monotonic() < until:
        codec = chance.choice(list(Codec))
        data = encode_batch(
            [chance.randbytes(chance.randrange(30)) for _ in range(9)],
            keys=[None if i % 3 else b"key" for i in range(9)],
            headers=[{"name": b"1", "other": b"2"} if i % 2 else None for i in range(9)],
            event_times_us=list(range(9)),
            codec=codec,
        )
        flips = [(chance.randrange(len(data)), 1 << chance.randrange(8)) for _ in range(3)]
        made = stamp(flipped(data, flips), base_offset=5, append_time_us=1, leader_epoch=1, topic=1)
        builder = RowsBuilder(SCHEMA, "t", 0, bytes_max=200)
        try:
            full = builder.add(Batch(made), 7, 12)
        except UnreadableError:
            outcomes[False] += 1
            assert not builder.rows
            continue
        outcomes[True] += 1
        if builder.rows:
            full.append(builder.take())
        for rows in full:
            rows.validate(full=True)
        offsets = [offset for rows in full for offset in rows.column("offset").to_pylist()]
        assert offsets == [7, 8, 9, 10, 11]
    assert all(outcomes.values())
