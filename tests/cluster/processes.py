"""Nodes of a cluster as processes of their own, on 127.0.0.1 or where they are put, with a real
etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fanlog.cluster import etcd_messages
from fanlog.cluster.records import ClusterKeys, NodeRecord, ShardRecord, decode, node_of
from tests.etcd_servers import EtcdServers
from tests.forking import Program, fork
from tests.servers import HOST, free_port

CLUSTER = "test"
# Much longer than anything takes on a machine that has other work.
PATIENCE_SECONDS = 90.0
_STOP_SECONDS_MAX = 60.0
# A loss is noticed sooner than by default.
QUICK = {
    "FANLOG_CLUSTER_LEASE_SECONDS": "3",
    "FANLOG_CLUSTER_GRACE_SECONDS": "0.5",
    "FANLOG_CLUSTER_FOLLOWER_TIMEOUT_SECONDS": "2",
}


@dataclass(frozen=True)
class Machine:
    """Where a node runs. `enter` is a command that starts another one there."""

    host: str = HOST
    enter: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    # Empty: under the folder of the cluster.
    data: str = ""


class NodeProcess:
    """One `fanlog serve --cluster`. It may be killed, paused, stopped and started again."""

    def __init__(
        self,
        node: str,
        folder: Path,
        etcd: str,
        *flags: str,
        settings: Mapping[str, str],
        machine: Machine,
    ) -> None:
        self.node = node
        self.machine = machine
        self.data = Path(machine.data) if machine.data else folder / node
        self.log = folder / f"{node}.log"
        self.port, self.redis_port, self.http_port = free_port(), free_port(), free_port()
        self._etcd = etcd
        self._flags = flags
        self._settings = settings
        self._process: Program | subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"fanlog://{self.machine.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *more: str) -> None:
        ports = {
            "--port": self.port,
            "--redis-port": self.redis_port,
            "--http-port": self.http_port,
        }
        where = ["--cluster", CLUSTER, "--etcd", self._etcd, "--node-id", self.node]
        where += [str(part) for pair in ports.items() for part in pair]
        if self.machine.host != HOST:
            where += ["--host", self.machine.host, "--allow-open"]
        command = ("fanlog", "serve", "--data", str(self.data), *where, *self._flags, *more)
        host = self.machine.host
        hosts = {"FANLOG_WEB_HOST": host, "FANLOG_REDIS_HOST": host}
        env = {**os.environ, **self._settings, **hosts, **self.machine.env}
        with self.log.open("ab") as log:
            if self.machine.enter:
                self._process = subprocess.Popen(
                    [*self.machine.enter, sys.executable, "-m", *command],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            else:
                self._process = fork(*command, env=env, stdout=log.fileno(), stderr=log.fileno())

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stops it as an operator does. Its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        return process.wait(_STOP_SECONDS_MAX)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


class Patience:
    """Waits for so many seconds of a machine that runs: while all of it is stopped, none pass."""

    _LOOK_SECONDS_MAX = 1.0

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    @property
    def is_over(self) -> bool:
        """To be asked several times a second."""
        now = time.monotonic()
        self._left -= min(now - self._looked, self._LOOK_SECONDS_MAX)
        self._looked = now
        return self._left <= 0


class ClusterProcesses:
    """Three nodes, or those that are named; `nodes` has them by their ids."""

    def __init__(
        self,
        folder: Path,
        etcd: EtcdServers,
        nodes: str = "abc",
        *flags: str,
        settings: Mapping[str, str] = QUICK,
        machines: Mapping[str, Machine] | None = None,
    ) -> None:
        self.etcd = etcd
        urls = ",".join(etcd.urls)
        self.nodes = {
            node: NodeProcess(
                node,
                folder,
                urls,
                *flags,
                settings=settings,
                machine=(machines or {}).get(node, Machine()),
            )
            for node in nodes
        }

    @property
    def url(self) -> str:
        """All nodes, for a client."""
        addresses = (f"{one.machine.host}:{one.port}" for one in self.nodes.values())
        return "fanlog://" + ",".join(addresses)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.wait_whole()

    def close(self) -> None:
        for node in self.nodes.values():
            if node.running:
                node.resume()
            node.kill()

    def record(self) -> ShardRecord | None:
        return read_record(self.etcd.urls)

    def primary(self) -> str:
        record = self.record()
        return "" if record is None else node_of(record.primary)

    def wait_until(self, holds: Callable[[ShardRecord], bool], what: str) -> ShardRecord:
        """Waits until the cluster's record is so."""
        patience = Patience(PATIENCE_SECONDS)
        record = None
        while not patience.is_over:
            record = self.record()
            if record is not None and holds(record):
                return record
            time.sleep(0.1)
        logs = "\n".join(f"--- {node.node}\n{node.said()[-3000:]}" for node in self.nodes.values())
        raise AssertionError(f"{what}: not so after {PATIENCE_SECONDS} s: {record}\n{logs}")

    def wait_whole(self, count: int = 0) -> ShardRecord:
        """Waits until all nodes are in sync, or so many."""
        count = count or len(self.nodes)
        return self.wait_until(lambda record: len(record.in_sync) == count, f"{count} in sync")

    def wait_fit(self) -> None:
        """Waits until every node may be the primary: its disk has room, and no damage."""
        patience = Patience(PATIENCE_SECONDS)
        for name in self.nodes:
            record = None
            while record is None or record.unfit:
                assert not patience.is_over, f"{name} is not fit: {record}"
                time.sleep(0.1)
                record = read_node(self.etcd.urls, name)


def read_record(urls: Sequence[str]) -> ShardRecord | None:
    """The cluster's record."""
    value = _read(urls, ClusterKeys(CLUSTER).shard())
    return decode(value, ShardRecord) if value else None


def read_node(urls: Sequence[str], node: str) -> NodeRecord | None:
    """What a node says of itself; None if it is not alive."""
    value = _read(urls, ClusterKeys(CLUSTER).node(node))
    return decode(value, NodeRecord) if value else None


def _read(urls: Sequence[str], key: str) -> bytes:
    """A value, from the first member of etcd that answers; empty if there is none."""
    body = etcd_messages.range_body(key)
    for url in urls:
        request = urllib.request.Request(url + etcd_messages.RANGE, data=body)
        try:
            with urllib.request.urlopen(request, timeout=5.0) as response:
                listing = etcd_messages.read_listing(response.read(), 0)
        except OSError:
            continue
        return listing.stored[0].value if listing.stored else b""
    return b""
