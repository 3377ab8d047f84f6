"""One run of a cluster: three nodes, an etcd, clients and faults, from one seed; then the checks.

Clients know all nodes, and connect to whichever serves, also one that does not know yet that it is
not the primary any more. After the faults: all nodes have to be in sync again within a
bounded time and have the same bytes, or a node says what an operator has to do. Then all machines
lose their power at once, an operator chooses one to go on with, and what had to be synced is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from msgspec.structs import replace

from fanlog.cluster import forced_reign
from fanlog.cluster.coordination import Stored
from fanlog.cluster.records import ClusterKeys, SeenRecord, ShardRecord, decode, encode
from fanlog.cluster.requests import request_key
from fanlog.cluster.snapshot import cluster_of
from fanlog.cluster.steps import StopNode, Wait
from fanlog.config import ClusterOptions, Config
from fanlog.errors import DiskFullError, UnavailableError
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from tests.simulation.broker import PORT
from tests.simulation.cluster.auditor import Auditor, batches_of
from tests.simulation.cluster.contents import KeyContent, keys_of
from tests.simulation.cluster.etcd import EtcdFaults
from tests.simulation.cluster.faults import ClusterFaults
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.operators import Operators
from tests.simulation.faults import Faults
from tests.simulation.machine import Machine
from tests.simulation.memory_etcd import MemoryEtcd
from tests.simulation.simulation import Plant, Simulation
from tests.simulation.workload import Violation, Workload
from tests.simulation.workloads import ALL
from tests.simulation.workloads.publishing import PublishingUnsynced
from tests.simulation.world import Stuck

_NODES = "abc"
_KEYS = ClusterKeys("test")
_SHARD_KEY = _KEYS.shard()
_TICK_SECONDS = 0.05
_FORM_SECONDS = 30.0
_HEAL_SECONDS = 120.0


class LogContent(NamedTuple):
    """A log of a node: its batches, and whether it has lost some."""

    start: int
    end: int
    batches: dict[int, tuple[int, int]]
    has_hole: bool

    def agrees_with(self, other: LogContent | KeyContent) -> bool:
        """What an operator's choice has lost on one node, another one may still have."""
        if not isinstance(other, LogContent):
            return False
        if not self.has_hole and not other.has_hole:
            return self == other
        both = self.batches.keys() & other.batches.keys()
        return self.end == other.end and all(self.batches[b] == other.batches[b] for b in both)

    def __str__(self) -> str:
        return f"{self.start} to {self.end}, {len(self.batches)} batches"


def content_of(log: PartitionLog) -> LogContent:
    batches = dict(batches_of(log))
    return LogContent(log.start_offset, log.end_offset, batches, bool(log.damaged))


