"""`fanlog serve`: how it begins, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import fanlog
from fanlog.errors import FanlogError
from tests.cli.conftest import COMMAND, PATIENCE_SECONDS, Run, Serving, environment

Serve = Callable[..., Serving]


def started(command: str) -> subprocess.Popen[str]:
    name, *arguments = shlex.split(command)
    assert name == "fanlog"
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_readers(url: str, topic: str) -> None:
    with fanlog.sync.connect(url) as client:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            infos = client.topics(topic)
            if infos and infos[0].partitions[0].readers:
                return
            time.sleep(0.02)
    raise AssertionError(f"nobody reads {topic}")


def test_the_two_lines_of_the_banner_deliver_a_first_message(broker: Serving) -> None:
    tail_line, publish_line = (line.strip() for line in broker.banner[5:7])
    tail = started(f"{tail_line} --count 1")
    assert tail.stderr is not None
    assert "greetings does not exist yet" in tail.stderr.readline()
    publish = started(publish_line)
    assert publish.communicate(timeout=PATIENCE_SECONDS)[0].startswith(
        "greetings, partition 0, offset 0"
    )
    assert tail.communicate(timeout=PATIENCE_SECONDS)[0].endswith("greetings/0@0 hello\n")
    assert (publish.returncode, tail.returncode) == (0, 0)


def test_the_banner_says_the_version_the_address_and_the_folder(broker: Serving) -> None:
    assert f"Fanlog {fanlog.__version__} listens on fanlog://127.0.0.1:" in broker.banner[0]
    assert broker.banner[1].endswith("/fanlog-data")
    assert not broker.url.endswith(":0")


def test_the_banner_says_where_redis_clients_connect(serve: Serve) -> None:
    line = serve("--memory").banner[2]
    found = re.search(r"redis://127\.0\.0\.1:(\d+)", line)
    assert found is not None, line
    with socket.create_connection(("127.0.0.1", int(found[1])), timeout=PATIENCE_SECONDS) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(64) == b"+PONG\r\n"
    assert serve("--memory", "--redis-port", "-1").banner[2].split() == ["redis", "off"]


def test_a_redis_port_that_is_taken_is_an_error_only_if_it_was_asked_for(
    serve: Serve, run: Run
) -> None:
    taken = re.search(r"redis://127\.0\.0\.1:(\d+)", serve("--memory").banner[2])
    assert taken is not None
    ended = run("serve", "--memory", "--port", "0", "--redis-port", taken[1])
    assert ended.code != 0
    assert "--redis-port" in ended.sentence


def test_the_banner_says_where_http_clients_connect(serve: Serve, run: Run) -> None:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", serve("--memory").banner[3])
    assert found is not None
    status = f"http://127.0.0.1:{found[1]}/v1/status"
    with urllib.request.urlopen(status, timeout=PATIENCE_SECONDS) as answer:
        assert json.load(answer)["bus"] == "fanlog"
    assert serve("--memory", "--http-port", "-1").banner[3].split() == ["web", "off"]
    ended = run("serve", "--memory", "--port", "0", "--redis-port", "-1", "--http-port", found[1])
    assert "choose another port with --http-port" in ended.sentence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_says_so(serve: Serve, number: int) -> None:
    ended = serve("--memory").stop(number)
    assert ended.code == 0
    assert ended.err.splitlines()[-2].endswith("draining; once more ends at once.")
    assert ended.err.splitlines()[-1].endswith("Drained and stopped.")


def test_two_signals_at_once_are_one(serve: Serve) -> None:
    serving = serve("--memory")
    serving.process.send_signal(signal.SIGSTOP)
    serving.process.send_signal(signal.SIGTERM)
    serving.process.send_signal(signal.SIGINT)
    ended = serving.stop(signal.SIGCONT)
    assert "Traceback" not in ended.err
    # The second may have come while the first was being answered.
    assert ended.code in (0, 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_broker_that_strangers_can_reach_says_so(serve: Serve, host: str) -> None:
    ended = serve("--memory", "--host", host, "--allow-open").stop()
    warned = "listener.host is 0.0.0.0, and clients need not log in: everybody" in ended.err
    assert warned == (host == "0.0.0.0")


@pytest.mark.parametrize(
    ("option", "variables"),
    [
        ("listener.host", {"FANLOG_LISTENER_HOST": "0.0.0.0"}),
        ("redis.host", {"FANLOG_REDIS_HOST": "::"}),
        ("web.host", {"FANLOG_WEB_HOST": "192.0.2.1"}),
    ],
)
def test_strangers_reach_no_broker_without_logins(
    run: Run, option: str, variables: dict[str, str]
) -> None:
    ended = run("serve", "--memory", "--port", "0", **variables)
    assert ended.code == 65
    assert ended.sentence.startswith(f"{option} is ")
    assert "--allow-open" in ended.sentence


def test_a_start_says_how_many_connections_fit(serve: Serve) -> None:
    ended = serve("--data", "kept", FANLOG_LOG_RESERVED_FILES="100").stop()
    first = ended.err.splitlines()[0]
    found = re.search(r"(\d+) open files are allowed: (\d+) are kept for the log, and (\d+)", first)
    assert found is not None, first
    limit, reserved, connections = map(int, found.groups())
    assert reserved == min(100, limit // 2)
    assert 0 < connections <= limit - reserved
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard in (limit, resource.RLIM_INFINITY)


def test_nothing_acknowledged_before_sigterm_is_lost(serve: Serve) -> None:
    serving = serve("--data", "kept", FANLOG_TOPIC_DURABILITY="fsync")
    acknowledged: list[int] = []
    running = threading.Event()

    def publish() -> None:
        with fanlog.sync.connect(serving.url, reconnect=False) as client:
            while True:
                receipt = client.publish("orders", str(len(acknowledged)))
                acknowledged.append(receipt.offset)
                if len(acknowledged) == 200:
                    running.set()

    def until_it_ends() -> None:
        try:
            publish()
        except FanlogError:
            running.set()

    publisher = threading.Thread(target=until_it_ends)
    publisher.start()
    assert running.wait(PATIENCE_SECONDS)
    assert serving.stop().code == 0
    publisher.join(PATIENCE_SECONDS)
    assert not publisher.is_alive()
    again = serve("--data", "kept")
    with fanlog.sync.connect(again.url) as client:
        end = client.describe_topic("orders").partitions[0].visible_end
        with client.subscribe("orders", start="earliest") as orders:
            stored = [orders.next(PATIENCE_SECONDS).text for _ in range(end)]
    assert acknowledged == list(range(len(acknowledged)))
    assert len(acknowledged) >= 200
    assert stored[: len(acknowledged)] == [str(n) for n in acknowledged]


def test_a_second_signal_ends_at_once(serve: Serve) -> None:
    # Whoever waits for the drain waits for longer than this test does.
    serving = serve("--memory", FANLOG_LISTENER_DRAIN_SECONDS="3600")
    with fanlog.sync.connect(serving.url) as client:
        client.create_topic("flood")
    reader = started(f"fanlog tail flood --url {serving.url}")
    wait_for_readers(serving.url, "flood")
    # A reader that stands still keeps the drain waiting for what is on its way to it.
    reader.send_signal(signal.SIGSTOP)
    try:
        with fanlog.sync.connect(serving.url) as client:
            for _ in range(64):
                client.send("flood", bytes(1_000_000))
            client.flush()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.stderr is not None
        assert any("draining" in line for line in serving.process.stderr)
        time.sleep(0.3)
        assert serving.process.poll() is None
        ended = serving.stop(signal.SIGTERM)
    finally:
        reader.send_signal(signal.SIGCONT)
        reader.kill()
        reader.communicate()
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith("A second signal: ending at once")


def test_a_folder_in_use_is_answered_with_one_sentence(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    first = serve("--data", "one")
    second = run("serve", "--port", "0", "--data", "one")
    assert second.code == 1
    assert second.sentence == (
        f"The data folder {tmp_path}/one is in use by process {first.process.pid}: "
        "stop that one, or choose another data folder (--data DIR, or fanlog.Broker(DIR) in a "
        "program)."
    )


def test_a_taken_port_is_answered_with_one_sentence(broker: Serving, run: Run) -> None:
    port = broker.url.rsplit(":", 1)[1]
    ended = run("serve", "--memory", "--port", port)
    assert ended.code == 65
    assert f"Can't listen on 127.0.0.1 port {port}" in ended.sentence


def test_a_broker_in_memory_leaves_no_folder(serve: Serve, tmp_path: Path) -> None:
    serving = serve("--memory")
    with fanlog.sync.connect(serving.url) as client:
        assert client.publish("news", "one").durability == "memory"
    assert serving.stop().code == 0
    assert os.listdir(tmp_path) == []


def test_log_lines_can_be_json(serve: Serve) -> None:
    serving = serve("--memory", "--log-json", "--log-level", "debug", FANLOG_NONSENSE="1")
    ended = serving.stop()
    told = [json.loads(line) for line in ended.err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in told)
    assert told[-1]["message"] == "Drained and stopped."


def test_memory_and_data_exclude_each_other(typed: Run) -> None:
    ended = typed("serve", "--memory", "--data", "x")
    assert (ended.code, ended.sentence) == (
        2,
        "--memory and --data exclude each other: give one of them.",
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--port", "99999"), "--port is 99999, but must be a number from 0 to 65535."),
        (("--prot", "1"), "No such option: --prot"),
        (("--log-level", "loud"), "loud"),
    ],
)
def test_wrong_flags_are_answered_with_one_sentence(
    typed: Run, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = typed("serve", *arguments)
    assert ended.code == 2
    assert sentence in ended.sentence


def in_a_terminal(folder: Path, *arguments: str, **variables: str) -> tuple[int, int]:
    """A broker whose terminal is a pseudo-terminal: its process id, and the terminal's other end.
    It listens."""
    pid, terminal = pty.fork()
    if pid == 0:
        # Whoever runs the tests may ignore it, as `nohup` does.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(folder)
        command = [*COMMAND, "serve", "--memory", "--port", "0", "--redis-port", "-1"]
        os.execve(command[0], [*command, "--http-port", "-1", *arguments], environment(**variables))
    shown = b""
    while b"publish greetings hello" not in shown:
        shown += os.read(terminal, 4096)
    return pid, terminal


def test_a_broker_whose_terminal_is_closed_drains(tmp_path: Path) -> None:
    pid, terminal = in_a_terminal(tmp_path)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_broker_in_a_terminal_reloads_when_it_is_told_to(tmp_path: Path) -> None:
    pid, terminal = in_a_terminal(tmp_path)
    os.kill(pid, signal.SIGHUP)
    shown = b""
    while b"the settings were read again" not in shown:
        shown += os.read(terminal, 4096)
    os.kill(pid, signal.SIGTERM)
    while b"Drained and stopped" not in shown:
        shown += os.read(terminal, 4096)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_broker_reads_its_settings_again_on_sighup(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "fanlog.toml"
    file.write_text('[telemetry]\nlog_level = "info"\n')
    serving = serve("--memory")
    assert serving.process.stderr is not None
    file.write_text('[telemetry]\nlog_level = "nothing"\n')
    serving.process.send_signal(signal.SIGHUP)
    while "nothing has changed: fanlog.toml: telemetry.log_level" not in (
        line := serving.process.stderr.readline()
    ):
        assert line
    file.write_text('[telemetry]\nlog_level = "debug"\n')
    serving.process.send_signal(signal.SIGHUP)
    while "1 have changed" not in (line := serving.process.stderr.readline()):
        assert line
    done = run("config", "set", "telemetry.log_level=warning", FANLOG_URL=serving.url)
    assert done.out == "telemetry.log_level is now warning, was debug\n"
    assert file.read_text() == '[telemetry]\nlog_level = "warning"\n'
    later = run("config", "set", "listener.connections_max=99", FANLOG_URL=serving.url)
    assert later.out == "listener.connections_max will be 99, is still 100000\n"
    assert "Restart the broker to change listener.connections_max" in later.err
    shown = run("config", "running", "--json", FANLOG_URL=serving.url).json
    (level,) = [s for s in shown if s["option"] == "telemetry.log_level"]
    assert (level["value"], level["source"], level["live"]) == ("warning", "file", True)
    wrong = run("config", "set", "telemetry.log_level=loud", FANLOG_URL=serving.url)
    assert (wrong.code, "debug, info, warning or error" in wrong.sentence) == (2, True)
    restart = run("config", "set", "listener.receive_bytes=64KiB", "--json", FANLOG_URL=serving.url)
    assert [c["live"] for c in restart.json["changed"]] == [False]
    secret = run("config", "set", "redis.password=x", FANLOG_URL=serving.url)
    assert "is a secret" in secret.sentence
    assert serving.stop().code == 0


def test_a_broker_with_logins_says_what_commands_need(
    serve: Callable[..., Serving], run: Run, tmp_path: Path
) -> None:
    assert run("key", "generate", "--out", "admin key").code == 0
    serving = serve(
        "--memory", FANLOG_SECURITY_AUTH="true", FANLOG_SECURITY_ADMIN_KEY_FILE="admin key"
    )
    assert serving.process.stdout is not None
    assert "Set these variables" in serving.process.stdout.readline()
    line = serving.process.stdout.readline()
    assert f"export FANLOG_KEY_FILE='{tmp_path / 'admin key'}'" in line
    sent = run("publish", "t", "x", FANLOG_URL=serving.url, FANLOG_KEY_FILE="admin key")
    assert sent.code == 0, sent.err
