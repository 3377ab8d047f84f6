"""The process that answers, and the cluster that it is a node of, if it is one."""

from __future__ import annotations

import os
import platform
import socket
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from fanlog.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotSupportedError,
    UnavailableError,
)
from fanlog.format.cluster_view import ClusterStatus, MovePreview
from fanlog.identity import Verb
from fanlog.listeners.web.login_watch import time_text
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.release import VERSION
from fanlog.telemetry.process import ProcessMetrics, measure_process

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore


class ListenerCard(msgspec.Struct, frozen=True, kw_only=True):
    """An address that the node listens on."""

    name: Annotated[str, Meta(description="native, redis or web.")]
    host: str
    port: int
    tls: bool
    connections: int


class NodeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A node: a broker that holds topics. Figures are 0 where the system does not say."""

    id: Annotated[str, Meta(description="An id of the process, new with each start.")]
    name: Annotated[str, Meta(description="The name of the machine.")]
    role: Annotated[
        str, Meta(description="single: there is no other node. Else primary, follower or waiting.")
    ]
    state: Annotated[str, Meta(description="ok, degraded, failing or draining.")]
    problems: Annotated[int, Meta(description="`GET /v1/status` names them.")]
    version: str
    python: str
    system: str
    epoch: Annotated[int, Meta(description="It grows with each start on the same data.")]
    started: Annotated[str, Meta(description="RFC 3339 in UTC.")]
    uptime_seconds: float
    cores: int
    cpu_seconds: float
    memory_bytes: Annotated[int, Meta(description="Memory that the process holds.")]
    memory_total_bytes: Annotated[int, Meta(description="Memory that the machine has.")]
    disk_free_bytes: int
    disk_total_bytes: Annotated[
        int, Meta(description="Size of the disk with the data; 0 if everything is in memory.")
    ]
    open_files: int
    open_files_max: int
    topics: int
    connections: int
    subscriptions: int
    listeners: list[ListenerCard]
    durable: Annotated[bool, Meta(description="Whether there is a data folder.")]
    folder: Annotated[str, Meta(description="The data folder. Only admins see it.")] = ""


class ClusterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The node that answers, the edges in front of it, and its cluster."""

    nodes: Annotated[list[NodeCard], Meta(description="The one that answers.")]
    edges: Annotated[
        list[str], Meta(description="Ids of other processes with web listeners on this bus.")
    ]
    cluster: Annotated[ClusterStatus | None, Meta(description="Null for a broker of its own.")] = (
        None
    )


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A switch-over."""

    node: Annotated[str, Meta(description="The node that becomes the primary.", max_length=64)]
    dry_run: Annotated[bool, Meta(description="Only say what it means.")] = False


_measured: SharedAnswers[ProcessMetrics] = SharedAnswers()


async def _measure(broker: BrokerCore) -> ProcessMetrics:
    return await broker.threaded(lambda: measure_process(broker.folder))


def _memory_total() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def _listeners(broker: BrokerCore) -> list[ListenerCard]:
    return [
        ListenerCard(
            name=one.name,
            host=one.host,
            port=one.port,
            tls=one.tls,
            connections=one.connection_count(),
        )
        for one in broker.metrics.listeners
    ]


async def describe_cluster(call: Call[Nothing, Any]) -> ClusterAnswer:
    core = call.bus.core
    # A follower answers for itself, although it passes most requests on.
    broker = call.broker if core.cluster is None else core
    cluster = None if broker.cluster is None else broker.cluster.status()
    measured = await _measured.get(broker, lambda: _measure(broker))
    status = broker.status()
    uptime_us = int(status.uptime_seconds * 1_000_000)
    node = NodeCard(
        id=call.bus.process,
        name=socket.gethostname(),
        role="single" if cluster is None else cluster.role,
        state=status.state,
        problems=len(status.problems),
        version=VERSION,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        epoch=status.epoch,
        started=time_text(broker.now_us() - uptime_us),
        uptime_seconds=status.uptime_seconds,
        cores=os.cpu_count() or 0,
        cpu_seconds=measured.cpu_seconds,
        memory_bytes=measured.resident_bytes,
        memory_total_bytes=_memory_total(),
        disk_free_bytes=measured.disk_free_bytes,
        disk_total_bytes=measured.disk_total_bytes,
        open_files=measured.open_files,
        open_files_max=measured.open_files_max,
        topics=status.topics,
        connections=status.connections,
        subscriptions=status.subscriptions,
        listeners=_listeners(broker),
        durable=broker.folder is not None,
        folder=(broker.folder or "") if call.permit.may(Verb.ADMIN, "") else "",
    )
    edges = [name for name in call.listener.presence.roster.names() if name != call.bus.process]
    return ClusterAnswer(nodes=[node], edges=edges, cluster=cluster)


async def move_primary(call: Call[Nothing, MoveRequest]) -> MovePreview:
    cluster = call.bus.core.cluster
    if cluster is None:
        raise InvalidArgumentError(
            "This broker is not a node of a cluster: it has no primary to move (docs/cluster.md)."
        )
    return await cluster.move(call.body.node, dry_run=call.body.dry_run)


ROUTES = [
    Route(
        "GET",
        "/v1/cluster",
        describe_cluster,
        "Describe the nodes of the cluster",
        "status",
        answer=ClusterAnswer,
        errors=(ForbiddenError, NotSupportedError),
        verb=Verb.DESCRIBE,
    ),
    Route(
        "POST",
        "/v1/cluster/move",
        move_primary,
        "Make another node the primary",
        "status",
        description="The answer comes at once: the primary brings the node level, and hands over. "
        "`GET /v1/cluster` shows when it has. With `dry_run` nothing happens.",
        body=MoveRequest,
        answer=MovePreview,
        example={"node": "b", "dry_run": True},
        errors=(InvalidArgumentError, ForbiddenError, UnavailableError),
        verb=Verb.ADMIN,
        action="cluster.move",
        detail=lambda call: call.body.node + (" (dry run)" if call.body.dry_run else ""),
    ),
]
