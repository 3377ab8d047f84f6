"""Composes a running broker: the log store, the broker, its runtime, and the listeners if there is
a network. It is long because what is started here, one part after the other, is also stopped here
in the other order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from fanlog.broker.authority import ALLOW_ALL
from fanlog.broker.broker_core import BrokerCore as Core
from fanlog.broker.gate import OPEN_GATE
from fanlog.broker.messages.stream import Replicas
from fanlog.broker.ports import Authority, Gate
from fanlog.client.aio import Client, check_client_options
from fanlog.client.link import Link, Transport
from fanlog.config import ClientOptions, Config
from fanlog.config_live import bring_up_to_date
from fanlog.errors import ConfigError, FanlogError, wrong_value
from fanlog.identity import Identity, Login
from fanlog.listeners.accepting import Acceptor
from fanlog.listeners.admission import Admission
from fanlog.listeners.local import LocalLink
from fanlog.listeners.redis.server import RedisListener
from fanlog.listeners.server import NativeListener
from fanlog.listeners.tls import TlsSocket
from fanlog.log import posix
from fanlog.log.cluster_mark import check_alone
from fanlog.log.descriptors import FileBudget, measure_budget
from fanlog.log.group_commit import GroupCommit
from fanlog.log.store import LogStore
from fanlog.model import Durability, TopicSettings
from fanlog.release import VERSION
from fanlog.security.accounts import BrokerAccounts
from fanlog.security.bootstrap import read_entries
from fanlog.security.certificates import Certificates
from fanlog.security.directory import AccountEntry, Directory
from fanlog.security.gate import SecurityGate
from fanlog.security.keys import maybe_parse
from fanlog.telemetry.history_keeper import MetricHistory
from fanlog.telemetry.loop_probe import LoopProbe
from fanlog.telemetry.tracing.otlp import OtlpExport, maybe_exporter
from fanlog.telemetry.watchdog import Watchdog

if TYPE_CHECKING:
    from fanlog.listeners.web.server import WebListener
    from fanlog.security.tokens import Tokens

logger = logging.getLogger("fanlog")

T = TypeVar("T")
# Applies new settings in two steps. The first reads and checks, and raises ConfigError if it can't
# use them. It returns the second, which makes the change and can't fail.
Reload = Callable[[Config], Callable[[], None] | None]
# Threads for short reads, and threads for work that may take seconds: compaction, or the files of
# large transactions. They are separate, so that readers that catch up never wait for long work.
_THREADS = 4
_BACKGROUND_THREADS = 4
_TICK_SECONDS = 0.1
# How late a delayed message may be for no reason.
_DUE_SECONDS = 0.02
# An account that has expired is cut off within a second.
_EXPIRY_SECONDS = 0.5
_FILES_IN_MEMORY = 64
# A longer time between two ticks is a stall of the loop or of the machine.
_STALL_NS = 500_000_000


class LoopRuntime:
    """Clocks and threads for an asyncio loop. The monotonic clock stops while the loop is stalled,
    so that nothing expires because the broker was stalled."""

    def __init__(self) -> None:
        self._attended_ns = time.monotonic_ns()
        self._stalled_ns = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fanlog")
        self._background = ThreadPoolExecutor(
            _BACKGROUND_THREADS, thread_name_prefix="fanlog-background"
        )

    def soon(self, call: Callable[[], None], /) -> None:
        self._loop.call_soon(call)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        newest_ns = self._attended_ns + _STALL_NS
        return (min(time.monotonic_ns(), newest_ns) - self._stalled_ns) // 1000

    def work_us(self) -> int:
        return time.monotonic_ns() // 1000

    def attend(self) -> None:
        """The loop gets round to its timers. The node calls this with every tick."""
        now_ns = time.monotonic_ns()
        self._stalled_ns += max(0, now_ns - self._attended_ns - _STALL_NS)
        self._attended_ns = now_ns

    def post(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop, from any thread; nothing once the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            logger.debug("a result came after the loop had ended")

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._submit(self._threads, work, done)

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._submit(self._background, work, done)

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
    ) -> None:
        def finished(future: Future[T]) -> None:
            if future.cancelled():
                return
            fault = future.exception()
            if fault is None:
                result: T | Exception = future.result()
            else:
                result = fault if isinstance(fault, Exception) else FanlogError(str(fault))
            self.post(lambda: done(result))

        # What was under way when the node stopped may want more: like what waits, it is not done.
        if not self._closed:
            threads.submit(work).add_done_callback(finished)

    def close(self) -> None:
        self._closed = True
        for threads in (self._threads, self._background):
            threads.shutdown(wait=True, cancel_futures=True)


class Node:
    """A broker with its store. `start`, then `stop`; `listen` opens the network in between. It has
    many fields, because it owns one of each part that it starts and stops."""

    def __init__(
        self,
        folder: str | Path | None,
        config: Config,
        runtime: LoopRuntime | None = None,
        authority: Authority = ALLOW_ALL,
        gate: Gate = OPEN_GATE,
        *,
        epoch: int | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """`epoch` is that of a reign in a cluster; otherwise each start has a new one. `replicas`
        say what is committed there."""
        self._replicas = replicas
        self._in_cluster = epoch is not None
        self._authority = authority
        self._gate = gate
        self.security: SecurityGate | None = None
        self._tokens: Tokens | None = None
        self._file_entries: list[AccountEntry] = []
        if folder is not None:
            posix.require()
        # Before anything is opened. A broker in memory has hardly a file.
        reserved = _FILES_IN_MEMORY if folder is None else config.log.reserved_files
        self._files = measure_budget(reserved)
        self._config = config = _own_copy(_within_files(config, self._files))
        self._admission = Admission(self._files.connections, self._files.limit)
        self._runtime = runtime or LoopRuntime()
        if config.security.auth and gate is OPEN_GATE and authority is ALLOW_ALL:
            self.security = self._make_security()
            self._gate = self._authority = self.security
        self._store = LogStore(None if folder is None else Path(folder), config.log, epoch)
        # The certificates of listeners with TLS.
        self.certificates = (
            Certificates(config.tls, TlsSocket) if config.tls.certificate_file else None
        )
        self._group: GroupCommit | None = None
        self._probe: LoopProbe
        self._watchdog: Watchdog | None = None
        self._export: OtlpExport | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.listeners: list[NativeListener | RedisListener | WebListener] = []
        # Called when settings are changed or read again, with all of them; see `apply`.
        self.on_reload: list[Reload] = []
        self.core: Core

    def _make_security(self) -> SecurityGate:
        config = self._config
        self._file_entries = read_entries(config.security, config.keys, config.users)
        security = SecurityGate(
            Directory(), self._runtime.now_us, user_topic=self._config.web.user_topic
        )
        security.directory.on_change.append(self.recheck)
        options = self._config.security
        if options.token_key_file or options.token_jwks_url:
            # Cryptography takes a while to import, and few brokers take tokens.
            from fanlog.security.tokens import Tokens  # noqa: PLC0415

            self._tokens = Tokens(options, self._runtime.now_us)
            self._tokens.on_change.append(self.recheck)
            security.verifiers.append(self._tokens)
        security.on_login.append(self._count_login)
        security.on_turned_away.append(self._count_failure)
        return security

    def _count_login(self, login: Login, who: Identity, fault: FanlogError | None) -> None:
        if fault is not None:
            self._count_failure(who)

    def _count_failure(self, who: Identity) -> None:
        failures = self.core.metrics.auth_failures
        failures[who.listener] = failures.get(who.listener, 0) + 1

    def start(self) -> None:
        """Recovers the data folder. Blocks meanwhile."""
        if self._store.folder is not None and not self._in_cluster:
            check_alone(self._store.folder)
        self.core = self._make_core(self._topic_defaults())
        self.core.metrics.listeners = self.listeners
        self._admission.counts = self.core.metering.connections
        self.core.load()
        if self.security is not None:
            self.security.on_login.append(self._note_login)
            self.security.guards.append(self.core.metering.logins)
            self.security.on_limited.append(self.core.metering.limit_accounts)
            self._load_accounts(self.security)
            self.core.metering.know_accounts(self.security.directory.allowance_of)
        self.core.metrics.slow.on = False
        self._probe = LoopProbe(self.core.metrics.loop_delay)
        self._probe.start()
        log = self._config.log
        self._tasks = [
            asyncio.create_task(_every(_TICK_SECONDS, self._tick)),
            asyncio.create_task(_every(_DUE_SECONDS, self.core.schedule.tick)),
            asyncio.create_task(
                _every(lambda: log.retention_check_seconds, self.core.housekeeping)
            ),
            asyncio.create_task(_every(_EXPIRY_SECONDS, self._tick_security)),
        ]
        if (certificates := self.certificates) is not None:
            self.core.look_after = lambda: certificates.problem
            self.on_reload.append(lambda config: certificates.prepare(config.tls))
            looks = _every(self._config.tls.reload_check_seconds, self.certificates.look)
            self._tasks.append(asyncio.create_task(looks))
        self._begin_export()

    def _load_accounts(self, security: SecurityGate) -> None:
        """Takes keys and users in: those of the ledger, and before them those of the file."""
        core, config = self.core, self._config
        accounts = BrokerAccounts(
            security, core.account_ledger, self._runtime.now_us, config.security.accounts_max
        )
        entries = self._file_entries
        mine = {entry.name for entry in entries}
        hidden = [entry for entry in core.account_ledger.entries if entry.name in mine]
        for entry in hidden:
            logger.warning("%r is in the config file as well: that one counts.", entry.name)
        kept = [entry for entry in core.account_ledger.entries if entry.name not in mine]
        security.directory.load([*kept, *entries], distrust=core.account_ledger.distrusted)
        core.accounts = accounts
        self.on_reload.append(self._reload_accounts)
        outside = config.security.token_issuer or config.security.oidc_issuer
        if not kept and not entries and not outside:
            logger.warning(
                "security.auth is on, and there is neither a key nor a user. Make a key with: "
                "fanlog key generate, and name its file in security.admin_key_file."
            )

    def _reload_accounts(self, config: Config) -> Callable[[], None]:
        """The config file was read again: replaces its keys and users."""
        entries = read_entries(config.security, config.keys, config.users)
        accounts = self.core.accounts
        assert accounts is not None
        return lambda: accounts.replace_file_entries(entries)

    def _begin_export(self) -> None:
        telemetry = self._config.telemetry
        exporter = maybe_exporter(telemetry)
        if exporter is not None:
            core = self.core
            self._export = OtlpExport(core.traces.spans, exporter, core.metrics.snapshot)
            exporting = self._export.run(telemetry.otlp_interval_seconds)
            self._tasks.append(asyncio.create_task(exporting))

    def _begin_history(self) -> None:
        """Keeps metrics over time. The web listener shows them, so without one there is none."""
        metrics, telemetry = self.core.metrics, self._config.telemetry
        if telemetry.history and metrics.history is None:
            history = MetricHistory(telemetry, metrics, self._runtime.now_us, self.core.folder)
            metrics.history = history
            self._tasks.append(asyncio.create_task(history.run()))

    def _make_core(self, defaults: TopicSettings) -> Core:
        return Core(
            self._store,
            self._runtime,
            release=VERSION,
            options=self._config.broker,
            log_options=self._config.log,
            topic_defaults=defaults,
            sync_group=self._sync_group,
            authority=self._authority,
            gate=self._gate,
            audit=self._config.audit,
            telemetry=self._config.telemetry,
            limits=self._config.limits,
            replicas=self._replicas,
        )

    def _tick(self) -> None:
        self._runtime.attend()
        self.core.tick()

    def recheck(self) -> None:
        """Keys, users or rules have changed, or accounts have expired: earlier permissions do not
        count any more, and open connections are checked again."""
        self.core.permissions_changed()
        for listener in self.listeners:
            listener.recheck()

    def _tick_security(self) -> None:
        if self.security is not None and self.security.expired():
            self.recheck()

    def _note_login(self, login: Login, who: Identity, fault: FanlogError | None) -> None:
        """For the audit log. The id of a key is no secret; its other part is not logged."""
        key = maybe_parse(login.key or login.token)
        name = who.user or login.user or ("" if key is None else key.id)
        kind = "key" if login.key or key else "token" if login.token else "password"
        if who.account is not None and who.account.kind == "certificate":
            kind = "certificate"
        self.core.audit.note(who, "login", name, "ok" if fault is None else "failed", kind)

    def attend(self) -> None:
        """Runs everything that is due now: for a test that has moved the time."""
        self._tick()
        self._tick_security()
        self.core.schedule.tick()
        self.core.housekeeping()

    def prepare_listener(self, listener: Acceptor) -> None:
        """Called for each listener before it opens."""
        listener.certificates = self.certificates

    def listen(self) -> NativeListener:
        posix.require()
        listener = NativeListener(self.core, self._config.listener, self._admission)
        self.prepare_listener(listener)
        listener.open()
        self.listeners.append(listener)
        return listener

    def listen_redis(self) -> RedisListener:
        posix.require()
        config = self._config
        listener = RedisListener(
            self.core,
            config.listener,
            config.redis,
            self._admission,
            create_topics=config.broker.auto_create_topics,
        )
        self.prepare_listener(listener)
        listener.open()
        self.listeners.append(listener)
        return listener

    async def listen_web(self) -> WebListener:
        # aiohttp takes a while to import, and an embedded broker has no use for it.
        from fanlog.listeners.web.local_bus import LocalBus  # noqa: PLC0415
        from fanlog.listeners.web.server import WebListener  # noqa: PLC0415

        posix.require()
        self._begin_history()
        if not self.core.overviews.watched:
            self._tasks.append(asyncio.create_task(self.core.overviews.watch()))
        bus = LocalBus(self.core, self.dial_local)
        listener = WebListener(bus, self._config.web, self._admission, self._config.security)
        self.prepare_listener(listener)
        await listener.start()
        self.listeners.append(listener)
        return listener

    async def dial_local(self, link: Link) -> Transport:
        """The way from a client in this program to the broker."""
        loop = asyncio.get_running_loop()
        return _LocalTransport(LocalLink(self.core, self._config.listener, link, loop.call_soon))

    def apply(self, config: Config) -> None:
        """Applies new settings, all or none: raises ConfigError if one of them, or a file that one
        names, can't be used. Settings that are not live stay unchanged."""
        self.prepare(config)()

    def prepare(self, config: Config) -> Callable[[], None]:
        """The first step of `apply`, which may raise. It returns the second."""
        prepared = [reload(config) for reload in self.on_reload]

        def change() -> None:
            self._bring_up_to_date(config)
            for one in prepared:
                if one is not None:
                    one()

        return change

    def _bring_up_to_date(self, config: Config) -> None:
        held = self._config
        changed = {
            name
            for name in held.__struct_fields__
            if isinstance(section := getattr(config, name), msgspec.Struct)
            and bring_up_to_date(getattr(held, name), section)
        }
        for listener in self.listeners:
            # A Redis listener has a copy, with a host and a port of its own.
            if isinstance(listener, RedisListener):
                bring_up_to_date(listener.options, config.listener)
            listener.settings_changed()
        self.core.settings_changed(self._topic_defaults())
        if "limits" in changed:
            self.recheck()

    def _topic_defaults(self) -> TopicSettings:
        defaults = self._config.topic
        if self._store.folder is None and defaults.level is not Durability.MEMORY:
            defaults = msgspec.structs.replace(defaults, durability="memory")
        return defaults

    @property
    def drain_seconds(self) -> float:
        """How long a stop waits for slow clients."""
        return self._config.listener.drain_seconds

    @property
    def settings(self) -> Config:
        """All settings as they are now."""
        return self._config

    def describe_files(self) -> str:
        """How the process's file descriptors are shared out."""
        files = self._files
        return (
            f"{files.limit} open files are allowed: {files.reserved} are kept for the log, and "
            f"{files.connections} connections fit"
        )

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Drains: processes received messages, makes them durable, notifies all clients, and
        closes. Stuck peers delay it by `drain_seconds` in total, on however many listeners they
        are."""
        self.core.draining = True
        if drain_seconds is None:
            drain_seconds = self._config.listener.drain_seconds
        deadline = asyncio.get_running_loop().time() + drain_seconds
        await asyncio.gather(*(listener.drain(deadline) for listener in self.listeners))
        self.core.turns.end()
        if self._group is not None:
            # On the loop, because it ends syncs, and they move cursors and answer publishers.
            self._group.drain()
            self.core.turns.end()
        await asyncio.gather(*(listener.close() for listener in self.listeners))
        self._probe.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        for task in self._tasks:
            task.cancel()
        if self.core.metrics.history is not None:
            await self.core.metrics.history.close()
        self.core.audit.close()
        if self._group is not None:
            self._group.drain()
            self.core.turns.end()
        if self._export is not None:
            await self._export.close()
        if self._group is not None:
            self._group.close()
        if self.security is not None:
            self.security.close()
        if self._tokens is not None:
            await self._tokens.close()
        self._runtime.close()
        self.core.close()
        self._store.close(clean=True)

    def _sync_group(self) -> GroupCommit:
        group = self._group = GroupCommit(self._store.get_journal(), self._runtime.post)
        metrics = self.core.metrics
        group.slow, group.slow_ns = metrics.slow_sync, metrics.slow.sync_ns
        return group

    def watch(self) -> None:
        """From now on logs slow work and stalls of the event loop, which a thread watches. For a
        process that only runs the broker, after its start."""
        self.core.metrics.slow.on = True
        if self._config.telemetry.slow_loop_ms:
            # The time of the start is not a stall.
            self._probe.stop()
            self._probe.start()
            slow = self._probe.slow = self.core.metrics.slow
            self._watchdog = Watchdog(self._probe, slow.loop_ns)
            self._watchdog.start()


def _within_files(config: Config, files: FileBudget) -> Config:
    """The settings, with no more files kept open than there are descriptors for."""
    log, broker = config.log, config.broker
    return msgspec.structs.replace(
        config,
        log=msgspec.structs.replace(
            log, open_segments_max=min(log.open_segments_max, files.segments)
        ),
        broker=msgspec.structs.replace(
            broker, transaction_files_max=min(broker.transaction_files_max, files.staged)
        ),
    )


def _own_copy(config: Config) -> Config:
    """A copy of the settings: `Node.apply` changes them in place."""
    sections = {name: getattr(config, name) for name in config.__struct_fields__}
    return msgspec.structs.replace(
        config,
        **{
            name: msgspec.structs.replace(section)
            for name, section in sections.items()
            if isinstance(section, msgspec.Struct)
        },
    )


async def _every(interval_seconds: float | Callable[[], float], work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_seconds() if callable(interval_seconds) else interval_seconds)
        try:
            work()
        except Exception:
            logger.exception("the broker's own work failed; it will be tried again")


class _LocalTransport:
    """The client's end of a `LocalLink`."""

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def write(self, data: bytes, /) -> None:
        self._link.send_bytes(data)

    def close(self) -> None:
        self._link.close()


