"""The embedded broker for plain code: threads, exits, and what a second one may do."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fanlog.sync
from fanlog.errors import ClosedError, FolderInUseError, InvalidArgumentError
from tests.client.ways import PATIENCE_SECONDS


def test_plain_code_has_a_broker_of_its_own(data: Path) -> None:
    with fanlog.sync.Broker(data) as broker:
        broker.create_topic("orders", partitions=2, durability="fsync")
        receipt = broker.publish("orders", {"tea": 1}, key="alice")
        assert receipt.durability == "fsync"
    with fanlog.sync.Broker(data) as broker:
        with broker.subscribe("orders", start="earliest") as orders:
            assert orders.next(PATIENCE_SECONDS).json() == {"tea": 1}
        assert broker.state == "connected"
    assert broker.state == "closed"


def test_a_broker_starts_when_it_is_made_and_is_closed_once(data: Path) -> None:
    broker = fanlog.sync.Broker(data)
    with pytest.raises(FolderInUseError):
        fanlog.sync.Broker(data)
    broker.publish("t", b"x")
    broker.close()
    broker.close()
    with pytest.raises(ClosedError, match="closed"):
        broker.publish("t", b"x")
    with pytest.raises(InvalidArgumentError, match="no client option"):
        fanlog.sync.Broker(linger=5)
    assert not [thread for thread in threading.enumerate() if thread.name == "fanlog-broker"]


def test_other_processes_connect_to_it() -> None:
    free = fanlog.Config(listener=fanlog.config.ListenerOptions(port=0))
    with fanlog.sync.Broker(config=free) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        with fanlog.sync.connect(url) as client:
            client.publish("t", "from outside")
        with broker.subscribe("t", start="earliest") as messages:
            assert messages.next(PATIENCE_SECONDS).text == "from outside"


def test_many_threads_share_it() -> None:
    def publish(name: str) -> None:
        for number in range(200):
            broker.send("t", f"{name}-{number}", key=name)
            if number % 50 == 0:
                broker.publish("t", f"{name}-sure", key=name)

    with fanlog.sync.Broker() as broker:
        broker.create_topic("t", partitions=4)
        threads = [threading.Thread(target=publish, args=(f"n{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        broker.flush()
        per_key: dict[bytes | None, list[str]] = {}
        with broker.subscribe("t", start="earliest") as messages:
            for _ in range(8 * 204):
                message = messages.next(PATIENCE_SECONDS)
                if "sure" not in message.text:
                    per_key.setdefault(message.key, []).append(message.text)
        assert len(per_key) == 8
        for key, texts in per_key.items():
            assert key is not None
            assert texts == [f"{key.decode()}-{number}" for number in range(200)]


@pytest.mark.parametrize("kind", ["broker", "client"])
@pytest.mark.parametrize("turn", range(5))
def test_closing_leaves_no_other_thread_waiting(kind: str, turn: int) -> None:
    """Threads that read, publish and ask while others close: each of them comes back."""
    free = fanlog.Config(listener=fanlog.config.ListenerOptions(port=0))
    ended: list[str] = []
    with fanlog.sync.Broker(config=free) as server:
        used: fanlog.sync.Client = server
        if kind == "client":
            used = fanlog.sync.connect(f"fanlog://127.0.0.1:{server.listen().port}")
        work = {
            "read": lambda: used.subscribe("t").next(),
            "ask": used.topics,
            "publish": lambda: used.publish("t", b"x"),
        }

        def until_closed(name: str) -> None:
            try:
                while True:
                    work[name]()
            except ClosedError:
                ended.append(name)

        threads = [threading.Thread(target=until_closed, args=(name,)) for name in (*work, *work)]
        closing = [threading.Thread(target=used.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.01 * turn)  # so that they are here or there
        for thread in closing:
            thread.start()
        for thread in (*closing, *threads):
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
    assert sorted(ended) == sorted([*work, *work])


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "1 / 0", "threading_late()"])
def test_a_program_that_ends_without_closing_it_loses_nothing(
    data: Path, durability: str, ending: str
) -> None:
    program = f"""
import threading, time
import fanlog.sync

broker = fanlog.sync.Broker({str(data)!r})
broker.create_topic("t", durability={durability!r})
for number in range(1000):
    broker.send("t", str(number))

def threading_late():
    def late():
        time.sleep(0.2)
        broker.publish("t", "late")
    threading.Thread(target=late).start()

{ending}
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stderr == "" or "ZeroDivisionError" in ran.stderr
    with fanlog.sync.Broker(data) as broker:
        (partition,) = broker.describe_topic("t").partitions
        assert partition.visible_end == 1000 + ("late" in ending)
        with broker.subscribe("t", start="earliest") as messages:
            assert [messages.next(PATIENCE_SECONDS).text for _ in range(1000)] == [
                str(number) for number in range(1000)
            ]
    assert not [line for line in ran.stderr.splitlines() if "fanlog" in line]


def test_importing_the_blocking_client_loads_no_broker() -> None:
    program = "import fanlog.sync, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"fanlog.node", "fanlog.broker.broker_core", "fanlog.embedded"} & set(loaded)
    with pytest.raises(AttributeError, match="no attribute 'Brocker'"):
        _ = fanlog.sync.Brocker  # pyright: ignore[reportAttributeAccessIssue]
