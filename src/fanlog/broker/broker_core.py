"""The broker: answers the requests of listeners from the catalog, the logs and the cursors. It
decides; bytes move in `intake`, `turns` and `fanout`. It is long because it is the one interface of
the broker to listeners: most methods check a request and pass it on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from fanlog.broker.authority import ALLOW_ALL
from fanlog.broker.backups import Backups
from fanlog.broker.clocks import TrustedClock
from fanlog.broker.gate import OPEN_GATE
from fanlog.broker.groups.groups import GroupCoordinator
from fanlog.broker.insight.metrics import Metrics
from fanlog.broker.insight.overviews import Overviews
from fanlog.broker.insight.topic_table import TopicTable
from fanlog.broker.insight.topic_users import TopicUsers
from fanlog.broker.lifecycle.alteration import altered_settings
from fanlog.broker.lifecycle.compaction import Compactions
from fanlog.broker.lifecycle.differences import check_same
from fanlog.broker.lifecycle.durability_raise import DurabilityRaise, topic_deleted
from fanlog.broker.lifecycle.growth import grow
from fanlog.broker.lifecycle.housekeeping import Housekeeping
from fanlog.broker.lifecycle.memory_only import in_memory
from fanlog.broker.lifecycle.truncation import check_deletion
from fanlog.broker.messages.catalog import Catalog, PreparedTopic, changed_settings
from fanlog.broker.messages.checks import Checks
from fanlog.broker.messages.drop_notes import DROPS_TOPIC, DropNotes
from fanlog.broker.messages.expiry import STREAM_SETTINGS, is_stream
from fanlog.broker.messages.fanout import FanOut
from fanlog.broker.messages.fetch_memory import FetchMemory
from fanlog.broker.messages.inboxes import INBOX_SETTINGS, is_inbox
from fanlog.broker.messages.intake import Intake
from fanlog.broker.messages.loader import BlockSource, Loader
from fanlog.broker.messages.metering import Metering
from fanlog.broker.messages.positions import checked_position
from fanlog.broker.messages.publish_log import PublishLog
from fanlog.broker.messages.reading import Reading
from fanlog.broker.messages.restrictions import RestrictedOrigin
from fanlog.broker.messages.signals import SIGNALS_SETTINGS
from fanlog.broker.messages.stream import Replicas, TurnStream
from fanlog.broker.messages.subscriptions import Subscriptions
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.topics import BrokerTopic, Outlet, Partition
from fanlog.broker.messages.tracing import Traces
from fanlog.broker.messages.turns import GroupCommitPort, Turns
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.broker.messages.views import Renderer
from fanlog.broker.names import check_not_internal, check_pattern, check_public_name
from fanlog.broker.ports import (
    Authority,
    ClusterPort,
    Followers,
    Gate,
    LiveSettings,
    Opener,
    Runtime,
    WorkerProcesses,
)
from fanlog.broker.queues.queues import Queues
from fanlog.broker.schedule.schedule import Schedule
from fanlog.broker.slices import Slices
from fanlog.broker.state.accounts import AccountLedger
from fanlog.broker.state.audit import NO_AUDIT, AuditLog, NoAudit
from fanlog.broker.state.drops import Drops
from fanlog.broker.state.durable_names import DurableNames
from fanlog.broker.state.internal import InternalTopics
from fanlog.broker.state.ledger import Done
from fanlog.broker.state.named_producers import NamedProducers
from fanlog.broker.state.pipelines import Pipelines
from fanlog.broker.threads import threaded
from fanlog.broker.transactions.transactions import Transactions
from fanlog.config import BrokerOptions, LogOptions
from fanlog.config_limits import NO_LIMITS, LimitOptions
from fanlog.config_security import AuditOptions, TelemetryOptions
from fanlog.errors import (
    FanlogError,
    InvalidArgumentError,
    LimitError,
    allow_more,
)
from fanlog.format.messages import (
    BrokerStatus,
    ListTopics,
    Position,
    TopicPage,
)
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.format.trace_context import SampledRecord
from fanlog.log.store import LogStore
from fanlog.model import (
    DURABLE_NAME_BYTES_MAX,
    GROUP_PREFIX,
    TRANSACTION_PREFIX,
    TopicInfo,
    TopicSettings,
)

if TYPE_CHECKING:
    from fanlog.security.accounts import BrokerAccounts

logger = logging.getLogger("fanlog.broker")

T = TypeVar("T")
_SECOND_US = 1_000_000


def log_fault(fault: FanlogError | None) -> None:
    """For callers that can't get an answer: logs the error."""
    if fault is not None:
        logger.error("%s", fault)


