"""Open transactions: begun, staged by clients with the ticket, and not yet decided.

They live in memory, and in files past a size; they do not outlive the broker. Staged batches have
the same checks as published ones, and already carry their producer's numbers, so that a transaction
commit only has to decide.

It is long because begin, stage, commit and abort share what is open, and the limits on it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from fanlog.broker.messages.intake import Intake, partition_key
from fanlog.broker.messages.restrictions import Restrictions
from fanlog.broker.ports import Runtime
from fanlog.broker.state.durable_names import MemberPosition, of_member
from fanlog.broker.transactions.execution import TransactionExecution
from fanlog.broker.transactions.intents import CommitDone, Intent, StagedPart, TransactionCommit
from fanlog.broker.transactions.listing import (
    TransactionInfo,
    public_number,
    shown_id,
    transaction_info,
)
from fanlog.config import BrokerOptions
from fanlog.errors import (
    FanlogError,
    FencedError,
    InvalidArgumentError,
    LimitError,
    OutOfSequenceError,
    TransactionNotFoundError,
    allow_more,
)
from fanlog.format.batch import assign
from fanlog.format.header import BatchHeader
from fanlog.format.messages import (
    BeginTransaction,
    CommitTransaction,
    GroupOffsets,
    TransactionBegun,
)
from fanlog.identity import Identity
from fanlog.log.faults import write_error
from fanlog.log.staging import StagedBytes
from fanlog.model import GROUP_PREFIX, PRODUCER_ID_MAX, TRANSACTION_ID_BYTES_MAX

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.broker.transactions.ports import TransactionPorts

logger = logging.getLogger("fanlog.broker")

TICKET_BYTES = 16
_SECOND_US = 1_000_000
# Open ones whose age an overview shows.
_OLDEST = 100
# A member's ownership of partitions: it differs if one was lost and granted again.
Owners = tuple[object, ...]


class _Open:
    """An open transaction. `numbers` counts each stager's batches, `sequences` the records of each
    partition."""

    __slots__ = (
        "active_us",
        "begun_us",
        "client",
        "deciding",
        "id",
        "numbers",
        "producer_id",
        "sequences",
        "staged",
        "ticket",
        "timeout_us",
        "who",
    )

    def __init__(self, ticket: str, id: str, staged: StagedBytes, timeout_us: int) -> None:
        self.ticket = ticket
        self.id = id
        self.staged = staged
        self.timeout_us = timeout_us
        self.active_us = 0
        self.begun_us = 0
        # The client that began it, and its name.
        self.who = Identity()
        self.client = ""
        self.deciding = False
        self.producer_id = PRODUCER_ID_MAX + 1 + secrets.randbits(63)
        self.numbers: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    def part(self) -> StagedPart:
        """All staged batches, in the form of an intent."""
        staged = self.staged
        return StagedPart(
            ticket=self.ticket,
            producer_id=self.producer_id,
            records=sum(self.sequences.values()),
            partitions=tuple(self.sequences),
            data=b"" if staged.in_file else staged.data(),
            file_bytes=staged.length if staged.in_file else 0,
            file_crc=staged.crc if staged.in_file else 0,
        )


class Transactions:
    def __init__(
        self,
        broker: TransactionPorts,
        intake: Intake,
        options: BrokerOptions,
        runtime: Runtime,
        *,
        folder: str | None,
        check_owner: Callable[[GroupOffsets], Owners],
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._options = options
        self._runtime = runtime
        self._folder = "" if folder is None else f"{folder}/transactions"
        self._check_owner = check_owner
        self._commits = TransactionExecution(broker, intake, options, runtime, self._folder)
        self._open: dict[str, _Open] = {}
        # By id: further commit requests while a file is being synced.
        self._deciding: dict[str, list[tuple[CommitTransaction, CommitDone]]] = {}
        self._memory_bytes = 0
        self._looked_us = 0

    def load(self) -> None:
        self._commits.load()

    def close(self) -> None:
        for transaction in list(self._open.values()):
            if not transaction.deciding:
                self._drop(transaction)
        self._commits.close()

    def staged_files(self) -> list[StagedBytes]:
        """The files that committed transactions need until they are stored."""
        return self._commits.staged_files()

    def problems(self) -> list[str]:
        return self._commits.problems()

    def __len__(self) -> int:
        return len(self._open)

    # Staging

    def begin(
        self, wanted: BeginTransaction, who: Identity | None = None, client: str = ""
    ) -> TransactionBegun:
        """Opens a transaction; with a ticket, returns that one."""
        if wanted.ticket:
            transaction = self._find(wanted.ticket)
        else:
            transaction = self._begin(wanted)
            transaction.who, transaction.client = who or transaction.who, client
        id = transaction.id
        # One that is being committed may come to nothing: its commit waits, and says so.
        return TransactionBegun(transaction.ticket, id, committed=self._commits.has_stored(id))

    def _begin(self, wanted: BeginTransaction) -> _Open:
        if not wanted.timeout_seconds > 0:
            raise InvalidArgumentError(
                f"A transaction's timeout is more than 0 s, not {wanted.timeout_seconds}."
            )
        if len(self._open) >= self._options.transactions_max:
            raise LimitError(
                f"This broker has {len(self._open)} open transactions, which is the limit. Commit "
                "or abort some. " + allow_more("broker.transactions_max")
            )
        ticket = secrets.token_hex(TICKET_BYTES)
        path = f"{self._folder}/{ticket}" if self._folder else ""
        seconds = min(wanted.timeout_seconds, self._options.transaction_timeout_seconds_max)
        id = _checked_id(wanted.id) if wanted.id else ticket
        transaction = _Open(ticket, id, StagedBytes(path), int(seconds * _SECOND_US))
        transaction.active_us = transaction.begun_us = self._runtime.monotonic_us()
        self._open[ticket] = transaction
        return transaction

    def stage(self, ticket: str, data: bytes, origin: Restrictions | None = None) -> None:
        """Stages whole batches, all or none. Batches that the stager has already sent are skipped.
        Raises `NotYetError` if the origin has to send them again."""
        transaction = self._find(ticket)
        numbers: dict[int, int] = {}
        sequences: dict[int, int] = {}
        parts: list[bytes] = []
        batches: list[tuple[int, BatchHeader]] = []
        at = 0
        while at < len(data):
            header = self._intake.inspect(data, at, origin)
            batches.append((at, header))
            at += header.length
        self._intake.check_columns(data, batches, origin)
        for at, header in batches:
            stager = header.producer_id
            number = numbers.get(stager, transaction.numbers.get(stager, 0))
            if header.first_sequence > number:
                raise OutOfSequenceError(
                    f"Batch {header.first_sequence} of a stager came before its batch {number}. "
                    "Send them in order."
                )
            if header.first_sequence == number:
                key = partition_key(header.topic, header.partition)
                sequence = sequences.get(key, transaction.sequences.get(key, 0))
                producer_id = transaction.producer_id
                parts.append(
                    assign(data, at, header, producer_id=producer_id, first_sequence=sequence)
                )
                sequences[key] = sequence + header.record_count
                numbers[stager] = number + 1
        if parts:
            self._keep(transaction, b"".join(parts), numbers)
            transaction.numbers.update(numbers)
            transaction.sequences.update(sequences)

    def _keep(self, transaction: _Open, data: bytes, numbers: dict[int, int]) -> None:
        options, staged = self._options, transaction.staged
        if staged.length + len(data) > options.transaction_bytes_max:
            raise LimitError(
                f"The transaction would stage more than {options.transaction_bytes_max} bytes. "
                "Split it. " + allow_more("broker.transaction_bytes_max")
            )
        new = sum(stager not in transaction.numbers for stager in numbers)
        if len(transaction.numbers) + new > options.transaction_stagers_max:
            raise LimitError(
                f"The transaction has {len(transaction.numbers)} stagers, which is the limit. "
                + allow_more("broker.transaction_stagers_max")
            )
        before = staged.memory_bytes
        if not staged.in_file and (
            before + len(data) > options.transaction_memory_bytes
            or self._memory_bytes + len(data) > options.transaction_memory_total_bytes
        ):
            self._check_files()
            self._broker.check_room()
            staged.spill()
        try:
            if staged.in_file:
                self._broker.check_room()
            staged.append(data)
        finally:
            self._memory_bytes += staged.memory_bytes - before

    def _check_files(self) -> None:
        """Each file is a descriptor, and the logs need theirs."""
        files = sum(transaction.staged.in_file for transaction in self._open.values())
        if files >= self._options.transaction_files_max:
            raise LimitError(
                f"{files} open transactions use a file, which is the limit. Commit or abort some, "
                "or stage less in each. "
                + allow_more("broker.transaction_files_max", "log.reserved_files")
            )

    def _find(self, ticket: str) -> _Open:
        transaction = self._open.get(ticket)
        if transaction is None or transaction.deciding:
            raise TransactionNotFoundError(
                "There is no open transaction with this ticket: it was committed or aborted, its "
                "time ran out, or the broker was restarted. Begin and stage again; a commit "
                "under the same id happens once."
            )
        transaction.active_us = self._runtime.monotonic_us()
        return transaction

    # For people

    def listed(self) -> Iterator[TransactionInfo]:
        """Open transactions, oldest first. Copy the list to iterate over it in slices."""
        now_us = self._runtime.monotonic_us()
        partitions = self._broker.catalog.partitions
        return (transaction_info(one, partitions, now_us) for one in list(self._open.values()))

    def oldest_seconds(self) -> list[tuple[str, float]]:
        """The ids and ages of the first few, the oldest first."""
        now_us = self._runtime.monotonic_us()
        some = islice(self._open.values(), _OLDEST)
        return [(shown_id(one), (now_us - one.begun_us) / _SECOND_US) for one in some]

    def abort_listed(self, number: str) -> bool:
        """Aborts the transaction with this number in lists; whether there was one."""
        for transaction in self._open.values():
            if public_number(transaction.ticket) == number:
                self.abort(transaction.ticket)
                return True
        return False

    # The end

    def abort(self, ticket: str) -> None:
        """Drops the staged batches. A transaction that does not exist was aborted before."""
        transaction = self._open.get(ticket)
        if transaction is None:
            return
        if transaction.deciding:
            raise InvalidArgumentError(
                "The transaction is being committed: it can't be aborted any more."
            )
        self._drop(transaction)

    def tick(self) -> None:
        self._commits.tick()
        now_us = self._runtime.monotonic_us()
        if now_us - self._looked_us < _SECOND_US:
            return
        self._looked_us = now_us
        for transaction in list(self._open.values()):
            silent_us = now_us - transaction.active_us
            if silent_us > transaction.timeout_us and not transaction.deciding:
                logger.info("transaction %r ran out of time", transaction.id)
                self._drop(transaction)

    def commit(self, wanted: CommitTransaction, tell: CommitDone) -> None:
        """Commits the batches staged under the tickets, unless the id was committed before. Calls
        `tell` when everything is stored, or with the reason why it was not committed."""
        try:
            self._commit(wanted, tell)
        except FanlogError as fault:
            tell(fault)

    def staged_topics(self, wanted: CommitTransaction) -> list[BrokerTopic]:
        """The existing topics of batches staged under the tickets."""
        open_ones = [self._open.get(ticket) for ticket in (wanted.ticket, *wanted.tickets)]
        keys = {key for one in open_ones if one is not None for key in one.sequences}
        partitions = self._broker.catalog.partitions
        found = [partitions[key].topic for key in sorted(keys) if key in partitions]
        return list(dict.fromkeys(found))

    def commit_own(
        self,
        data: bytes,
        producer_id: int,
        records: int,
        partitions: tuple[int, ...],
        tell: CommitDone,
    ) -> None:
        """Commits batches of the broker itself, numbered from 0 in each partition. Raises if it is
        not committed. After that it is final: `tell` is called when everything is stored, or if
        only a restart will store it."""
        ticket = secrets.token_hex(TICKET_BYTES)
        part = StagedPart(ticket, producer_id, records, partitions, data)
        self._commits.begin(TransactionCommit(ticket, Intent(ticket, (part,), own=True), {}), tell)

    def unstored_own(self) -> list[bytes]:
        """Batches of `commit_own` that are not in the logs yet."""
        return self._commits.unstored_own()

    def _commit(self, wanted: CommitTransaction, tell: CommitDone) -> None:
        tickets = dict.fromkeys((wanted.ticket, *wanted.tickets))
        first = self._open.get(wanted.ticket)
        id = wanted.id or (wanted.ticket if first is None else first.id)
        if id in self._deciding:
            self._deciding[id].append((msgspec.structs.replace(wanted, id=id), tell))
        elif _checked_id(id) in self._commits:
            for known in [self._open[ticket] for ticket in tickets if ticket in self._open]:
                if not known.deciding:
                    self._drop(known)
            self._commits.when_stored(id, tell)
        else:
            parts = [self._find(ticket) for ticket in tickets]
            in_memory = sum(part.staged.memory_bytes for part in parts)
            # Many small ones are a large one: an entry of all of them would hold up the loop.
            spill = in_memory > self._options.transaction_memory_bytes
            if spill or any(part.staged.in_file for part in parts):
                self._sync(parts, id, wanted, tell, spill=spill)
            else:
                self._decide(parts, id, wanted.offsets, tell)

    def _sync(
        self,
        parts: list[_Open],
        id: str,
        wanted: CommitTransaction,
        tell: CommitDone,
        *,
        spill: bool,
    ) -> None:
        """Everything that an intent refers to must be durable before the intent. The owner of the
        partitions with committed positions must have owned them all the time."""
        owners = self._owners(parts, wanted.offsets)
        self._deciding[id] = []
        before = sum(part.staged.memory_bytes for part in parts)
        for part in parts:
            part.deciding = True

        def sync() -> None:
            # A part that is being decided is not changed.
            for part in parts:
                if spill:
                    part.staged.spill()
                part.staged.sync()

        def synced(result: Exception | None) -> None:
            files = [(part.ticket, part.staged) for part in parts if part.staged.in_file]
            if result is None and files and self._broker.turns.stream.replicated:
                self._commits.copies.write(files, decide)
            else:
                decide(result)

        def decide(result: Exception | None) -> None:
            others = self._deciding.pop(id)
            self._memory_bytes += sum(part.staged.memory_bytes for part in parts) - before
            for part in parts:
                part.deciding = False
            try:
                if isinstance(result, OSError):
                    raise write_error(result, self._folder)
                if isinstance(result, FanlogError):
                    raise result
                if result is not None:
                    raise FanlogError(f"Syncing what was staged failed: {result!r}.")
                self._decide(parts, id, wanted.offsets, tell, owners)
            except FanlogError as fault:
                tell(fault)
            for other, tell_other in others:
                self.commit(other, tell_other)

        self._runtime.in_background(sync, synced)

    def _owners(self, parts: list[_Open], offsets: tuple[GroupOffsets, ...]) -> list[Owners]:
        """The members' ownership of the partitions now. A member that has lost one can't commit."""
        try:
            return [self._check_owner(wanted) for wanted in offsets]
        except FencedError:
            for part in parts:
                self._drop(part)
            raise

    def _decide(
        self,
        parts: list[_Open],
        id: str,
        offsets: tuple[GroupOffsets, ...],
        tell: CommitDone,
        owners: list[Owners] | None = None,
    ) -> None:
        now = self._owners(parts, offsets)
        if owners is not None and now != owners:
            for part in parts:
                self._drop(part)
            raise FencedError(
                "A partition was taken from its member, and given back, while the transaction was "
                "being stored; nothing was committed. Begin another transaction, with the messages "
                "that the member reads now."
            )
        positions: list[tuple[str, tuple[MemberPosition, ...]]] = []
        for wanted in offsets:
            name = GROUP_PREFIX + wanted.group
            checked = self._broker.check_positions(name, wanted.positions)
            positions.append((name, of_member(checked, wanted.epoch)))
        intent = Intent(id, tuple(part.part() for part in parts), tuple(positions))
        files = {part.ticket: part.staged for part in parts if part.staged.in_file}
        self._commits.begin(TransactionCommit(parts[0].ticket, intent, files), tell)
        # The bytes are the commit's now.
        for part in parts:
            self._memory_bytes -= part.staged.memory_bytes
            del self._open[part.ticket]

    def _drop(self, transaction: _Open) -> None:
        del self._open[transaction.ticket]
        self._memory_bytes -= transaction.staged.memory_bytes
        transaction.staged.discard()


def _checked_id(id: str) -> str:
    if len(id.encode(errors="replace")) > TRANSACTION_ID_BYTES_MAX:
        raise InvalidArgumentError(
            f"A transaction's id has at most {TRANSACTION_ID_BYTES_MAX} bytes: use a shorter one."
        )
    return id
