"""The broker's own topics, as ledgers write them: past the turn, so that an entry is in the log
when its writer goes on."""

from __future__ import annotations

from fanlog.broker.catalog import Catalog
from fanlog.broker.commits import Commits
from fanlog.broker.ledger import Done
from fanlog.broker.ports import Runtime
from fanlog.broker.topics import Partition
from fanlog.errors import FanlogError, LogFailedError, StorageError
from fanlog.format.batch import read_header, stamp
from fanlog.log.faults import is_temporary, write_error
from fanlog.log.store import LogStore
from fanlog.model import Durability, TopicSettings


class InternalTopics:
    """What a `LedgerHost` does."""

    def __init__(
        self, store: LogStore, catalog: Catalog, commits: Commits, runtime: Runtime
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._commits = commits
        self._runtime = runtime

    def find_internal(self, name: str) -> Partition | None:
        topic = self._catalog.find(name)
        return None if topic is None else topic.partitions[0]

    def make_internal(self, name: str, settings: TopicSettings) -> Partition | None:
        if self._store.folder is None:
            return None
        return self._catalog.create(name, settings, exist_ok=True).partitions[0]

    def write_internal(self, partition: Partition, batch: bytes, done: Done | None) -> None:
        log = partition.log
        if partition.durability is Durability.FSYNC:
            self._commits.prepare_sync()
        time_us = max(self._runtime.now_us(), log.last_time_us)
        stamped = stamp(
            batch,
            base_offset=log.end_offset,
            append_time_us=time_us,
            leader_epoch=self._store.epoch,
            topic=partition.topic.number,
        )
        before = log.tail.bytes
        count = read_header(batch).record_count
        log.append(stamped, log.end_offset + count, time_us, time_us)
        log.tail.trim(partition.topic.settings.tail_bytes)
        self._commits.resized(partition, before)
        partition.next_offset = partition.visible_end = log.end_offset
        partition.last_time_us = time_us
        if partition.durability is Durability.FSYNC:
            self._commits.sync(log, stamped, done)
        elif done is not None:
            done(None)

    def sync_internal(self, partition: Partition, done: Done) -> None:
        log = partition.log

        def synced(result: Exception | None) -> None:
            if result is None or isinstance(result, FanlogError):
                done(result)
            else:
                done(_failed(partition, result))

        log.track_unsynced()
        self._runtime.in_thread(log.sync, synced)

    def sync_internal_now(self, partition: Partition) -> None:
        partition.log.track_unsynced()
        try:
            partition.log.sync()
        except OSError as fault:
            raise _failed(partition, fault) from fault


def _failed(partition: Partition, fault: Exception) -> StorageError:
    """The kernel tells of a lost write only once: the next sync would say that all is well. A file
    that could not be opened was not synced at all: the next sync takes it along."""
    if isinstance(fault, OSError) and is_temporary(fault):
        return write_error(fault, partition.name, "Syncing")
    error = LogFailedError(f"{partition.name} could not be synced: {fault}.")
    partition.log.fail(error)
    return error