class BrokerCore:
    """The core without a network. `node.py` builds it, listeners and the embedded API use it. It
    has many fields, because it owns one of each part: what a part needs of another, it is handed
    here."""

    # Keys and users; None without logins.
    accounts: BrokerAccounts | None = None
    # Changes settings at runtime; None if a program embeds the broker.
    settings: LiveSettings | None = None
    # The followers of a primary in a cluster; None for a broker of its own.
    followers: Followers | None = None
    # The cluster that this process is a node of, if it is.
    cluster: ClusterPort | None = None
    # Why clients can't be served yet; empty if they can.
    opening = ""
    # Another node is the primary now: nothing is refused any more, clients go there.
    deposed = False
    # The processes that have the clients; None if this process has them.
    workers: WorkerProcesses | None = None
    # Further health checks, such as of certificates: each returns a problem or nothing.
    look_after: Callable[[], str] | None = None
    _looked_for_room_us = 0
    # Whether it is about to stop.
    draining = False
    connections = 0
    fetched_bytes = 0

    def __init__(
        self,
        store: LogStore,
        runtime: Runtime,
        *,
        release: str,
        options: BrokerOptions,
        log_options: LogOptions,
        topic_defaults: TopicSettings,
        sync_group: Callable[[], GroupCommitPort],
        authority: Authority = ALLOW_ALL,
        gate: Gate = OPEN_GATE,
        telemetry: TelemetryOptions = TelemetryOptions(),  # noqa: B008 - frozen
        limits: LimitOptions = NO_LIMITS,
        blocks: BlockSource | None = None,
        audit: AuditOptions | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self.authority = authority
        self.gate = gate
        self.denied: dict[str, int] = {}
        self.permissions_epoch = 0
        self._store = store
        self._runtime = runtime
        self.slices = Slices(runtime)
        self.release = release
        self._options = options
        self._defaults = topic_defaults
        self._started_us = runtime.work_us()
        self._trusted = TrustedClock(runtime, log_options.clock_trust_seconds)
        self._loader = Loader(runtime, log_options.read_cache_bytes, blocks)
        self.reading = self._make_reading(log_options)
        self.drop_notes = DropNotes(options.drops_pending_max, runtime.now_us)
        self.unpacker = Unpacker(runtime, options)
        self.renderer = Renderer(options.view_cache_bytes, self.drop_notes, self.unpacker)
        self.traces = Traces(telemetry, runtime.now_us)
        self.fan_out = FanOut(runtime, self._loader, self.renderer, self.drop_notes, self.traces)
        self.stream = TurnStream(replicas, store)
        self.turns = Turns(
            runtime, self.fan_out, sync_group, log_options.tail_total_bytes, self.stream
        )
        self.catalog = Catalog(store, options)
        self.raising = DurabilityRaise(store, self.turns, runtime)
        self.internal = InternalTopics(store, self.catalog, self.turns, runtime)
        self.drops = Drops(self.drop_notes, self.internal, options, runtime.monotonic_us)
        self.audit: AuditLog | NoAudit = NO_AUDIT
        if audit is not None:
            folder = None if store.folder is None else str(store.folder)
            self.audit = AuditLog(self.internal, audit, runtime, folder)
        self.account_ledger = AccountLedger(self.internal)
        self.pipelines = Pipelines(self.internal, runtime)
        self.durable = DurableNames(self.internal, self.catalog.number_of, self.slices)
        self.subscriptions = self._make_subscriptions()
        self.groups = GroupCoordinator(self, runtime, options)
        self.queues = Queues(self, runtime, options)
        self.producers = NamedProducers(self.internal, options, runtime)
        self.metering = Metering(
            limits,
            runtime.monotonic_us,
            guarded=gate.guarded,
        )
        self._intake = Intake(
            self.catalog.partitions,
            self.turns,
            options,
            runtime.now_us,
            named=self.producers,
            checks=Checks(runtime, self.unpacker),
            metering=self.metering,
            sampled=self.traces.sampled,
        )
        self.transactions = Transactions(
            self,
            self._intake,
            options,
            runtime,
            folder=store.folder,
            check_owner=self.groups.check_owner,
        )
        self.schedule = Schedule(self, self._intake, options, runtime)
        self._intake.ask_schedule(self.schedule.fault, self.schedule.replacement_fault)
        self.compactions = Compactions(
            runtime,
            self._drop_copies,
            lambda: self.draining,
            self._trusted.now_us,
            limits=self.unpacker.limits,
            replicated=self.stream,
        )
        self._publish_log = PublishLog(self.catalog, self.turns)
        self._housekeeping = Housekeeping(self, options, runtime, self._trusted.now_us)
        self.fetch_memory = FetchMemory(
            options.fetch_memory_bytes, options.fetch_stall_seconds, runtime.monotonic_us
        )
        self.deleting = asyncio.Lock()
        self.openers: dict[Opener, None] = {}
        self.events = self._make_events()
        self.metrics = Metrics(self, runtime, telemetry)

    def _make_reading(self, options: LogOptions) -> Reading:
        return Reading(self._loader, options, self._runtime)

    def _make_subscriptions(self) -> Subscriptions:
        return Subscriptions(
            self.catalog,
            self.fan_out,
            self.reading,
            self.slices,
            self.drop_notes,
            positions=self.durable,
            open_for_reader=self.open_for_reader,
            epoch=lambda: self.epoch,
        )

    # What is on disk

    def load(self) -> None:
        """Loads the state in the folder."""
        self.catalog.load(self._store.open())
        self._intake.epoch = self._store.epoch
        self.internal.load()
        self.account_ledger.load()
        self.pipelines.load()
        self.durable.load(self._store.left_aside)
        self.producers.load(self.catalog.partitions.values())
        self.transactions.load()
        newest_us = max((p.log.last_time_us for p in self.catalog.partitions.values()), default=0)
        self._trusted.load(newest_us)
        self.groups.load(newest_us)
        self.queues.load()
        self.internal.repair()
        self.audit.load()
        self.schedule.load()
        for topic in self.catalog:
            self.metering.adopt(topic)
        self._store.employ(self.slices)
        self._publish_log.tick()

    def tick(self) -> None:
        """Expires sessions, leases and waits. The node calls this several times a second."""
        self.groups.tick()
        self.queues.tick()
        self.transactions.tick()
        self.fan_out.tick()
        self.drops.tick()
        self.audit.tick()
        self.fetch_memory.tick()
        self.traces.settle()
        self._publish_log.tick()
        self._mark_ranked(at_once=False)
        if self._store.reserve.full:
            self.backups.give_up()
            self._look_for_room()

    def _mark_ranked(self, *, at_once: bool) -> None:
        """Starts to record which partitions have their first batch with a priority."""
        ranked = self._intake.newly_ranked
        if ranked:
            ranked[:] = [p for p in ranked if not p.log.mark_ranked(at_once=at_once)]

    def _look_for_room(self) -> None:
        """On a full disk: checks once a second whether publishing can resume."""
        now_us = self._runtime.monotonic_us()
        if now_us - self._looked_for_room_us >= _SECOND_US:
            self._looked_for_room_us = now_us
            self._runtime.in_thread(self._store.reserve.look_for_room, _log_failed_look)

    def check_room(self) -> None:
        """Raises if the disk is full: then only writes that free space are allowed."""
        self._store.reserve.check("what is staged")

    def close(self) -> None:
        """The last that is written, before the store is closed."""
        self.compactions.close()
        self._publish_log.tick()
        self.traces.settle()
        self._mark_ranked(at_once=True)
        self.drops.write()
        self.transactions.close()
        self.internal.close()
        self.audit.closed()

    @property
    def topic_defaults(self) -> TopicSettings:
        """The default settings of a new topic."""
        return self._defaults

    @cached_property
    def topic_table(self) -> TopicTable:
        """All topics, to search and sort them."""
        return TopicTable(self, self._runtime)

    @cached_property
    def overviews(self) -> Overviews:
        return Overviews(self, self._runtime)

    @cached_property
    def topic_users(self) -> TopicUsers:
        """The readers and writers of one topic, for display."""
        return TopicUsers(self, self._runtime)

    @cached_property
    def backups(self) -> Backups:
        return Backups(self, self._store, self._runtime)

    def housekeeping(self) -> None:
        """Retention, and readers that chose to be cut off; called by the node every so often."""
        if not self.opening:
            # Until then, what is in the folder may not be on any other node.
            self._housekeeping.begin()

    def now_us(self) -> int:
        return self._runtime.now_us()

    def soon(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop after what is ready now."""
        self._runtime.soon(call)

    def settings_changed(self, topic_defaults: TopicSettings) -> None:
        """Settings have changed: updates the copies here."""
        self._defaults = topic_defaults
        self.audit.settings_changed()
        self.drops.settings_changed()
        self.metering.settings_changed()

    def permissions_changed(self) -> None:
        """Permissions have changed: connections check everything that they have open."""
        self.permissions_epoch += 1
        self._intake.ask_again()
        self.metering.renew()

    @property
    def in_memory(self) -> bool:
        """Whether nothing is kept on disk."""
        return self._store.folder is None

    @property
    def epoch(self) -> int:
        return self._store.epoch

    @property
    def history(self) -> tuple[str, str]:
        """The id of the folder's history, and of the one that it was restored from."""
        return self._store.history

    # Publishing

    def take(self, data: bytes, at: int, origin: RestrictedOrigin) -> int:
        """Takes whole batches from a publisher's bytes; see `Intake.take`."""
        self.turns.schedule()
        traces = self.traces
        sampled = traces.sampled
        try:
            if traces.begins_some:
                find = self.catalog.partitions.get
                return traces.take_some(data, at, origin, self._intake.take, find)
            return self._intake.take(data, at, origin)
        finally:
            if sampled.noted:
                sampled.taken()

    def take_traced(
        self, data: bytes, at: int, origin: RestrictedOrigin, marks: list[SampledRecord]
    ) -> int:
        """The same, where some records of the batch at `at` are sampled."""
        self.traces.sampled.note(data, at, marks, self.catalog.partitions.get, self.now_us())
        return self.take(data, at, origin)

    def congested(self) -> bool:
        """Whether so much waits for the disk that publishers should not be read."""
        replicas = self.stream.replicas
        if replicas is not None and replicas.holds_up():
            return True
        return self.turns.pending_bytes() > self._options.pending_bytes_pause

    # Topics

    def open_topic(self, name: str, *, create: bool, owner: str = "") -> BrokerTopic:
        """A topic to publish to. If it is created, it belongs to `owner`."""
        topic = self.catalog.find(name)
        if topic is not None:
            return topic
        if name == SCHEDULED_TOPIC and create:
            return self.schedule.open()
        if name == SIGNALS_TOPIC:
            return self.catalog.create(SIGNALS_TOPIC, SIGNALS_SETTINGS, exist_ok=True)
        allowed = self._options.auto_create_topics or is_inbox(name)
        # Whatever is late for a stream that has expired must not bring it back.
        if not create or not allowed or is_stream(name):
            return self.catalog.get(name)
        return self.create_topic(name, {}, owner=owner)

    def create_topic(
        self,
        name: str,
        settings: dict[str, int | str],
        *,
        exist_ok: bool = False,
        compare: Collection[str] | None = None,
        owner: str = "",
        prepared: PreparedTopic | None = None,
    ) -> BrokerTopic:
        """Creates a topic; a setting that is not given is this broker's default. With `exist_ok`
        it may exist, if the settings in `compare` agree; without that, all that are given. Without
        a setting `owner` it belongs to `owner`. `prepared` has its logs, if `prepare_topic` has
        made them."""
        known = self.catalog.find(name)
        chosen = self._chosen_settings(name, settings, owner if known is None else "")
        if known is None:
            self.metering.check_new(name, chosen.owner)
        topic = self.catalog.create(
            check_public_name(name), chosen, exist_ok=exist_ok, prepared=prepared
        )
        if topic is known:
            check_same(topic, chosen, settings if compare is None else compare)
        else:
            self.events.created(topic)
        return topic

    def prepare_topic(
        self, name: str, settings: dict[str, int | str], owner: str = ""
    ) -> Generator[None, None, PreparedTopic]:
        """Makes the logs of a new topic in steps, for `create_topic`. Changes nothing."""
        chosen = self._chosen_settings(check_public_name(name), settings, owner)
        return self._store.prepare(name, chosen)

    def _chosen_settings(
        self, name: str, settings: dict[str, int | str], owner: str
    ) -> TopicSettings:
        given = settings
        if is_inbox(name):
            given = INBOX_SETTINGS | settings
        elif is_stream(name):
            given = STREAM_SETTINGS | settings
        if self._store.folder is None:
            given = in_memory(given)
        if owner:
            given = {"owner": owner} | given
        return changed_settings(self._defaults, given, keeps_files=self._store.folder is not None)

    def grow_topic(
        self, name: str, partitions: int, done: Callable[[BrokerTopic | FanlogError], None]
    ) -> None:
        """Adds partitions to a topic; the current number changes nothing. `done` is called when all
        readers know them, or with a later error; an error now is raised."""
        topic = self.catalog.get(check_not_internal(name))
        grow(self, topic, partitions, self._options.durable_positions_max, done)

    def alter_topic(
        self,
        name: str,
        settings: dict[str, int | str],
        done: Callable[[BrokerTopic | FanlogError], None],
    ) -> None:
        """Changes settings of a topic; records past a shorter retention are deleted at once. `done`
        is called when it is done, or with a later error; an error now is raised."""
        topic = self.catalog.get(check_not_internal(name))
        if self.raising.postpones(topic, lambda: self.alter_topic(name, settings, done), done):
            return
        keeps_files = self._store.folder is not None
        given = settings if keeps_files else in_memory(settings)
        altered = altered_settings(topic, given, keeps_files=keeps_files)

        def retained(result: BrokerTopic | FanlogError) -> None:
            if not isinstance(result, BrokerTopic):
                done(result)
                return
            self.events.altered(topic)
            steps = self._housekeeping.retain(topic, self._trusted.now_us())
            self.slices.in_slices(steps, retention_applied)

        def retention_applied() -> None:
            done(topic_deleted(topic) if topic.deleted else topic)

        # Received batches were checked by the old settings.
        self.turns.end()
        if altered.durability != topic.settings.durability:
            self.raising.begin(topic, altered, retained)
        else:
            self.catalog.alter(topic, altered)
            retained(topic)

    def delete_topic(self, name: str, done: Done = log_fault) -> None:
        """Deletes a topic: on return it is invisible, and its name is free. `done` is called when
        that is durable."""
        topic = self.catalog.get(check_not_internal(name), creatable=False)
        if topic.stored.folder:
            self.stream.check()
        self.turns.hand_in()
        self._publish_log.tick()
        self.catalog.remove(topic)
        self.events.removed(topic)
        self.turns.end()
        self.events.deleted(topic)
        self._store.delete(topic.stored, done)

    def _make_events(self) -> TopicEvents:
        """The parts that follow topic events, in the order in which they are called."""
        events = TopicEvents()
        subscribe = events.subscribe
        subscribe(removed=self._forget_allowed)
        subscribe(
            created=self.metering.adopt,
            altered=self.metering.adopt,
            truncated=self.metering.recount,
            deleted=self.metering.drop,
        )
        for follower in (self.subscriptions, self.groups, self.queues):
            subscribe(
                created=follower.topic_appeared,
                grown=follower.topic_grew,
                deleted=follower.topic_vanished,
            )
        subscribe(grown=self._tell_openers, deleted=self.turns.forget_topic)
        subscribe(deleted=self._forget_positions)
        return events

    def _forget_allowed(self, topic: BrokerTopic) -> None:
        """Publishers keep the partitions that they may write to."""
        del topic
        self._intake.ask_again()

    def _tell_openers(self, topic: BrokerTopic, new: list[Partition]) -> None:
        del new
        for opener in list(self.openers):
            opener.grew(topic.number, len(topic.partitions))

    def _forget_positions(self, topic: BrokerTopic) -> None:
        self.slices.in_slices(self.durable.forget_topic(topic.name, topic.number))

    def check_deletion(self, name: str, offsets: dict[int, int]) -> list[tuple[Partition, int]]:
        """The partitions that will start at these offsets, for `delete_in_slices`; raises if one of
        them can't."""
        return check_deletion(self.catalog.get(check_not_internal(name)), offsets)

    def _drop_copies(self, partition: Partition, offset: int) -> None:
        """Readers read offsets before this one from files again, because the files have changed."""
        tail_bytes = partition.log.tail.bytes
        partition.log.tail.drop_before(offset)
        self.turns.resized(partition, tail_bytes)
        self._loader.forget(partition)

    async def compact(self, name: str) -> TopicInfo:
        """Compacts the visible part of a topic. Returns its new state."""
        topic = self.catalog.get(check_not_internal(name))
        await self.compactions.compact(topic)
        return topic.info()

    def describe(self, name: str) -> TopicInfo:
        return self.catalog.get(name).info()

    def list_topics(self, wanted: ListTopics) -> TopicPage:
        """A page of topics. Each is little work, however many there are."""
        pattern = check_pattern(wanted.pattern)
        found, after = self.catalog.page(pattern, wanted.after, internal=wanted.internal)
        return TopicPage(tuple(topic.info() for topic in found), after)

    # Reading

    def open_for_reader(self, name: str) -> BrokerTopic | None:
        """A topic that is there as soon as somebody reads it: an inbox, signals, drops."""
        if name == DROPS_TOPIC:
            self.drops.make_topic()
            return self.catalog.find(name)
        return self.open_topic(name, create=True)

    def is_awaited(self, name: str) -> bool:
        """Whether somebody would read a topic of this name."""
        if self.subscriptions.wanted(name):
            return True
        return not is_inbox(name) and (self.groups.wanted(name) or self.queues.wanted(name))

    def followers_of(self, topic: BrokerTopic) -> int:
        """Readers of a topic, and workers on it."""
        readers = sum(partition.readers for partition in topic.partitions)
        readers += self.subscriptions.joining(topic)
        return readers + self.queues.followers_of(topic)

    def resume(self, outlet: Outlet) -> None:
        self.fetch_memory.drained(outlet)
        self.fan_out.resume(outlet)
        self.queues.resume(outlet)
        if self.followers is not None:
            self.followers.resume(outlet)

    # Durable names

    def commit_positions(self, name: str, positions: Iterable[Position]) -> None:
        wanted = tuple(positions)
        if not 1 <= len(name.encode(errors="replace")) <= DURABLE_NAME_BYTES_MAX or not wanted:
            raise InvalidArgumentError(
                f"A commit needs a durable name of 1 to {DURABLE_NAME_BYTES_MAX} bytes, and at "
                "least one position."
            )
        if name.startswith((GROUP_PREFIX, TRANSACTION_PREFIX)):
            raise InvalidArgumentError(
                f"The durable name {name!r} can't be used: names that begin with {GROUP_PREFIX!r} "
                f"are those of groups, and {TRANSACTION_PREFIX!r} is the broker's own. Choose "
                "another."
            )
        wanted = self.check_positions(name, wanted)
        self.durable.commit_positions([(name, wanted)])

    @property
    def replicated(self) -> bool:
        """Whether another broker may become the primary."""
        return self.stream.replicated

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        """See `TurnStream.when_confirmed`."""
        self.stream.when_confirmed(resume)

    def check_positions(self, name: str, positions: Iterable[Position]) -> tuple[Position, ...]:
        """The positions to commit under a name. Raises if one is invalid, or if there is no room
        for new ones."""
        checked = tuple(
            checked_position(self.catalog.get(position.topic), position, self.epoch)
            for position in positions
        )
        if self.durable.count + len(checked) > self._options.durable_positions_max:
            # Only now it matters which of them are new.
            new = {
                (position.topic, position.partition)
                for position in checked
                if self.durable.position(name, position.topic, position.partition) is None
            }
            self.check_room_for_positions(len(new))
        return checked

    def check_room_for_positions(self, new: int) -> None:
        """Raises if there is no room for so many positions more."""
        if new and self.durable.count + new > self._options.durable_positions_max:
            raise LimitError(
                f"This broker holds {self.durable.count} positions of durable names, which is "
                "the limit. Delete groups that nobody needs (fanlog group delete). "
                + allow_more("broker.durable_positions_max")
            )

    # The whole

    def status(self) -> BrokerStatus:
        workers = self.workers
        partitions = self.troubled()
        failed = [f"{p.name}: {p.log.failure}" for p in partitions if p.log.failure is not None]
        damaged = [
            f"{p.name}: offsets {lost.first} to {lost.next - 1} are damaged on disk"
            for p in partitions
            for lost in p.log.damaged
        ]
        unreadable = [
            f"{p.name}: offsets {left.first} to {left.next - 1} do not decode; compaction leaves "
            "them, and tombstones behind them, as they are"
            for p in partitions
            for left in p.log.unreadable
        ]
        problems = (
            failed
            + damaged
            + unreadable
            + self.own_problems()
            + self.schedule.problems()
            + ([said] if self.look_after is not None and (said := self.look_after()) else [])
            + ([] if workers is None else workers.problems())
        )
        state = "failing" if failed else "degraded" if problems else "ok"
        return BrokerStatus(
            state="draining" if self.draining else state,
            release=self.release,
            epoch=self._store.epoch,
            uptime_seconds=(self._runtime.work_us() - self._started_us) / 1e6,
            topics=self.catalog.public_count,
            connections=self.connections if workers is None else workers.connections,
            subscriptions=len(self.subscriptions) if workers is None else workers.subscriptions,
            tail_bytes=self.turns.tail_bytes,
            pending_bytes=self.turns.pending_bytes(),
            published_records=self.turns.published_records,
            delivered_bytes=(self.fan_out if workers is None else workers).delivered_bytes,
            problems=tuple(problems[:100]),
        )

    def own_problems(self) -> list[str]:
        """Problems with the broker's own files, one sentence each."""
        lost = self._store.problems + self.internal.losses()
        return lost + self.audit.problems() + self.transactions.problems()

    @property
    def disk_full(self) -> bool:
        return self._store.reserve.full

    def unready(self) -> list[str]:
        """Why clients should go elsewhere; nothing if they need not."""
        reasons: list[str] = []
        if self.draining:
            reasons.append("It is draining: it is about to stop.")
        if self._store.reserve.full:
            reasons.append("Its disk is full.")
        if any(partition.log.failure is not None for partition in self.troubled()):
            reasons.append("A log has failed: see /v1/status.")
        return reasons

    @property
    def folder(self) -> str | None:
        """The data folder; None if everything is in memory."""
        return None if self._store.folder is None else str(self._store.folder)

    def troubled(self) -> list[Partition]:
        """The partitions that are not well, or may not be."""
        found = (self.catalog.find_partition(*owner) for owner in sorted(self._store.troubled))
        return [partition for partition in found if partition is not None]

    async def threaded(self, work: Callable[[], T]) -> T:
        """Awaits blocking work that runs in a thread."""
        return await threaded(self._runtime, work)


def _log_failed_look(result: Exception | None) -> None:
    if result is not None:
        logger.error("looking for room on the disk failed: %r", result)
