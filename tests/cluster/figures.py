"""Figures of a cluster: `python -m tests.cluster.figures --kills 20`.

How long writes rest after `kill -9` of the primary, and during a planned move, at default settings;
and acknowledged publishes a second with three replicas and fsync, beside JetStream with three
replicas and `sync_interval: always`, in turn. All nodes are on this machine: they share its cores
and its disk, so that the figures are for comparing, not for sizing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import fanlog
from fanlog.bench.acked import measure_acked
from fanlog.bench.systems import HOST, BenchError, find_program, stop, wait_until_listening
from fanlog.bench.wires.base import SETUP_TIMEOUT_S, connect
from fanlog.bench.wires.fanlog import FanlogTopic
from fanlog.bench.wires.nats import NatsStream, nats_greet
from tests.cluster.processes import CLUSTER, ClusterProcesses
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.servers import free_port

_WINDOWS = (1, 1000)
_PAYLOAD = b"x" * 128
_DEFAULTS: dict[str, str] = {}


def _percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Writer:
    """Publishes one message after the other, and notes the longest rest between two answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answered = 0
        self._last = 0.0
        self.longest_s = 0.0

    async def run(self) -> None:
        async with fanlog.connect(
            self._url, producer="writer", wait_seconds=60.0, backoff_max_seconds=0.1
        ) as client:
            while True:
                await client.publish("figures", _PAYLOAD)
                now = time.perf_counter()
                self.longest_s = max(self.longest_s, now - self._last if self._last else 0.0)
                self._last = now
                self.answered += 1

    async def more(self, count: int) -> None:
        until = self.answered + count
        async with asyncio.timeout(120.0):
            while self.answered < until:  # noqa: ASYNC110 - of another task
                await asyncio.sleep(0.01)


async def rests(cluster: ClusterProcesses, kills: int, moves: int) -> None:
    """The rest of writes at each kill and at each move. The client names all nodes."""
    writer = Writer(cluster.url)
    writing = asyncio.create_task(writer.run())
    try:
        for what, times in (("kill -9 of the primary", kills), ("move", moves)):
            found: list[float] = []
            for _ in range(times):
                await writer.more(50)
                writer.longest_s = 0.0
                await _disturb(cluster, what)
                await writer.more(50)
                found.append(writer.longest_s)
                for node in cluster.nodes.values():
                    if not node.running:
                        node.start()
                await asyncio.to_thread(cluster.wait_whole)
            if found:
                print(
                    f"{what}, {times} times: writes rest p50 {_percentile(found, 50):.2f} s, "
                    f"p99 {_percentile(found, 99):.2f} s, longest {max(found):.2f} s",
                    flush=True,
                )
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _disturb(cluster: ClusterProcesses, what: str) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    if what != "move":
        cluster.nodes[primary].kill()
        return
    to = next(node for node in cluster.nodes if node != primary)
    where = ("--cluster", CLUSTER, "--etcd", ",".join(cluster.etcd.urls))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fanlog", "cluster", "move", to, *where),
        stdout=subprocess.DEVNULL,
    )
    if await process.wait():
        raise BenchError("the primary was not moved")


class ReplicatedStream(NatsStream):
    """A JetStream stream with three replicas."""

    def prepare(self, publisher: socket.socket) -> None:
        nats_greet([publisher])
        publisher.sendall(b"SUB %s.* 1\r\n" % self.INBOX)
        self.leader(publisher)

    def leader(self, publisher: socket.socket) -> str:
        """Makes the stream, if it is not there; the server that leads it."""
        stream = {"name": "BENCH", "subjects": ["bench"], "storage": "file", "num_replicas": 3}
        made = self._request(publisher, b"$JS.API.STREAM.CREATE.BENCH", json.dumps(stream).encode())
        return made["cluster"]["leader"]

    def remove(self, publisher: socket.socket) -> None:
        with contextlib.suppress(BenchError):
            self._request(publisher, b"$JS.API.STREAM.DELETE.BENCH", b"")


@contextlib.contextmanager
def jetstream(folder: Path) -> Generator[dict[str, int]]:
    """Three NATS servers as a cluster, with JetStream and fsync; their ports by their names."""
    program = find_program("nats")
    ports = {f"n{number}": free_port() for number in range(3)}
    routes = {name: free_port() for name in ports}
    listed = ", ".join(f"nats-route://{HOST}:{port}" for port in routes.values())
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, port in ports.items():
            config = folder / f"{name}.conf"
            config.write_text(
                f'server_name: {name}\nlisten: "{HOST}:{port}"\nping_interval: "1h"\n'
                f'jetstream {{ store_dir: "{folder / name}"\n sync_interval: always }}\n'
                f'cluster {{ name: bench\n listen: "{HOST}:{routes[name]}"\n'
                f" routes: [{listed}] }}\n"
            )
            said = folder / f"{name}.log"
            with said.open("wb") as log:
                process = subprocess.Popen(
                    [str(program), "--config", str(config)], stdout=log, stderr=log
                )
            processes.append(process)
            wait_until_listening(process, port, said)
        yield ports
    finally:
        for process in processes:
            stop(process)


def measure_jetstream(ports: dict[str, int], window: int, run_s: float) -> float:
    """At the server that leads the stream, so that nothing is passed on."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            with connect(next(iter(ports.values()))) as sock:
                sock.settimeout(SETUP_TIMEOUT_S)
                nats_greet([sock])
                sock.sendall(b"SUB %s.* 1\r\n" % NatsStream.INBOX)
                stream = ReplicatedStream(_PAYLOAD)
                stream.remove(sock)
                leader = stream.leader(sock)
            return measure_acked(ReplicatedStream(_PAYLOAD), ports[leader], window, 0.5, run_s)
        except (BenchError, OSError):
            # The servers may still be looking for each other.
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def publishing(cluster: ClusterProcesses, folder: Path, run_s: float, repeat: int) -> None:
    """Both systems in turn. The best run of each counts: other work on the machine only slows."""
    with jetstream(folder) as ports:
        for window in _WINDOWS:
            ours: list[float] = []
            theirs: list[float] = []
            for turn in range(repeat):
                primary = cluster.nodes[cluster.primary()]
                topic = FanlogTopic(_PAYLOAD, 1, "fsync", 1, f"figures.{window}.{turn}")
                ours.append(measure_acked(topic, primary.port, window, 0.5, run_s))
                theirs.append(measure_jetstream(ports, window, run_s))
            print(
                f"window {window}: Fanlog {max(ours):,.0f}/s, JetStream R3 {max(theirs):,.0f}/s, "
                f"{max(ours) / max(theirs):.1f} times; median {statistics.median(ours):,.0f} and "
                f"{statistics.median(theirs):,.0f}",
                flush=True,
            )


def main(given: argparse.Namespace, folder: Path) -> None:
    with etcd_servers(folder) as etcd:
        _measure(given, folder, etcd)


def _measure(given: argparse.Namespace, folder: Path, etcd: EtcdServers) -> None:
    # The default settings of leases and limits.
    with closing(ClusterProcesses(folder, etcd, settings=_DEFAULTS)) as cluster:
        cluster.start()
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, load {load:.1f}, 3 replicas, min_in_sync 2", flush=True)
        asyncio.run(rests(cluster, given.kills, given.moves))
        publishing(cluster, folder, given.seconds, given.repeat)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Figures of a cluster of three nodes.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="Of each measured stretch.")
    parser.add_argument("--repeat", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fanlog-figures-") as made:
        main(_arguments(), Path(made))
