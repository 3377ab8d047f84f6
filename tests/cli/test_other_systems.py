"""What runs where: everything on asyncio's own loop, and clients on systems that can run no broker.
A `sitecustomize` takes away what such a system lacks, before anything is imported."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import fanlog
from tests.cli.conftest import PATIENCE_SECONDS, SOURCES, Ended, Serving, environment

PLAIN = 'import sys\nsys.modules["uvloop"] = None\n'
# As on Windows: no uvloop, no fcntl, fewer calls and signals, loops that hear of no signal.
BARE = """
import asyncio, os, signal, sys

for name in ("uvloop", "fcntl", "resource", "termios"):
    sys.modules[name] = None
for name in ("pread", "pwrite", "fdatasync", "posix_fallocate", "O_DIRECTORY", "O_CLOEXEC"):
    delattr(os, name)

def refuse(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.add_reader = refuse
asyncio.SelectorEventLoop.add_writer = refuse
"""

Serve = Callable[..., Serving]


def a_system(folder: Path, source: str) -> dict[str, str]:
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": f"{site}:{SOURCES}"}


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    return a_system(tmp_path, PLAIN)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    return a_system(tmp_path, BARE)


def run_there(system: dict[str, str], *command: str) -> Ended:
    ended = subprocess.run(
        [sys.executable, *command],
        env=environment(**system),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_a_broker_runs_on_asyncios_own_loop(serve: Serve, plain: dict[str, str]) -> None:
    broker = serve(**plain)
    published = run_there(plain, "-m", "fanlog", "publish", "t", "hello", "--url", broker.url)
    assert published.code == 0, published.err
    with fanlog.sync.connect(broker.url) as client:
        client.create_topic("kept", durability="fsync", partitions=2)
        for number in range(200):
            client.publish("kept", str(number), key=str(number % 7))
        with client.subscribe("kept", start="earliest") as kept:
            got = sorted(int(kept.next(timeout_seconds=30).text) for _ in range(200))
        assert got == list(range(200))
        with client.subscribe("t", start="earliest") as reader:
            assert reader.next(timeout_seconds=30).text == "hello"


def test_redis_clients_are_served_on_asyncios_own_loop(serve: Serve, plain: dict[str, str]) -> None:
    port = int(serve("--memory", **plain).banner[2].rpartition(":")[2].partition(",")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(64) == b"+PONG\r\n"


def test_a_broker_on_asyncios_own_loop_drains_on_sigterm(
    serve: Serve, plain: dict[str, str]
) -> None:
    broker = serve(**plain)
    broker.process.send_signal(signal.SIGTERM)
    _, err = broker.process.communicate(timeout=PATIENCE_SECONDS)
    assert broker.process.returncode == 0
    assert "Drained and stopped" in err


def test_clients_run_where_no_broker_can(serve: Serve, bare: dict[str, str]) -> None:
    broker = serve()
    program = f"""
        import asyncio, sys
        import fanlog, fanlog.sync

        async def main():
            async with fanlog.connect({broker.url!r}) as client:
                await client.publish("t", "hello")
                async with client.subscribe("t", start="earliest") as reader:
                    print((await reader.next(timeout_seconds=30)).text)
                done = asyncio.Event()

                async def work(job):
                    print("worked on", job.text)
                    done.set()

                await client.work("t", work, queue="q", reset="earliest", until=done)

        asyncio.run(main())
        with fanlog.sync.connect({broker.url!r}) as client:
            print(client.topics("t")[0].name)
    """
    ended = run_there(bare, "-c", textwrap.dedent(program))
    assert ended.out.splitlines() == ["hello", "worked on hello", "t"], ended.err
    listed = run_there(bare, "-m", "fanlog", "topic", "list", "--url", broker.url)
    assert (listed.code, "t" in listed.out) == (0, True), listed.err


def test_a_broker_in_memory_runs_where_none_with_a_folder_can(bare: dict[str, str]) -> None:
    program = """
        import asyncio
        import fanlog

        async def main():
            async with fanlog.Broker() as broker:
                await broker.publish("t", "hello")
                async with broker.subscribe("t", start="earliest") as reader:
                    print((await reader.next(timeout_seconds=30)).text)
                try:
                    broker.listen()
                except fanlog.FanlogError as fault:
                    print(fault.code)
            try:
                await fanlog.Broker("data").start()
            except fanlog.FanlogError as fault:
                print(fault.code)

        asyncio.run(main())
    """
    ended = run_there(bare, "-c", textwrap.dedent(program))
    assert ended.out.splitlines() == ["hello", "unsupported_system", "unsupported_system"], (
        ended.err
    )


@pytest.mark.parametrize("memory", [[], ["--memory"]])
def test_serve_says_where_brokers_run(bare: dict[str, str], memory: list[str]) -> None:
    ended = run_there(bare, "-m", "fanlog", "serve", *memory)
    assert ended.code != 0
    assert ended.sentence.startswith("Brokers and pipelines run on Linux and macOS")
    assert "WSL" in ended.sentence
