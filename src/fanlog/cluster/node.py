"""A node of a cluster: watches etcd, decides, and acts. Decisions are pure functions
(`follower_decisions.py`, `primary_decisions.py`); here is what they need and what they lead to.

Law: whatever a later start must know is in the folder's mark, durably, before it is acted on.

It is long because each step that a decision may name is carried out here, in one task, so that no
two of them overlap."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Generator
from pathlib import Path

from msgspec.structs import replace

from fanlog.cluster.audited import note_forced_reign, note_request
from fanlog.cluster.committed_position import waits_for
from fanlog.cluster.coordination import Coordination, Lost, NotSent, Stored, Swapped
from fanlog.cluster.follower_decisions import decide_follower
from fanlog.cluster.follower_role import FollowerRole
from fanlog.cluster.front import peer_options
from fanlog.cluster.mark import FolderMark, begin_with, load_mark, save_mark
from fanlog.cluster.primary_decisions import decide_primary
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import (
    ClusterKeys,
    NodeRecord,
    SeenRecord,
    ShardRecord,
    check_name,
    decode,
    encode,
    new_incarnation,
    node_of,
)
from fanlog.cluster.requests import OperatorRequest, request_key, request_value, requests_in
from fanlog.cluster.snapshot import Absences, ClusterSnapshot, Newest, cluster_of
from fanlog.cluster.status import describe_cluster, preview_move, with_progress
from fanlog.cluster.steps import (
    CreateRecord,
    FollowerStep,
    FollowPrimary,
    MovePrimary,
    NewCluster,
    NoChange,
    OpenReign,
    PrimaryStep,
    Promote,
    StepDown,
    StopNode,
    Wait,
)
from fanlog.cluster.trust import Act, trust
from fanlog.cluster.views import (
    ClusterRules,
    Folder,
    FollowerView,
    KnownCluster,
    PendingChange,
    PrimaryView,
)
from fanlog.cluster.web_address import web_address
from fanlog.config import ClientOptions, Config
from fanlog.errors import (
    CoordinationError,
    CoordinationRefusedError,
    FanlogError,
    StorageError,
    UnavailableError,
)
from fanlog.format.cluster_view import ClusterStatus, MovePreview
from fanlog.log.catalog import stored_epoch
from fanlog.log.faults import write_error
from fanlog.log.files import sync_tree
from fanlog.release import VERSION

logger = logging.getLogger("fanlog.cluster")

_LOOK_SECONDS = 0.25
_AWAY_SECONDS = 0.5
# So long after an opening that failed, at least, it is tried again.
_REOPEN_SECONDS = 1.0
# So long a move waits for what is under way. Clients send the rest again, to the next primary.
_LEVEL_SECONDS = 0.5
_DRAINS = "it drains"
_FULL = "its disk is full"
_DAMAGED = "its logs have damage"
_COPYING = "its copy is not whole"


class ClusterNode:
    """`start`, then `stop`. It is what `primary` or `follower` says; both are None while it waits.

    It has many fields, because a decision needs all that is known: of the folder, of etcd, of the
    role, and of the change that is under way."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        coordination: Coordination,
        *,
        boot_id: str,
        options: ClientOptions | None = None,
        front: bool = True,
        adopt: bool = False,
    ) -> None:
        cluster = config.cluster
        self.node_id = check_name(cluster.node_id, "The node's id")
        self._keys = ClusterKeys(cluster.name)
        self._folder = folder
        self._config = config
        self._options = peer_options(cluster, options or ClientOptions(name="node"))
        self._coordination = coordination
        self._boot_id = boot_id
        self._with_front = front
        self._adopt = adopt
        self._rules = ClusterRules(
            replicas=cluster.replicas,
            min_in_sync=min(cluster.min_in_sync, cluster.replicas),
            grace_seconds=cluster.grace_seconds,
            follower_timeout_seconds=cluster.follower_timeout_seconds,
        )
        self._mark: FolderMark | None = None
        self._had_data = False
        # The epoch of a single node's folder.
        self._epoch_found = 0
        # Whether its data is what it was, since it was whole.
        self._inherited = False
        self.incarnation = ""
        # What etcd says.
        self._newest = Newest()
        self._raw: Stored | None = None
        self._absences = Absences()
        self._missing: dict[str, float] = {}
        self._requests: tuple[OperatorRequest, ...] = ()
        self._reachable = False
        self._announced: NodeRecord | None = None
        # What it is.
        self.primary: PrimaryRole | None = None
        self.follower: FollowerRole | None = None
        self._pending: PendingChange | None = None
        self._base: SeenRecord | None = None
        self._epoch_heard = 0
        self.step: FollowerStep | PrimaryStep = Wait("It is starting.")
        self._draining = ""
        # Whether a sync of its logs has failed: then nobody knows what is on the disk.
        self._sync_failed = False
        # Why its last reign could not open; empty: it could.
        self._opening_fault = ""
        # Why the mark could not be written; empty: it could.
        self._mark_fault = ""
        self._reigns = 0
        self._stopping = False
        self._wake = asyncio.Event()
        # It is not the primary any more.
        self._deposed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # Called when the role has changed, and when clients are served.
        self.on_role: Callable[[ClusterNode], None] = lambda node: None

    # Starting and stopping

    async def start(self) -> None:
        """Recovers the folder. Everything else runs in the background."""
        folder = str(self._folder)
        os.makedirs(folder, exist_ok=True)
        mark = load_mark(folder)
        if mark is None:
            self._had_data = _has_data(folder)
            self.incarnation = new_incarnation(self.node_id)
            if not self._had_data:
                # Before anything is made here: a later start must not take it for a single node's.
                self._make_mark("", Folder.EMPTY)
        else:
            self._keep(begin_with(mark, self._boot_id))
            self.incarnation = self._mark_now.incarnation
            self._inherited = self.incarnation == mark.incarnation
        if self._mark is None or self._mark.state is Folder.ADOPTING:
            self._epoch_found = stored_epoch(folder)
        else:
            self._open_follower()
        self._tasks = [
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._run()),
        ]

    async def stop(self, *, hand_over: bool = True) -> None:
        """Hands over if it is the primary, and stops. The next start inherits its incarnation."""
        self._draining = _DRAINS
        if self._announced is not None:
            with contextlib.suppress(FanlogError):
                await self._announce()
        if hand_over and self.primary is not None:
            await self._wait_for_handover()
        self._stopping = True
        self._wake.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_primary(at_once=False)
        await self._close_follower()
        self._mark_clean()
        await self._coordination.close()

    def _mark_clean(self) -> None:
        """The next start inherits the incarnation, even after a power cut. So everything is synced
        first, also logs that need no sync otherwise."""
        if self._mark is None or self._sync_failed:
            return
        try:
            sync_tree(str(self._folder))
            self._keep(replace(self._mark, clean=True))
        except (OSError, StorageError) as fault:
            logger.error("%s can't be synced, so its next start copies: %s", self._folder, fault)

    async def _wait_for_handover(self) -> None:
        """Waits until another node is the primary, if there is one that may be."""
        snapshot = self._newest.snapshot
        if snapshot is None or len(snapshot.nodes) < 2:
            return
        self._deposed.clear()
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.cluster.handover_seconds):
                await self._deposed.wait()

    # The mark

    @property
    def _mark_now(self) -> FolderMark:
        assert self._mark is not None
        return self._mark

    def _keep(self, mark: FolderMark) -> None:
        """Writes the mark, durably. Raises StorageError."""
        if mark != self._mark:
            try:
                save_mark(str(self._folder), mark)
            except OSError as fault:
                error = write_error(fault, str(self._folder))
                self._mark_fault = str(error)
                raise error from fault
            self._mark_fault = ""
            self._mark = mark

    def _make_mark(self, cluster_id: str, state: Folder) -> None:
        if self._mark is None:
            self._keep(
                FolderMark(
                    cluster_name=self._config.cluster.name,
                    cluster_id=cluster_id,
                    node=self.node_id,
                    incarnation=self.incarnation,
                    boot_id=self._boot_id,
                    state=state,
                )
            )
        elif not self._mark.cluster_id:
            self._keep(replace(self._mark, cluster_id=cluster_id))

    def _set_state(self, state: Folder) -> None:
        self._keep(replace(self._mark_now, state=state))

    def _remember(self, snapshot: ClusterSnapshot) -> None:
        """Notes a record that it may act on: a later start must not take an older one."""
        if snapshot.record is None or self._mark is None:
            return
        known = self._mark.known
        if isinstance(trust(known.seen, known.etcd, snapshot.record, snapshot.etcd), Act):
            self._keep(replace(self._mark, seen=snapshot.record, etcd=snapshot.etcd))

    @property
    def _unfit(self) -> str:
        """Why it should not be the primary; empty: it may."""
        full, damaged = _FULL if self._is_full else "", _DAMAGED if self._is_damaged else ""
        copying = _COPYING if self._is_copying else ""
        return (
            self._draining or self._mark_fault or self._opening_fault or full or damaged or copying
        )

    @property
    def _is_copying(self) -> bool:
        """Whether its copy is not whole."""
        return self._mark is not None and self._mark.state is not Folder.WHOLE

    @property
    def _is_full(self) -> bool:
        if self.primary is not None:
            return self.primary.node.is_full
        return self.follower is not None and self.follower.replica.is_full

    @property
    def _is_damaged(self) -> bool:
        if self.primary is not None:
            return self.primary.node.is_damaged
        return self.follower is not None and self.follower.replica.is_damaged

    # What etcd says

    @property
    def _address(self) -> str:
        """Where others reach this node."""
        cluster, listener = self._config.cluster, self._config.listener
        scheme = "fanlogs" if self._config.tls.certificate_file else "fanlog"
        advertised = cluster.advertise or f"{listener.host}:{listener.port}"
        return f"{scheme}://{advertised}"

    async def _announce(self) -> None:
        """Says that this node is alive, and what it has seen."""
        seen = None if self._mark is None else self._mark.seen
        record = NodeRecord(
            node=self.node_id,
            incarnation=self.incarnation,
            address=self._address,
            release=VERSION,
            zone=self._config.cluster.zone,
            web=web_address(self._config, self._address),
            redis=f"{self._config.redis.host}:{self._config.redis.port}",
            unfit=self._unfit,
            copying=self._is_copying,
            damaged=self._is_damaged,
            revision=0 if seen is None else seen.revision,
            epoch=0 if seen is None else seen.record.epoch,
            etcd="" if self._mark is None else self._mark.etcd,
            problem=self.problem,
        )
        if record != self._announced:
            self._announced = record
            await self._coordination.put_leased(self._keys.node(self.node_id), encode(record))

    async def _watch(self) -> None:
        while True:
            try:
                async for listing in self._coordination.watch(self._keys.prefix):
                    snapshot = cluster_of(listing, self._keys)
                    if self._newest.listed(listing, snapshot):
                        key = self._keys.shard()
                        self._raw = next((s for s in listing.stored if s.key == key), None)
                        self._requests = requests_in(listing, self._keys)
                        now = asyncio.get_running_loop().time()
                        self._missing = dict(self._absences.observe(snapshot, now))
                    self._reachable = True
                    self._wake.set()
            except CoordinationRefusedError as fault:
                logger.error("etcd refuses this node: %s", fault)
                await asyncio.sleep(_AWAY_SECONDS * 4)
            except FanlogError as fault:
                if self._reachable:
                    logger.warning("etcd is away: %s", fault)
            self._reachable = False
            self._absences.forget()
            self._missing = {}
            self._wake.set()
            await asyncio.sleep(_AWAY_SECONDS)

    async def _swap(self, record: ShardRecord, expected: SeenRecord | None) -> bool:
        """Sends a compare-and-swap. Whether it has succeeded for sure. A primary waits for the old
        and the new in-sync set from before it is sent until its outcome is known."""
        value, key, raw = encode(record), self._keys.shard(), self._raw
        if expected is not None and (raw is None or raw.revision != expected.revision):
            return False
        before, stored = self._pending, None
        if expected is not None:
            self._pending = PendingChange(expected.revision, record)
        self._set_needed()
        try:
            outcome = await self._coordination.swap(key, raw if expected else None, value)
        except CoordinationError as fault:
            outcome = NotSent(str(fault))
        match outcome:
            case Swapped(revision):
                stored = Stored(key, value, revision)
            case Lost(current) if current is not None and current.value == value:
                # It had succeeded before, and its answer was lost.
                stored = current
            case Lost(current):
                # An earlier try may have succeeded, and been followed by another node's change.
                self._pending = before
                logger.info("Another node has changed the cluster's record: %s", current)
            case NotSent(reason):
                self._pending = before
                logger.warning("A change of the cluster was not sent: %s", reason)
            case unknown:
                logger.warning("Whether a change succeeded is not known: %s", unknown.reason)
        if stored is not None:
            self._swapped(record, stored)
        self._set_needed()
        self._wake.set()
        return stored is not None

    def _swapped(self, record: ShardRecord, stored: Stored) -> None:
        self._pending = None
        self._raw = stored
        self._newest.swapped(record, stored.revision)
        if self.primary is not None and record.epoch == self.primary.reign.epoch:
            self._base = SeenRecord(record, stored.revision)
        logger.info("The cluster's record is now %s.", record)

    # Deciding

    @property
    def problem(self) -> str:
        """What an operator has to do, or why a change waits; empty if there is nothing."""
        match self.step:
            case StopNode(sentence):
                return sentence
            case Wait(reason, needs_operator=True):
                return reason
            case NoChange(reason):
                return reason
            case _:
                return ""

    # For people: the broker's `ClusterPort`

    def status(self) -> ClusterStatus:
        snapshot = self._newest.snapshot or ClusterSnapshot(etcd="")
        role = "follower" if self.follower is not None and self.follower.target else "waiting"
        status = replace(
            describe_cluster(self._config.cluster.name, snapshot, self._requests),
            node=self.node_id,
            role=role if self.primary is None else "primary",
            etcd_reachable=self._reachable,
            reigns=self._reigns,
        )
        if self.problem and self.problem not in status.problems:
            status.problems.append(self.problem)
        return status if self.primary is None else with_progress(status, self.primary.reign)

    async def move(self, node: str, *, dry_run: bool) -> MovePreview:
        preview = preview_move(self.status(), node)
        if dry_run:
            return preview
        if not preview.possible:
            raise UnavailableError(preview.reason)
        key = request_key(self._keys, "move", node)
        current = next((one.stored for one in self._requests if one.stored.key == key), None)
        outcome = await self._coordination.swap(key, current, request_value(node))
        if not isinstance(outcome, Swapped):
            raise UnavailableError("etcd did not take the request. Try again.")
        return replace(preview, asked=True)

    async def _wait_for_own_id(self) -> None:
        """Another process with this id may be alive, at another address: one of the two was started
        by mistake. The second one waits, and does not push the first one aside."""
        said = False
        while True:
            try:
                stored = await self._coordination.read(self._keys.node(self.node_id))
                other = None if stored is None else decode(stored.value, NodeRecord)
            except FanlogError as fault:
                logger.debug("Who has this node's id can't be seen yet: %s", fault)
            else:
                if other is None or other.address == self._address:
                    return
                if other.incarnation == self.incarnation:
                    return
                if not said:
                    said = True
                    logger.error(
                        "Node %s is alive at %s. Give this one another id (--node-id). If that one "
                        "has ended, this one continues in a moment.",
                        self.node_id,
                        other.address,
                    )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _run(self) -> None:
        await self._wait_for_own_id()
        with contextlib.suppress(FanlogError):
            await self._announce()
        while not self._stopping:
            self._wake.clear()
            wait_seconds = _LOOK_SECONDS
            snapshot = self._newest.snapshot
            with _tried_again():
                if self.primary is not None:
                    await self._lead(self.primary)
                elif snapshot is not None:
                    wait_seconds = await self._follow(snapshot)
            # Also after a step that has failed: others must know why this node should not lead.
            with _tried_again():
                await self._announce()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()

    def _changed(self) -> None:
        self._wake.set()

    def _view_of_follower(self, snapshot: ClusterSnapshot) -> FollowerView:
        mark, follower = self._mark, self.follower
        if mark is not None:
            state = mark.state
        else:
            state = Folder.UNMARKED if self._had_data else Folder.EMPTY
        if follower is not None:
            self._epoch_heard = max(self._epoch_heard, follower.epoch_heard)
        return FollowerView(
            node=self.node_id,
            incarnation=self.incarnation,
            folder=state,
            known=mark.known if mark is not None else KnownCluster(),
            cluster=snapshot,
            now=asyncio.get_running_loop().time(),
            rules=self._rules,
            missing_since=self._missing,
            folder_epoch=self._epoch_found if follower is None else follower.replica.newest_epoch,
            epoch_heard=self._epoch_heard,
            adopt=self._adopt,
            unfit=self._unfit,
        )

    async def _follow(self, snapshot: ClusterSnapshot) -> float:
        """Decides and acts while it is not the primary. When to look again at the latest."""
        self._base = None
        step = decide_follower(self._view_of_follower(snapshot))
        if step != self.step:
            logger.debug("%s: %s", self.node_id, step)
            if isinstance(step, StopNode):
                logger.critical("This node stops taking part: %s", step.sentence)
        self.step = step
        if not isinstance(step, StopNode):
            try:
                self._remember(snapshot)
            except StorageError:
                # Without room for its mark it can still let another node lead.
                if not isinstance(step, Promote) or step.record.primary == self.incarnation:
                    raise
        match step:
            case NewCluster():
                await self._coordination.swap(self._keys.id, None, secrets.token_hex(8).encode())
            case CreateRecord(record):
                # It is whole when it opens its reign, and not before: another node may be first.
                self._make_mark(snapshot.id, Folder.ADOPTING)
                await self._swap(record, None)
            case FollowPrimary(node, epoch):
                await self._follow_primary(snapshot, node, epoch)
            case Promote(record):
                await self._leave_primary(front=False)
                await self._swap(record, snapshot.record)
            case OpenReign(epoch):
                await self._open_reign(snapshot, epoch)
            case StopNode():
                await self._leave_primary()
            case Wait(_, seconds):
                return min(seconds, _LOOK_SECONDS)
        return _LOOK_SECONDS

    def _open_follower(self) -> None:
        if self.follower is None:
            cluster = self._mark.cluster_id if self._mark is not None else ""
            self.follower = FollowerRole(
                self._folder,
                self._config,
                self._options,
                cluster=cluster,
                incarnation=self.incarnation,
                complete=self._is_complete,
                incomplete=lambda: self._set_state(Folder.COPYING),
                whole=self._became_whole,
                suspect=self._mark is not None and self._mark.suspect,
                searched=lambda: self._keep(replace(self._mark_now, suspect=False)),
                front=self._with_front,
            )
            self.follower.shown_to_clients = self
            self.follower.open()

    @property
    def _is_complete(self) -> bool:
        """Whether its copy was whole, and is what it was then."""
        mark = self._mark
        whole = mark is not None and mark.state is Folder.WHOLE and not mark.suspect
        return self._inherited and whole

    def _became_whole(self) -> None:
        self._set_state(Folder.WHOLE)
        self._inherited = True

    async def _follow_primary(
        self, snapshot: ClusterSnapshot, node: NodeRecord, epoch: int
    ) -> None:
        self._make_mark(snapshot.id, Folder.COPYING)
        if self._mark_now.state is Folder.EMPTY:
            self._set_state(Folder.COPYING)
        self._open_follower()
        assert self.follower is not None
        self.follower.cluster = snapshot.id
        known = self.follower.target
        self._opening_fault = ""
        await self.follower.follow(node, epoch)
        if known is None:
            self.on_role(self)

    async def _leave_primary(self, *, front: bool = True) -> None:
        if self.follower is not None:
            await self.follower.leave(front=front)

    async def _close_follower(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            await follower.close()
            self._sync_failed = self._sync_failed or follower.replica.sync_failed

    # Leading

    async def _open_reign(self, snapshot: ClusterSnapshot, epoch: int) -> None:
        assert snapshot.record is not None
        await self._close_follower()
        self._keep(replace(self._mark_now, state=Folder.WHOLE, last_reign=epoch))
        self._base, self._pending = snapshot.record, None
        role = PrimaryRole(
            self._folder,
            self._config,
            cluster=snapshot.id,
            epoch=epoch,
            incarnation=self.incarnation,
            needed=waits_for(snapshot.record, None),
            min_in_sync=snapshot.record.record.min_in_sync,
            forced=snapshot.record.record.forced_epoch == epoch,
            on_change=self._changed,
        )
        role.on_serving = lambda _: self.on_role(self)
        self.primary = role
        self._reigns += 1
        try:
            role.open()
        except Exception as fault:
            # A reign that is half open has no followers, and nobody could take over from it.
            self._opening_fault = f"it could not open its folder as the primary: {fault}"
            self.primary = None
            await role.node.release()
            await asyncio.sleep(_REOPEN_SECONDS)
            self._open_follower()
            raise
        self._opening_fault = ""
        role.node.core.cluster = self

    async def _close_primary(self, *, at_once: bool) -> None:
        role, self.primary = self.primary, None
        if role is not None:
            self._epoch_heard = max(self._epoch_heard, role.reign.epoch_heard)
            await role.close(at_once=at_once)
            self._sync_failed = self._sync_failed or role.node.sync_failed
            self._pending = None
            self._deposed.set()

    def _view_of_primary(self, role: PrimaryRole, snapshot: ClusterSnapshot) -> PrimaryView:
        reign = role.reign
        assert self._base is not None
        moves = [request.node for request in self._requests if request.what == "move"]
        parting = frozenset(r.node for r in self._requests if r.what == "leave")
        draining = frozenset(r.node for r in self._requests if r.what == "drain")
        return PrimaryView(
            incarnation=self.incarnation,
            epoch=reign.epoch,
            etcd=self._mark_now.etcd,
            base=self._base,
            cluster=snapshot,
            now=reign.runtime.monotonic_us() / 1e6,
            rules=self._rules,
            reachable=self._reachable,
            followers=reign.reports(),
            pending=self._pending,
            end=reign.end_position,
            committed=reign.committed,
            waiting_since=reign.waiting_since,
            epoch_heard=reign.epoch_heard,
            log_fault="" if reign.over is None else str(reign.over),
            move_to=moves[0] if moves else "",
            leaving=parting | draining,
            parting=parting,
            unfit=self._unfit,
        )

    async def _lead(self, role: PrimaryRole) -> None:
        """Decides and acts while it is the primary."""
        snapshot, reign = self._newest.snapshot, role.reign
        assert snapshot is not None
        step = decide_primary(self._view_of_primary(role, snapshot))
        if not isinstance(step, StepDown):
            self._take_record(role, snapshot)
            # What it waits for may be less now, so that more is committed. A follower that had all
            # that was committed before may lack it: it must not join by the decision above.
            step = decide_primary(self._view_of_primary(role, snapshot))
        if step != self.step:
            logger.debug("%s: %s", self.node_id, step)
        self.step = step
        match step:
            case StepDown(reason):
                logger.warning("The reign of epoch %d ends: %s", reign.epoch, reason)
                reign.end(UnavailableError(f"This node is not the primary any more: {reason}"))
                await self._close_primary(at_once=True)
                self._open_follower()
            case MovePrimary(to, record):
                await self._move(role, to, record)
            case NoChange():
                settled = self._reachable and self._pending is None
                if settled and reign.maybe_refusal() is None:
                    await self._note_forced_reign(role, snapshot)
                    await self._answer_requests(role, snapshot)
            case change:
                await self._swap(change.record, self._base)

    def _take_record(self, role: PrimaryRole, snapshot: ClusterSnapshot) -> None:
        """Leads by etcd's record from now on, if it is one of this reign."""
        record, reign = snapshot.record, role.reign
        if record is not None and record.record.epoch == reign.epoch and self._reachable:
            if isinstance(trust(self._base, self._mark_now.etcd, record, snapshot.etcd), Act):
                self._base = record
                if self._pending is not None and not self._pending.is_open(record):
                    self._pending = None
                self._set_needed()
            # Without room for its mark it still has to hand over.
            with contextlib.suppress(StorageError):
                self._remember(snapshot)
        if reign.suspended and self._pending is None:
            reign.resume_commits()

    def _set_needed(self) -> None:
        """Sets the followers that the primary waits for."""
        if self.primary is not None and self._base is not None:
            needed = waits_for(self._base, self._pending)
            self.primary.reign.set_needed(needed, self._base.record.min_in_sync)

    async def _move(self, role: PrimaryRole, to: str, record: ShardRecord) -> None:
        """Hands over to a follower that has everything."""
        reign, loop = role.reign, asyncio.get_running_loop()
        base = self._base
        assert base is not None
        reign.holding = True
        until = loop.time() + _LEVEL_SECONDS
        while reign.waits and loop.time() < until and reign.over is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        snapshot = self._newest.snapshot
        assert snapshot is not None
        if decide_primary(self._view_of_primary(role, snapshot)) != self.step:
            # The follower has connected anew, say, and has not said yet that its copy is whole.
            reign.resume_commits()
            return
        # From here on the other node may begin its reign.
        reign.suspended = True
        if await self._swap(record, base):
            logger.info("%s is the primary now.", node_of(to))
            reign.end(UnavailableError("Another node is the primary now. Try again there."))
            await self._close_primary(at_once=True)
            self._open_follower()

    async def _note_forced_reign(self, role: PrimaryRole, snapshot: ClusterSnapshot) -> None:
        """Notes it in the audit log, and then takes its operator out of the record. If this fails,
        the next primary notes it again."""
        assert snapshot.record is not None
        record = snapshot.record.record
        if record.forced_by:
            if not role.forced_is_noted:
                note_forced_reign(role.node.core.audit, record)
                role.forced_is_noted = True
            await self._swap(replace(record, forced_node="", forced_by=""), self._base)

    async def _answer_requests(self, role: PrimaryRole, snapshot: ClusterSnapshot) -> None:
        """Removes what operators asked for and what is done, and notes it in the audit log. A drain
        stays: its operator is taken out, so that it is noted once."""
        assert snapshot.record is not None
        record, etcd = snapshot.record.record, self._coordination
        for request in self._requests:
            key, stored = request.stored.key, request.stored
            if request.is_done(record):
                outcome = await etcd.delete(key, stored)
            elif request.what == "drain" and request.by:
                outcome = await etcd.swap(key, stored, request_value(request.node))
            else:
                continue
            if isinstance(outcome, Swapped):
                note_request(role.node.core.audit, request)


@contextlib.contextmanager
def _tried_again() -> Generator[None]:
    """A step that fails is tried again, and ends nothing."""
    try:
        yield
    except FanlogError as fault:
        logger.error("A step of the cluster failed, and is tried again: %s", fault)
    except Exception:
        logger.exception("a step of the cluster failed; it is tried again")


def _has_data(folder: str) -> bool:
    return os.path.exists(f"{folder}/catalog.json")
