"""Runs of PUBLISH to one channel, as RESP: what a publisher sends over and over.

The commands of a run begin alike, up to the size of the message. So once that beginning is known,
a command needs no parser: what follows has to be exactly as long as it says. Whatever is not read
here is left to the parsers of `resp.py`, which know every error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

_PUBLISH = re.compile(rb"\*3\r\n\$7\r\n(?:PUBLISH|publish)\r\n\$(0|[1-9][0-9]{0,3})\r\n")
# As many digits as a message's size may have here, and the CR LF behind them.
_SIZE_BYTES = 10
# Commands that are cut with one call, and the ways to do it that are remembered.
_CUT_AT_ONCE = 64
_CUTTERS_MAX = 1024
_SIZES_MAX = 4096
# Past it hiredis is faster than a look at each command.
_WALKED_BYTES_MAX = 16 * 1024


class CommandRun:
    """`head` is how each command begins, up to the mark of its message."""

    __slots__ = ("_begin", "_digits", "_size", "_size_at", "channel", "head")

    def __init__(self, head: bytes, channel: bytes) -> None:
        self.head = head
        self.channel = channel
        self._size_at = len(head)
        # Of messages that have one size: its digits, and how their commands begin up to them.
        self._digits: bytes | None = None
        self._size = 0
        self._begin = b""

    def maybe_only_value(self, data: bytes) -> bytes | None:
        """The message, if `data`, which begins with the head, is just one whole command."""
        at = self._size_at
        end = data.find(b"\r\n", at, at + _SIZE_BYTES)
        size = len(data) - end - 4
        if end < 0 or size < 0 or data[at:end] != b"%d" % size:
            return None
        return data[end + 2 : -2]

    def even_values(self, data: bytes) -> tuple[Sequence[bytes], int]:
        """The messages of the whole commands in `data`, which begins with the head, and where they
        end; none unless they all have the same size, so that each begins where it must."""
        at = self._size_at
        end = data.find(b"\r\n", at, at + _SIZE_BYTES)
        digits = data[at:end]
        if end < 0 or (digits != self._digits and not self._learn_size(digits)):
            return (), 0
        begin, size = self._begin, self._size
        each = len(begin) + size + 2
        count = len(data) // each
        # Most others are found out here.
        if count < 2 or not data.startswith(begin, each):
            return (), 0
        values: list[bytes] = []
        for at in range(0, count * each, _CUT_AT_ONCE * each):
            some = min(_CUT_AT_ONCE, count - len(values))
            found = _cutter(len(begin), size, some).unpack_from(data, at)
            if found[::2].count(begin) != some:
                return (), 0
            values += found[1::2]
        return values, count * each

    def maybe_values(self, data: bytes) -> list[bytes] | None:
        """The messages, if `data` is nothing but a few whole commands, of whatever size."""
        if len(data) > _WALKED_BYTES_MAX:
            return None
        head, size_at = self.head, self._size_at
        values: list[bytes] = []
        at, bytes_max = 0, len(data)
        while data.startswith(head, at):
            size_begin = at + size_at
            size_end = data.find(b"\r\n", size_begin, size_begin + _SIZE_BYTES)
            if size_end < 0:
                return None
            begin = size_end + 2
            end = begin + _size_of(data[size_begin:size_end])
            if end < begin or end + 2 > bytes_max:
                return None
            values.append(data[begin:end])
            at = end + 2
        return values if at == bytes_max else None

    def _learn_size(self, digits: bytes) -> bool:
        """Takes the size of a message for that of those behind it; False if it is none."""
        size = _size_of(digits)
        if size < 0:
            return False
        self._digits, self._size = digits, size
        self._begin = b"%b%b\r\n" % (self.head, digits)
        return True


@lru_cache(_SIZES_MAX)
def _size_of(digits: bytes) -> int:
    """A message's size as Redis writes it: nothing but digits, no leading zero; else -1."""
    if not digits.isdigit() or len(digits) >= _SIZE_BYTES:
        return -1
    size = int(digits)
    return size if digits == b"%d" % size else -1


@lru_cache(_CUTTERS_MAX)
def _cutter(begin_bytes: int, size: int, count: int) -> Struct:
    """Cuts a number of commands into their beginnings and their messages, in turn."""
    return Struct(f"{begin_bytes}s{size}s2x" * count)


def maybe_run(data: bytes) -> CommandRun | None:
    """The run that `data` begins with, if this may be one."""
    found = _PUBLISH.match(data)
    if found is None:
        return None
    end = found.end() + int(found[1])
    if data[end : end + 3] != b"\r\n$":
        return None
    return CommandRun(data[: end + 3], data[found.end() : end])
