"""Looks over the shoulders of all nodes while a cluster runs, and knows what no node can know.

Law: it only looks. What it says is broken is a rule of docs/cluster.md:

- an epoch has one primary;
- a primary waits for all that etcd's record says are in sync;
- only a member of the in-sync set becomes primary, and the set never gets too small;
- what is committed is on all members of the in-sync set, and in each later reign, unchanged."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from fanlog.broker.messages.stream import StreamTurn, TurnStream
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import SeenRecord, node_of, nodes_of
from fanlog.cluster.reign import Reign
from fanlog.format.batch import split_batches
from fanlog.format.replication import ReplicaPiece
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner

if TYPE_CHECKING:
    from tests.simulation.cluster.simulation import ClusterSimulation


class Auditor:
    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._record: SeenRecord | None = None
        # Who has reigned, by epoch.
        self.reigns: dict[int, str] = {}
        # The pieces of each reign that are not committed, with their positions.
        self._waiting: dict[Reign, list[tuple[int, ReplicaPiece]]] = {}
        # Committed batches by their log and offset: where they end, and a checksum.
        self.committed: dict[Owner, dict[int, tuple[int, int]]] = {}
        # Topics that some primary has deleted, and where it let logs begin.
        self._deleted: set[int] = set()
        self._starts: dict[Owner, int] = {}
        self._newest: Reign | None = None
        # An operator chooses: what rules say of promotion does not count.
        self.forced = False
        self.promotions = 0
        # Etcd was restored: nobody may be promoted by itself.
        self.frozen = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Within, it hears of everything."""
        send, commit, opened = Reign.send, TurnStream.commit, PrimaryRole._opened

        def on_send(reign: Reign, turn: StreamTurn) -> None:
            self._sent(reign, turn)
            send(reign, turn)

        def on_commit(stream: TurnStream, written: int, synced: int) -> None:
            reign = stream.replicas
            assert isinstance(reign, Reign)
            self._committed(reign, written, synced)
            commit(stream, written, synced)

        def on_opened(role: PrimaryRole, fault: Any) -> None:
            if fault is None and role.reign.over is None:
                self._opened(role.reign)
            opened(role, fault)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(Reign, "send", on_send))
            stack.enter_context(mock.patch.object(TurnStream, "commit", on_commit))
            stack.enter_context(mock.patch.object(PrimaryRole, "_opened", on_opened))
            yield

    def _violated(self, promise: str) -> None:
        self._simulation.violations.append(f"Cluster: {promise}")

    # Etcd

    def record_changed(self) -> None:
        """Called with each change of etcd."""
        seen, before = self._simulation.seen(), self._record
        if seen == before:
            return
        self._record = seen
        if seen is None or before is None:
            return
        now, old = seen.record, before.record
        self._simulation.world.note(f"record {now}")
        if now.epoch != old.epoch and not self.forced:
            self.promotions += 1
            if now.epoch < old.epoch:
                self._violated(f"epoch {old.epoch} is followed by {now.epoch}")
            if now.primary not in old.in_sync:
                self._violated(f"{now.primary} was promoted, and was not in sync: {old}")
            if self.frozen:
                self._violated(f"{now.primary} was promoted, and etcd had been restored")
        few = len(nodes_of(now.in_sync))
        if few < min(now.min_in_sync, len(nodes_of(old.in_sync))) and not self.forced:
            self._violated(f"the in-sync set has become too small: {old}, then {now}")

    def restoring(self, restore: Callable[[], None]) -> None:
        """Etcd goes back: that is no change of the cluster's."""
        self.forced = True
        restore()
        self.forced = False

    # A reign

    def _sent(self, reign: Reign, turn: StreamTurn) -> None:
        incarnation = self.reigns.setdefault(reign.epoch, reign.incarnation)
        if incarnation != reign.incarnation:
            self._violated(f"{incarnation} and {reign.incarnation} reign in epoch {reign.epoch}")
        waiting = self._waiting.setdefault(reign, [])
        waiting += [(turn.position, piece) for piece in turn.pieces]
        for event in turn.events:
            if event.deleted:
                self._deleted.add(event.number)
            elif event.settings is None:
                owner = Owner(event.number, event.partition)
                self._starts[owner] = max(event.start, self._starts.get(owner, 0))

    def _committed(self, reign: Reign, written: int, synced: int) -> None:
        record = self._record.record if self._record is not None else None
        in_sync: tuple[str, ...] = ()
        if record is not None and record.epoch == reign.epoch and not self.frozen:
            in_sync = record.in_sync
            missing = set(in_sync) - reign.needed
            if missing:
                self._violated(f"{reign.incarnation} commits without {sorted(missing)}: {record}")
        left: list[tuple[int, ReplicaPiece]] = []
        for position, piece in self._waiting.get(reign, []):
            partition = reign.find_partition(piece.topic, piece.partition)
            if partition is None:
                continue
            level = synced if partition.topic.stored.settings.durability == "fsync" else written
            if position > level:
                left.append((position, piece))
                continue
            self._keep(piece)
            for incarnation in in_sync:
                self._check_follower(reign, incarnation, piece)
            newest = self._newest
            if newest is not None and newest.epoch > reign.epoch:
                self._check_log(newest, Owner(piece.topic, piece.partition))
        self._waiting[reign] = left

    def _keep(self, piece: ReplicaPiece) -> None:
        found = self.committed.setdefault(Owner(piece.topic, piece.partition), {})
        data = bytes(piece.data)
        for at, header in split_batches(data):
            content = zlib.crc32(data[at : at + header.length])
            found[header.base_offset] = header.next_offset, content

    def _check_follower(self, reign: Reign, incarnation: str, piece: ReplicaPiece) -> None:
        node = self._simulation.node(node_of(incarnation))
        if node.incarnation != incarnation or node.node is None or node.node.follower is None:
            return
        replica = node.node.follower.replica
        if not replica._is_open:
            return
        log = find_log(replica._store, Owner(piece.topic, piece.partition))
        if log is None or log.end_offset < piece.next:
            self._violated(
                f"{reign.incarnation} has committed {piece.topic}/{piece.partition} up to "
                f"{piece.next}, and {incarnation} has {log and log.end_offset}"
            )

    def _opened(self, reign: Reign) -> None:
        """A primary has all that was ever committed."""
        newest = self._newest
        if newest is not None and newest.epoch >= reign.epoch:
            self._violated(f"the reign of epoch {reign.epoch} opens after {newest.epoch}")
        self._newest = reign
        for owner in list(self.committed):
            self._check_log(reign, owner)

    def forget(self, durability: str) -> None:
        """An operator chose a node that may have lost this."""
        for owner in [o for o in self.committed if not self._has(o, durability)]:
            del self.committed[owner]

    def _has(self, owner: Owner, durability: str) -> bool:
        newest = self._newest
        partition = newest.find_partition(*owner) if newest is not None else None
        return partition is None or partition.topic.stored.settings.durability == durability

    def _check_log(self, reign: Reign, owner: Owner) -> None:
        """The log of a primary has what is committed, unchanged."""
        partition = reign.find_partition(*owner)
        if partition is None:
            if owner.topic not in self._deleted:
                self._violated(
                    f"{reign.incarnation} has no topic {owner.topic}: it was not deleted"
                )
            return
        log, wanted = partition.log, self.committed[owner]
        start = self._starts.get(owner, 0)
        lost = [base for base, (end, _) in wanted.items() if end > max(log.end_offset, start)]
        if lost:
            self._violated(
                f"{reign.incarnation}, epoch {reign.epoch}: {partition.name} ends at "
                f"{log.end_offset}, and the batches at {lost[:5]} were committed"
            )
            return
        if log.start_offset > start and not log.compacted_until:
            self._violated(f"{partition.name} begins at {log.start_offset}, and not at {start}")
        if log.compacted_until:
            return
        found = dict(batches_of(log))
        for base, kept in wanted.items():
            if base >= log.start_offset and found.get(base) != kept:
                self._violated(
                    f"{reign.incarnation}, epoch {reign.epoch}: {partition.name} has another "
                    f"batch at {base} than was committed: {found.get(base)} and {kept}"
                )
                return


def find_log(store: Any, owner: Owner) -> PartitionLog | None:
    for topic in store.topics:
        if topic.number == owner.topic and owner.partition < len(topic.logs):
            return topic.logs[owner.partition]
    return None


def batches_of(log: PartitionLog) -> Iterator[tuple[int, tuple[int, int]]]:
    """The batches of a log: where they begin and end, and their checksums."""
    offset, tail = log.start_offset, log.tail
    while offset < log.end_offset:
        if offset >= tail.start_offset:
            views, after = tail.read(offset, log.end_offset, 1 << 20)
            data = b"".join(views)
        else:
            block = log.read(offset, tail.start_offset)
            data, after = bytes(block.data), block.next_offset
        for at, header in split_batches(data):
            content = zlib.crc32(data[at : at + header.length])
            yield header.base_offset, (header.next_offset, content)
        if after <= offset:
            return
        offset = after
