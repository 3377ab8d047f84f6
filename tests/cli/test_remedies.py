"""What people are told who start a broker or run a command: every cause here is a real one, and the
sentence must say what helps against it, and nothing that does not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, PATIENCE_SECONDS, Ended, Run, Serving, environment

Serve = Callable[..., Serving]
NOBODY = 65534


def fails(run: Run, *arguments: str, **variables: str) -> str:
    ended = run(*arguments, **variables)
    assert ended.code != 0, ended.out
    return ended.sentence


# The data folder


def link_in_a_circle(folder: Path) -> str:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return "a/data"


def file_in_the_way(folder: Path) -> str:
    (folder / "file").write_text("mine")
    return "file/data"


def file_instead(folder: Path) -> str:
    (folder / "file").write_text("mine")
    return "file"


def folder_instead_of_the_lock(folder: Path) -> str:
    (folder / "data" / "lock").mkdir(parents=True)
    return "data"


def name_too_long(folder: Path) -> str:
    return "x" * 300


def somebody_elses(folder: Path) -> str:
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter1.tex").write_text("mine")
    return "thesis"


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (link_in_a_circle, "Symbolic links on the path lead in a circle"),
        (file_in_the_way, "There is a file where a folder belongs"),
        (file_instead, "There is a file where a folder belongs"),
        (folder_instead_of_the_lock, "There is a folder where a file belongs"),
        (name_too_long, "The path is too long"),
        (somebody_elses, "not empty, and it is not a Fanlog data folder"),
    ],
)
def test_a_data_folder_that_cannot_be_used(
    run: Run, tmp_path: Path, cause: Callable[[Path], str], remedy: str
) -> None:
    said = fails(run, "serve", "--port", "0", "--redis-port", "-1", "--data", cause(tmp_path))
    assert remedy in said
    assert "--data" in said
    assert "ulimit" not in said


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Real file systems: small ones, and read-only ones."""
    folders: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as fault:
            pytest.skip(f"mounting a tmpfs needs root: {fault}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_disk(run: Run, mounted: Callable[[str], Path]) -> None:
    data = str(mounted("ro") / "data")
    said = fails(run, "serve", "--port", "0", "--redis-port", "-1", "--data", data)
    assert "read-only: mount it writable, or choose another data folder" in said


def test_a_full_disk(serve: Serve, run: Run, mounted: Callable[[str], Path]) -> None:
    """The broker goes on, readers too, and the publisher is told how to make room."""
    disk = mounted("size=3m")
    broker = serve("--data", str(disk / "data"), FANLOG_LOG_RESERVE_BYTES="256KiB")
    message = "x" * 100_000
    said = ""
    for _ in range(60):
        ended = run("publish", "t", message, FANLOG_URL=broker.url)
        if ended.code:
            said = ended.sentence
            break
    assert "fanlog topic truncate" in said
    assert "restart" not in said, "it resumes by itself"
    assert run("topic", "describe", "t", FANLOG_URL=broker.url).code == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    """Root without the right to ignore rights."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.chown(closed, NOBODY, NOBODY)
    drop = "-dac_override,-dac_read_search"
    serve = ("serve", "--port", "0", "--redis-port", "-1", "--data", str(closed / "data"))
    ended = subprocess.run(
        ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}", *COMMAND, *serve],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    said = Ended(ended.returncode, ended.stdout, ended.stderr).sentence
    assert "Permission denied (EACCES)" in said
    assert "right to read and write" in said


def test_two_brokers_on_one_folder(run: Run, serve: Serve) -> None:
    first = serve("--data", "shared")
    said = fails(run, "serve", "--port", "0", "--redis-port", "-1", "--data", "shared")
    assert f"in use by process {first.process.pid}" in said
    assert "--data" in said


# Ports and addresses


def test_a_port_in_use(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = fails(run, "serve", "--memory", "--port", port, "--redis-port", "-1")
        assert "another program uses the port" in said
        assert "choose another port with --port" in said
        said = fails(run, "serve", "--memory", "--port", "0", "--redis-port", port)
        assert "choose another port with --redis-port" in said


@pytest.mark.parametrize(
    ("host", "why"),
    [("203.0.113.7", "does not have that address"), ("no-such-host.invalid", "has no address")],
)
def test_an_address_of_another_machine(run: Run, host: str, why: str) -> None:
    ports = ("--port", "0", "--redis-port", "-1")
    ended = run("serve", "--memory", "--allow-open", "--host", host, *ports)
    assert ended.code != 0
    said = ended.err.splitlines()[-1]
    assert why in said
    assert "--host" in said


def test_a_client_at_the_port_for_redis_clients(run: Run, serve: Serve) -> None:
    broker = serve("--memory")
    redis = next(line for line in broker.banner if "redis://" in line)
    port = redis.split("redis://127.0.0.1:")[1].split(",")[0]
    said = fails(run, "topic", "list", "--url", f"fanlog://127.0.0.1:{port}")
    assert "port for Redis clients" in said


def test_no_broker(run: Run) -> None:
    said = fails(run, "topic", "list", "--url", "fanlog://127.0.0.1:1")
    assert "fanlog serve --port 1" in said
    assert "--url" in said


# What is asked for


def test_topics_that_are_not_there(ask: Run) -> None:
    assert "appears by itself" in fails(ask, "dead", "list", "dead.nothing")
    assert "appears by itself" in fails(ask, "dead", "replay", "dead.nothing", "0:1")
    assert "fanlog topic create 'no such'" in fails(ask, "topic", "describe", "no such")
    assert "create" not in fails(ask, "topic", "delete", "nothing", "--yes")
    assert "the broker makes its own" in fails(ask, "topic", "describe", "_fanlog.nothing")


def test_a_topic_that_is_there(ask: Run) -> None:
    assert ask("topic", "create", "there").code == 0
    assert "fanlog topic describe there" in fails(ask, "topic", "create", "there")


def test_a_message_that_is_too_large(ask: Run) -> None:
    assert ask("topic", "create", "tiny", "--message-bytes-max", "10").code == 0
    said = fails(ask, "publish", "tiny", "x" * 11)
    assert "fanlog topic alter tiny --message-bytes-max" in said
    assert ask("topic", "alter", "tiny", "--message-bytes-max", "20").code == 0
    assert ask("publish", "tiny", "x" * 11).code == 0, "what it says helps"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--retention", "3parsecs"), "such as 500ms, 30s, 10m or 7d"),
        (("--segment-bytes", "much"), "such as 64KiB or 128MB"),
        (("--partitions", "0"), "a number from 1 to 4096"),
    ],
)
def test_quantities_are_shown_how_to_write_them(
    typed: Run, arguments: tuple[str, str], said: str
) -> None:
    assert said in fails(typed, "topic", "create", "t", *arguments)


def test_files_that_cannot_be_read(ask: Run, run: Run, tmp_path: Path) -> None:
    assert "check the path" in fails(ask, "publish", "t", "--file", "nothing")
    assert "name a file, not a folder" in fails(ask, "publish", "t", "--file", str(tmp_path))
    said = fails(run, "serve", "--config", "nothing.toml")
    assert "fanlog config init nothing.toml" in said


def test_what_is_said_against_deleting_works_when_it_is_done(ask: Run) -> None:
    assert ask("publish", "held", "x", "--count", "3").code == 0
    said = fails(ask, "topic", "truncate", "held", "--before", "99", "--yes")
    assert "give 3 at most, or latest" in said
    said = fails(ask, "dead", "purge", "held", "--yes")
    assert "fanlog topic truncate held --before latest" in said
    assert ask("topic", "truncate", "held", "--before", "latest", "--yes").code == 0
    assert "give a number of 1 or more" in fails(ask, "topic", "grow", "held", "0")


# The command line itself


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "See which there are with: fanlog --help"),
        (("topic", "nonsense"), "See which there are with: fanlog topic --help"),
        (("publish",), "Missing argument 'TOPIC'. See an example with: fanlog publish --help"),
        (("topic", "grow", "a"), "See an example with: fanlog topic grow --help"),
        (("health", "--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 (Connection refused)."),
        (("tail", "a", "--from", "25h3"), "an age such as 10m or 2h."),
        (("serve", "--redis-port", "99999"), "--redis-port is 99999, but must be"),
        (("serve", "--port", "99999"), "--port is 99999, but must be"),
        (("serve", "--log-level", "loud"), "'loud' is not one of 'debug'"),
        (("serve", "--memory", "--port", "7", "--redis-port", "7"), "can't have the same port, 7"),
        (("topic", "grow", "t", "x"), "'PARTITIONS': give a whole number"),
        (("pipeline", "status", "no-such-folder"), "There is no folder no-such-folder"),
    ],
)
def test_a_slip_on_the_command_line(typed: Run, arguments: tuple[str, ...], said: str) -> None:
    told = fails(typed, *arguments)
    assert said in told
    assert "Value error" not in told


def test_a_size_that_no_machine_has(run: Run, tmp_path: Path) -> None:
    (tmp_path / "huge.toml").write_text('[listener]\nreceive_bytes = "900GiB"\n')
    said = fails(run, "serve", "--memory", "--port", "0", "--config", "huge.toml")
    assert "listener.receive_bytes" in said
    assert "from 4KiB to 64MiB" in said
