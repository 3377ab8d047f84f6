"""Open transactions as people see them. Law: the ticket is a secret, because whoever has it may
stage, commit and abort; a list shows a number that is made of it and leads nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import msgspec

from fanlog.identity import Identity

if TYPE_CHECKING:
    from fanlog.broker.messages.topics import Partition
    from fanlog.log.staging import StagedBytes

_NUMBER_BYTES = 8
_SECOND_US = 1_000_000


class Listed(Protocol):
    """An open transaction, as far as a list needs it."""

    ticket: str
    id: str
    who: Identity
    client: str
    begun_us: int
    active_us: int
    timeout_us: int
    deciding: bool
    sequences: dict[int, int]
    staged: StagedBytes


class TransactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction. `topics` says how many messages are staged for each; a topic that is
    gone has no name. `committing`: it is being decided on, and can't be aborted any more."""

    number: str
    id: str
    who: Identity
    client: str
    age_seconds: float
    idle_seconds: float
    timeout_seconds: float
    topics: dict[str, int]
    messages: int
    bytes: int
    in_file: bool
    committing: bool


def public_number(ticket: str) -> str:
    """What a transaction is shown as."""
    return blake2b(ticket.encode(), digest_size=_NUMBER_BYTES).hexdigest()


def shown_id(transaction: Listed) -> str:
    """The id that its program has given it. The ticket is a secret: who has it may commit."""
    return "" if transaction.id == transaction.ticket else transaction.id


def transaction_info(
    transaction: Listed, partitions: Mapping[int, Partition], now_us: int
) -> TransactionInfo:
    messages: dict[str, int] = {}
    for key, count in transaction.sequences.items():
        partition = partitions.get(key)
        name = "" if partition is None else partition.topic.name
        messages[name] = messages.get(name, 0) + count
    return TransactionInfo(
        number=public_number(transaction.ticket),
        id=shown_id(transaction),
        who=transaction.who,
        client=transaction.client,
        age_seconds=(now_us - transaction.begun_us) / _SECOND_US,
        idle_seconds=(now_us - transaction.active_us) / _SECOND_US,
        timeout_seconds=transaction.timeout_us / _SECOND_US,
        topics=messages,
        messages=sum(messages.values()),
        bytes=transaction.staged.length,
        in_file=transaction.staged.in_file,
        committing=transaction.deciding,
    )
