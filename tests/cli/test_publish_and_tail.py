"""`fanlog publish` and `fanlog tail`: what goes in comes out."""

from __future__ import annotations

import base64
import datetime as dt
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fanlog
from fanlog.cli.tail import gap_sentence
from fanlog.model import Gap, GapReason
from fanlog.sync import Client
from tests.cli.conftest import COMMAND, PATIENCE_SECONDS, Run, Serving, environment
from tests.scenarios.interrupts import heard_interrupts
from tests.servers import free_port


def test_one_message_gets_a_receipt(ask: Run) -> None:
    told = ask("publish", "single", "hello", "--key", "alice", "--header", "a=1", "--json").json
    assert (told["topic"], told["partition"], told["offset"]) == ("single", 0, 0)
    assert told["durability"] == "os"
    (message,) = ask("tail", "single", "--no-follow", "--json").lines
    assert dt.datetime.fromisoformat(message.pop("timestamp")).tzinfo is not None
    assert message == {
        "topic": "single",
        "partition": 0,
        "offset": 0,
        "key": "alice",
        "value": "hello",
        "headers": {"a": "1"},
    }


def test_lines_of_stdin_are_messages_with_keys(ask: Run) -> None:
    told = ask("publish", "keyed", "--key-separator", ":", "--json", stdin="a:1\nb:2:3\n\nc:")
    assert told.code == 65
    assert "Line 3 has no ':'" in told.sentence
    assert "Before it, 2 messages were sent." in told.sentence
    shown = ask("tail", "keyed", "--no-follow", "--json").lines
    assert [(line["key"], line["value"]) for line in shown] == [("a", "1"), ("b", "2:3")]


def test_many_lines_arrive_in_order_and_are_summed_up(ask: Run) -> None:
    lines = [f"line {n}" for n in range(20_000)]
    summary = ask("publish", "many", "--json", stdin="\n".join(lines)).json
    assert summary["messages"] == 20_000
    assert summary["messages_per_second"] > 0
    assert ask("tail", "many", "--no-follow", "--values-only").out.splitlines() == lines
    some = ask("tail", "many", "--from", "19990", "--count", "3", "--values-only")
    assert some.out.splitlines() == lines[19990:19993]


