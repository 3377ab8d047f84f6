"""`fanlog serve --workers N`: the core's node, and the processes beside it."""

from __future__ import annotations

import logging
import sys

import msgspec

from fanlog.config import Config
from fanlog.node import Node
from fanlog.workers.channel import Begin
from fanlog.workers.core_node import CoreNode
from fanlog.workers.supervisor import Supervisor, check_workers

logger = logging.getLogger("fanlog.workers")

# Without the current folder on the path: what it has is not meant.
_COMMAND = (sys.executable, "-P", "-m", "fanlog.cli.worker")


def serving_node(folder: str | None, config: Config) -> Node:
    """The broker: all of it, or the core of one with workers."""
    check_workers(config.workers)
    return CoreNode(folder, config) if config.workers else Node(folder, config)


async def open_workers(node: Node, config: Config, *, log_json: bool) -> Supervisor | None:
    """Starts the workers of a core whose listeners are open; None if it has none."""
    if not isinstance(node, CoreNode):
        return None
    if config.tls.client_ca_file and config.security.auth:
        logger.warning(
            "With workers, a client can't log in with its certificate alone: it also needs a key, "
            "a password or a token."
        )
    node.open_socket()
    supervisor = Supervisor(
        config.workers,
        _COMMAND,
        lambda number: _begin(node, number, log_json=log_json),
        node.monotonic_us,
    )
    try:
        await supervisor.start()
    except BaseException:
        await supervisor.stop(0.0)
        raise
    node.core.workers = supervisor
    # When everybody has agreed to them.
    node.on_reload.append(lambda wanted: lambda: supervisor.apply(_with_ports(node, wanted)))
    return supervisor


def _begin(node: CoreNode, number: int, *, log_json: bool) -> Begin:
    return Begin(
        number,
        _with_ports(node, node.settings),
        node.socket_path,
        node.secret,
        tuple(listener.name for listener in node.listeners),
        log_json,
    )


def _with_ports(node: CoreNode, config: Config) -> Config:
    """The settings, with the ports that the core holds."""
    ports = {listener.section: listener.port for listener in node.listeners}
    return msgspec.structs.replace(
        config,
        **{
            section: msgspec.structs.replace(getattr(config, section), port=port)
            for section, port in ports.items()
        },
    )