class Broker(Client):
    """A broker inside this program, with the client's API and no socket.

    >>> async with fanlog.Broker("data/") as broker:  # doctest: +SKIP
    ...     await broker.publish("greetings", "hello")

    Without a folder everything stays in memory. `listen()` opens the network as well.
    """

    def __init__(
        self, folder: str | Path | None = None, config: Config | None = None, **options: Any
    ) -> None:
        check_client_options(options)
        try:
            chosen = msgspec.convert(options, ClientOptions)
        except msgspec.ValidationError as fault:
            raise ConfigError(f"A client option is wrong: {wrong_value(str(fault))}.") from fault
        self._folder = folder
        self._node_config = config or Config()
        if self._node_config.workers:
            raise ConfigError(
                "A broker inside a program has no workers: leave workers out, or run fanlog serve."
            )
        self._node: Node | None = None
        super().__init__(self._dial_local, chosen, verify=False)

    async def _dial_local(self, link: Link) -> Transport:
        if self._node is None:
            raise ConfigError("The broker is not started: use it with `async with`.")
        return await self._node.dial_local(link)

    def _make_node(self) -> Node:
        return Node(self._folder, self._node_config)

    async def start(self) -> None:
        """Opens the data folder, and recovers what is in it. `async with` does it.

        >>> broker = fanlog.Broker("data/")
        >>> await broker.start()
        """
        self._node = self._make_node()
        self._node.start()
        await self.open()

    async def stop(self) -> None:
        """Stores what is on its way, and closes the data folder. `async with` does it.

        >>> await broker.stop()
        """
        try:
            await self.close()
        finally:
            node, self._node = self._node, None
            if node is not None:
                await node.stop()

    def listen(self) -> NativeListener:
        """Opens the native listener as well, so that other processes can connect.

        >>> broker.listen()
        """
        if self._node is None:
            raise ConfigError("The broker is not started: use it with `async with`.")
        return self._node.listen()

    def listen_redis(self) -> RedisListener:
        """Opens the Redis listener as well: what its clients publish is here, and the other way
        round."""
        if self._node is None:
            raise ConfigError("The broker is not started: use it with `async with`.")
        return self._node.listen_redis()

    async def listen_web(self) -> WebListener:
        """Opens the web listener as well: browsers read and write the same topics."""
        if self._node is None:
            raise ConfigError("The broker is not started: use it with `async with`.")
        return await self._node.listen_web()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