class ClusterSimulation(Simulation):
    all: Sequence[type[Workload]] = (*ALL, PublishingUnsynced)
    forgiven = (UnavailableError, DiskFullError)

    def __init__(
        self,
        seed: int,
        kinds: Sequence[type[Workload]] = (),
        *,
        plant: Plant = ExitStack,
        keep_all: bool = False,
    ) -> None:
        super().__init__(seed, kinds, plant=lambda: self._planted(plant), keep_all=keep_all)
        self.nodes: list[SimulatedNode] = []
        self.etcd = MemoryEtcd(lambda: self.world.now)
        self.etcd_faults = EtcdFaults()
        self.auditor = Auditor(self)
        self.operators = Operators(self)
        self._dice = self.world.dice("cluster")
        # Nobody is left who may go on, and an operator would have to choose what is lost.
        self._lost = False
        # What is in etcd, as it was found there last.
        self._decoded: Stored | None = None
        self._seen: SeenRecord | None = None

    def _planted(self, plant: Plant) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(plant())
        stack.enter_context(self.auditor.looking())
        return stack

    @property
    def url(self) -> str:
        return "fanlog://" + ",".join(f"{node}:{PORT}" for node in _NODES)

    # The cluster

    def _build(self) -> None:
        grace = self._dice.choice((0.1, 0.5, 1.0))
        timeout = self._dice.choice((0.3, 1.0, 2.0))
        for name in _NODES:
            config = self._node_config(name, grace, timeout)
            machine = Machine(self.world, self.network, name)
            machine.sync_seconds_max = self._dice.choice((0.005, 0.005, 0.05, 0.2))
            self.nodes.append(SimulatedNode(machine, config, self.etcd, self.etcd_faults))
        self.brokers[:] = self.nodes
        self._watch_etcd()
        for node in self.nodes:
            self.world.after(self._dice.uniform(0, 0.5), node.start)
        self.world.run(lambda: bool(self.violations) or self._is_whole(), _FORM_SECONDS)

    def _node_config(self, name: str, grace: float, timeout: float) -> Config:
        base = self._config(name)
        return replace(
            base,
            redis=replace(base.redis, port=-1),
            web=replace(base.web, port=-1),
            cluster=ClusterOptions(
                name="test",
                node_id=name,
                grace_seconds=grace,
                follower_timeout_seconds=timeout,
                handover_seconds=2.0,
            ),
        )

    def _watch_etcd(self) -> None:
        """Leases end by the clock, and the auditor hears of changes."""
        changed, seen_before = self.etcd._changed, self.auditor.record_changed

        def on_change() -> None:
            seen_before()
            changed()

        self.etcd._changed = on_change  # type: ignore[method-assign]

        def tick() -> None:
            self.etcd.tick()
            self.world.after(_TICK_SECONDS, tick)

        tick()

    def _make_faults(self) -> Faults:
        return ClusterFaults(self)

    def seen(self) -> SeenRecord | None:
        stored = self.etcd._state.keys.get(_SHARD_KEY)
        if stored is not self._decoded:
            self._decoded = stored
            self._seen = None
            if stored is not None:
                self._seen = SeenRecord(decode(stored.value, ShardRecord), stored.revision)
        return self._seen

    def record(self) -> ShardRecord:
        seen = self.seen()
        assert seen is not None
        return seen.record

    def node(self, name: str) -> SimulatedNode:
        return next(node for node in self.nodes if node.name == name)

    def _is_whole(self) -> bool:
        """All nodes are in sync, in the incarnations in which they run."""
        seen = self.seen()
        if seen is None or len(seen.record.in_sync) < len(self.nodes):
            return False
        if any(node.is_stopping or self.is_out(node.name) for node in self.nodes):
            return False
        running = {node.incarnation for node in self.nodes}
        return set(seen.record.in_sync) == running and any(node.is_serving for node in self.nodes)

    def asked_out(self, node: str) -> int:
        """The revision of the request that the node shall be no replica; 0 without one."""
        keys = self.etcd._state.keys
        found = [keys.get(request_key(_KEYS, what, node)) for what in ("drain", "leave")]
        return max((stored.revision for stored in found if stored is not None), default=0)

    def is_out(self, node: str) -> bool:
        """Whether an operator has taken the node out, or is about to."""
        seen = self.seen()
        return bool(self.asked_out(node)) or (seen is not None and node not in seen.record.replicas)

    def can_lose(self, lost: SimulatedNode) -> bool:
        """Whether somebody may still become primary without what this node has, whichever swap of
        those on their way arrives."""
        seen = self.seen()
        if seen is None:
            return False
        possible = [seen.record]
        possible += [
            decode(swap.value, ShardRecord)
            for swap in self.etcd_faults.on_the_way
            if swap.value is not None
            and swap.key == _SHARD_KEY
            and swap.expected is not None
            and swap.expected.revision == seen.revision
        ]
        return any(
            all(node.keeps in record.in_sync for record in possible)
            for node in self.nodes
            if node is not lost
        )

    # Disasters

    def _end_with_disaster(self) -> None:
        """Some runs end with one that an operator has to mend."""
        disaster = self._dice.choice((None, None, self._lose_power, self._restore_etcd))
        self._let_go_on(self._dice.uniform(0, 2.0))
        if disaster is not None and not self.violations:
            disaster()

    def _let_go_on(self, seconds: float) -> None:
        end = self.world.now + seconds
        self.world.run(lambda: bool(self.violations) or self.world.now >= end, seconds + 1)

    def _lose_power(self) -> None:
        """All machines lose their power while clients work. Who was in sync has what was synced."""
        record = self.record()
        able = [node for node in self.nodes if node.keeps in record.in_sync]
        for node in self.nodes:
            node.cut_power("any", self._dice.getrandbits(32))
        self._start_all()
        self._let_go_on(5.0)
        if not able:
            self._leave_it()
            return
        # One that had just stopped cleanly has kept its place.
        if not any(node.is_serving for node in self.nodes):
            self._promote_by_hand(self._dice.choice(able))

    def _restore_etcd(self) -> None:
        """An etcd that has gone back is not believed, whatever it says."""
        backup = self.etcd.backup()
        self._let_go_on(self._dice.uniform(0.5, 6.0))
        node = self._dice.choice(self.nodes)
        if self._dice.random() < 0.7:
            node.kill()
            self._let_go_on(self._dice.uniform(0.5, 6.0))
        self._start_all()
        self._let_go_on(self._dice.uniform(0.0, 4.0))
        seen = self.seen()
        assert seen is not None
        before = seen.record
        self.world.note("etcd is restored")
        self.auditor.restoring(lambda: self.etcd.restore(backup))
        if self.seen() == seen:
            return
        self.auditor.frozen = True
        self._let_go_on(15.0)
        able = [node for node in self.nodes if node.keeps in before.in_sync]
        self._start_all()
        if able:
            self._promote_by_hand(self._dice.choice(able))
        else:
            self._leave_it()
        self.auditor.frozen = False

    def _leave_it(self) -> None:
        """Nobody has everything: the nodes say so, and nothing else can be expected."""
        self._lost = True
        if not any(needs_operator(node) for node in self.nodes):
            raise Violation(f"Nobody asks for an operator. {self._describe()}")

    def _start_all(self) -> None:
        for node in self.nodes:
            if not node.up:
                node.start()

    # The end

    def _finish(self) -> None:
        if self._lost:
            return
        self.operators.end()
        try:
            self._end_work()
            self._wait_until_whole()
        except Stuck as fault:
            raise Violation(f"{fault}. {self._describe()}") from None
        self._compare()
        self._lose_all_power()
        self._compare()

    def _wait_until_whole(self) -> None:
        self.world.run(lambda: bool(self.violations) or self._is_whole(), _HEAL_SECONDS)
        if self.violations:
            raise Violation("see above")

    def _describe(self) -> str:
        seen = self.seen()
        steps = "; ".join(
            f"{n.incarnation}: {n.node.step if n.node else None}, "
            f"{n.node.follower.problem if n.node and n.node.follower else ''}"
            for n in self.nodes
        )
        return f"The record: {seen}. The nodes: {steps}"

    def _compare(self) -> None:
        """All nodes have the same bytes; of compacted topics the same last record of each key."""
        found = self._all_contents()
        first = found[_NODES[0]]
        for name, content in found.items():
            for owner in sorted(first.keys() | content.keys()):
                mine, theirs = first.get(owner), content.get(owner)
                if mine is None or theirs is None or not mine.agrees_with(theirs):
                    raise Violation(f"{_NODES[0]} and {name} differ in {owner}: {mine}, {theirs}")

    def _all_contents(self) -> dict[str, dict[Owner, LogContent | KeyContent]]:
        """Whoever reads damage that others can repair has it repaired, and is read again."""
        end = self.world.now + _HEAL_SECONDS
        while True:
            self.world.run(lambda: bool(self.violations) or self._is_level(), _HEAL_SECONDS)
            try:
                return {node.name: self._content(node) for node in self.nodes}
            except UnavailableError:
                if self.violations or self.world.now > end:
                    raise
                self._let_go_on(2.0)

    def _is_level(self) -> bool:
        """All follow the primary, and nothing is on its way."""
        serving = [node for node in self.nodes if node.is_serving]
        if len(serving) != 1 or serving[0].node is None or serving[0].node.primary is None:
            return False
        reign = serving[0].node.primary.reign
        level = {
            report.incarnation
            for report in reign.reports()
            if report.level and report.acked >= reign.end_position
        }
        others = {node.incarnation for node in self.nodes if node is not serving[0]}
        return level == others and not reign.waits

    def _content(self, node: SimulatedNode) -> dict[Owner, LogContent | KeyContent]:
        assert node.node is not None
        assert node.process is not None
        role, follower = node.node.primary, node.node.follower
        if role is not None:
            store = role.node._store
        else:
            assert follower is not None
            store = follower.replica._store
        with node.process.running():
            return {
                log.owner: keys_of(log) if topic.settings.cleanup == "compact" else content_of(log)
                for topic in store.topics
                for log in topic.logs
                if topic.folder
            }

    def _lose_all_power(self) -> None:
        """Whoever was in sync has everything that had to be synced. An operator chooses one."""
        for node in self.nodes:
            node.cut_power("drop", 0)
        end = self.world.now + 5.0
        self._start_all()
        self.world.run(lambda: self.world.now >= end, 10.0)
        # A swap that was on its way may still name one of the past.
        if any(node.incarnation == self.record().primary for node in self.nodes):
            raise Violation(f"nobody was left, and somebody was promoted: {self.record()}")
        for node in self.nodes:
            if not needs_operator(node):
                raise Violation(f"{node.name} asks for no operator. {self._describe()}")
        chosen = self._dice.choice(self.nodes)
        self._promote_by_hand(chosen)
        self._wait_until_whole()
        self._check()

    def _promote_by_hand(self, node: SimulatedNode) -> None:
        """An operator chooses this node, knowing what may be lost."""
        self.auditor.forced = True
        self.auditor.forget("fsync")
        for workload in self.workloads:
            workload.unsynced_lost()
        record = self.record()
        epoch = forced_reign.forced_epoch(cluster_of(self.etcd.list(_KEYS.prefix), _KEYS))
        forced = replace(
            record,
            epoch=epoch,
            primary=node.incarnation,
            in_sync=(node.incarnation,),
            replicas=tuple(dict.fromkeys((*record.replicas, node.name))),
            forced_epoch=epoch,
        )
        self.etcd.put(_SHARD_KEY, encode(forced))
        self.auditor.forced = False


def needs_operator(node: SimulatedNode) -> bool:
    """Whether a node says that an operator must act."""
    step = node.node.step if node.node is not None else None
    return isinstance(step, StopNode) or (isinstance(step, Wait) and step.needs_operator)
