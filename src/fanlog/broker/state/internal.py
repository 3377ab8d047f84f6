"""The broker's own topics, as ledgers write them. An entry is part of a turn, like a message: it
becomes visible, and takes effect, when it is durable. Answers wait for that."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable

import msgspec

from fanlog.broker.messages.catalog import Catalog
from fanlog.broker.messages.topics import Partition
from fanlog.broker.messages.turns import Turns
from fanlog.broker.ports import Runtime
from fanlog.broker.state.ledger import Done, Ledger
from fanlog.errors import FanlogError
from fanlog.format.batch import stamp
from fanlog.format.header import read_header
from fanlog.log.faults import is_temporary, write_error
from fanlog.log.losses import Loss, LossNotes, load_ends, save_ends
from fanlog.log.store import LogStore
from fanlog.model import Durability, TopicSettings

logger = logging.getLogger("fanlog.broker")


class InternalTopics:
    """The implementation of `LedgerHost`."""

    def __init__(self, store: LogStore, catalog: Catalog, turns: Turns, runtime: Runtime) -> None:
        self._store = store
        self._catalog = catalog
        self._turns = turns
        self._runtime = runtime
        self._ledgers: dict[str, Ledger] = {}
        self._ends: dict[str, int] = {}
        self._losses = LossNotes(store.folder or "")
        # Entries given to group commit, and entries that it has completed.
        self._written = 0
        self._answered = 0
        self._waiting: deque[tuple[int, Done]] = deque()
        self._fault: FanlogError | None = None

    def soon(self, call: Callable[[], None], /) -> object:
        return self._runtime.soon(call)

    # Topics

    def find_internal(self, name: str) -> Partition | None:
        topic = self._catalog.find(name)
        return None if topic is None else topic.partitions[0]

    def make_internal(self, name: str, settings: TopicSettings) -> Partition | None:
        if self._store.folder is None:
            return None
        known = self._catalog.find(name)
        if known is not None:
            return known.partitions[0]
        made = self._catalog.create(name, settings, exist_ok=True).partitions[0]
        if name in self._ledgers:
            self._save_ends()
        return made

    def make_kept(self, name: str, settings: TopicSettings) -> Partition:
        """The same, but without a data folder the topic lives in memory."""
        made = self.make_internal(name, settings)
        if made is not None:
            return made
        in_memory = msgspec.structs.replace(settings, durability="memory")
        return self._catalog.create(name, in_memory, exist_ok=True).partitions[0]

    def alter_internal(self, name: str, settings: TopicSettings) -> None:
        """Gives a topic other retention, if it exists. Never raises."""
        topic = self._catalog.find(name)
        if topic is None:
            return
        wanted = msgspec.structs.replace(
            topic.settings,
            retention_seconds=settings.retention_seconds,
            retention_bytes=settings.retention_bytes,
            segment_bytes=settings.segment_bytes,
        )
        if wanted == topic.settings:
            return
        try:
            self._catalog.alter(topic, wanted)
        except FanlogError as fault:
            logger.error("%s keeps its settings for now: %s", name, fault)

    def make_durable(self, partition: Partition) -> None:
        topic = partition.topic
        if partition.durability is Durability.FSYNC:
            return
        try:
            self._store.make_durable(topic.stored)
        except FanlogError as fault:
            logger.error("%s stays without durability fsync: %s", topic.name, fault)
            return
        topic.settings = topic.stored.settings
        partition.durability = partition.log.durability

    # Writing

    def write_internal(self, partition: Partition, batch: bytes, done: Done | None) -> None:
        """See `LedgerHost`."""
        time_us = partition.last_time_us = max(self._runtime.now_us(), partition.last_time_us)
        base_offset = partition.next_offset
        stamped = stamp(
            batch,
            base_offset=base_offset,
            append_time_us=time_us,
            leader_epoch=self._store.epoch,
            topic=partition.topic.number,
        )
        next_offset = base_offset + read_header(batch).record_count
        if partition.durability is not Durability.FSYNC:
            self._turns.append_entry(partition, stamped, next_offset, done or _log_fault)
            return

        def durable(fault: FanlogError | None) -> None:
            self._answered += 1
            self._fault = self._fault or fault
            try:
                (done or _log_fault)(fault)
            finally:
                self._tell_waiting()

        self._turns.append_entry(partition, stamped, next_offset, durable)
        self._written += 1

    def _tell_waiting(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._answered:
            _, tell = self._waiting.popleft()
            try:
                tell(self._fault)
            except Exception:
                # One that fails must not stop the others.
                logger.exception("What waited for a ledger failed.")

    def when_durable(self, done: Done) -> None:
        """Calls `done` when all entries that were written so far are durable and have taken effect,
        or with the fault if they can't be: at once where there are none to wait for. With replicas
        it also waits for topics that were created, changed or deleted."""
        stream = self._turns.stream
        if stream.replicated:
            stream.after_all(lambda: self._turns.do_afterwards(lambda: done(self._fault)))
        elif self._answered == self._written:
            done(self._fault)
        else:
            self._waiting.append((self._written, done))

    @property
    def is_durable(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._answered == self._written

    def sync_internal_now(self, partition: Partition) -> None:
        partition.log.track_unsynced()
        try:
            partition.log.sync()
        except OSError as fault:
            if is_temporary(fault):
                raise write_error(fault, partition.name, "Syncing") from fault
            # The kernel reports a lost write only once: the next sync would succeed.
            error = write_error(fault, partition.name, "Syncing")
            partition.log.fail(error)
            raise error from fault

    # What was lost

    def load(self) -> None:
        """Loads the known losses before ledgers are read."""
        if self._store.folder is not None:
            self._ends = load_ends(self._store.folder)
            self._losses.load()

    def end_known(self, name: str) -> int:
        return self._ends.get(name, 0)

    def loaded(self, ledger: Ledger) -> None:
        self._ledgers[ledger.name] = ledger

    def repair(self) -> None:
        """All ledgers are read, and their owners have taken them in."""
        for ledger in self._ledgers.values():
            ledger.repair()
        self._save_ends()

    def close(self) -> None:
        self._save_ends()

    def report_loss(self, name: str, said: str, partition: Partition | None, before: int) -> None:
        path = self._losses.path_for(f"{self._store.epoch}-{name}")
        sentence = (
            f"{said} What could not be read is kept in {path}: remove that folder to clear this "
            "message, and restart the broker."
        )
        logger.error("%s", sentence)
        newest = max((t.number for t in self._catalog if t.stored.folder), default=0)
        try:
            self._losses.add(path, Loss(name, sentence, newest))
            if partition is not None and before:
                partition.log.move_before(before, path)
        except OSError as fault:
            logger.error("%s", write_error(fault, path))

    def losses(self) -> list[str]:
        """Losses of ledgers that are not cleared, one sentence each."""
        return [loss.sentence for loss in self._losses.current()]

    def may_have_lost(self, ledger: str, topic: int) -> bool:
        return any(
            loss.ledger == ledger and topic <= loss.newest_topic for loss in self._losses.current()
        )

    def _save_ends(self) -> None:
        """How far ledgers go, as far as that is durable."""
        folder = self._store.folder
        if folder is None or not os.path.isdir(folder):
            return
        ends: dict[str, int] = {}
        for name in self._ledgers:
            partition = self.find_internal(name)
            if partition is not None:
                end = partition.log.end_offset
                durable = self.is_durable and partition.log.failure is None
                ends[name] = end if durable else min(end, self._ends.get(name, 0))
        if ends == self._ends:
            return
        try:
            save_ends(folder, ends)
            self._ends = ends
        except OSError as fault:
            logger.warning("how far ledgers go can't be kept: %s", fault)


def _log_fault(fault: FanlogError | None) -> None:
    if fault is not None:
        logger.error("an entry of the broker's own was not made durable: %s", fault)
