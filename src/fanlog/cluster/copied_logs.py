"""The topics and logs of a replica, as its primary says: events change topics, pieces are appended.

Every batch is checked before it is stored: both checksums, that it continues its log, and that the
epochs do not fall. Producers are kept for the next primary, from the headers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from fanlog.cluster.copied_compaction import CopiedCompactions
from fanlog.cluster.reconcile import Plan
from fanlog.errors import FanlogError, ProtocolError
from fanlog.format.batch import split_batches
from fanlog.format.columns import SPARSE
from fanlog.format.header import HEADER_BYTES, PACKING_AT, read_header
from fanlog.format.replication import ReplicaEvent, ReplicaPiece, ReplicaTopic
from fanlog.log.compacting import CompactionThread
from fanlog.log.opening import StoredTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import ProducerRuns, decode_producers
from fanlog.log.scan import FoundBatch, Owner, check_piece
from fanlog.log.store import LogStore
from fanlog.log.tail import Piece
from fanlog.model import Durability, TopicSettings

# Producers remembered for each log, as in a broker. They are counted now and then.
_PRODUCERS_MAX = 10_000
_COUNT_PRODUCERS_EVERY = 4_096

SyncPiece = Callable[[PartitionLog, Piece], None]


class CopiedLogs:
    """`sync_piece` makes a piece durable, `adopt` a topic whose durability has risen to fsync;
    `failed` gets the errors of work in the background. `incomplete` is called before a log begins
    anew, or gets batches that were compacted: they do not tell all of its producers."""

    def __init__(
        self,
        store: LogStore,
        sync_piece: SyncPiece,
        adopt: Callable[[StoredTopic], None],
        failed: Callable[[FanlogError], None],
        *,
        incomplete: Callable[[], None],
        in_background: CompactionThread,
    ) -> None:
        self._store = store
        self._incomplete = incomplete
        self.compactions = CopiedCompactions(self._to_compact, in_background)
        self._sync_piece = sync_piece
        self._adopt = adopt
        self._failed = failed
        self._topics = {topic.number: topic for topic in store.topics}
        # The journal, which is empty when a folder is opened, may have records of topics below.
        self.numbers_used_until = max(self._topics, default=0) + 1
        self._producers: dict[Owner, ProducerRuns] = {}
        self._uncounted = 0
        for topic in store.topics:
            for log in topic.logs:
                if log.recovered:
                    self._producers_of(log).add_runs(log.recovered)
                    log.recovered = []

    def _producers_of(self, log: PartitionLog) -> ProducerRuns:
        producers = self._producers.get(log.owner)
        if producers is None:
            producers = self._producers[log.owner] = ProducerRuns()
            log.keep_producers(producers.histories)
        return producers

    # Topics

    def carry_out(self, plan: Plan) -> Iterator[None]:
        """What is left of a plan when the logs are cut, in steps. What is left when it is given up
        is in the next plan: numbers are used in their order."""
        for number in plan.deletions:
            self._delete(number)
            yield
        for topic in (*sorted(plan.creations, key=_number), *plan.alterations):
            self._put_topic(topic.number, topic.name, topic.settings)
            yield
        for owner, start in (*plan.restarts.items(), *plan.starts.items()):
            self._move_start(self._log(*owner), start)
            yield

    def take_event(self, event: ReplicaEvent) -> None:
        if event.deleted:
            self._delete(event.number)
        elif event.settings is not None:
            self._check_number(event.number, event.settings)
            self._put_topic(event.number, event.name, event.settings)
        elif event.producers:
            self._put_producers(self._log(event.number, event.partition), event.producers)
        elif event.compacted_until:
            self.compactions.hear(event)
        else:
            self._move_start(self._log(event.number, event.partition), event.start)

    def _delete(self, number: int) -> None:
        topic = self._topics.pop(number, None)
        if topic is None:
            return
        for log in topic.logs:
            self._producers.pop(log.owner, None)

        def deleted(fault: FanlogError | None) -> None:
            if fault is not None:
                self._failed(fault)

        self._store.delete(topic, deleted)

    def _check_number(self, number: int, settings: TopicSettings) -> None:
        """The journal may have records of a topic that had this number, and that was never
        committed. A folder that is opened again has an empty one."""
        is_new = number not in self._topics and settings.level is not Durability.MEMORY
        if is_new and number < self.numbers_used_until:
            raise ProtocolError(f"Topic number {number} was used here before.")

    def _put_topic(self, number: int, name: str, settings: TopicSettings) -> None:
        if settings.level is Durability.MEMORY:
            return
        topic = self._topics.get(number)
        if topic is not None and topic.name == name and self._altered(topic, settings):
            return
        if topic is not None:
            self._incomplete()
        for other in [t for t in self._topics.values() if t.name == name or t.number == number]:
            self._delete(other.number)
        if number in self._store.left_aside:
            # This start could not open it. The primary has it.
            self._store.remove_left_aside(number)
        self._topics[number] = self._store.create(name, settings, number)
        self.numbers_used_until = max(self.numbers_used_until, number + 1)

    def _altered(self, topic: StoredTopic, settings: TopicSettings) -> bool:
        """Whether the topic has these settings now. False if it has to be made anew."""
        before = topic.settings
        if settings == before:
            return True
        if settings.partitions < before.partitions:
            return False
        if settings.durability != before.durability:
            if settings.level is not Durability.FSYNC:
                return False
            raised = msgspec.structs.replace(before, durability="fsync")
            self._store.track_unsynced(topic)
            self._store.save_raised(topic, raised)
            self._store.raised(topic, raised)
            self._adopt(topic)
        self._store.update(topic, settings)
        return True

    def _put_producers(self, log: PartitionLog, data: bytes) -> None:
        """Stores the producers of a log's records, as the primary knows them."""
        producers = ProducerRuns()
        producers.add_runs(decode_producers(data, log.end_offset).runs)
        self._producers[log.owner] = producers
        # Nothing is acknowledged before that.
        with self._store.at_once():
            log.replace_producers(producers.histories)

    def _to_compact(self, owner: Owner) -> PartitionLog | None:
        topic = self._topics.get(owner.topic)
        if topic is None or owner.partition >= len(topic.logs):
            return None
        return topic.logs[owner.partition] if topic.settings.cleanup == "compact" else None

    def _move_start(self, log: PartitionLog, start: int) -> None:
        if start > log.end_offset:
            self._incomplete()
            log.restart_at(start)
        elif start > log.start_offset:
            log.delete_before(start)

    def maybe_log(self, number: int, partition: int) -> PartitionLog | None:
        topic = self._topics.get(number)
        if topic is None or not 0 <= partition < len(topic.logs):
            return None
        return topic.logs[partition]

    def _log(self, number: int, partition: int) -> PartitionLog:
        log = self.maybe_log(number, partition)
        if log is None:
            raise ProtocolError(f"There is no partition {partition} of a topic number {number}.")
        return log

    # Records

    def take_piece(self, piece: ReplicaPiece, epoch: int, *, caught_up: bool) -> None:
        """Appends a piece, as far as it is new. Only while the follower is catching up may it begin
        after the log's end: the primary has lost what was between. An empty one says just that."""
        log = self._log(piece.topic, piece.partition)
        data = bytes(piece.data)
        batches = check_piece(data, piece.base, piece.next, log.owner)
        if piece.base < log.end_offset:
            data, batches = _without_known(log, data, batches)
        elif piece.base > log.end_offset:
            if caught_up:
                raise ProtocolError(
                    f"{_name(log)} ends at {log.end_offset}; the piece begins at {piece.base}."
                )
            self._incomplete()
            # The producers may come next, and must not wait for those that are known now.
            with self._store.at_once():
                log.leave_out(piece.base)
        if not batches:
            return
        _check_epochs(log, batches, epoch)
        if any(batch.span > batch.record_count for batch in batches):
            # Later records may have replaced what is missing in these, and other batches are gone.
            # The copy is whole again with those records, and with the producers of all.
            self._incomplete()
        if not log.is_ranked and _has_priority(data, batches):
            log.append_copy(data, batches)
            log.mark_ranked(at_once=True)
        else:
            log.append_copy(data, batches)
        # Nobody reads here.
        log.tail.drop_before(log.end_offset)
        self._note_producers(log, batches)
        if log.durability is Durability.FSYNC:
            self._sync_piece(log, data)

    def _note_producers(self, log: PartitionLog, batches: Sequence[FoundBatch]) -> None:
        if log.owner not in self._producers and not any(b.producer_id for b in batches):
            return
        producers = self._producers_of(log)
        producers.add(batches)
        self._uncounted += len(batches)
        if self._uncounted > _COUNT_PRODUCERS_EVERY:
            self._uncounted = 0
            producers.forget_idle(_PRODUCERS_MAX)


