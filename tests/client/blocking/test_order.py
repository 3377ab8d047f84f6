"""What one thread publishes is stored in the order of its calls, whichever calls they are and
whatever other threads do at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fanlog
from fanlog.client.blocking.client import BlockingClient
from fanlog.client.blocking.loop import LoopThread
from tests.client.blocking.test_blocking import broker_in_a_thread
from tests.client.ways import PATIENCE_SECONDS

Call = Callable[[BlockingClient], object]


def _in_a_transaction(client: BlockingClient) -> None:
    with client.transaction() as tx:
        tx.publish("t", "last", key="k")


def _asked(client: BlockingClient) -> None:
    with client.subscribe("t") as requests:

        def answer() -> None:
            for message in requests:
                client.reply(message, "here")

        answering = threading.Thread(target=answer)
        answering.start()
        client.request("t", "last", key="k", timeout_seconds=PATIENCE_SECONDS)
    answering.join(PATIENCE_SECONDS)


# The ways to publish that do not wait in line with `send` by themselves.
CALLS: dict[str, Call] = {
    "publish": lambda client: client.publish("t", "last", key="k"),
    "publish within a time": lambda client: client.publish(
        "t", "last", key="k", timeout_seconds=PATIENCE_SECONDS
    ),
    "publish_many": lambda client: client.publish_many("t", ["last"], key="k"),
    "a typed topic": lambda client: client.topic("t", str).publish("last", key="k"),
    "a transaction": _in_a_transaction,
    "a request": _asked,
}


@pytest.fixture(params=["connected", "embedded"])
def client(request: pytest.FixtureRequest, data: Path) -> Iterator[BlockingClient]:
    if request.param == "embedded":
        with fanlog.sync.Broker(data) as broker:
            yield broker
        return
    with broker_in_a_thread(data) as url, fanlog.sync.connect(url) as connected:
        yield connected


def stored(client: BlockingClient, topic: str, count: int) -> list[str]:
    with client.subscribe(topic, start="earliest") as history:
        return [history.next(PATIENCE_SECONDS).text.strip('"') for _ in range(count)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_nothing_overtakes_a_send_that_waits_for_another_topic(
    client: BlockingClient, call: Call
) -> None:
    client.publish("t", "first", key="k")
    # The broker has to be asked for it, and what is behind it waits.
    client.send("another", b"x")
    for i in range(3):
        client.send("t", str(i), key="k")
    call(client)
    assert stored(client, "t", 5) == ["first", "0", "1", "2", "last"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_nothing_overtakes_a_send_that_another_thread_hands_over(
    client: BlockingClient, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish("t", "first", key="k")
    held, resume = threading.Event(), threading.Event()
    post = LoopThread.post

    def slow_post(self: LoopThread, work: Callable[[], None]) -> None:
        held.set()
        resume.wait(PATIENCE_SECONDS)
        post(self, work)

    monkeypatch.setattr(LoopThread, "post", slow_post)
    other = threading.Thread(target=client.send, args=("another", b"x"))
    other.start()
    assert held.wait(PATIENCE_SECONDS)
    # The other thread is about to hand over what these add.
    for i in range(3):
        client.send("t", str(i), key="k")
    monkeypatch.undo()
    call(client)
    resume.set()
    other.join(PATIENCE_SECONDS)
    assert stored(client, "t", 5) == ["first", "0", "1", "2", "last"]
