"""Slow operations are logged with what took so long, for whom and how long; and so is where the
event loop stands still."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.config_security import TelemetryOptions
from fanlog.identity import Identity
from fanlog.telemetry.callers import CALLER, connection_id, context_of, describe, maybe_who
from fanlog.telemetry.histograms import DELAY_US, Histogram
from fanlog.telemetry.loop_probe import LoopProbe
from fanlog.telemetry.slow_operations import SlowLog
from fanlog.telemetry.watchdog import Watchdog, where_of

SECOND_NS = 1_000_000_000
ANN = Identity("ann", "10.0.0.7:5000", "native", "10.0.0.7:5000")
CONNECTION = "native@10.0.0.7:5000"
PATIENCE_SECONDS = 100.0


class Permit:
    def __init__(self, who: Identity) -> None:
        self.who = who


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fanlog.slow"]


def test_a_line_says_what_for_whom_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog(TelemetryOptions())
    slow.turn(812_000_000, 790_000_000, ["orders"], 120)
    slow.sync(1_500_000_000, 4096, ["a", "b", "c", "d", "e"])
    slow.request(2_000_000_000, "LIST", ANN, waited=False)
    assert lines(caplog) == [
        "slow turn: 812 ms, 790 ms to append, 22 ms to send to 120 readers; topic orders",
        "slow sync: 1500 ms for 4096 bytes; topics a, b, c and 2 more",
        f"slow request: LIST took 2000 ms for ann on {CONNECTION}; all of it on the event loop",
    ]


def test_a_flood_is_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = 10 * SECOND_NS
    slow = SlowLog(TelemetryOptions(), lambda: now_ns)
    for _ in range(1000):
        slow.sync(SECOND_NS, 1, ["orders"])
    assert len(lines(caplog)) == 1
    now_ns += SECOND_NS
    slow.sync(SECOND_NS, 1, ["orders"])
    assert lines(caplog)[1].endswith("(999 more since the last such line)")


def test_0_turns_a_threshold_off() -> None:
    slow = SlowLog(TelemetryOptions(slow_turn_ms=0, slow_sync_ms=0, slow_request_ms=7))
    assert slow.turn_ns > 10**15
    assert slow.sync_ns > 10**15
    assert slow.request_ns == 7_000_000


async def test_slow_work_of_a_broker_names_its_topic_and_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is slow for who has the patience of 0 ns."""
    async with fanlog.Broker(tmp_path, Config(listener=ListenerOptions(port=0))) as broker:
        listener = broker.listen()
        node = broker._node
        assert node is not None
        await broker.create_topic("orders", durability="fsync")
        await broker.publish("orders", "x")
        metrics = node.core.metrics
        metrics.slow.on = True
        metrics.slow.request_ns = node.core.turns.slow_ns = 0
        assert node._group is not None
        node._group.slow_ns = 0
        url = f"fanlog://127.0.0.1:{listener.port}"
        async with fanlog.connect(url) as client:
            await client.publish("orders", "x")
            metrics.slow._next.clear()
            await client.topics()
    said = "\n".join(lines(caplog))
    assert "slow turn: " in said
    assert "to append, " in said
    assert "slow sync: " in said
    assert "; topic orders" in said
    assert "slow request: LIST_TOPICS took " in said
    assert " for native@127.0.0.1:" in said


def test_a_connection_is_called_as_it_is_listed() -> None:
    assert connection_id(ANN) == "native@10.0.0.7:5000"
    assert connection_id(Identity("", "10.0.0.7:1", "redis", "17")) == "redis@10.0.0.7:1"
    assert connection_id(Identity("bob", "10.0.0.7:1", "web", "8c1f6a0b")) == "8c1f6a0b"
    assert connection_id(Identity("bob", "10.0.0.7:1", "web")) == "web@10.0.0.7:1"
    assert describe(None) == describe(Identity()) == ""
    assert describe(ANN) == " for ann on native@10.0.0.7:5000"
    assert describe(Identity("", "10.0.0.7:1", "redis")) == " for redis@10.0.0.7:1"


async def test_tasks_of_a_connection_know_for_whom_they_are() -> None:
    permit = Permit(ANN)
    seen: list[Identity | None] = []

    async def work() -> None:
        await asyncio.sleep(0)
        seen.append(maybe_who())

    task = context_of(permit).run(lambda: asyncio.get_running_loop().create_task(work()))
    # It logs in while it works.
    permit.who = Identity("bob", "10.0.0.7:5000", "native")
    await task
    assert seen == [permit.who]
    assert CALLER.get() is None


def test_a_loop_that_stands_still_is_noticed_once(caplog: pytest.LogCaptureFixture) -> None:
    probe = LoopProbe(Histogram(DELAY_US))
    watchdog = Watchdog(probe, 500_000_000)
    watchdog._watched = threading.get_ident()
    probe.beat_ns = time.monotonic_ns()
    watchdog.look(probe.beat_ns + 400_000_000)
    assert not lines(caplog)
    watchdog.look(probe.beat_ns + 900_000_000)
    watchdog.look(probe.beat_ns + 1_900_000_000)
    (line,) = lines(caplog)
    assert line.startswith("the event loop has stood still for 900 ms now in telemetry/watchdog.py")
    assert line.endswith("look")


def test_the_peer_that_the_loop_works_for_is_named() -> None:
    class Connection:
        peer = "10.0.0.7:5000"

        def _readable(self) -> str:
            return where_of(sys._getframe())

    assert Connection()._readable().endswith(", for 10.0.0.7:5000")


async def test_a_stall_is_logged_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowLog(TelemetryOptions(slow_loop_ms=1))
    probe = LoopProbe(Histogram(DELAY_US), slow)
    probe.start()
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not lines(caplog):
            time.sleep(0.1)  # noqa: ASYNC251 - it is what is tested
            await asyncio.sleep(0.01)
    probe.stop()
    assert lines(caplog)[0].startswith("the event loop stood still for ")