def _number(topic: ReplicaTopic) -> int:
    return topic.number


def _name(log: PartitionLog) -> str:
    return f"Topic {log.owner.topic}, partition {log.owner.partition}"


def _check_epochs(log: PartitionLog, batches: Sequence[FoundBatch], newest: int) -> None:
    epoch = log.epochs[-1].epoch if log.epochs else 0
    for batch in batches:
        if not epoch <= batch.leader_epoch <= newest:
            raise ProtocolError(
                f"{_name(log)}: the batch at {batch.base_offset} has epoch {batch.leader_epoch}; "
                f"it follows epoch {epoch}, and the primary has epoch {newest}."
            )
        epoch = batch.leader_epoch


def _has_priority(data: Piece, batches: Sequence[FoundBatch]) -> bool:
    at = 0
    for batch in batches:
        if data[at + PACKING_AT] >> 4:
            return True
        at += batch.length
    return False


def _without_known(
    log: PartitionLog, data: Piece, batches: list[FoundBatch]
) -> tuple[Piece, list[FoundBatch]]:
    """The part of a piece past the log's end. Raises if the rest is not what the log has."""
    at = known = 0
    for batch in batches:
        if batch.base_offset + batch.span > log.end_offset:
            break
        at += batch.length
        known += 1
    new = batches[known:]
    if new and new[0].base_offset < log.end_offset:
        raise ProtocolError(
            f"{_name(log)} ends at {log.end_offset}, within the batch at {new[0].base_offset}: "
            "the primary has compacted it meanwhile. Follow it again."
        )
    _check_same(log, data[:at])
    return data[at:], new


def _check_same(log: PartitionLog, repeated: Piece) -> None:
    """Checks that the log has these batches. Compaction may have changed either side's."""
    theirs = {header.base_offset: at for at, header in split_batches(repeated)}
    offset = max(min(theirs, default=0), log.start_offset)
    stop = max((read_header(repeated, at).next_offset for at in theirs.values()), default=0)
    while offset < stop:
        block = log.read(offset, stop)
        for at, header in split_batches(block.data):
            other = theirs.get(header.base_offset)
            if other is None:
                continue
            sparse = (header.flags | read_header(repeated, other).flags) & SPARSE
            mine = bytes(block.data[at : at + HEADER_BYTES])
            if mine != repeated[other : other + HEADER_BYTES] and not sparse:
                raise ProtocolError(
                    f"{_name(log)} has another batch at {header.base_offset} than the primary."
                )
        offset = block.next_offset
