"""`fanlog edge`: a process without data of its own in front of a bus, until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fanlog.cli.credentials import find_credentials
from fanlog.cli.listening import (
    check_open,
    check_ports,
    listen_redis,
    listen_web,
    native_url,
    redis_line,
    web_line,
)
from fanlog.cli.live import ServedSettings
from fanlog.cli.logs import LogLevel, set_up_logging
from fanlog.cli.options import OptionValue
from fanlog.cli.process import (
    calm_garbage_collector,
    on_signals,
    prepare_process,
    reload,
    run_on_loop,
)
from fanlog.cli.serve import AllowOpen, ConfigFile, Host, HttpPort, Port, RedisPort
from fanlog.cli.service_manager import ServiceManager
from fanlog.cli.settings import Settings, load_settings
from fanlog.cli.terminal import out
from fanlog.client.credentials import split_login
from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog.edge.node import EdgeNode
    from fanlog.listeners.redis.server import RedisListener
    from fanlog.listeners.server import NativeListener
    from fanlog.listeners.web.server import WebListener

logger = logging.getLogger("fanlog")

EXAMPLE = "Example: [bold]fanlog edge --upstream fanlog://10.0.0.5:7420 --http-port 7422[/]"
# Upstream is usually there. A longer wait gets a log line that says why.
_PATIENCE_SECONDS = 1.0

Upstream = Annotated[
    str | None,
    typer.Option(
        "--upstream",
        help="The bus: fanlog://host:port, redis://host:port or nats://host:port; with TLS "
        "fanlogs://, rediss:// or tls://. Several nodes of a cluster: fanlog://a:7420,b:7420.",
        metavar="URL",
    ),
]


def edge(
    *,
    upstream: Upstream = None,
    host: Host = None,
    port: Port = None,
    redis_port: RedisPort = None,
    http_port: HttpPort = None,
    config: ConfigFile = None,
    allow_open: AllowOpen = False,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Lowest level to log, on stderr.")
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log one JSON object per line.")
    ] = False,
) -> None:
    """Run an edge in front of a bus until Ctrl-C."""
    flags = {
        "edge.upstream": upstream,
        "listener.host": host,
        "listener.port": port,
        "redis.port": redis_port,
        "web.host": host,
        "web.port": http_port,
        "security.allow_open": "true" if allow_open else None,
        "telemetry.log_level": None if log_level is None else log_level.value,
    }
    if upstream is not None and split_login(upstream).secrets:
        raise InvalidArgumentError(
            "--upstream must not contain a password or a key: other users of this machine see "
            "it in the list of processes. Put the key into a file and the file's path into "
            "FANLOG_KEY_FILE, or put the whole address into FANLOG_EDGE_UPSTREAM."
        )
    settings = load_settings(config, flags)
    if not settings.config.edge.upstream:
        raise InvalidArgumentError(
            "An edge needs a bus: give its address with --upstream, such as "
            "fanlog://127.0.0.1:7420, redis://127.0.0.1:6379 or nats://127.0.0.1:4222."
        )
    if settings.config.workers:
        raise ConfigError(
            "The setting workers is only for fanlog serve. Leave it out, and run several edges on "
            "ports of their own instead."
        )
    level = LogLevel(settings.config.telemetry.log_level)
    set_up_logging(level, as_json=log_json)
    if level is LogLevel.INFO:
        # The edge itself says that its upstream is away, and once.
        logging.getLogger("fanlog.client").setLevel(logging.WARNING)
    for remark in settings.remarks:
        logger.warning("%s", remark)
    prepare_process()
    run_on_loop(_run(settings, flags))


async def _run(settings: Settings, flags: Mapping[str, OptionValue | None]) -> None:
    # Other commands need no listeners, and would take twice as long to start with them.
    from fanlog.edge.upstreams import make_edge  # noqa: PLC0415

    config = settings.config
    check_ports(config)
    manager = ServiceManager()
    upstream = config.edge.upstream
    node = make_edge(upstream, config, find_credentials(upstream))
    node.start()
    live = node.core.settings = ServedSettings(node, settings, flags, check_ports)
    status = f"An edge of {node.address}"
    stopped = on_signals(lambda: reload(live, manager, status))
    try:
        if not await _connected(node, stopped):
            return
        check_open(config, guarded=node.core.gate.guarded)
        native = _listen_native(node, settings)
        redis = listen_redis(node, settings) if node.speaks_fanlog else None
        site = await listen_web(node, settings)
        if native is None and redis is None and site is None:
            raise ConfigError(
                "No listener could be opened, so no client could connect: choose free ports, "
                "with --port, --redis-port and --http-port."
            )
        calm_garbage_collector()
        _print_banner(node, native, redis, site)
        node.watch()
        manager.ready(status)
        sent = await stopped
        manager.stopping()
        logger.info("%s: draining; once more ends at once.", signal.Signals(sent).name)
    finally:
        await node.stop()
    logger.info("Drained and stopped.")


async def _connected(node: EdgeNode, stopped: asyncio.Future[int]) -> bool:
    """Waits for upstream, and logs that once. False if a signal stops it meanwhile."""
    connecting = asyncio.create_task(node.connect())
    try:
        await asyncio.wait(
            {connecting, stopped},
            timeout=_PATIENCE_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not connecting.done() and not stopped.done():
            logger.warning("%s does not answer yet: the edge waits for it.", node.address)
            await asyncio.wait({connecting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            return False
        connecting.result()
        return True
    finally:
        connecting.cancel()


def _listen_native(node: EdgeNode, settings: Settings) -> NativeListener | None:
    """The native listener. It is left out if its port is the default and is in use: the broker
    itself may be on this machine."""
    if not node.speaks_fanlog:
        return None
    try:
        return node.listen()
    except ConfigError as fault:
        if settings.by_path["listener.port"].source != "default":
            raise
        logger.warning("Fanlog's own clients can't connect: %s", fault)
        return None


def _print_banner(
    node: EdgeNode,
    native: NativeListener | None,
    redis: RedisListener | None,
    site: WebListener | None,
) -> None:
    console = out()
    line = "off" if native is None else native_url(native.host, native.port, secure=native.secure)
    console.print(
        Text.assemble(
            ("Fanlog", "bold cyan"), f" {VERSION} is an edge of ", (node.address, "bold")
        ),
        Text.assemble(("  fanlog ", "dim"), line),
        Text.assemble(("  redis  ", "dim"), redis_line(redis)),
        Text.assemble(("  web    ", "dim"), web_line(site)),
        sep="\n",
    )
    # A parent process that waits for this must not wait for a full buffer.
    console.file.flush()
