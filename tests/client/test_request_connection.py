"""The plain connection: requests ahead of their answers, and a broker that goes and comes back."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fanlog
from fanlog.client.core.fetched import read_fetched
from fanlog.client.request_connection import RequestConnection
from fanlog.config import ClientOptions
from fanlog.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from tests.scenarios.broker_process import BrokerProcess


@pytest.fixture
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data) as broker:
        yield broker


def status(connection: RequestConnection) -> str:
    return connection.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus).state


def test_answers_are_taken_in_any_order(broker: BrokerProcess) -> None:
    with fanlog.sync.connect(broker.url) as client:
        client.publish_many("t", [b"a", b"b"])
        number = client.describe_topic("t").number
    with RequestConnection(broker.url) as connection:
        first = connection.post(FrameKind.FETCH, messages.Fetch(number, 0, 0))
        second = connection.post(FrameKind.STATUS, messages.Goodbye())
        assert decode(messages.BrokerStatus, connection.take(second)).state == "ok"
        fetched = read_fetched(connection.take(first), "t")
        assert [value for batch in fetched.batches for value in batch.values] == [b"a", b"b"]


def test_what_a_broker_refuses_is_raised_and_the_connection_stays(broker: BrokerProcess) -> None:
    with RequestConnection(broker.url) as connection:
        wanted = messages.NamedTopic("nowhere")
        with pytest.raises(TopicNotFoundError, match="There is no topic 'nowhere'"):
            connection.ask(FrameKind.DESCRIBE_TOPIC, wanted, messages.TopicOpened)
        assert status(connection) == "ok"


def test_a_broker_that_was_restarted_is_asked_again(broker: BrokerProcess) -> None:
    with RequestConnection(broker.url) as connection:
        assert status(connection) == "ok"
        epoch = connection.welcome.epoch
        broker.kill()
        waiting = threading.Timer(0.3, broker.start)
        waiting.start()
        assert status(connection) == "ok"
        waiting.join()
        assert connection.welcome.epoch > epoch


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(ConnectError, match=r"No broker answers at 127\.0\.0\.1:1 .*fanlog serve"):
        RequestConnection("fanlog://127.0.0.1:1")


def test_somebody_else_on_the_port_is_not_taken_for_a_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            taken, _ = other.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(ConnectError, match=r"it speaks HTTP.*port 7420"):
            RequestConnection(f"fanlog://127.0.0.1:{port}")
        answering.join()


def test_a_silent_broker_is_waited_for_only_so_long(broker: BrokerProcess) -> None:
    options = ClientOptions(request_timeout_seconds=0.2)
    with fanlog.sync.connect(broker.url) as client:
        client.create_topic("t")
        number = client.describe_topic("t").number
    with RequestConnection(broker.url, options) as connection:
        wanted = messages.Fetch(number, 0, 0, wait_ms=5000)
        with pytest.raises(RequestTimeoutError, match=r"did not answer within 0\.2 s"):
            connection.take(connection.post(FrameKind.FETCH, wanted))
        with pytest.raises(ConnectionLostError):
            connection.post(FrameKind.FETCH, wanted)


def test_a_broker_that_is_restarting_is_waited_for_by_who_is_patient(
    broker: BrokerProcess,
) -> None:
    broker.kill()
    waiting = threading.Timer(0.3, broker.start)
    waiting.start()
    with RequestConnection(broker.url, patient=True) as connection:
        assert status(connection) == "ok"
    waiting.join()
    gone = ClientOptions(request_timeout_seconds=0.2)
    with pytest.raises(ConnectError, match="No broker answers"):
        RequestConnection("fanlog://127.0.0.1:1", gone, patient=True)


def test_who_waits_long_pings_so_that_the_broker_keeps_the_connection(
    data: Path, tmp_path: Path
) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text("[listener]\nidle_timeout_seconds = 5.0\n")
    with BrokerProcess(data, "--config", str(strict)) as broker:
        with fanlog.sync.connect(broker.url) as client:
            client.create_topic("t")
            number = client.describe_topic("t").number
        with RequestConnection(broker.url) as connection:
            wanted = messages.Fetch(number, 0, 0, wait_ms=25_000)
            with pytest.raises(ConnectionLostError, match="a client must ping"):
                connection.take(connection.post(FrameKind.FETCH, wanted))
            connection.connect()
            # Longer than the broker needs to find out: it looks once a second.
            wanted = messages.Fetch(number, 0, 0, wait_ms=8000)
            asked = connection.post(FrameKind.FETCH, wanted)
            connection._await(asked, time.monotonic() + 60)
            assert read_fetched(connection.take(asked), "t").batches == []


def test_a_connection_that_was_idle_for_too_long_is_made_again_by_the_next_request(
    data: Path, tmp_path: Path
) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text("[listener]\nidle_timeout_seconds = 1.0\n")
    with (
        BrokerProcess(data, "--config", str(strict)) as broker,
        RequestConnection(broker.url) as connection,
    ):
        assert status(connection) == "ok"
        opened = connection._opened()
        # Until the broker has said why, and closed it.
        assert connection._readable(60)
        assert status(connection) == "ok"
        assert connection._opened() is not opened


def ask_at_length(connection: RequestConnection) -> str:
    kind, asked = FrameKind.STATUS, messages.Goodbye()
    return connection.ask_at_length(kind, asked, messages.BrokerStatus, 60).state


def test_what_takes_long_is_asked_again_when_the_broker_was_restarted(
    broker: BrokerProcess,
) -> None:
    with RequestConnection(broker.url) as connection:
        broker.kill()
        waiting = threading.Timer(0.2, broker.start)
        waiting.start()
        assert ask_at_length(connection) == "ok"
        waiting.join()


def test_a_broker_that_falls_silent_is_asked_again_and_one_that_is_gone_is_not_waited_for(
    broker: BrokerProcess,
) -> None:
    options = ClientOptions(request_timeout_seconds=0.6, connect_timeout_seconds=30)
    with RequestConnection(broker.url, options) as connection:
        os.kill(broker.pid, signal.SIGSTOP)
        waiting = threading.Timer(1.2, os.kill, (broker.pid, signal.SIGCONT))
        waiting.start()
        assert ask_at_length(connection) == "ok"
        waiting.join()
        broker.kill()
        with pytest.raises(ConnectError, match="No broker answers"):
            ask_at_length(connection)
