"""Open transactions as people see them. Law: the ticket is a secret, because whoever has it may
stage, commit and abort; a list shows a number that is made of it and leads nowhere."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from fanlog.identity import Identity

_NUMBER_BYTES = 8


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
