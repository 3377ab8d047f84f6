"""Where a cluster is treated badly: its processes, and with namespaces its hosts, disks and clocks.

Without namespaces everything is on 127.0.0.1, and there is only one etcd.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.chaos import isolation
from tests.cluster.chaos.clock import NodeClock
from tests.cluster.chaos.disk import NodeDisk
from tests.cluster.chaos.network import Host, make_hosts
from tests.cluster.chaos.transactions import MEMORY_BYTES
from tests.cluster.processes import ClusterProcesses, Machine
from tests.etcd_servers import EtcdServers, etcd_servers

NODES = "abc"
# Small files, so that logs have many and large transactions are staged in files.
_SETTINGS = f"""
[broker]
transaction_memory_bytes = {MEMORY_BYTES}
[log]
journal_bytes = 4194304
segment_first_bytes = 4096
"""


@dataclass
class Site:
    cluster: ClusterProcesses
    # All empty without namespaces.
    hosts: Mapping[str, Host] = field(default_factory=dict[str, Host])
    disks: Mapping[str, NodeDisk] = field(default_factory=dict[str, NodeDisk])
    clocks: Mapping[str, NodeClock] = field(default_factory=dict[str, NodeClock])

    @property
    def etcd(self) -> EtcdServers:
        return self.cluster.etcd

    @property
    def folders(self) -> dict[str, Path]:
        return {name: node.data for name, node in self.cluster.nodes.items()}


@contextmanager
def local_site(folder: Path) -> Generator[Site]:
    settings = _settings(folder)
    with (
        etcd_servers(folder) as etcd,
        closing(ClusterProcesses(folder, etcd, NODES, "--config", settings)) as cluster,
    ):
        cluster.start()
        yield Site(cluster)


@contextmanager
def namespaced_site(folder: Path, disk_bytes: int) -> Generator[Site]:
    """Each node has a host of its own, together with a member of etcd, whose disk nobody fills."""
    isolation.prepare()
    settings = _settings(folder)
    hosts = make_hosts(NODES)
    disks = {name: NodeDisk(folder / f"disk-{name}", disk_bytes) for name in NODES}
    clocks = {name: NodeClock(folder / f"clock-{name}") for name in NODES}
    machines = {
        name: Machine(host.address, host.enter, clocks[name].env, str(disks[name].data))
        for name, host in hosts.items()
    }
    entered = {host.address: host.enter for host in hosts.values()}
    with (
        etcd_servers(folder, members=len(NODES), hosts=entered) as etcd,
        closing(
            ClusterProcesses(folder, etcd, NODES, "--config", settings, machines=machines)
        ) as cluster,
    ):
        cluster.start()
        yield Site(cluster, hosts, disks, clocks)


def _settings(folder: Path) -> str:
    file = folder / "fanlog.toml"
    file.write_text(_SETTINGS)
    return str(file)
