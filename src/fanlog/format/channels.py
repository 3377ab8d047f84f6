"""Channel names, which are any bytes, as topic names, which are text.

A channel's name is its topic's name wherever it can be. What a topic name can't have is written as
`%` and two hexadecimal digits: bytes that are not UTF-8, control characters, `*` and `>`, the first
byte of a name that would be the broker's own, and a `%` that would be read as one of these.
| channel                    | topic                    |
| -------------------------- | ------------------------ |
| the empty name             | `%-`                     |
| of more bytes than 255     | `%~` and its SHA-256     |
| a shard channel            | `%/` and the rest of it  |
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from fanlog.format.patterns import ONE, REST
from fanlog.model import INTERNAL_PREFIX, TOPIC_NAME_BYTES_MAX

EMPTY = "%-"
LONG = "%~"
SHARD = "%/"

_MARKED = re.compile(r"%(?=[0-9A-F]{2}|[-~/])")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_SPECIAL = re.compile(rb"[*?\[\\]")
_ODD = re.compile(r"[^ -~]")


def topic_of(channel: bytes, *, shard: bool = False) -> str:
    """The name of a channel's topic.

    >>> topic_of(b"news.*"), topic_of(b"\\xff\\x00"), topic_of(b"50%")
    ('news.%2A', '%FF%00', '50%')
    """
    prefix = SHARD if shard else ""
    if len(channel) <= TOPIC_NAME_BYTES_MAX:
        name = prefix + _escaped(channel)
        if len(name.encode()) <= TOPIC_NAME_BYTES_MAX:
            return name
    return prefix + LONG + hashlib.sha256(channel).hexdigest()


def pattern_over(glob: bytes) -> str:
    """The narrowest pattern of ours that matches every channel that a Redis pattern matches.

    >>> pattern_over(b"chat.room-*"), pattern_over(b"ch?t"), pattern_over(b"chat.one")
    ('chat.>', '>', 'chat.one')
    """
    special = _SPECIAL.search(glob)
    if special is None:
        return topic_of(glob)
    head, dot, _ = glob[: special.start()].rpartition(b".")
    return _escaped(head + dot) + REST if dot else REST


def _escaped(channel: bytes) -> str:
    if not channel:
        return EMPTY
    text = _MARKED.sub("%25", channel.decode(errors="surrogateescape"))
    text = _ODD.sub(lambda found: _odd(found[0]), text)
    text = text.replace(ONE, "%2A").replace(REST, "%3E")
    if text.startswith(INTERNAL_PREFIX):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    return text


def _odd(character: str) -> str:
    if "\udc80" <= character <= "\udcff" or unicodedata.category(character) == "Cc":
        return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogateescape"))
    return character


def maybe_channel_of(topic: str) -> tuple[bytes, bool] | None:
    """The channel whose topic this is, and whether it is a shard channel. None if there is none,
    or if the name does not tell, as that of a very long channel."""
    if "%" not in topic:
        return None if topic.startswith(INTERNAL_PREFIX) else (topic.encode(), False)
    shard = topic.startswith(SHARD)
    text = topic.removeprefix(SHARD) if shard else topic
    if text.startswith(LONG):
        return None
    channel = b"" if text == EMPTY else _ESCAPED.sub(_unescape, text.encode())
    # A topic that no channel would be written as is nobody's.
    return (channel, shard) if topic_of(channel, shard=shard) == topic else None


def _unescape(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])
