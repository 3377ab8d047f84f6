"""Figures of a cluster: `python -m tests.cluster.figures --kills 20`.

How long writes rest after `kill -9` of the primary, during a planned move, and while all nodes are
restarted one by one, at default settings; and acknowledged publishes a second with three replicas
and fsync, beside JetStream with three replicas and `sync_interval: always`, and one node, in turn.
All nodes are on this machine: they share its cores and its disk, so that the figures are for
comparing, not for sizing.
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
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import fanlog
from fanlog.bench.acked import acked_load
from fanlog.bench.systems import (
    HOST,
    BenchError,
    SystemSpec,
    find_program,
    on_core_ns,
    started,
    stop,
    wait_until_listening,
)
from fanlog.bench.wires.base import SETUP_TIMEOUT_S, AckedWire, connect
from fanlog.bench.wires.fanlog import FanlogTopic
from fanlog.bench.wires.nats import NatsStream, nats_greet
from tests.cluster.processes import CLUSTER, ClusterProcesses
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.servers import free_port

# Windows, and messages of a batch.
_PUBLISHERS = ((1, 1), (1000, 1), (1000, 64))
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


async def rests(cluster: ClusterProcesses, given: argparse.Namespace) -> None:
    """The rest of writes at each move, each rolling restart and each kill. The client names all
    nodes; an error that it sees ends the run."""
    writer = Writer(cluster.url)
    writing = asyncio.create_task(writer.run())
    try:
        for what, times, disturb in (
            ("move", given.moves, _move),
            ("rolling restart", given.restarts, _restart_all),
            ("kill -9 of the primary", given.kills, _kill),
        ):
            found: list[float] = []
            for _ in range(times):
                await writer.more(50)
                writer.longest_s = 0.0
                await disturb(cluster, writer)
                await writer.more(50)
                found.append(writer.longest_s)
                for node in cluster.nodes.values():
                    if not node.running:
                        node.start()
                await asyncio.to_thread(cluster.wait_whole)
                if writing.done():
                    writing.result()
                print(f"{what}, {len(found)} times: {_describe(found)}", flush=True)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def _describe(found: Sequence[float]) -> str:
    return (
        f"writes rest {found[-1]:.2f} s; p50 {_percentile(found, 50):.2f} s, "
        f"p99 {_percentile(found, 99):.2f} s"
    )


async def _kill(cluster: ClusterProcesses, writer: Writer) -> None:
    primary = await asyncio.to_thread(cluster.primary)
    cluster.nodes[primary].kill()


async def _restart_all(cluster: ClusterProcesses, writer: Writer) -> None:
    """Stops each node, as an operator does, and starts it again."""
    for node in cluster.nodes.values():
        if await asyncio.to_thread(node.stop):
            raise BenchError(f"node {node.node} did not stop cleanly")
        await writer.more(50)
        node.start()
        await asyncio.to_thread(cluster.wait_whole)


async def _move(cluster: ClusterProcesses, writer: Writer) -> None:
    primary = await asyncio.to_thread(cluster.primary)
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


def measure_jetstream(ports: dict[str, int], window: int, run_s: float) -> Measured:
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
            return measure(ReplicatedStream(_PAYLOAD), ports[leader], window, run_s, ())
        except (BenchError, OSError):
            # The servers may still be looking for each other.
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


class Measured(NamedTuple):
    """Of one run: the rate, and the CPU time that each node took for a message."""

    rate: float
    cpu_us: tuple[float, ...] = ()


def measure(wire: AckedWire, port: int, window: int, run_s: float, pids: Sequence[int]) -> Measured:
    """Like `measure_acked`; its publisher sleeps while it waits: the servers need both cores."""
    with acked_load(wire, port, window, spins=False) as load:
        began = load.pump(time.perf_counter() + 0.5)
        units, took_ns = load.acknowledged_units, [on_core_ns(pid) for pid in pids]
        ended = load.pump(began + run_s)
        messages = (load.acknowledged_units - units) * wire.messages
        cpu_us = tuple(
            (on_core_ns(pid) - before) / messages / 1000
            for pid, before in zip(pids, took_ns, strict=True)
        )
        load.drain()
        load.verify()
        return Measured(messages / (ended - began), cpu_us)


def sync_us(folder: Path, writers: int) -> float:
    """The median of an fdatasync after 400 bytes, while so many threads do that, each in a file."""
    found: list[float] = []

    def write(number: int) -> None:
        fd = os.open(folder / f"sync-{number}", os.O_RDWR | os.O_CREAT)
        os.write(fd, bytes(8 << 20))
        os.fsync(fd)
        for i in range(2000):
            os.pwrite(fd, b"x" * 400, 400 * i)
            began = time.perf_counter()
            os.fdatasync(fd)
            found.append(time.perf_counter() - began)
        os.close(fd)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(found) * 1e6


def publishing(cluster: ClusterProcesses, folder: Path, run_s: float, repeat: int) -> None:
    """All systems in turn. The best run of each counts: other work on the machine only slows."""
    print(f"fdatasync: {sync_us(folder, 1):.0f} us alone, {sync_us(folder, 3):.0f} us beside two")
    with (
        jetstream(folder) as ports,
        started(SystemSpec("fanlog"), None, folder) as single,
    ):
        for window, batch in _PUBLISHERS:
            runs: dict[str, list[Measured]] = {"Fanlog": [], "JetStream R3": [], "one node": []}
            for turn in range(repeat):
                name = f"figures.{window}.{batch}.{turn}"
                wire = FanlogTopic(_PAYLOAD, batch, "fsync", 1, name)
                first = cluster.primary()
                pids = [cluster.nodes[first].pid]
                pids += [node.pid for node in cluster.nodes.values() if node.node != first]
                port = cluster.nodes[first].port
                runs["Fanlog"].append(measure(wire, port, window, run_s, pids))
                alone = FanlogTopic(_PAYLOAD, batch, "fsync", 1, name)
                runs["one node"].append(measure(alone, single.port, window, run_s, ()))
                if batch == 1:
                    runs["JetStream R3"].append(measure_jetstream(ports, window, run_s))
            _report(window, batch, {name: max(found) for name, found in runs.items() if found})


def _report(window: int, batch: int, best: dict[str, Measured]) -> None:
    ours, alone = best["Fanlog"], best["one node"]
    said = [f"{name} {found.rate:,.0f}/s" for name, found in best.items()]
    theirs = best.get("JetStream R3")
    if theirs is not None:
        said.append(f"{ours.rate / theirs.rate:.2f} times JetStream")
    if window == 1:
        said.append(f"{1e6 / ours.rate - 1e6 / alone.rate:.0f} us more than one node")
    cpu = " + ".join(f"{one:.2f}" for one in ours.cpu_us)
    print(
        f"window {window}, {batch} a batch: {', '.join(said)}; CPU {cpu} us a message", flush=True
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
        if given.repeat:
            publishing(cluster, folder, given.seconds, given.repeat)
        asyncio.run(rests(cluster, given))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Figures of a cluster of three nodes.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=2, help="Of all nodes, one by one.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Of each measured stretch.")
    parser.add_argument("--repeat", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fanlog-figures-") as made:
        main(_arguments(), Path(made))
