"""A flood of connections against a broker that may open few files: who is too many is told so, and
what is durable stays durable."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import fanlog
from fanlog.client.core.handshake import hello
from fanlog.errors import TooManyConnectionsError
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

FILES_MAX = 64
FLOOD = 300
PATIENCE_SECONDS = 60
# Small files, so that many are rolled, journaled and synced while the flood lasts.
SMALL = {
    "FANLOG_TOPIC_DURABILITY": "fsync",
    "FANLOG_TOPIC_SEGMENT_BYTES": "65536",
    "FANLOG_LOG_JOURNAL_BYTES": "1048576",
    "FANLOG_LISTENER_HELLO_TIMEOUT_SECONDS": "600",
}


@contextmanager
def publishing(url: str, acknowledged: list[int]) -> Iterator[threading.Event]:
    """One that publishes all the time, to many partitions; the event is set when it has done so
    for a while since it was last cleared."""
    ended = threading.Event()
    going = threading.Event()
    faults: list[BaseException] = []

    def publish() -> None:
        try:
            with fanlog.sync.connect(url, reconnect=False) as client:
                client.create_topic("t", partitions=20)
                while not ended.is_set():
                    for partition in range(20):
                        receipt = client.publish("t", bytes(3000), partition=partition)
                        acknowledged.append(receipt.offset)
                    going.set()
        except BaseException as fault:  # noqa: BLE001 - the test raises it
            faults.append(fault)
            going.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield going
    finally:
        ended.set()
        publisher.join(PATIENCE_SECONDS)
    assert not faults, faults


def flood(port: int, opened: ExitStack, says: bytes) -> list[socket.socket]:
    peers: list[socket.socket] = []
    for _ in range(FLOOD // 2):
        peer = opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
        peer.sendall(says)
        peers.append(peer)
    return peers


def first_words(peers: list[socket.socket]) -> list[bytes]:
    words: list[bytes] = []
    for peer in peers:
        try:
            words.append(peer.recv(4096))
        except ConnectionError:
            # It is told before it has said all it wanted, and then its bytes are not read.
            words.append(b"")
    return words


def test_a_flood_of_connections_is_turned_away_and_durable_topics_go_on(
    data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "broker.log"
    flags = ("--redis-port", str(free_port()))
    acknowledged: list[int] = []
    with BrokerProcess(
        data, *flags, env=os.environ | SMALL, files_max=FILES_MAX, log=log
    ) as broker:
        with publishing(broker.url, acknowledged) as going, ExitStack() as opened:
            assert going.wait(PATIENCE_SECONDS)
            native = first_words(flood(broker.port, opened, hello("flood")))
            redis = first_words(flood(broker.redis_port, opened, b"PING\r\n"))
            with pytest.raises(TooManyConnectionsError, match="open files"):
                fanlog.sync.connect(broker.url, reconnect=False).__enter__()
            # It goes on for many rolls, and for several journal files, while nobody leaves.
            for _ in range(40):
                going.clear()
                assert going.wait(PATIENCE_SECONDS)
        fits = re.search(r"(\d+) connections fit", log.read_text())
        assert fits is not None
        welcomed = sum(b"too_many" not in word and word != b"" for word in native)
        welcomed += sum(word == b"+PONG\r\n" for word in redis)
        assert 1 <= welcomed <= int(fits[1]) < FILES_MAX // 2 + 1
        assert any(word.startswith(b"-ERR max number of clients reached: ") for word in redis)
        with fanlog.sync.connect(broker.url) as client:
            status = client.status()
            assert (status.state, status.problems) == ("ok", ())
            info = client.describe_topic("t")
            assert info.records == len(acknowledged)
            assert sum(partition.segments for partition in info.partitions) > 20
            client.publish("t", b"still durable")
        assert "Too many open files" not in log.read_text()
        broker.kill()
        broker.start()
        with fanlog.sync.connect(broker.url) as client:
            assert client.describe_topic("t").records == len(acknowledged) + 1
