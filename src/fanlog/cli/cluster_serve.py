"""`fanlog serve --cluster`: a node of a cluster, until a signal."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from fanlog.cli.cluster_etcd import open_etcd
from fanlog.cli.credentials import find_credentials
from fanlog.cli.listening import check_ports
from fanlog.cli.live import ServedSettings
from fanlog.cli.options import OptionValue
from fanlog.cli.process import on_signals, reload
from fanlog.cli.service_manager import ServiceManager
from fanlog.cli.settings import Settings
from fanlog.cli.terminal import out
from fanlog.cluster.mark import load_mark
from fanlog.config import ClientOptions, Config
from fanlog.config_cluster import ClusterOptions
from fanlog.errors import ConfigError
from fanlog.log.clean_stop import boot_id
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog.cluster.node import ClusterNode

logger = logging.getLogger("fanlog")


def check_cluster(config: Config, *, memory: bool) -> None:
    """Checks that the settings of a cluster fit together."""
    cluster = config.cluster
    if not cluster.name:
        given = [flag for flag, value in _flags(cluster).items() if value]
        if given:
            raise ConfigError(
                f"{given[0]} is for a node of a cluster: give --cluster NAME as well."
            )
        return
    missing = [flag for flag, value in _flags(cluster).items() if not value]
    if missing:
        raise ConfigError(
            f"A node of a cluster needs {' and '.join(missing)}. Example: fanlog serve --cluster "
            "orders --etcd http://127.0.0.1:2379 --node-id a"
        )
    if memory:
        raise ConfigError(
            "A node of a cluster needs a data folder, and --memory has none: leave one of them out."
        )
    if cluster.min_in_sync > cluster.replicas:
        raise ConfigError(
            f"cluster.min_in_sync is {cluster.min_in_sync}, and cluster.replicas only "
            f"{cluster.replicas}: nothing could ever be stored."
        )
    if not config.listener.port:
        raise ConfigError("A node of a cluster needs a port that others know: give --port.")


def _flags(cluster: ClusterOptions) -> dict[str, str]:
    return {"--etcd": cluster.etcd, "--node-id": cluster.node_id}


def check_alone(config: Config) -> None:
    """Checks that the folder does not belong to a cluster: opened alone, its history would part
    from the others."""
    mark = load_mark(config.data) if os.path.isdir(config.data) else None
    if mark is not None:
        raise ConfigError(
            f"{os.path.abspath(config.data)} belongs to node {mark.node} of the cluster "
            f"{mark.cluster_name!r}. Start it with --cluster {mark.cluster_name} --node-id "
            f"{mark.node} and --etcd. To continue alone, and leave the cluster for good, remove "
            "its file cluster.json first."
        )


async def serve_cluster(
    settings: Settings, flags: Mapping[str, OptionValue | None], *, adopt: bool
) -> None:
    """Runs the node."""
    # Imports of aiohttp and of the listeners take a while.
    from fanlog.cluster.node import ClusterNode  # noqa: PLC0415

    config = settings.config
    manager = ServiceManager()
    manager.starting()
    etcd = open_etcd(config.cluster)
    credentials = find_credentials(f"fanlog://{config.listener.host}")
    options = msgspec.convert({"name": "node", **credentials}, ClientOptions)
    node = ClusterNode(
        Path(config.data),
        config,
        etcd,
        boot_id=boot_id(),
        options=options,
        adopt=adopt,
    )
    status = f"Node {node.node_id} of the cluster {config.cluster.name}"
    lives: list[ServedSettings] = []

    def role_changed(node: ClusterNode) -> None:
        lives.clear()
        if node.primary is not None:
            served = node.primary.node
            served.core.settings = live = ServedSettings(served, settings, flags, check_ports)
            lives.append(live)
            served.watch()
            manager.ready(f"{status}: primary")
        else:
            manager.ready(f"{status}: follower")

    node.on_role = role_changed
    await node.start()

    async def reload_settings() -> None:
        for live in lives:
            await reload(live, manager, status)

    stopped = on_signals(reload_settings)
    _print_banner(config)
    manager.ready(status)
    sent = await stopped
    manager.stopping()
    logger.info("%s: handing over; once more ends at once.", signal.Signals(sent).name)
    await node.stop()
    logger.info("Handed over and stopped.")


def _print_banner(config: Config) -> None:
    cluster = config.cluster
    console = out()
    console.print(
        Text.assemble(
            ("Fanlog", "bold cyan"),
            f" {VERSION} is node ",
            (cluster.node_id, "bold"),
            " of the cluster ",
            (cluster.name, "bold"),
        ),
        Text.assemble(("  data  ", "dim"), os.path.abspath(config.data)),
        Text.assemble(("  etcd  ", "dim"), cluster.etcd),
        Text("See all nodes, in another terminal:"),
        Text(f"  fanlog cluster status --cluster {cluster.name} --etcd {cluster.etcd}", "green"),
        sep="\n",
    )
    console.file.flush()