def test_a_file_is_one_message_or_its_lines(ask: Run, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    assert ask("publish", "file.whole", "--file", "f").code == 0
    assert ask("publish", "file.lines", "--file", "f", "--lines", "--count", "2").code == 0
    shown = ask("tail", "file.*", "--no-follow", "--json").lines
    assert sorted((line["topic"], line["value"]) for line in shown) == [
        ("file.lines", "one"),
        ("file.lines", "one"),
        ("file.lines", "two"),
        ("file.lines", "two"),
        ("file.whole", "one\ntwo\n"),
    ]


def test_a_rate_is_kept(ask: Run) -> None:
    summary = ask("publish", "slow", "tick", "--count", "20", "--rate", "50", "--json").json
    # Each second, and not each minute.
    assert 0.36 <= summary["seconds"] < 20


def test_what_is_no_text_is_shown_as_base64_and_never_reaches_the_terminal(ask: Run) -> None:
    assert ask("publish", "raw", stdin=b"\xff\x00\n\x1b[31mred\n").code == 0
    binary, escape = ask("tail", "raw", "--no-follow", "--json").lines
    assert (binary["value"], binary["encoding"]) == (
        base64.b64encode(b"\xff\x00").decode(),
        "base64",
    )
    assert "encoding" not in escape
    shown = ask("tail", "raw", "--no-follow").out
    assert "\x1b" not in shown
    assert r"\x1b[31mred" in shown


def test_tail_begins_where_it_is_told(ask: Run, client: Client) -> None:
    client.publish_many("starts", [b"1", b"2", b"3"])
    began = ("tail", "starts", "--no-follow", "--values-only", "--from")
    assert ask(*began, "2").out == "3\n"
    assert ask(*began, "10m").out == "1\n2\n3\n"
    assert ask(*began, "latest").out == ""
    tomorrow = dt.datetime.now() + dt.timedelta(days=1)
    assert ask(*began, tomorrow.isoformat()).out == ""


def test_tail_reads_all_partitions_or_the_one_it_is_told(ask: Run, client: Client) -> None:
    client.create_topic("parts", partitions=4)
    for partition in range(4):
        client.publish("parts", f"in {partition}", partition=partition)
    everything = ask("tail", "parts", "--no-follow", "--values-only").out.splitlines()
    assert sorted(everything) == ["in 0", "in 1", "in 2", "in 3"]
    assert ask("tail", "parts", "-p", "2", "--no-follow", "--values-only").out == "in 2\n"
    assert ask("tail", "parts", "-p", "9", "--no-follow").code == 3


def test_a_tail_waits_for_its_topic_says_so_and_creates_none(
    broker: Serving, client: Client
) -> None:
    tail = subprocess.Popen(
        [*COMMAND, "tail", "later.made", "-n", "2", "--values-only", "--url", broker.url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stderr is not None
    says = "warning: later.made does not exist yet; waiting for its first message.\n"
    assert tail.stderr.readline() == says
    assert client.topics("later.*") == []
    client.create_topic("later.made", partitions=2)
    client.publish("later.made", "first", partition=0)
    client.publish("later.made", "second", partition=1)
    out, rest = tail.communicate(timeout=PATIENCE_SECONDS)
    assert (set(out.splitlines()), rest, tail.returncode) == ({"first", "second"}, "", 0)


def test_a_tail_of_a_pattern_hints_at_the_topic_that_it_leaves_out(
    broker: Serving, client: Client
) -> None:
    client.publish("parent", "not for it")
    tail = subprocess.Popen(
        [*COMMAND, "tail", "parent.>", "-n", "1", "--values-only", "--url", broker.url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stderr is not None
    assert "parent.> does not include parent itself" in tail.stderr.readline()
    client.publish("parent.child", "for it")
    assert tail.communicate(timeout=PATIENCE_SECONDS) == ("for it\n", "")


def test_ctrl_c_ends_a_tail_quietly(broker: Serving, client: Client) -> None:
    client.create_topic("quiet")
    with heard_interrupts():
        tail = subprocess.Popen(
            [*COMMAND, "tail", "quiet", "--url", broker.url],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    while not any(info.partitions[0].readers for info in client.topics("quiet")):
        time.sleep(0.02)
    tail.send_signal(signal.SIGINT)
    assert tail.communicate(timeout=PATIENCE_SECONDS) == (b"", b"")
    assert tail.returncode == 130


def test_a_reader_that_closes_its_pipe_ends_a_tail_quietly(broker: Serving, client: Client) -> None:
    client.publish_many("pipe", [b"x" * 1000] * 5000)
    tail = subprocess.Popen(
        [*COMMAND, "tail", "pipe", "--from", "earliest", "--url", broker.url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    tail.stdout.readline()
    tail.stdout.close()
    assert tail.wait(PATIENCE_SECONDS) in (0, 1)
    with tail.stderr:
        assert tail.stderr.read() == b""


def test_a_tail_without_messages_ends_when_its_pipe_is_closed(
    broker: Serving, client: Client
) -> None:
    client.create_topic("silent")
    tail = subprocess.Popen(
        [*COMMAND, "tail", "silent", "--url", broker.url],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    while not any(info.partitions[0].readers for info in client.topics("silent")):
        time.sleep(0.02)
    tail.stdout.close()
    assert tail.wait(PATIENCE_SECONDS) == 0
    with tail.stderr:
        assert tail.stderr.read() == b""


def test_a_gap_is_shown_on_stderr_when_a_broker_comes_back_without_its_messages(
    serve: Callable[..., Serving],
) -> None:
    # A port that nobody is given by chance between the two, the client that comes back among them.
    port = str(free_port())
    first = serve("--memory", "--port", port)
    with fanlog.sync.connect(first.url) as client:
        client.publish_many("live", [b"1", b"2"])
    tail = subprocess.Popen(
        [*COMMAND, "tail", "live", "--from", "earliest", "--count", "3", "--values-only"],
        env=environment(FANLOG_URL=first.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout is not None
    assert [tail.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
    assert first.stop().code == 0
    again = serve("--memory", "--port", port)
    with fanlog.sync.connect(again.url) as client:
        client.publish("live", "new")
    out, err = tail.communicate(timeout=PATIENCE_SECONDS)
    assert out == "new\n"
    assert "live, partition 0 continues at offset 0" in err
    assert tail.returncode == 0


@pytest.mark.parametrize("reason", list(GapReason))
def test_a_gap_is_told_with_its_offsets(reason: GapReason) -> None:
    told = gap_sentence(Gap("orders", 3, 10, 20, reason))
    assert told.startswith("orders, partition 3")
    assert ("20" if reason is GapReason.RESET else "10 to 19") in told


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("publish", "t", "m", "--file", "f"), 2, "exclude each other"),
        (("publish", "t", "--lines"), 2, "--lines needs --file"),
        (("publish", "t", "--count", "2"), 2, "stdin can't be repeated"),
        (("publish", "t", "m", "--header", "x"), 2, "must be NAME=VALUE"),
        (("publish", "t", "m", "--count", "0"), 2, "--count"),
        (("publish", "t", "m", "--key-separator", ":"), 2, "--key-separator is for lines"),
        (("publish", "t", "--file", "missing"), 3, "missing can't be read"),
        (("tail", "t", "--from", "whenever"), 2, "--from is 'whenever', but must be"),
        (("tail", "t", "--json", "--values-only"), 2, "exclude each other"),
        (("tail", "t", "--missing", "make"), 2, "must be 'wait' or 'fail'"),
        (("bench", "fanout", "--subscribers", "some"), 2, "numbers such as 1,10,100"),
        (("bench", "fanout", "--against", "kafka"), 2, "redis, nats or none"),
        (("bench", "latency", "--rate", "fast"), 2, "numbers such as 1,10,100"),
        (("bench", "publishers", "--connections", "0"), 2, "numbers such as 1,10,100"),
    ],
)
def test_wrong_flags_are_answered_with_one_sentence(
    typed: Run, arguments: tuple[str, ...], code: int, part: str
) -> None:
    ended = typed(*arguments)
    assert part in ended.sentence
    assert ended.code == code


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("tail", "t", "--policy", "hope"), 2, "'hope'"),
        (("tail", "never.made", "--no-follow"), 3, "There is no topic 'never.made'"),
        (("tail", "never.made", "--missing", "fail"), 3, "There is no topic 'never.made' to read"),
        (("publish", "orders.>", "m"), 2, "'orders.>' is a pattern"),
        (("publish", "orders*", "m"), 2, "Name one topic without them"),
        (("tail", "orders*"), 2, "write orders.*, or orders.> for everything below orders"),
        (("tail", "orders*", "--group", "g"), 2, "write orders.*, or orders.>"),
        (("tail", "orders*", "--no-follow"), 3, "write orders.*, or orders.>"),
        (("topic", "list", "orders>"), 2, "write orders.>"),
        (("publish", "single-part", "m", "--partition", "5"), 3, "no partition 5"),
    ],
)
def test_what_the_broker_refuses_is_answered_with_one_sentence(
    ask: Run, arguments: tuple[str, ...], code: int, part: str
) -> None:
    ended = ask(*arguments)
    assert part in ended.sentence
    assert ended.code == code


def test_tail_shows_objects_as_json(ask: Run, client: Client) -> None:
    client.publish("objects", {"tea": 1}, key="alice")
    client.publish("objects", {"tea": 2}, encoding="msgpack")
    shown, packed = ask("tail", "objects", "--no-follow", "--json").lines
    assert shown["value"] == '{"tea":1}'
    assert shown["headers"] == {"content-type": "application/json"}
    assert packed["headers"] == {"content-type": "application/msgpack"}
    plain = ask("tail", "objects", "--no-follow", "--values-only", "--count", "1")
    assert plain.out.splitlines() == ['{"tea":1}']
