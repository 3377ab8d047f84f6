"""`fanlog serve`: a broker until a signal. The first signal drains, the second ends at once. SIGHUP
reads the settings again."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fanlog.cli.cluster_serve import check_alone, check_cluster, serve_cluster
from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.hangup import Terminal
from fanlog.cli.live import ServedSettings
from fanlog.cli.logs import LogLevel, set_up_logging
from fanlog.cli.loops import new_event_loop
from fanlog.cli.options import OptionValue
from fanlog.cli.service_manager import ServiceManager
from fanlog.cli.settings import Settings, load_settings
from fanlog.cli.terminal import out
from fanlog.config import DEFAULT_HOST, NATIVE_PORT, Config
from fanlog.errors import ConfigError, FanlogError, InvalidArgumentError
from fanlog.identity import Identity
from fanlog.log import posix
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog.listeners.redis.server import RedisListener
    from fanlog.listeners.web.server import WebListener
    from fanlog.node import Node

logger = logging.getLogger("fanlog")

EXAMPLE = "Example: [bold]fanlog serve --data /var/lib/fanlog --port 7420 --redis-port 7421[/]"

_STOPS = (signal.SIGTERM, signal.SIGINT)
# Who starts and stops a broker, in the audit log.
THIS_PROCESS = Identity(listener="process")
_ANYWHERE = ("0.0.0.0", "::", "")
# A collection of what is young looks at 10,000 objects, and one of the next generation at 100,000:
# 1 and 10 ms in which nobody is served. One of everything hardly ever comes.
_GC_THRESHOLDS = (10_000, 10, 50_000)
# How long a thread that computes, such as a compaction, may keep the loop from going on. Python's
# own default is 5 ms, and the loop waits that long again and again.
_SWITCH_SECONDS = 0.0005

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


def prepare_process() -> None:
    """What a process that serves many connections needs of its machine."""
    posix.require()
    posix.raise_open_files_max()
    sys.setswitchinterval(_SWITCH_SECONDS)


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


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


def check_ports(config: Config) -> None:
    ports = [
        ("Fanlog's own clients", "--port", config.listener.host, config.listener.port),
        ("Redis clients", "--redis-port", config.redis.host, config.redis.port),
        ("HTTP clients", "--http-port", config.web.host, config.web.port),
    ]
    for (who, flag, host, port), (others, other_flag, *other) in combinations(ports, 2):
        if port > 0 and [host, port] == other:
            raise ConfigError(
                f"{who} and {others} can't have the same port, {port}: give each another, with "
                f"{flag} and {other_flag}."
            )


def listen_redis(node: Node, settings: Settings) -> RedisListener | None:
    """The Redis listener. If nobody chose its port and another has it, it is left out."""
    setting = settings.by_path["redis.port"]
    if settings.config.redis.port < 0:
        return None
    try:
        return node.listen_redis()
    except ConfigError as fault:
        if setting.source != "default":
            raise
        logger.warning("Redis clients can't connect: %s", fault)
        return None


async def listen_web(node: Node, settings: Settings) -> WebListener | None:
    """The web listener. If nobody chose its port and another has it, it is left out."""
    if settings.config.web.port < 0:
        return None
    try:
        return await node.listen_web()
    except ConfigError as fault:
        if settings.by_path["web.port"].source != "default":
            raise
        logger.warning("HTTP clients can't connect: %s", fault)
        return None


def check_open(config: Config, *, guarded: bool) -> None:
    """Where nobody has to log in, whoever reaches a port may do everything. So other machines reach
    it only if somebody has said that it is meant, and then every start warns."""
    hosts = _open_hosts(config)
    if guarded:
        if hosts and not config.tls.certificate_file:
            logger.warning(
                "%s is %s, without TLS: keys and messages can be read on their way. Set "
                "tls.certificate_file, or let a proxy or an edge with TLS stand in front.",
                *hosts[0],
            )
        return
    for option, host in hosts:
        where = f"{option} is {host or 'every address'}, and clients need not log in"
        if not config.security.allow_open:
            raise ConfigError(
                f"{where}: everybody who can reach it could read, publish and delete. Turn logins "
                "on (security.auth = true, and security.admin_key_file with a key of: fanlog key "
                "generate), or listen on 127.0.0.1. If it is meant: --allow-open, or "
                "security.allow_open = true."
            )
        logger.warning(
            "%s: everybody who can reach it can read, publish and delete. Turn logins on "
            "(security.auth), use 127.0.0.1, or let a firewall decide who can reach it.",
            where,
        )


def _open_hosts(config: Config) -> list[tuple[str, str]]:
    """The addresses that other machines reach, of listeners that are on."""
    ports = (
        ("listener.host", config.listener.host, True),
        ("redis.host", config.redis.host, config.redis.port >= 0 and not config.redis.password),
        ("web.host", config.web.host, config.web.port >= 0),
    )
    return [(option, host) for option, host, on in ports if on and not is_loopback(host)]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def calm_garbage_collector() -> None:
    """What start-up made lives as long as the broker: a full collection would walk all of it, over
    and over, while every reader waits. And a broker's garbage is freed by reference counts, so
    that rare collections are enough for the few cycles that errors leave behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def reload(live: ServedSettings, manager: ServiceManager, status: str) -> None:
    """Reads the settings again, and says what came of it."""
    manager.reloading()
    try:
        changed = (await live.reload(THIS_PROCESS)).changed
        logger.info("SIGHUP: the settings were read again; %d have changed.", len(changed))
    except FanlogError as fault:
        logger.error("SIGHUP: nothing has changed: %s", fault)
    except Exception:
        logger.exception("SIGHUP: reading the settings again failed")
    manager.ready(status)


