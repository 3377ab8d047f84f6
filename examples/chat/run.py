"""A chat in the browser, on one process or on several in front of one bus.

    python examples/chat/run.py                          # one process: http://127.0.0.1:8000
    python examples/chat/run.py --edges 3                # three edges over Fanlog
    python examples/chat/run.py --edges 3 --bus redis    # over Redis (redis-server must be there)
    python examples/chat/run.py --edges 3 --bus nats     # over NATS with JetStream (nats-server)
    python examples/chat/run.py --edges 3 --upstream redis://10.0.0.5:6379    # a bus that runs

Open the addresses in several windows. Then end one edge (its process id is shown): its windows move
to another edge and miss nothing. The page is plain HTML, CSS and JavaScript in `page/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

PAGE = Path(__file__).parent / "page"
START_SECONDS = 60.0
STOP_SECONDS = 15.0


def main() -> None:
    options = read_arguments()
    # Ends the other processes, too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanlog-chat-")))
        ports = [options.port or free_port()]
        ports += [ports[0] + i if options.port else free_port() for i in range(1, options.edges)]
        urls = [f"http://{options.host}:{port}" for port in ports]
        page = write_page(folder, urls)
        if options.edges == 1 and not options.upstream:
            storage = ["--data", str(options.data)] if options.data else ["--memory"]
            commands = [serve(*storage, "--http-port", str(ports[0]), "--host", options.host)]
        else:
            upstream = options.upstream or start_bus(stack, options, folder)
            commands = [
                edge("--upstream", upstream, "--host", options.host, "--http-port", str(port))
                for port in ports
            ]
        # Pages of one edge may move to another, which is another origin for a browser.
        settings = {"FANLOG_WEB_FOLDER": str(page), "FANLOG_WEB_ORIGINS": " ".join(urls)}
        processes = [start(stack, command, settings) for command in commands]
        for process, url in zip(processes, urls, strict=True):
            wait_for_page(process, url)
            print(f"Chat: {url}  (process {process.pid})", flush=True)
        watch(processes, urls)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A chat in the browser.")
    parser.add_argument("--port", type=int, default=8000, help="first port; 0 takes free ones")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--edges", type=int, default=1, help="number of web processes")
    parser.add_argument("--bus", choices=("fanlog", "redis", "nats"), default="fanlog")
    parser.add_argument("--upstream", help="a bus that runs already: fanlog://, redis://, nats://")
    parser.add_argument("--data", type=Path, help="keep messages here; without it, in memory")
    options = parser.parse_args()
    if options.edges < 1:
        parser.error("--edges must be at least 1")
    if options.edges == 1 and options.bus != "fanlog" and not options.upstream:
        parser.error("one process needs no bus: give --edges 2 or more")
    return options


def write_page(folder: Path, urls: Sequence[str]) -> Path:
    """The page, and where else it may connect to."""
    page = folder / "page"
    shutil.copytree(PAGE, page)
    (page / "edges.json").write_text(json.dumps(list(urls)), encoding="utf-8")
    return page


def fanlog(*args: str) -> list[str]:
    return [sys.executable, "-m", "fanlog", *args]


def serve(*args: str) -> list[str]:
    return fanlog("serve", "--port", "0", "--redis-port", "-1", *args)


def edge(*args: str) -> list[str]:
    return fanlog("edge", "--port", "0", "--redis-port", "-1", *args)


def start_bus(stack: ExitStack, options: argparse.Namespace, folder: Path) -> str:
    """Starts the bus, and returns its address."""
    port = str(free_port())
    data = options.data or folder / "bus"
    data.mkdir(parents=True, exist_ok=True)
    quiet_fanlog = fanlog("serve", "--redis-port", "-1", "--http-port", "-1")
    here = ["127.0.0.1", "--port", port]
    commands = {
        "fanlog": [*quiet_fanlog, "--data", str(data), "--port", port],
        "redis": [program("redis-server"), "--dir", str(data), "--bind", *here],
        "nats": [program("nats-server"), "--jetstream", "--store_dir", str(data), "--addr", *here],
    }
    process = start(stack, commands[options.bus], {}, quiet=True)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                url = f"{options.bus}://127.0.0.1:{port}"
                print(f"Bus: {url}  (process {process.pid})", flush=True)
                return url
        time.sleep(0.05)
    sys.exit(f"{options.bus} did not start on port {port}.")


def program(name: str) -> str:
    """A server from PATH, or from beside this Python. Another bus does not need it."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name) or shutil.which(name, path=beside) or name


def start(
    stack: ExitStack, command: Sequence[str], settings: dict[str, str], *, quiet: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a process that ends when this program does."""
    said = subprocess.DEVNULL if quiet else None
    try:
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=said
        )
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not installed. Install it, or choose another --bus.")
    stack.callback(stop, process)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_page(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/status", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"The process for {url} did not start: is the port free?")


def watch(processes: Sequence[subprocess.Popen[bytes]], urls: Sequence[str]) -> None:
    """Until Ctrl-C, or until no process is left."""
    running = dict(zip(urls, processes, strict=True))
    try:
        while running:
            time.sleep(0.5)
            for url, process in list(running.items()):
                if process.poll() is not None:
                    print(f"The process for {url} has ended.", flush=True)
                    del running[url]
    except KeyboardInterrupt:
        print()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
