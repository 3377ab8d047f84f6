"""RESP, Redis's protocol, as a server writes it: replies in RESP2 or RESP3, and the pushes that
bring messages. A push view is rendered once for all readers of its form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

_HEADS_MAX = 4096


class Simple(NamedTuple):
    """A simple string, such as OK."""

    text: str


class ErrorReply(NamedTuple):
    """An error reply: a code in capitals, and a sentence."""

    text: str


class Verbatim(NamedTuple):
    """A text for people: RESP3 marks it as one."""

    text: str


class MapReply(NamedTuple):
    """A map: RESP2 has it as a flat array."""

    items: Mapping[bytes, RespReply]


class Distinct(NamedTuple):
    """A set: RESP2 has it as an array."""

    items: Sequence[RespReply]


class Raw(NamedTuple):
    """Bytes that are a reply, or several, already."""

    data: bytes


RespReply = (
    int
    | bytes
    | None
    | Simple
    | ErrorReply
    | Verbatim
    | MapReply
    | Distinct
    | Raw
    | Sequence["RespReply"]
)

NO_REPLY = Raw(b"")
OK = Simple("OK")
QUEUED = Simple("QUEUED")


def encode_reply(reply: RespReply, *, resp3: bool) -> bytes:  # noqa: PLR0911 - a table of types
    """A reply's bytes.

    >>> encode_reply([1, b"a", None], resp3=False)
    b'*3\\r\\n:1\\r\\n$1\\r\\na\\r\\n$-1\\r\\n'
    """
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return bulk(reply)
    if reply is None:
        return b"_\r\n" if resp3 else b"$-1\r\n"
    if isinstance(reply, Simple):
        return b"+%b\r\n" % _one_line(reply.text)
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % _one_line(reply.text)
    if isinstance(reply, Raw):
        return reply.data
    if isinstance(reply, Verbatim):
        text = _bytes(reply.text)
        return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text) if resp3 else bulk(text)
    if isinstance(reply, MapReply):
        head = b"%%%d\r\n" % len(reply.items) if resp3 else b"*%d\r\n" % (2 * len(reply.items))
        return head + _all(chain.from_iterable(reply.items.items()), resp3)
    if isinstance(reply, Distinct):
        return b"%b%d\r\n" % (b"~" if resp3 else b"*", len(reply.items)) + _all(reply.items, resp3)
    return b"*%d\r\n" % len(reply) + _all(reply, resp3)


def _all(replies: Iterable[RespReply], resp3: bool) -> bytes:
    return b"".join([encode_reply(reply, resp3=resp3) for reply in replies])


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _one_line(text: str) -> bytes:
    return _bytes(text.replace("\r", " ").replace("\n", " "))


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def push_head(parts: int, *, resp3: bool) -> bytes:
    """How a push begins: in RESP2 it is an array like any other."""
    return b"%b%d\r\n" % (b">" if resp3 else b"*", parts)


def subscription_push(kind: bytes, name: bytes | None, count: int, *, resp3: bool) -> bytes:
    """What confirms a subscription, or its end."""
    named = encode_reply(name, resp3=resp3)
    return b"%b%b%b:%d\r\n" % (push_head(3, resp3=resp3), bulk(kind), named, count)


class PushView:
    """A channel's messages as Redis pushes them: `message`, `smessage`, or `pmessage` with its
    pattern. `rank` orders the views of one channel as Redis does: channels before patterns."""

    __slots__ = ("_begin", "_heads", "rank")

    def __init__(
        self, kind: bytes, channel: bytes, *, resp3: bool, pattern: bytes | None = None
    ) -> None:
        words = [kind, channel] if pattern is None else [kind, pattern, channel]
        head = push_head(len(words) + 1, resp3=resp3)
        self._begin = head + b"".join(map(bulk, words)) + b"$"
        self._heads = _Heads(self._begin)
        self.rank = 0 if pattern is None else 1

    def render(self, values: Sequence[bytes | None]) -> bytes:
        """All the messages, one push after the other. A null is an empty message."""
        if None in values:
            values = [value or b"" for value in values]
        if len(values) == 1:
            value = values[0] or b""
            return b"%b%d\r\n%b\r\n" % (self._begin, len(value), value)
        full: Sequence[bytes] = values  # pyright: ignore[reportAssignmentType] - no None is left
        lengths = list(map(len, full))
        if len(self._heads) > _HEADS_MAX:
            self._heads = _Heads(self._begin)
        if lengths.count(lengths[0]) == len(lengths):
            head = self._heads[lengths[0]]
            return head[2:] + head.join(full) + b"\r\n"
        heads = map(self._heads.__getitem__, lengths)
        return b"".join(chain.from_iterable(zip(heads, full, strict=True)))[2:] + b"\r\n"


class _Heads(dict[int, bytes]):
    """What stands between two messages, by the length of the second: the first one's end, and the
    second one's beginning."""

    __slots__ = ("_begin",)

    def __init__(self, begin: bytes) -> None:
        self._begin = begin

    def __missing__(self, length: int) -> bytes:
        head = self[length] = b"\r\n%b%d\r\n" % (self._begin, length)
        return head
