"""What is special about the blocking client: no event loop in sight, and several threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.errors import ClosedError, MessageTooLargeError
from fanlog.node import Node
from tests.client.ways import PATIENCE_SECONDS


@contextmanager
def broker_in_a_thread(folder: Path) -> Iterator[str]:
    """A broker with a loop of its own, so that the test may block."""
    port: list[int] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        node = Node(folder, Config(listener=ListenerOptions(port=0)))
        node.start()
        port.append(node.listen().port)
        # Its thread is there before the test begins, which may count threads.
        stopping = asyncio.get_running_loop().run_in_executor(None, stop.wait)
        started.set()
        await stopping
        await node.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait(PATIENCE_SECONDS)
    try:
        yield f"fanlog://127.0.0.1:{port[0]}"
    finally:
        stop.set()
        thread.join()


def test_messages_are_published_and_iterated_in_plain_code(data: Path) -> None:
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as client:
        for i in range(10):
            assert client.publish("t", str(i)).offset == i
        with client.subscribe("t", start="earliest") as history:
            seen = []
            for message in history:
                seen.append(message.text)
                if len(seen) == 10:
                    break
            assert seen == [str(i) for i in range(10)]
        with client.subscribe("t", start=4) as some:
            assert next(some.batches()).base_offset == 4


def test_a_flush_right_after_the_first_send_waits_for_it(data: Path) -> None:
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as client:
        for i in range(30):
            client.send(f"t{i}", b"first of its topic")
            client.flush()
            assert client.describe_topic(f"t{i}").records == 1


def test_a_close_right_after_the_first_send_stores_it(data: Path) -> None:
    with broker_in_a_thread(data) as url:
        for i in range(20):
            with fanlog.sync.connect(url) as client:
                client.send(f"t{i}", b"first of its topic")
        with fanlog.sync.connect(url) as client:
            assert [topic.records for topic in client.topics()] == [1] * 20


def test_one_bad_message_does_not_hold_back_those_behind_it(data: Path) -> None:
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as client:
        client.create_topic("t", message_bytes_max=100)
        for i in range(20):
            client.send("t", bytes(200) if i == 5 else b"%d" % i)
        with pytest.raises(MessageTooLargeError):
            client.flush()
        client.flush()
        assert client.describe_topic("t").records == 19


def test_a_bad_message_is_told_at_the_latest_by_close(data: Path) -> None:
    with broker_in_a_thread(data) as url:
        client = fanlog.sync.connect(url)
        client.create_topic("t", message_bytes_max=100)
        client.send("t", bytes(200))
        with pytest.raises(MessageTooLargeError):
            client.close()


def test_many_threads_share_one_client(data: Path) -> None:
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as client:

        def publish(name: int) -> None:
            for i in range(200):
                if i % 20:
                    client.send("t", b"%d" % i, key=b"%d" % name)
                else:
                    client.publish("t", b"%d" % i, key=b"%d" % name)

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.flush()
        per_key: dict[bytes | None, list[int]] = {}
        with client.subscribe("t", start="earliest") as history:
            for _ in range(800):
                message = history.next(PATIENCE_SECONDS)
                per_key.setdefault(message.key, []).append(int(message.value))
        assert per_key == {b"%d" % n: list(range(200)) for n in range(4)}


def test_a_waiting_reader_is_woken_by_a_close_from_another_thread(data: Path) -> None:
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as client:
        reader = client.subscribe("t")
        reader.start()
        seen: list[bytes] = []
        waiting = threading.Thread(target=lambda: seen.extend(m.value for m in reader))
        waiting.start()
        client.publish("t", b"x")
        reader.close()
        waiting.join(PATIENCE_SECONDS)
        assert not waiting.is_alive()


def test_closing_twice_is_fine_and_the_thread_is_gone(data: Path) -> None:
    with broker_in_a_thread(data) as url:
        before = threading.active_count()
        client = fanlog.sync.connect(url)
        client.close()
        client.close()
        assert threading.active_count() == before
        for call in (client.status, client.flush, lambda: client.send("t", b"x")):
            with pytest.raises(ClosedError):
                call()
