"""`fanlog cluster ...`: look at a cluster, and say who shall do what. All of it goes through
etcd, so that it works while no node serves anybody. It is long because the options of each
command are its signature."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
import typer
from rich.text import Text

from fanlog.cli.cluster_etcd import open_etcd
from fanlog.cli.serve import ConfigFile
from fanlog.cli.session import AsJson
from fanlog.cli.settings import load_settings
from fanlog.cli.terminal import new_table, out, print_json, printable, say_done, say_warning
from fanlog.cluster.coordination import Coordination, Listing, Stored, Swapped
from fanlog.cluster.forced_reign import forced_reign
from fanlog.cluster.records import ClusterKeys, NodeRecord, ShardRecord, encode, node_of, nodes_of
from fanlog.cluster.requests import request_key, requests_in
from fanlog.cluster.snapshot import ClusterSnapshot, cluster_of
from fanlog.cluster.status import describe_cluster
from fanlog.errors import FanlogError, InvalidArgumentError, UnavailableError
from fanlog.format.cluster_view import ClusterStatus

if TYPE_CHECKING:
    from fanlog.cluster.requests import OperatorRequest

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


class _Found(NamedTuple):
    name: str
    keys: ClusterKeys
    etcd: Coordination
    listing: Listing
    cluster: ClusterSnapshot
    record: ShardRecord
    stored: Stored
    requests: tuple[OperatorRequest, ...]

    def member(self, node: str) -> NodeRecord | None:
        return next((one for one in self.cluster.nodes if one.node == node), None)

    def check_known(self, node: str) -> None:
        known = {*self.record.replicas, *(one.node for one in self.cluster.nodes)}
        if node not in known:
            raise InvalidArgumentError(
                f"The cluster {self.name} has no node {node!r}: it has {', '.join(sorted(known))}."
            )


def _with_cluster(
    name: str | None,
    etcd: str | None,
    config: ConfigFile,
    work: Callable[[_Found], Awaitable[T]],
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
            keys = ClusterKeys(chosen.name)
            listing = await coordination.read_prefix(keys.prefix)
            found = cluster_of(listing, keys)
            stored = next((s for s in listing.stored if s.key == keys.shard()), None)
            if found.record is None or stored is None:
                raise InvalidArgumentError(
                    f"etcd knows no cluster {chosen.name!r}. Start its first node: fanlog serve "
                    f"--cluster {chosen.name} --etcd {chosen.etcd} --node-id a"
                )
            requests = requests_in(listing, keys)
            return await work(
                _Found(
                    chosen.name,
                    keys,
                    coordination,
                    listing,
                    found,
                    found.record.record,
                    stored,
                    requests,
                )
            )
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

    async def work(found: _Found) -> ClusterStatus:
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


def describe(found: _Found) -> ClusterStatus:
    """What etcd says, for people."""
    return describe_cluster(found.name, found.cluster, found.requests)


# Changing


@cluster_app.command(epilog="Example: [bold]fanlog cluster move b --cluster orders[/]")
def move(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Make a node the primary. It must be in sync."""

    async def work(found: _Found) -> str:
        found.check_known(node)
        if node_of(found.record.primary) == node:
            return f"{node} is the primary already."
        alive = found.member(node)
        if alive is None or alive.incarnation not in found.record.in_sync:
            raise UnavailableError(
                f"{node} can't become the primary: it is not alive and in sync. See fanlog cluster "
                "status."
            )
        await _ask(found, "move", node)
        return await _wait_for(
            found, lambda record: node_of(record.primary) == node, f"{node} is the primary."
        )

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
    async def work(found: _Found) -> str:
        found.check_known(node)
        others = nodes_of(found.record.in_sync) - {node}
        if len(others) < found.record.min_in_sync:
            raise UnavailableError(
                f"Without {node} only {len(others)} nodes are in sync, and the cluster needs "
                f"{found.record.min_in_sync} to store anything. Start another node first."
            )
        await _ask(found, what, node)
        return await _wait_for(
            found,
            lambda record: node not in record.replicas and node not in nodes_of(record.in_sync),
            f"{node} is out of service. Stop it when you like.",
        )

    say_done(_with_cluster(cluster, etcd, config, work))


@cluster_app.command(epilog="Example: [bold]fanlog cluster join d --cluster orders[/]")
def join(
    node: NodeId, *, cluster: Name = None, etcd: EtcdUrls = None, config: ConfigFile = None
) -> None:
    """Make a running node a replica: a spare one, or one that was drained."""

    async def work(found: _Found) -> str:
        found.check_known(node)
        for request in found.requests:
            if request.node == node and request.what != "move":
                await found.etcd.delete(request.stored.key, request.stored)
        record = found.record
        if node not in record.replicas and len(record.replicas) >= record.replicas_wanted:
            wanted = msgspec.structs.replace(record, replicas_wanted=len(record.replicas) + 1)
            await _replace(found, wanted)
        return await _wait_for(
            found, lambda record: node in nodes_of(record.in_sync), f"{node} is in sync."
        )

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

    async def work(found: _Found) -> str:
        found.check_known(node)
        forced = forced_reign(found.cluster, node, accept_loss=accept_loss)
        await _replace(found, forced)
        return f"{node} begins the reign of epoch {forced.epoch}, with what it has."

    say_done(_with_cluster(cluster, etcd, config, work))


async def _ask(found: _Found, what: str, node: str) -> None:
    """Leaves a request for the primary. A later one of the same kind replaces it."""
    key = request_key(found.keys, what, node)
    current = next((one for one in found.listing.stored if one.key == key), None)
    outcome = await found.etcd.swap(key, current, node.encode())
    if not isinstance(outcome, Swapped):
        raise UnavailableError("etcd did not take the request. Try again.")


async def _replace(found: _Found, record: ShardRecord) -> None:
    outcome = await found.etcd.swap(found.keys.shard(), found.stored, encode(record))
    if not isinstance(outcome, Swapped):
        raise UnavailableError(
            "The cluster has changed meanwhile. Look at fanlog cluster status, and try again."
        )


_PATIENCE_SECONDS = 30.0


async def _wait_for(found: _Found, done: Callable[[ShardRecord], bool], said: str) -> str:
    """Waits until the record says so."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_SECONDS
    while loop.time() < until:
        listing = await found.etcd.read_prefix(found.keys.prefix)
        now = cluster_of(listing, found.keys).record
        if now is not None and done(now.record):
            return said
        await asyncio.sleep(0.1)
    raise FanlogError(
        f"It was asked for, and is not done after {_PATIENCE_SECONDS:.0f} s: see fanlog cluster "
        "status. The request stays."
    )
