"""The records of the audit log, and the chain that shows changes to them.

A record is a JSON object, and is hashed as it is stored: SHA-256 over its bytes.

| field      | holds                                                                          |
| ---------- | ------------------------------------------------------------------------------ |
| `seq`      | number of the record: counted from 0, dense, and its offset in the topic       |
| `time`     | when it happened, RFC 3339 in UTC; with `count`, the first of them             |
| `action`   | what was done: `topic.delete`, `login`; or the verb that was refused           |
| `name`     | what it was done to                                                            |
| `result`   | `ok`, `denied` or `failed`                                                     |
| `user`, `account`, `key` | who: the name, what it logged in with, and the id of a key       |
| `address`, `listener`, `connection` | from where                                            |
| `detail`   | more about it                                                                  |
| `count`, `until` | how many of the same kind this record stands for, and the time of the last |
| `prev`     | hash of the record before, in hex; zeros in the first record                   |

Whatever is empty is left out. The hash of the newest record, with its number, is the head: with a
head that is kept elsewhere, a check can tell later whether all records up to it are still the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from fanlog.errors import FormatError, InvalidArgumentError

AUDIT_TOPIC = "_fanlog.audit"
GENESIS = "0" * 64
# The action of a record that does not continue the chain: the one before it could not be read.
RESTART = "audit.restart"
# The action of a record with the number of records that did not fit.
LOST = "audit.lost"
_TEXT_LENGTH_MAX = 255
# Of a key, however much of it is there, only the public part is shown.
_KEY = re.compile(r"(fl_[a-z0-9]{10}_)[A-Za-z0-9_-]+", re.ASCII)
_HEAD = re.compile(r"(\d{1,18}):([0-9a-f]{64})")

AuditResult = Literal["ok", "denied", "failed"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry before it has its position in the chain."""

    time: str
    action: str
    result: AuditResult
    name: str = ""
    user: str = ""
    account: str = ""
    key: str = ""
    address: str = ""
    listener: str = ""
    connection: str = ""
    detail: str = ""
    count: int = 1
    until: str = ""


class AuditRecord(AuditEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the topic."""

    seq: int
    prev: str


class Head(msgspec.Struct, frozen=True):
    """The newest record of a chain: its number and its hash. A chain without one has -1."""

    seq: int = -1
    hash: str = GENESIS

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditRecord).decode


def parse_head(text: str) -> Head:
    """A head as `fanlog audit head` prints it."""
    found = _HEAD.fullmatch(text.strip())
    if found is None:
        raise InvalidArgumentError(
            "A head is a record's number, a colon and 64 hex digits, as `fanlog audit head` prints "
            "it."
        )
    return Head(int(found[1]), found[2])


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def decode_record(value: bytes) -> AuditRecord:
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise FormatError(f"it is not an audit record: {fault}") from None


def link(head: Head, entries: Iterable[AuditEntry]) -> tuple[list[bytes], Head]:
    """The entries as records after a head, and the new head."""
    values: list[bytes] = []
    for entry in entries:
        fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
        value = _encode(AuditRecord(seq=head.seq + 1, prev=head.hash, **fields))
        values.append(value)
        head = Head(head.seq + 1, digest(value))
    return values, head


def show_time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def clean(text: str) -> str:
    """A text chosen by a client: bounded, and without characters that a terminal obeys or JSON
    can't hold. A key given in a wrong field stays secret."""
    text = _KEY.sub(r"\1…", text[:_TEXT_LENGTH_MAX])
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