def on_signals(
    reloading: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> asyncio.Future[int]:
    """Is done with the first signal; the one after that ends the process. One that comes together
    with the first was meant as one. SIGHUP is none of them, unless the terminal is gone."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    terminal = Terminal()
    reloads: set[asyncio.Task[None]] = set()

    def arrived(number: int) -> None:
        if first.done():
            return
        # A handler of the interpreter, not of the loop: it also works when the loop is busy.
        for other in (*_STOPS, signal.SIGHUP):
            loop.remove_signal_handler(other)
            signal.signal(other, _end_at_once)
        first.set_result(number)

    def hung_up() -> None:
        if terminal.is_gone() or first.done():
            arrived(signal.SIGHUP)
        elif reloading is not None:
            task = loop.create_task(reloading())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number in _STOPS:
        loop.add_signal_handler(number, arrived, number)
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    return first


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"A second signal: ending at once, without waiting for anything.\n")
    sys.stderr.flush()
    os._exit(ExitCode.FAILED)


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


def redis_line(redis: RedisListener | None) -> str:
    if redis is None:
        return "off"
    host = f"[{redis.host}]" if ":" in redis.host else redis.host
    scheme = "rediss" if redis.secure else "redis"
    return f"{scheme}://{host}:{redis.port}, for any client of Redis Pub/Sub"


def web_line(site: WebListener | None, *, dashboard: bool = False) -> str:
    """`dashboard`: open the address in a browser to see it. It gives way to the user's own page."""
    if site is None:
        return "off"
    host = f"[{site.host}]" if ":" in site.host else site.host
    url = f"{'https' if site.secure else 'http'}://{host}:{site.port}/"
    if not dashboard:
        return f"{url}, for browsers and any HTTP client"
    if site.options.folder:
        return f"{url}, your own page; the dashboard is at {url}dashboard/"
    return f"{url} is the dashboard; any HTTP client can use it too"


def _program() -> str:
    """How this program is called from a terminal: by its path where it is not on PATH."""
    called = Path(sys.argv[0])
    if shutil.which("fanlog") or called.name != "fanlog":
        return "fanlog"
    return os.path.relpath(called)


def native_url(host: str, port: int, *, secure: bool = False) -> str:
    scheme = "fanlogs" if secure else "fanlog"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
