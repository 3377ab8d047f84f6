"""Looks over the shoulders of all nodes while a cluster runs, and knows what no node can know.

Law: it only looks. What it says is broken is a rule of docs/cluster.md:

- an epoch has one primary;
- a primary waits for all that etcd's record says are in sync;
- only a member of the in-sync set becomes primary, and the set never gets too small;
- only replicas are in the set, and a node that an operator took out is none until he takes it back;
- who joins the set has all that was ever committed;
- what is committed is on all members of the in-sync set, and in each later reign, unchanged;
- a batch of an epoch has one content everywhere, committed or not;
- a replica cuts nothing that is committed and whole while it is in sync, unless a primary has
  deleted it, and is marked before it cuts;
- what is cut does not come back;
- nobody hears of an assignment that is later than the opening of the next reign;
- what is answered is committed (`answers.py`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from fanlog.broker.messages.stream import StreamTurn, TurnStream
from fanlog.cluster import replica
from fanlog.cluster.primary_role import PrimaryRole
from fanlog.cluster.records import SeenRecord, ShardRecord, node_of, nodes_of
from fanlog.cluster.reign import Reign
from fanlog.cluster.replica import Replica
from fanlog.cluster.views import Folder
from fanlog.errors import DamagedError
from fanlog.format.batch import split_batches
from fanlog.format.columns import SPARSE
from fanlog.format.replication import ReplicaPiece, Replicated
from fanlog.log.cutting import CutList
from fanlog.log.damage import LOST
from fanlog.log.partition import PartitionLog
from fanlog.log.scan import Owner
from fanlog.log.store import LogStore
from tests.simulation.cluster.answers import Answers

if TYPE_CHECKING:
    from tests.simulation.cluster.simulation import ClusterSimulation


class Auditor:
    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._record: SeenRecord | None = None
        # By epoch. One that a process before has begun is another reign.
        self.reigns: dict[int, Reign] = {}
        # Checksums of all batches that were sent, by their log, offset and epoch.
        self._contents: dict[tuple[Owner, int, int], int] = {}
        self._answers = Answers(self._violated)
        # The pieces of each reign that are not committed, with their positions.
        self._waiting: dict[Reign, list[tuple[int, ReplicaPiece]]] = {}
        # Committed batches by their log and offset: where they end, and a checksum.
        self.committed: dict[Owner, dict[int, tuple[int, int]]] = {}
        # Topics that some primary has deleted, and where it let logs begin.
        self._deleted: set[int] = set()
        self._starts: dict[Owner, int] = {}
        # Logs in which a node has found damage.
        self._damaged: dict[str, dict[Owner, int]] = {}
        self._newest: Reign | None = None
        # An operator chooses: what rules say of promotion does not count.
        self.forced = False
        self.promotions = 0
        # Etcd was restored: nobody may be promoted by itself.
        self.frozen = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Within, it hears of everything."""
        send, advance, opened = Reign.send, TurnStream.advance, PrimaryRole._opened
        move, apply, cut = TurnStream._start_moved, Replica.apply, replica.cut_folder
        damage, cut_and_open = replica.first_damage, Replica._cut
        when_confirmed = TurnStream.when_confirmed

        def on_send(reign: Reign, turn: StreamTurn) -> None:
            self._sent(reign, turn)
            send(reign, turn)

        def on_advance(stream: TurnStream, written: int, synced: int) -> None:
            reign = stream.replicas
            assert isinstance(reign, Reign)
            self._committed(reign, written, synced)
            advance(stream, written, synced)

        def on_move(stream: TurnStream, owner: Owner, start: int) -> None:
            self._moved(owner, start)
            move(stream, owner, start)

        def on_opened(role: PrimaryRole, fault: Any) -> None:
            if fault is None and role.reign.over is None:
                self._opened(role.reign)
            opened(role, fault)

        def on_apply(follower: Replica, frame: Replicated) -> None:
            for piece in frame.pieces:
                self._keep_content(piece)
            apply(follower, frame)

        def on_damage(store: LogStore) -> dict[Owner, int]:
            return self._finds_damage(damage(store))

        def on_cut(folder: str, cuts: CutList) -> None:
            self._cuts(cuts)
            cut(folder, cuts)

        def on_cut_and_open(follower: Replica, cuts: CutList) -> None:
            cut_and_open(follower, cuts)
            self._check_cut(follower, cuts)

        def on_assignment(stream: TurnStream, resume: Callable[[], None]) -> None:
            when_confirmed(stream, self._assigned(stream, resume))

        with ExitStack() as stack:
            stack.enter_context(self._answers.looking())
            stack.enter_context(mock.patch.object(Replica, "_cut", on_cut_and_open))
            stack.enter_context(mock.patch.object(TurnStream, "when_confirmed", on_assignment))
            stack.enter_context(mock.patch.object(Replica, "apply", on_apply))
            stack.enter_context(mock.patch.object(replica, "cut_folder", on_cut))
            stack.enter_context(mock.patch.object(replica, "first_damage", on_damage))
            stack.enter_context(mock.patch.object(Reign, "send", on_send))
            stack.enter_context(mock.patch.object(TurnStream, "advance", on_advance))
            stack.enter_context(mock.patch.object(TurnStream, "_start_moved", on_move))
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
        if not self.forced and not self.frozen:
            for incarnation in set(now.in_sync) - set(old.in_sync):
                self._joined(incarnation)
        if not self.forced and not self.frozen:
            self._replicas_changed(old, now, before.revision)
        few = len(nodes_of(now.in_sync))
        if few < min(now.min_in_sync, len(nodes_of(old.in_sync))) and not self.forced:
            self._violated(f"the in-sync set has become too small: {old}, then {now}")

    def _replicas_changed(self, old: ShardRecord, now: ShardRecord, revision: int) -> None:
        strangers = nodes_of(now.in_sync) - set(now.replicas)
        if strangers:
            self._violated(f"{sorted(strangers)} is in sync, and is no replica: {now}")
        for node in sorted(set(now.replicas) - set(old.replicas)):
            # Whoever took it out had seen the request.
            if 0 < self._simulation.asked_out(node) <= revision:
                self._violated(f"{node} is a replica again, and an operator took it out: {now}")

    def _joined(self, incarnation: str) -> None:
        """A follower may be promoted from now on."""
        replica = self._replica(incarnation)
        if replica is None:
            return
        for owner, batches in self.committed.items():
            if owner.topic in self._deleted:
                continue
            log = find_log(replica._store, owner)
            end = log.end_offset if log is not None else 0
            lost = [base for base, (until, _) in batches.items() if until > end]
            if lost and max(until for until, _ in batches.values()) > self._starts.get(owner, 0):
                self._violated(
                    f"{incarnation} joins the in-sync set, and {owner} ends there at {end}: the "
                    f"batches at {lost[:5]} are committed"
                )
            elif log is not None and log.settings.cleanup != "compact":
                # The batches of a compacted one are other ones; its keys are compared at the end.
                self._check_copy(incarnation, log, batches)

    def _check_copy(
        self, incarnation: str, log: PartitionLog, wanted: dict[int, tuple[int, int]]
    ) -> None:
        """A follower has what is committed, unchanged, but for what nobody has."""
        with self._inside(incarnation):
            found = dict(batches_of(log))
        lost = [gap for gap in log.damaged if gap.reason in LOST]
        start = max(log.start_offset, self._starts.get(log.owner, 0))
        for base, kept in wanted.items():
            nowhere = any(gap.first <= base < gap.next for gap in lost)
            if base >= start and found.get(base) != kept and not nowhere:
                self._violated(
                    f"{incarnation} joins the in-sync set, and has another batch of {log.owner} at "
                    f"{base} than was committed: {found.get(base)} and {kept}"
                )
                return

    def _replica(self, incarnation: str) -> Replica | None:
        """The copy of a follower that runs, and is open."""
        node = self._simulation.node(node_of(incarnation))
        if node.incarnation != incarnation or node.node is None or node.node.follower is None:
            return None
        replica = node.node.follower.replica
        return replica if replica._is_open else None

    def restoring(self, restore: Callable[[], None]) -> None:
        """Etcd goes back: that is no change of the cluster's."""
        self.forced = True
        restore()
        self.forced = False

    # A reign

    def _sent(self, reign: Reign, turn: StreamTurn) -> None:
        first = self.reigns.setdefault(reign.epoch, reign)
        if first is not reign:
            self._violated(
                f"{first.incarnation} and {reign.incarnation} reign in epoch {reign.epoch}"
            )
        for piece in turn.pieces:
            for epoch in self._keep_content(piece):
                if epoch != reign.epoch:
                    self._violated(f"{reign.incarnation} sends epoch {epoch}, not {reign.epoch}")
        waiting = self._waiting.setdefault(reign, [])
        waiting += [(turn.position, piece) for piece in turn.pieces]
        for event in turn.events:
            if event.deleted:
                self._deleted.add(event.number)

    def _keep_content(self, piece: ReplicaPiece) -> set[int]:
        """A batch of an epoch is the same, wherever it is seen. The epochs of these."""
        owner, data = Owner(piece.topic, piece.partition), bytes(piece.data)
        epochs: set[int] = set()
        for at, header in split_batches(data):
            epochs.add(header.leader_epoch)
            if header.flags & SPARSE:
                continue  # compacted
            content = zlib.crc32(data[at : at + header.length])
            key = owner, header.base_offset, header.leader_epoch
            if self._contents.setdefault(key, content) != content:
                self._violated(f"{owner} has two batches at {key[1]} in epoch {key[2]}")
        return epochs

    def _finds_damage(self, found: dict[Owner, int]) -> dict[Owner, int]:
        """A replica copies these logs again, from the first damage on."""
        process = self._simulation.world.current
        if process is not None:
            self._damaged[process.machine.address] = found
        return found

    def _cuts(self, cuts: CutList) -> None:
        """A replica is about to cut its logs."""
        process = self._simulation.world.current
        assert process is not None
        node = self._simulation.node(process.machine.address)
        mark = node.node._mark if node.node is not None else None
        if mark is None:
            return
        if mark.state is Folder.WHOLE:
            self._violated(f"{node.name} cuts its logs, and its folder says that it is whole")
        record = self._record.record if self._record is not None else None
        if record is None or mark.incarnation not in record.in_sync or self.frozen:
            return
        for owner, end in (*cuts.ends.items(), *cuts.starts.items()):
            # What a primary has deleted, and another one has not heard of, is copied again.
            kept_from = max(end, self._starts.get(owner, 0))
            lost = [base for base, (until, _) in self._known(owner) if until > kept_from]
            if lost and owner not in self._damaged.get(node.name, {}):
                self._violated(
                    f"{mark.incarnation} is in sync and cuts {owner} at {end}: the batches at "
                    f"{lost[:5]} are committed"
                )

    def _check_cut(self, follower: Replica, cuts: CutList) -> None:
        """What was cut does not come back from the journal."""
        for owner, end in cuts.ends.items():
            log = find_log(follower._store, owner)
            if log is not None and log.end_offset > end:
                self._violated(f"{owner} is cut at {end}, and ends at {log.end_offset} again")

    def _assigned(self, stream: TurnStream, resume: Callable[[], None]) -> Callable[[], None]:
        """A job or a partition is assigned. Its client must not hear of it if a later primary may
        have assigned it before."""
        reign, newest = stream.replicas, self._newest
        assert isinstance(reign, Reign)
        if newest is None or newest.epoch <= reign.epoch or self.forced:
            return resume

        def audited() -> None:
            self._violated(
                f"{reign.incarnation} hands out in epoch {reign.epoch} what it has assigned after "
                f"the reign of epoch {newest.epoch} had opened"
            )
            resume()

        return audited

    def _known(self, owner: Owner) -> list[tuple[int, tuple[int, int]]]:
        return list(self.committed.get(owner, {}).items())

    def _moved(self, owner: Owner, start: int) -> None:
        """A primary lets a log begin there; followers hear of it later."""
        self._starts[owner] = max(start, self._starts.get(owner, 0))

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
                self._check_elsewhere(newest, Owner(piece.topic, piece.partition))
        self._waiting[reign] = left

    def _keep(self, piece: ReplicaPiece) -> None:
        found = self.committed.setdefault(Owner(piece.topic, piece.partition), {})
        data = bytes(piece.data)
        for at, header in split_batches(data):
            content = zlib.crc32(data[at : at + header.length])
            found[header.base_offset] = header.next_offset, content

    def _check_follower(self, reign: Reign, incarnation: str, piece: ReplicaPiece) -> None:
        replica = self._replica(incarnation)
        if replica is None:
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
        if newest is not None and newest.epoch == reign.epoch:
            self._violated(f"the reign of epoch {reign.epoch} opens twice")
        if newest is not None and newest.epoch > reign.epoch:
            # It was paused, and learns only now that its opening had been acknowledged. It commits
            # nothing else: `_committed` looks at each piece.
            return
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

    def _check_elsewhere(self, reign: Reign, owner: Owner) -> None:
        """The same of another node than the one that runs, if it is still there."""
        if self._simulation.node(node_of(reign.incarnation)).incarnation == reign.incarnation:
            with self._inside(reign.incarnation):
                self._check_log(reign, owner)

    @contextmanager
    def _inside(self, incarnation: str) -> Iterator[None]:
        """Within, files are those of this node, and no fault is injected."""
        node = self._simulation.node(node_of(incarnation))
        assert node.process is not None
        trap, node.machine.trap = node.machine.trap, None
        try:
            with node.process.running():
                yield
        finally:
            node.machine.trap = trap

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
            try:
                block = log.read(offset, tail.start_offset)
            except DamagedError as gap:
                offset = gap.next
                continue
            data, after = bytes(block.data), block.next_offset
        for at, header in split_batches(data):
            content = zlib.crc32(data[at : at + header.length])
            yield header.base_offset, (header.next_offset, content)
        if after <= offset:
            return
        offset = after
