"""Messages of NATS, as an edge writes and reads them. The payload is the value, so that any client
of NATS reads it. Headers are text; what is not is kept in base64. The key is a header of ours,
and so is the mark of a deleted key."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping

from fanlog.edge.envelopes import Body
from fanlog.errors import InvalidArgumentError, InvalidNameError
from fanlog.format.batch import Batch
from fanlog.format.header import read_header
from fanlog.format.sparse import at_offset, placeholder
from fanlog.listeners.web.ports import MessageToPublish

# Messages between edges: presence, and which clients to disconnect.
SIGNAL = "fanlog.signal."
_KEY = "Fanlog-Key"
_DELETED = "Fanlog-Deleted"
_BASE64 = "base64,"
_RESERVED = ("nats-", "fanlog-")


def check_subject(name: str) -> str:
    """The name, if it can be a subject."""
    if any(c.isspace() for c in name) or name.startswith((".", "$")) or ".." in name:
        raise InvalidNameError(
            f"The name {name!r} can't be a subject of NATS: leave out spaces, and dots and dollar "
            "signs in front."
        )
    if name.startswith(SIGNAL):
        raise InvalidNameError(f"The name {name!r} is reserved for edges: choose another.")
    return name


def headers_of(message: MessageToPublish) -> dict[str, str] | None:
    headers = {_check_header(name): _text(value) for name, value in message.headers.items()}
    if message.key is not None:
        headers[_KEY] = _text(message.key)
    if message.value is None:
        headers[_DELETED] = "true"
    return headers or None


def _check_header(name: str) -> str:
    """The name, if it can be a header and is not a command to NATS: with one of those a reader
    could empty a stream."""
    if name.lower().startswith(_RESERVED):
        raise InvalidArgumentError(
            f"The header {name!r} belongs to NATS or to the edges: choose another name."
        )
    if not name or not name.isascii() or not name.isprintable() or set(name) & set(" :"):
        raise InvalidArgumentError(
            f"NATS has no header {name!r}: use ASCII letters, digits and signs, without spaces "
            "and colons."
        )
    return name


def body_of(data: bytes, headers: Mapping[str, str] | None) -> Body:
    given = dict(headers or {})
    key = given.pop(_KEY, None)
    deleted = given.pop(_DELETED, None)
    own = {
        name: _bytes(value)
        for name, value in given.items()
        if not name.lower().startswith(_RESERVED)
    }
    return Body(None if deleted else data, None if key is None else _bytes(key), own)


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    plain = text.isprintable() and text == text.strip() and not text.startswith(_BASE64)
    return text if plain and (text or not value) else _BASE64 + b64encode(value).decode()


def _bytes(value: str) -> bytes:
    if value.startswith(_BASE64):
        try:
            return b64decode(value.removeprefix(_BASE64), validate=True)
        except binascii.Error:
            pass
    return value.encode()


def begun_at(batch: bytes, base_offset: int) -> bytes:
    """The batch of one record with the offsets from `base_offset` on, which others of its stream
    have, or nobody."""
    header = read_header(batch)
    if base_offset == header.base_offset:
        return batch
    return at_offset(Batch(batch), base_offset)


def nothing(batch: bytes, base_offset: int, next_offset: int) -> bytes:
    """A batch without records, over offsets that are others'. All else is as the given one has
    it."""
    header = read_header(batch)._replace(base_offset=base_offset)
    return placeholder(header, next_offset)
