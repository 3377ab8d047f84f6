"""A committed transaction and its progress: the intent, as the ledger keeps it, and its bytes on
their way through the intake."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby

import msgspec

from fanlog.broker.messages.restrictions import Unrestricted
from fanlog.broker.state.durable_names import MemberPosition
from fanlog.errors import (
    FanlogError,
    OutOfSequenceError,
    TopicDeletedError,
    TopicNotFoundError,
)
from fanlog.format.batch import split_batches
from fanlog.format.frames import PREFIX, PREFIX_BYTES
from fanlog.format.messages import Position, TransactionCommitted
from fanlog.log.staging import StagedBytes
from fanlog.log.store import MEMORY_NUMBERS_FROM
from fanlog.model import TRANSACTION_PREFIX

CommitDone = Callable[[TransactionCommitted | FanlogError], None]

MARK_AT = ("", 0)
MARK = (Position(*MARK_AT, 0),)


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """Batches staged under one ticket, by their own producer: in memory or in a file."""

    ticket: str
    producer_id: int
    records: int
    partitions: tuple[int, ...]
    data: bytes = b""
    file_bytes: int = 0
    file_crc: int = 0


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """The content of a transaction: the batches of its parts, and positions of groups. The
    broker's `own` transaction is never repeated by a client: its id is not kept."""

    id: str
    parts: tuple[StagedPart, ...]
    positions: tuple[tuple[str, tuple[MemberPosition, ...]], ...] = ()
    own: bool = False

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def partitions(self) -> list[int]:
        return [key for part in self.parts for key in part.partitions]


encode_intent = msgspec.msgpack.Encoder().encode
decode_intent = msgspec.msgpack.Decoder(Intent).decode


class TransactionCommit:
    """A committed transaction, until it is known to be stored. `pieces` has the missing batches, in
    the order of its parts: files, and between two of them batches in memory, which are stored at
    once. The first file is stored up to `at`. `staged` has the files by ticket."""

    __slots__ = (
        "at",
        "fault",
        "intent",
        "pieces",
        "positioned",
        "promised",
        "recovered",
        "staged",
        "stored",
        "ticket",
        "waiting",
    )

    def __init__(self, ticket: str, intent: Intent, staged: Mapping[str, StagedBytes]) -> None:
        self.ticket = ticket
        self.intent = intent
        self.staged = staged
        self.pieces = _in_order(intent, staged)
        self.waiting: list[CommitDone] = []
        self.recovered = False
        self.positioned = False
        self.promised = False
        self.stored = False
        self.at = 0
        self.fault: FanlogError | None = None

    @property
    def mark(self) -> str:
        """The mark under which the positions' ledger records, in the same entry, that it has them:
        to commit them again after a restart would undo a later commit or reset."""
        return TRANSACTION_PREFIX + self.ticket

    def answer(self, outcome: TransactionCommitted | FanlogError) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell(outcome)


def _in_order(intent: Intent, staged: Mapping[str, StagedBytes]) -> deque[bytes | StagedBytes]:
    pieces: deque[bytes | StagedBytes] = deque()
    for in_file, parts in groupby(intent.parts, lambda part: part.ticket in staged):
        if in_file:
            pieces.extend(staged[part.ticket] for part in parts)
        else:
            pieces.append(b"".join(part.data for part in parts))
    return pieces


class BatchAnswers(Unrestricted):
    """The origin of a piece's batches: calls back when all of them are answered."""

    def __init__(self, batches: int, done: Callable[[FanlogError | None], None]) -> None:
        self._missing = batches
        self._done = done
        self._fault: FanlogError | None = None

    def acknowledge(self, entries: list[bytes]) -> None:
        self._answered(len(entries))

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        gone = isinstance(error, TopicNotFoundError | TopicDeletedError)
        # Stored so long ago that its offset is forgotten.
        stored = isinstance(error, OutOfSequenceError) and expected_sequence > first_sequence
        if not gone and not stored and self._fault is None:
            self._fault = error
        self._answered(1)

    def _answered(self, count: int) -> None:
        self._missing -= count
        if not self._missing:
            self._done(self._fault)


def in_memory(key: int) -> bool:
    return key >> 16 >= MEMORY_NUMBERS_FROM


def whole_batches(data: bytes) -> tuple[int, int]:
    """How many batches are whole, and where the last of them ends."""
    count = at = 0
    while len(data) - at >= PREFIX_BYTES:
        end: int = at + PREFIX.unpack_from(data, at)[0]
        if not at < end <= len(data):
            break
        count += 1
        at = end
    return count, at


def without_memory_topics(data: bytes) -> tuple[int, bytes]:
    """The batches of topics that outlive a broker: others may have the numbers of the rest."""
    parts = [
        data[at : at + header.length]
        for at, header in split_batches(data)
        if header.topic < MEMORY_NUMBERS_FROM
    ]
    return len(parts), b"".join(parts)
