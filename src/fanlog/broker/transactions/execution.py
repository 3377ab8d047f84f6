"""Committed transactions on their way into the logs.

A transaction is committed when its intent, one entry with everything that it will do, is in the
ledger. After that it is final; it is only executed, now or after a restart. Each transaction is its
own producer, so that a repeated execution stores it once. When all of it is stored, a checkpoint
adds its id to the known ones and drops the intent.

It is long because a transaction is executed in the same way now and after a restart, step by
step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fanlog.broker.messages.intake import Intake
from fanlog.broker.ports import Runtime
from fanlog.broker.state.ledger import Entry, Ledger
from fanlog.broker.transactions.ids import CommittedIds
from fanlog.broker.transactions.intents import (
    MARK,
    MARK_AT,
    BatchAnswers,
    CommitDone,
    Intent,
    StagedPart,
    TransactionCommit,
    decode_intent,
    encode_intent,
    in_memory,
    whole_batches,
    without_memory_topics,
)
from fanlog.broker.transactions.staged_copies import StagedCopies
from fanlog.config import BrokerOptions
from fanlog.errors import (
    ClosedError,
    DamagedError,
    FanlogError,
    LogFailedError,
    StorageError,
)
from fanlog.format.frames import PREFIX, PREFIX_BYTES
from fanlog.format.messages import Position, TransactionCommitted
from fanlog.log.faults import write_error
from fanlog.log.staging import StagedBytes, sweep_staged
from fanlog.model import MIB, PRODUCER_ID_MAX, TRANSACTION_PREFIX

if TYPE_CHECKING:
    from fanlog.broker.transactions.ports import TransactionPorts

logger = logging.getLogger("fanlog.broker")

_SECOND_US = 1_000_000
# Bytes of a file that go to the intake at once.
_PIECE_BYTES = 4 * MIB
# The effect of lost entries, for users.
_LOSS = (
    "a transaction that was being stored when the broker stopped may be missing, or stored in part"
)
# A checkpoint comes after a second, or when this much would have to be repeated.
_CHECKPOINT_COUNT = 1000
_CHECKPOINT_BYTES = 8 * MIB


class TransactionExecution:
    def __init__(
        self,
        broker: TransactionPorts,
        intake: Intake,
        options: BrokerOptions,
        runtime: Runtime,
        folder: str,
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._runtime = runtime
        self._folder = folder
        self.copies = StagedCopies(broker.internal, runtime)
        self._ids = CommittedIds(broker.internal, options, runtime)
        self._ledger = Ledger(broker.internal, "transactions", self._everything, _LOSS)
        # By id: transactions with a valid intent.
        self._commits: dict[str, TransactionCommit] = {}
        self._stuck: list[TransactionCommit] = []
        self._stored: list[TransactionCommit] = []
        self._stored_bytes = 0
        self._marks: list[str] = []
        self._checkpointing = False
        self._checkpoint_us = 0

    # What is on disk

    def load(self) -> None:
        """Repeats committed transactions that may not be stored. Small ones are in the logs on
        return; large ones continue while the broker serves."""
        self._ids.load()
        intents: dict[str, Intent] = {}

        def take(key: bytes, value: bytes | None) -> None:
            if value is None:
                intents.pop(key.decode(), None)
            else:
                intents[key.decode()] = decode_intent(value)

        self._ledger.load(take)
        done = [ticket for ticket, intent in intents.items() if intent.id in self._ids]
        for ticket in done:
            del intents[ticket]
        for ticket, intent in intents.items():
            self._commits[intent.id] = self._recovered(ticket, intent)
        if done:
            self._ledger.write_or_owe([(ticket.encode(), None) for ticket in done])
        self._ids.expire()
        self._sweep(set(intents) | {p.ticket for i in intents.values() for p in i.parts})
        for commit in list(self._commits.values()):
            if commit.fault is None:
                self._resume(commit)
        if intents:
            self._broker.turns.end()

    def _recovered(self, ticket: str, intent: Intent) -> TransactionCommit:
        staged: dict[str, StagedBytes] = {}
        fault: StorageError | None = None
        try:
            for part in intent.parts:
                if part.file_bytes:
                    path = f"{self._folder}/{part.ticket}"
                    self._restore_copy(part, path)
                    reopened = StagedBytes.reopen(path, part.file_bytes, part.file_crc)
                    staged[part.ticket] = reopened
        except StorageError as found:
            fault = found
            logger.error("the committed transaction %r can't be stored: %s", intent.id, fault)
        commit = TransactionCommit(ticket, intent, staged)
        commit.recovered = True
        commit.fault = fault
        return commit

    def _restore_copy(self, part: StagedPart, path: str) -> None:
        """Another node may have staged it."""
        if not self._broker.turns.stream.replicated:
            return
        try:
            if not os.path.exists(path) or os.path.getsize(path) < part.file_bytes:
                self.copies.restore(part.ticket, path)
        except OSError as fault:
            raise write_error(fault, path) from fault

    def _sweep(self, tickets: set[str]) -> None:
        """Removes the files, marks and producers of finished transactions."""
        if self._folder:
            sweep_staged(self._folder, tickets)
        durable = self._broker.durable
        marks = [name for name in durable.names() if name.startswith(TRANSACTION_PREFIX)]
        self._marks += [m for m in marks if m.removeprefix(TRANSACTION_PREFIX) not in tickets]
        self._forget_marks()
        present = {p.producer_id for commit in self._commits.values() for p in commit.intent.parts}
        for partition in self._broker.catalog.partitions.values():
            producers = partition.producers or {}
            for known in [p for p in producers if p > PRODUCER_ID_MAX and p not in present]:
                del producers[known]

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        for commit in list(self._commits.values()):
            if self._commits.get(commit.intent.id) is commit:
                yield commit.ticket.encode(), encode_intent(commit.intent)

    # Committing

    def __contains__(self, id: str) -> bool:
        """Whether a transaction of this id is committed, or about to be."""
        return id in self._commits or id in self._ids

    def has_stored(self, id: str) -> bool:
        """Whether one is committed, and all of it is stored."""
        commit = self._commits.get(id)
        return id in self._ids if commit is None else commit.stored

    def when_stored(self, id: str, tell: CommitDone) -> None:
        """Answers that an id was committed before, as soon as all of it is stored."""
        commit = self._commits.get(id)
        already = TransactionCommitted(id, already=True)
        if commit is None or commit.stored:
            tell(already)
        elif _is_final(commit.fault):
            tell(_unstored(commit))
        else:
            commit.waiting.append(
                lambda outcome: tell(outcome if isinstance(outcome, FanlogError) else already)
            )

    def begin(self, commit: TransactionCommit, tell: CommitDone) -> None:
        """Commits. Raises the ledger's error; then it is not committed."""
        intent = commit.intent

        def durable(fault: FanlogError | None) -> None:
            if fault is not None:
                self._hold_up(commit, fault)
                return
            self._promise(commit)
            self._broker.durable.promises_durable(commit.mark)
            self._resume(commit)

        # Its id is taken from now on. Nothing else of it is visible before its entry is durable.
        self._commits[intent.id] = commit
        commit.waiting.append(tell)
        try:
            self._ledger.write([(commit.ticket.encode(), encode_intent(intent))], durable)
        except BaseException:
            del self._commits[intent.id]
            raise
        self._promise(commit)

    def _promise(self, commit: TransactionCommit) -> None:
        """Other commits have to know that they overtake it, and a partition of a group is not
        handed over in between."""
        if not commit.promised:
            commit.promised = True
            for name, positions in commit.intent.positions:
                self._broker.durable.promise(name, positions, commit.mark)

    def _resume(self, commit: TransactionCommit) -> None:
        """Does the next step; each is safe to do again."""
        try:
            self._commit_positions(commit)
        except FanlogError as fault:
            self._hold_up(commit, fault)
            return
        piece = commit.pieces[0] if commit.pieces else None
        if piece is None:
            self._finish(commit)
        elif isinstance(piece, bytes):
            self._feed(commit, piece)
        elif self._broker.congested():
            self._broker.turns.when_relieved(lambda: self._resume(commit))
        else:
            self._read(commit, piece, _PIECE_BYTES)

    def _commit_positions(self, commit: TransactionCommit) -> None:
        durable = self._broker.durable
        if commit.positioned or not commit.intent.positions:
            return
        if durable.position(commit.mark, *MARK_AT) is not None:
            commit.positioned = True
            return
        wanted = [
            (
                name,
                tuple(
                    position for position in positions if self._still_counts(commit, name, position)
                ),
            )
            for name, positions in commit.intent.positions
        ]
        durable.commit_positions([*wanted, (commit.mark, MARK)])
        commit.positioned = True

    def _still_counts(self, commit: TransactionCommit, name: str, position: Position) -> bool:
        """Whether a position's topic is still there, and nothing has overtaken the position since
        its transaction was committed."""
        durable = self._broker.durable
        now = self._broker.catalog.number_of(position.topic)
        if not now or position.number not in (0, now):
            return False
        if commit.recovered:
            return not durable.is_overtaken(name, position, commit.mark)
        return durable.is_promised(name, position)

    def _read(self, commit: TransactionCommit, staged: StagedBytes, size: int) -> None:
        def got(data: bytes | Exception) -> None:
            if isinstance(data, bytes):
                if len(data) >= PREFIX_BYTES and len(data) < (
                    needed := PREFIX.unpack_from(data)[0]
                ):
                    self._read(commit, staged, needed)
                else:
                    self._feed(commit, data)
            elif isinstance(data, OSError):
                self._hold_up(commit, write_error(data, staged.path, "Reading"))
            else:
                self._hold_up(
                    commit, FanlogError(f"Reading {staged.path} failed: {data!r}. Report this.")
                )

        self._runtime.in_background(lambda: staged.read(commit.at, size), got)

    def _feed(self, commit: TransactionCommit, data: bytes) -> None:
        """Hands whole batches to the intake: those of a small transaction all in one turn."""
        batches, size = whole_batches(data)
        piece = data[:size]
        if commit.recovered and any(in_memory(key) for key in commit.intent.partitions):
            batches, piece = without_memory_topics(piece)
        if data and not size:
            self._hold_up(commit, FanlogError("Some of its bytes are not batches. Report this."))
            return
        if not batches:
            self._fed(commit, size, None)
            return
        self._broker.turns.schedule()
        answers = BatchAnswers(batches, lambda fault: self._fed(commit, size, fault))
        self._intake.take(piece, 0, answers, reserved=True, staged=True)

    def _fed(self, commit: TransactionCommit, size: int, fault: FanlogError | None) -> None:
        if fault is not None:
            self._hold_up(commit, fault)
            return
        piece = commit.pieces[0]
        commit.at += size
        if isinstance(piece, bytes) or commit.at >= piece.length:
            commit.pieces.popleft()
            commit.at = 0
        self._resume(commit)

    def _hold_up(self, commit: TransactionCommit, fault: FanlogError) -> None:
        """It can't continue now: every tick tries again, and so does a restart."""
        if commit.fault is None:
            logger.error(
                "the committed transaction %r is not stored yet: %s", commit.intent.id, fault
            )
        commit.fault = fault
        if _is_final(fault):
            commit.answer(_unstored(commit))
        else:
            self._stuck.append(commit)

    def _finish(self, commit: TransactionCommit) -> None:
        commit.fault = None
        commit.stored = True
        self._stored.append(commit)
        self._stored_bytes += sum(len(part.data) for part in commit.intent.parts)
        commit.answer(TransactionCommitted(commit.intent.id, False, commit.intent.records))

    def tick(self) -> None:
        stuck, self._stuck = self._stuck, []
        for commit in stuck:
            self._resume(commit)
        now_us = self._runtime.monotonic_us()
        if not self._checkpointing and (
            now_us - self._checkpoint_us >= _SECOND_US
            or len(self._stored) >= _CHECKPOINT_COUNT
            or self._stored_bytes >= _CHECKPOINT_BYTES
        ):
            self._checkpoint_us = now_us
            self._ids.expire()
            if self._stored:
                self._checkpoint()

    def unstored_own(self) -> list[bytes]:
        """Batches of the broker's own transactions that are committed, and not in the logs yet."""
        return [
            part.data
            for commit in self._commits.values()
            if commit.intent.own and not commit.stored
            for part in commit.intent.parts
        ]

    def staged_files(self) -> list[StagedBytes]:
        """The files of committed transactions that are not known to be stored."""
        staged = (file for commit in self._commits.values() for file in commit.staged.values())
        return [file for file in staged if file.in_file]

    def problems(self) -> list[str]:
        return [
            f"transaction {commit.intent.id}: committed, not stored yet: {commit.fault}"
            for commit in self._commits.values()
            if commit.fault is not None
        ]

    def close(self) -> None:
        for commit in self._commits.values():
            for staged in commit.staged.values():
                staged.close()

    # The checkpoint: positions durable, then ids durable, then the intents go.

    def _checkpoint(self) -> None:
        commits, self._stored = self._stored, []
        self._stored_bytes = 0
        self._checkpointing = True

        def synced(fault: FanlogError | None) -> None:
            if fault is None:
                try:
                    ids = [commit.intent.id for commit in commits if not commit.intent.own]
                    if ids:
                        self._ids.add(ids, kept)
                    else:
                        kept(None)
                except FanlogError as refused:
                    fault = refused
            if fault is not None:
                self._put_off(commits, fault)

        def kept(fault: FanlogError | None) -> None:
            if fault is None:
                self._checkpointing = False
                self._forget(commits)
            else:
                self._put_off(commits, fault)

        if any(commit.intent.positions for commit in commits):
            self._broker.internal.when_durable(synced)
        else:
            synced(None)

    def _put_off(self, commits: list[TransactionCommit], fault: FanlogError) -> None:
        logger.warning("the ids of committed transactions are noted later: %s", fault)
        self._checkpointing = False
        self._stored += commits

    def _forget(self, commits: list[TransactionCommit]) -> None:
        gone: list[Entry] = []
        for commit in commits:
            del self._commits[commit.intent.id]
            gone.append((commit.ticket.encode(), None))
            self._forget_producer(commit.intent)
            if commit.intent.positions:
                self._marks.append(commit.mark)
            for staged in commit.staged.values():
                self._runtime.in_background(staged.discard, _log_fault)
        self._ledger.write_or_owe(gone)
        if not self.staged_files():
            self.copies.forget()
        self._forget_marks()

    def _forget_producer(self, intent: Intent) -> None:
        """Real producers must not be crowded out by those of transactions."""
        for part in intent.parts:
            for key in part.partitions:
                partition = self._broker.catalog.partitions.get(key)
                if partition is not None and partition.producers is not None:
                    partition.producers.pop(part.producer_id, None)

    def _forget_marks(self) -> None:
        try:
            self._broker.durable.forget(*self._marks)
            self._marks = []
        except FanlogError as fault:
            logger.warning("marks of transactions are removed later: %s", fault)


def _is_final(fault: FanlogError | None) -> bool:
    """Whether only a restart can help."""
    return isinstance(fault, LogFailedError | DamagedError | ClosedError)


def _unstored(commit: TransactionCommit) -> LogFailedError:
    return LogFailedError(
        f"Transaction {commit.intent.id!r} may be committed, but is not stored: {commit.fault} "
        "Commit it again after the broker's restart."
    )


def _log_fault(result: object) -> None:
    if isinstance(result, Exception):
        logger.warning("a file of a transaction stays until the next start: %s", result)
