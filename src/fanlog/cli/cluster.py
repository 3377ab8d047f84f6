"""`fanlog cluster ...`: look at a cluster, and say who shall do what. All of it goes through
etcd, so that it works while no node serves anybody."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.text import Text

from fanlog.cli.cluster_etcd import open_etcd
from fanlog.cli.serve import ConfigFile
from fanlog.cli.session import AsJson
from fanlog.cli.settings import load_settings
from fanlog.cli.terminal import new_table, out, print_json, printable, say_done, say_warning
from fanlog.cluster.operating import (
    FoundCluster,
    ask_to_join,
    ask_to_leave,
    ask_to_move,
    begin_reign,
    find_cluster,
)
from fanlog.cluster.status import describe_cluster
from fanlog.errors import InvalidArgumentError
from fanlog.format.cluster_view import ClusterStatus

cluster_app = typer.Typer(
    help="Look at a cluster, move its primary, and change its nodes.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

T = TypeVar("T")

Name = Annotated[
    str | None,
    typer.Option(
        "--cluster", help="The cluster. Default: cluster.name.", envvar="FANLOG_CLUSTER_NAME"
    ),
]
EtcdUrls = Annotated[
    str | None,
    typer.Option(
        "--etcd",
        help="Addresses of etcd, separated by commas. Default: cluster.etcd.",
        metavar="URL[,URL...]",
        envvar="FANLOG_CLUSTER_ETCD",
    ),
]
NodeId = Annotated[str, typer.Argument(help="The id of the node.", metavar="NODE")]


def _with_cluster(
    name: str | None,
    etcd: str | None,
    config: ConfigFile,
    work: Callable[[FoundCluster], Awaitable[T]],
) -> T:
    settings = load_settings(config, {"cluster.name": name, "cluster.etcd": etcd})
    chosen = settings.config.cluster
    if not chosen.name or not chosen.etcd:
        raise InvalidArgumentError(
            "Name the cluster and its etcd: --cluster NAME --etcd http://127.0.0.1:2379, or set "
            "cluster.name and cluster.etcd in fanlog.toml."
        )

    async def run() -> T:
        coordination = open_etcd(chosen)
        try:
            return await work(await find_cluster(coordination, chosen.name, chosen.etcd))
        finally:
            await coordination.close()

    return asyncio.run(run())


# Looking


@cluster_app.command(epilog="Example: [bold]fanlog cluster status --cluster orders[/]")
def status(
    *,
    cluster: Name = None,
    etcd: EtcdUrls = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the nodes: who is the primary, who is in sync, and what is wrong."""

    async def work(found: FoundCluster) -> ClusterStatus:
        return describe(found)

    shown = _with_cluster(cluster, etcd, config, work)
    if as_json:
        print_json(msgspec.to_builtins(shown))
        return
    console = out()
    console.print(
        Text.assemble(
            ("Cluster ", "dim"),
            (shown.cluster, "bold cyan"),
            ("   epoch ", "dim"),
            str(shown.epoch),
            ("   in sync ", "dim"),
            f"{shown.in_sync} (at least {shown.min_in_sync})",
        )
    )
    table = new_table("NODE", "ROLE", "STATE", "ADDRESS", "ZONE", "RELEASE", "REMARK")
    for one in shown.nodes:
        state = Text("alive", "green") if one.alive else Text("missing", "bold red")
        table.add_row(
            Text(printable(one.node), style="bold"),
            one.role,
            state,
            printable(one.address) or "-",
            printable(one.zone) or "-",
            printable(one.release) or "-",
            printable(one.remark) or "-",
        )
    console.print(table)
    for problem in shown.problems:
        say_warning(problem)


def describe(found: FoundCluster) -> ClusterStatus:
    """What etcd says, for people."""
    return describe_cluster(found.name, found.cluster, found.requests)


# Changing


@cluster_app.command(epilog="Example: [bold]fanlog cluster move b --cluster orders[/]")
def move(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Make a node the primary. It must be in sync."""

    async def work(found: FoundCluster) -> str:
        return await ask_to_move(found, node, _operator())

    say_done(_with_cluster(cluster, etcd, config, work))


@cluster_app.command(epilog="Example: [bold]fanlog cluster drain a --cluster orders[/]")
def drain(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Take a node out of service: it is neither primary nor a replica, until it joins again."""
    _leave("drain", node, cluster, etcd, config)


@cluster_app.command(epilog="Example: [bold]fanlog cluster leave c --cluster orders[/]")
def leave(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Take a node out of the cluster for good."""
    _leave("leave", node, cluster, etcd, config)


def _leave(what: str, node: str, cluster: str | None, etcd: str | None, config: ConfigFile) -> None:
    async def work(found: FoundCluster) -> str:
        return await ask_to_leave(found, what, node, _operator())

    say_done(_with_cluster(cluster, etcd, config, work))


@cluster_app.command(epilog="Example: [bold]fanlog cluster join d --cluster orders[/]")
def join(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Make a running node a replica: a spare one, or one that was drained."""

    async def work(found: FoundCluster) -> str:
        return await ask_to_join(found, node, _operator())

    say_done(_with_cluster(cluster, etcd, config, work))


@cluster_app.command(
    epilog="Example: [bold]fanlog cluster promote b --accept-loss --cluster orders[/]"
)
def promote(
    node: NodeId,
    *,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Begin with what this node has, whatever is missing."),
    ] = False,
    cluster: Name = None,
    etcd: EtcdUrls = None,
    config: ConfigFile = None,
) -> None:
    """Make a node the primary that may lack messages, when no node in sync is left."""

    async def work(found: FoundCluster) -> str:
        return await begin_reign(found, node, accept_loss=accept_loss, by=_operator())

    say_done(_with_cluster(cluster, etcd, config, work))


def _operator() -> str:
    """Who runs this command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "operator"
    return "".join(f"{user}@{socket.gethostname()}".split())
