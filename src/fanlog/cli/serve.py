"""`fanlog serve`: a broker until a signal (`process.py`)."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fanlog.cli.cluster_serve import check_alone, check_cluster, serve_cluster
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
    THIS_PROCESS,
    calm_garbage_collector,
    on_signals,
    prepare_process,
    reload,
    run_on_loop,
)
from fanlog.cli.service_manager import ServiceManager
from fanlog.cli.settings import Settings, load_settings
from fanlog.cli.terminal import out
from fanlog.config import DEFAULT_HOST, NATIVE_PORT, Config
from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog.listeners.redis.server import RedisListener
    from fanlog.listeners.web.server import WebListener

logger = logging.getLogger("fanlog")

EXAMPLE = "Example: [bold]fanlog serve --data /var/lib/fanlog --port 7420 --redis-port 7421[/]"

_ANYWHERE = ("0.0.0.0", "::", "")


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A configuration file. Default: fanlog.toml, if it exists.",
        metavar="FILE",
        envvar="FANLOG_CONFIG",
    ),
]
DataFolder = Annotated[str | None, typer.Option("--data", help="The data folder.", metavar="DIR")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[
    str | None, typer.Option("--port", help="Port to listen on. 0 takes a free one.", metavar="N")
]

RedisPort = Annotated[
    str | None,
    typer.Option("--redis-port", help="Port for Redis clients. -1 turns them off.", metavar="N"),
]

AllowOpen = Annotated[
    bool,
    typer.Option("--allow-open", help="Let other machines connect without a login."),
]

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", help="Be a node of this cluster.", metavar="NAME"),
]
EtcdUrls = Annotated[
    str | None,
    typer.Option("--etcd", help="Addresses of the cluster's etcd.", metavar="URL[,URL...]"),
]
NodeId = Annotated[str | None, typer.Option("--node-id", help="The id of this node.", metavar="ID")]
Replicas = Annotated[
    str | None,
    typer.Option("--replicas", help="For a new cluster: nodes that keep a copy.", metavar="N"),
]
MinInSync = Annotated[
    str | None,
    typer.Option(
        "--min-in-sync",
        help="For a new cluster: nodes that must have a message before it is acknowledged.",
        metavar="N",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option("--advertise", help="Address of this node for the others.", metavar="HOST:PORT"),
]
AdoptFolder = Annotated[
    bool,
    typer.Option(
        "--adopt", help="Make the data of a broker of its own the first copy of a new cluster."
    ),
]

HttpPort = Annotated[
    str | None,
    typer.Option("--http-port", help="Port for HTTP clients. -1 turns them off.", metavar="N"),
]


Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        help="Processes that serve the clients, beside the one with the data. 0: none.",
        metavar="N",
    ),
]


def serve(
    *,
    data: DataFolder = None,
    host: Host = None,
    port: Port = None,
    redis_port: RedisPort = None,
    http_port: HttpPort = None,
    workers: Workers = None,
    config: ConfigFile = None,
    allow_open: AllowOpen = False,
    cluster: ClusterName = None,
    etcd: EtcdUrls = None,
    node_id: NodeId = None,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    advertise: Advertise = None,
    adopt: AdoptFolder = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory, without a data folder.")
    ] = False,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Lowest level to log, on stderr.")
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log one JSON object per line.")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C."""
    if memory and data is not None:
        raise InvalidArgumentError("--memory and --data exclude each other: give one of them.")
    flags = {
        "data": data,
        "workers": workers,
        "listener.host": host,
        "listener.port": port,
        "redis.port": redis_port,
        "web.port": http_port,
        "security.allow_open": "true" if allow_open else None,
        "cluster.name": cluster,
        "cluster.etcd": etcd,
        "cluster.node_id": node_id,
        "cluster.replicas": replicas,
        "cluster.min_in_sync": min_in_sync,
        "cluster.advertise": advertise,
        "telemetry.log_level": None if log_level is None else log_level.value,
    }
    settings = load_settings(config, flags)
    check_cluster(settings.config, memory=memory)
    set_up_logging(LogLevel(settings.config.telemetry.log_level), as_json=log_json)
    for remark in settings.remarks:
        logger.warning("%s", remark)
    prepare_process()
    if settings.config.cluster.name:
        if settings.config.workers:
            raise ConfigError(
                "A node of a cluster has no workers: leave workers out, or put edges in front of "
                "the cluster."
            )
        check_ports(settings.config)
        check_open(settings.config, guarded=settings.config.security.auth)
        run_on_loop(serve_cluster(settings, flags, adopt=adopt))
        return
    if not memory:
        check_alone(settings.config)
    run_on_loop(_serve(settings, flags, memory=memory, log_json=log_json))


