"""A worker: an edge on the ports that all workers share. What only the core can answer goes to the
core: requests about the whole broker, and connections to the web port that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fanlog.config import Config, ListenerOptions
from fanlog.edge.native import EdgeListener, EdgeSession
from fanlog.edge.node import CLIENT, FanlogEdge
from fanlog.format.frames import FrameKind
from fanlog.listeners.accepting import Acceptor
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.workers.channel import ListenerCounts, WorkerReport
from fanlog.workers.socket_reach import SocketReach

if TYPE_CHECKING:
    from fanlog.listeners.web.server import WebListener

# The core answers for all processes.
_LOCAL = frozenset({FrameKind.LOGIN, FrameKind.PING, FrameKind.GOODBYE})


class WorkerSession(EdgeSession):
    """A native peer of a worker."""

    local_kinds = _LOCAL


class WorkerListener(EdgeListener):
    """The native listener of a worker."""

    def make_session(self, connection: SocketConnection, options: ListenerOptions) -> EdgeSession:
        return WorkerSession(self.core, connection, options, self.reach)


class WorkerNode(FanlogEdge):
    """A running worker. `number` counts from 1."""

    def __init__(self, number: int, config: Config, socket: str, secret: bytes) -> None:
        name = f"worker {number}"
        self.socket_reach = SocketReach(socket, secret, name)
        super().__init__(
            "",
            config,
            client_options=msgspec.structs.replace(CLIENT, name=name),
            reach=self.socket_reach,
        )

    def prepare_listener(self, listener: Acceptor) -> None:
        super().prepare_listener(listener)
        listener.shares_port = True

    def make_native_listener(self) -> EdgeListener:
        return WorkerListener(
            self.edge_core,
            self._config.listener,
            self._admission,
            reach=self.reach,
            welcome=lambda: self.client.welcome,
        )

    def make_web_listener(self) -> WebListener:
        from fanlog.workers.tunnels import pass_to_core  # noqa: PLC0415 - as in EdgeNode

        listener = super().make_web_listener()
        listener.middlewares.append(pass_to_core(listener, self.socket_reach))
        return listener

    def report(self, cpu_seconds: float, resident_bytes: int) -> WorkerReport:
        """What it has counted."""
        core, failures = self.core, self.core.metrics.auth_failures
        return WorkerReport(
            listeners={
                listener.name: ListenerCounts(
                    listener.connection_count(),
                    listener.accepted,
                    listener.refused,
                    failures.get(listener.name, 0),
                )
                for listener in self.listeners
            },
            subscriptions=len(core.subscriptions),
            delivered_messages=core.fan_out.delivered_records,
            delivered_bytes=core.fan_out.delivered_bytes,
            cpu_seconds=cpu_seconds,
            resident_bytes=resident_bytes,
        )
