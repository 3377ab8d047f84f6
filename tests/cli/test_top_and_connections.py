"""`fanlog top` and `fanlog connections`, as an operator runs them."""

from __future__ import annotations

import io
import time

import msgspec
from rich.console import Console

import fanlog
from fanlog.cli.top_view import figures, topic_rates, view
from fanlog.telemetry.snapshot import (
    OTHERS,
    GroupMetrics,
    QueueMetrics,
    ReaderMetrics,
    Snapshot,
    TopicMetrics,
)
from tests.cli.conftest import PATIENCE_SECONDS, Run

EVIL = "a\x1b[31mb\nc\u2028d"


async def snapshot_of_nothing() -> Snapshot:
    async with fanlog.Broker() as broker:
        return await broker.metrics()


def shown(now: Snapshot, before: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(view(now, before, "fanlog://here"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_top_in_a_pipe_shows_what_happens_and_ends(ask: Run) -> None:
    assert ask("publish", "orders", "hello").code == 0
    # All of them: in the broker that tests share, others may be busier.
    ended = ask("top", "--once", "--interval", "1", "--rows", "10000")
    assert ended.code == 0, ended.err
    assert "Busiest topics" in ended.out
    assert "orders" in ended.out
    assert "\x1b" not in ended.out
    ended = ask("top", "--once", "--json", "--interval", "1")
    told = ended.json
    assert told["rates"]["seconds"] > 0
    assert told["snapshot"]["totals"]["published_messages"] >= 1


def test_connections_are_listed_shown_and_closed(ask: Run) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Those of before have ended; the broker may hear of it a moment later.
    while len(listed := ask("connections", "list", "--json").json) > 1:
        assert time.monotonic() < deadline, listed
    (mine,) = listed
    assert (mine["client"], mine["listener"]) == ("fanlog-cli", "native")
    assert mine["id"].startswith("native@127.0.0.1:")
    assert ask("connections", "list").out.startswith("ID")
    assert ask("connections", "list", "--user", "nobody", "--json").json == []
    ended = ask("connections", "show", "native@127.0.0.1:1")
    assert ended.code == 2
    assert "There is no connection" in ended.sentence
    ended = ask("connections", "close")
    assert (ended.code, "Say which connections" in ended.sentence) == (2, True)
    ended = ask("connections", "close", "--user", "nobody")
    assert (ended.code, "No connection matches" in ended.sentence) == (2, True)
    ended = ask("connections", "list", "--listener", "carrier-pigeon")
    assert (ended.code, "native, redis or web" in ended.sentence) == (2, True)


async def test_rates_are_those_between_two_looks() -> None:
    before = await snapshot_of_nothing()
    totals = msgspec.structs.replace(before.totals, published_messages=50, published_bytes=5000)
    now = msgspec.structs.replace(
        before,
        time=before.time + 10,
        totals=totals,
        topics=(
            TopicMetrics(name="slow", published_messages=100),
            TopicMetrics(name="busy", published_messages=900),
            TopicMetrics(name=OTHERS, partitions=1),
        ),
    )
    then = msgspec.structs.replace(
        before,
        topics=(
            TopicMetrics(name="slow", published_messages=90),
            TopicMetrics(name="busy", published_messages=400),
        ),
    )
    assert figures(now, then)["published_messages_per_second"] == 5
    rates = [(topic.name, rate) for topic, rate, _ in topic_rates(now, then)]
    assert rates == [("busy", 50), ("slow", 1), (OTHERS, 0)]
    # The broker was restarted: there is less than before.
    assert figures(then, now)["published_messages_per_second"] == 0
    lines = [line for line in shown(now, then).splitlines() if "busy" in line or OTHERS in line]
    assert len(lines) == 2


async def test_no_terminal_obeys_a_name() -> None:
    found = await snapshot_of_nothing()
    evil = msgspec.structs.replace(
        found,
        topics=(TopicMetrics(name=EVIL), TopicMetrics(name=OTHERS)),
        groups=(GroupMetrics(name=EVIL, lag=5), GroupMetrics(name=OTHERS)),
        queues=(QueueMetrics(name=EVIL, lag=5), QueueMetrics(name=OTHERS)),
        readers=(ReaderMetrics(connection=EVIL, listener="web", user=EVIL, client=EVIL),),
        problems=(EVIL,),
    )
    told = shown(evil, found)
    assert "\x1b" not in told
    assert "\u2028" not in told
    assert "a\\x1b[31mb" in told