async def _serve(
    settings: Settings,
    flags: Mapping[str, OptionValue | None],
    *,
    memory: bool,
    log_json: bool,
) -> None:
    # Other commands need no broker, and would take twice as long to start with one.
    from fanlog.cli.workers import open_workers, serving_node  # noqa: PLC0415

    config = settings.config
    check_ports(config)
    check_open(config, guarded=config.security.auth)
    manager = ServiceManager()
    manager.starting()
    node = serving_node(None if memory else config.data, config)
    node.start()
    workers = None
    try:
        listener = node.listen()
        redis = listen_redis(node, settings)
        site = await listen_web(node, settings)
        workers = await open_workers(node, config, log_json=log_json)
    except BaseException:
        await node.stop()
        raise
    node.core.audit.note(THIS_PROCESS, "broker.start", "", "ok", f"release {VERSION}")
    logger.info("%s.", node.describe_files())
    calm_garbage_collector()
    live = node.core.settings = ServedSettings(node, settings, flags, check_ports)
    url = native_url(config.listener.host, listener.port, secure=listener.secure)
    status = f"Listens on {url}"
    stopped = on_signals(lambda: reload(live, manager, status))
    _print_banner(config, listener.port, redis, site, memory=memory)
    node.watch()
    manager.ready(status)
    sent = await stopped
    manager.stopping()
    logger.info("%s: draining; once more ends at once.", signal.Signals(sent).name)
    node.core.audit.note(THIS_PROCESS, "broker.stop", "", "ok", signal.Signals(sent).name)
    if workers is not None:
        await workers.stop(node.drain_seconds)
    await node.stop()
    logger.info("Drained and stopped.")


def _print_banner(
    config: Config,
    port: int,
    redis: RedisListener | None,
    site: WebListener | None,
    *,
    memory: bool,
) -> None:
    host = config.listener.host
    secure = bool(config.tls.certificate_file)
    url = native_url(host, port, secure=secure)
    near = native_url("127.0.0.1" if host in _ANYWHERE else host, port, secure=secure)
    option = "" if near == native_url(DEFAULT_HOST, NATIVE_PORT) else f" --url {near}"
    data = "in memory only: nothing survives a restart" if memory else os.path.abspath(config.data)
    served = f"; {config.workers} workers serve the clients" if config.workers else ""
    program = _program()
    console = out()
    console.print(
        Text.assemble(("Fanlog", "bold cyan"), f" {VERSION} listens on ", (url, "bold")),
        Text.assemble(("  data  ", "dim"), data + served),
        Text.assemble(("  redis ", "dim"), redis_line(redis)),
        Text.assemble(("  web   ", "dim"), web_line(site, dashboard=True)),
        Text("Try it, in two other terminals:"),
        Text(f"  {program} tail greetings{option}", style="green"),
        Text(f"  {program} publish greetings hello{option}", style="green"),
        sep="\n",
    )
    needed = variables_needed(config)
    if needed:
        console.print(Text("Set these variables there first:"))
        console.print(Text(f"  export {needed}", style="green"))
    # A parent process that waits for this line must not wait for a full buffer.
    console.file.flush()


def variables_needed(config: Config) -> str:
    """What commands need in front of them, as far as the settings tell."""
    needed: list[str] = []
    if config.security.auth:
        key = config.security.admin_key_file
        needed.append(f"FANLOG_KEY_FILE={shlex.quote(os.path.abspath(key)) if key else 'FILE'}")
    if config.tls.certificate_file:
        needed.append("FANLOG_TLS_CA_FILE=FILE")
    return " ".join(needed)


def _program() -> str:
    """How this program is called from a terminal: by its path where it is not on PATH."""
    called = Path(sys.argv[0])
    if shutil.which("fanlog") or called.name != "fanlog":
        return "fanlog"
    return os.path.relpath(called)
