"""The audit log: who did what to what, when, from where, and with which result. It is the internal
topic `_fanlog.audit`: JSON records in a chain of hashes (`security/audit.py`).

Law: to note is constant work, and never raises or waits. What was changed is written at the end of
the turn, one record each. What was refused or only read is gathered and merged, so that no flood
fills the disk. If the disk is full or the log has failed, the broker keeps running: notes wait in
memory, and it counts those that do not fit there.
"""

from __future__ import annotations

import logging

from fanlog.broker.ports import AuditResult, Runtime
from fanlog.broker.state.audit_head import HeadFile, find_head
from fanlog.broker.state.audit_notes import AuditedChange, Merged, entry_of, is_wanted
from fanlog.broker.state.internal import InternalTopics
from fanlog.config_security import AuditOptions
from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.identity import Identity
from fanlog.model import MIB, TopicSettings
from fanlog.security.audit import (
    AUDIT_TOPIC,
    GENESIS,
    LOST,
    RESTART,
    AuditEntry,
    Head,
    link,
    show_time,
)

logger = logging.getLogger("fanlog.broker")

_SEGMENT_BYTES = 4 * MIB
_TAIL_BYTES = 1 * MIB
# Records that are made and written at once: a few ms of the loop.
_BATCH_RECORDS = 500
_RETRY_US = 1_000_000
_SYSTEM = Identity()


class NoAudit:
    """Writes nothing down."""

    on = False
    reads = False

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        return None

    def load(self) -> None: ...
    def settings_changed(self) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...
    def closed(self) -> None: ...
    def problems(self) -> list[str]:
        return []


NO_AUDIT = NoAudit()


class AuditLog:
    """Writes notes down."""

    def __init__(
        self,
        host: InternalTopics,
        options: AuditOptions,
        runtime: Runtime,
        folder: str | None,
    ) -> None:
        self._host = host
        self._options = options
        self._runtime = runtime
        self._settings = _settings(options)
        self._changes: list[AuditedChange] = []
        self._merged = Merged(options.merged_max)
        self._lost = 0
        self._lost_since_us = 0
        self._soon = False
        self._retry_us = 0
        self._failing = ""
        self._problems: list[str] = []
        self._head = Head()
        path = options.head_file or ("" if folder is None else f"{folder}/audit.json")
        self._head_file = HeadFile(path, runtime)

    # Noting

    @property
    def on(self) -> bool:
        return self._options.level != "off"

    @property
    def reads(self) -> bool:
        return self._options.level == "all"

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        level = self._options.level
        if level == "off" or not is_wanted(level, action, result):
            return
        now_us = self._runtime.now_us()
        change = AuditedChange(now_us, who, action, name, result, detail)
        if change.merges:
            self._merged.add(change, self._runtime.monotonic_us())
        elif len(self._changes) >= self._options.pending_max:
            self._lost_since_us = self._lost_since_us or now_us
            self._lost += 1
        else:
            self._changes.append(change)
            if not self._soon and not self._failing:
                self._soon = True
                self._runtime.soon(self._write_changes)

    def settings_changed(self) -> None:
        self._merged.most = self._options.merged_max
        self._settings = _settings(self._options)
        self._host.alter_internal(AUDIT_TOPIC, self._settings)

    # At a start and an end

    def load(self) -> None:
        """Finds out where the chain continues. Blocks, and never raises."""
        self._host.alter_internal(AUDIT_TOPIC, self._settings)
        partition = self._host.find_internal(AUDIT_TOPIC)
        found = find_head(None if partition is None else partition.log, self._head_file.load())
        if self._head_file.fault:
            self._problems.append(self._head_file.fault)
        broken = found.head.seq >= 0 and not found.head.hash
        self._head = Head(found.head.seq, GENESIS) if broken else found.head
        # What is wrong is the next record, also if the level is off: the chain needs it.
        for sentence in found.faults:
            logger.error("%s", sentence)
            self._problems.append(sentence)
            action = "audit.fault" if self._changes or not broken else RESTART
            now_us = self._runtime.now_us()
            self._changes.append(
                AuditedChange(now_us, _SYSTEM, action, AUDIT_TOPIC, "failed", sentence)
            )

    def tick(self) -> None:
        """Writes what is due; called several times a second."""
        now_us = self._runtime.monotonic_us()
        if self._failing and now_us < self._retry_us:
            return
        if self._failing or self._changes or self._lost:
            self._write_changes()
        if not self._failing and self._merged.due(now_us):
            self._write_merged(now_us)
        self._head_file.tick(now_us)

    def close(self) -> None:
        """Writes all that there is; the node then syncs it."""
        self._write_changes()
        if not self._failing:
            self._write_merged(self._runtime.monotonic_us())

    def closed(self) -> None:
        """All is synced that can be, and no thread writes any more."""
        self._head_file.close()

    def problems(self) -> list[str]:
        """What an operator should know, a sentence each."""
        return [*self._problems, *filter(None, [self._failing])]

    # Writing

    def _write_changes(self) -> None:
        self._soon = False
        while self._changes:
            some = self._changes[:_BATCH_RECORDS]
            if not self._write([entry_of(change) for change in some]):
                return
            del self._changes[: len(some)]
        if self._lost and self._write([self._lost_entry()]):
            self._lost = self._lost_since_us = 0
        elif not self._lost and self._failing:
            self._failing = ""

    def _lost_entry(self) -> AuditEntry:
        return AuditEntry(
            time=show_time(self._lost_since_us),
            until=show_time(self._runtime.now_us()),
            action=LOST,
            name=AUDIT_TOPIC,
            result="failed",
            count=self._lost,
            detail="The log could not be written, and more waited than audit.pending_max.",
        )

    def _write_merged(self, now_us: int) -> None:
        entries = self._merged.entries()
        for at in range(0, len(entries), _BATCH_RECORDS):
            if not self._write(entries[at : at + _BATCH_RECORDS]):
                # They were not changes: what was written stays, and the rest is merged on.
                self._merged.keep(at)
                return
        self._merged.clear(now_us)

    def _write(self, entries: list[AuditEntry]) -> bool:
        """Whether it could be written. If not, the same is tried again later."""
        if not entries:
            return True
        try:
            partition = self._host.make_kept(AUDIT_TOPIC, self._settings)
            values, head = link(self._head, entries)
            self._host.write_internal(
                partition, encode_batch(values), lambda fault: self._synced(head, fault)
            )
        except FanlogError as fault:
            if not self._failing:
                logger.error("The audit log can't be written; it is tried again: %s", fault)
            self._failing = f"The audit log can't be written: {fault}"
            self._retry_us = self._runtime.monotonic_us() + _RETRY_US
            return False
        self._head = head
        if self._failing:
            logger.warning("The audit log is written again.")
            self._failing = ""
        return True

    def _synced(self, head: Head, fault: FanlogError | None) -> None:
        if fault is not None:
            logger.error("The audit log was not made durable: %s", fault)
            return
        self._head_file.keep(head)


def _settings(options: AuditOptions) -> TopicSettings:
    kept_bytes = options.retention_bytes
    return TopicSettings(
        durability="fsync",
        retention_seconds=options.retention_seconds,
        retention_bytes=kept_bytes,
        segment_bytes=min(_SEGMENT_BYTES, kept_bytes) if kept_bytes else _SEGMENT_BYTES,
        tail_bytes=_TAIL_BYTES,
    )
