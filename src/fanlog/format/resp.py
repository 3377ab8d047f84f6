"""RESP, Redis's protocol, as a server reads it: bytes in, commands out, under limits.

A command is an array of bulk strings, or a line of words (inline). Two parsers read it. The exact
one walks byte by byte as Redis does and knows every error; it reads what is cut, large or odd. A
pipeline of whole commands goes through hiredis in one call, as one array around all of them; what
comes out is checked to be nothing but bulk strings, or else the exact parser reads it again.

It is long because both parsers are here: the fast one hands over to the exact one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import hiredis

from fanlog.errors import ProtocolError
from fanlog.format.resp_runs import CommandRun, maybe_run

Command = list[bytes]

_INT_MAX = (1 << 31) - 1
_BULK_OVERHEAD = len(b"$\r\n\r\n")
_HEAD_OVERHEAD = len(b"*\r\n")
_STAR, _DOLLAR = b"*$"
_WIDTHS = [len(str(number)) for number in range(4096)]
_ANY_HEAD = b"\r\n*"
# Fewer commands than this are read faster by the exact parser.
_PIPELINE_MIN = 3
# hiredis makes a list of as many places as a header claims, before the elements have come. Where
# one may claim many, the exact parser reads: it makes nothing that has not come.
_LARGE_ARRAYS = tuple(re.compile(rb"%b[0-9]{3}" % kind) for kind in (rb"\*", rb">", rb"~"))
_HEX = re.compile(rb"[0-9a-fA-F]{2}")
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


class RespLimits(NamedTuple):
    """What one command may cost."""

    arguments_max: int
    bulk_bytes_max: int
    inline_bytes_max: int
    request_bytes_max: int


# What Redis takes from a peer that has not given its password yet.
UNTRUSTED_ARGUMENTS_MAX = 10
UNTRUSTED_BULK_BYTES_MAX = 16384


class Publishes(NamedTuple):
    """A run of `PUBLISH` to one channel, in one piece."""

    channel: bytes
    values: Sequence[bytes]


class PipelineReader:
    """hiredis, and the proof that what it read were commands. One serves a whole listener: it
    keeps nothing from one call to the next."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=None)
        self._reader.setmaxbuf(0)  # keeps its memory, which it would give back after each call

    def _arrays(self, data: bytes, count: int) -> list[Command] | None:
        """What `data` holds, if it is exactly `count` arrays or the like."""
        reader = self._reader
        try:
            reader.feed(b"*%d\r\n" % count)
            reader.feed(data)
            found = reader.gets()
        except hiredis.ProtocolError:
            found = None
        if found is None or reader.has_data():
            self._renew()
            return None
        return found

    def read(self, data: bytes, count: int) -> list[Command | Publishes] | None:
        """The commands in `data`, if it is exactly `count` of them."""
        found = self._arrays(data, count)
        return None if found is None or not _are_commands(found, len(data)) else [*found]

    def read_run(self, channel: bytes, data: bytes, count: int) -> list[Command | Publishes] | None:
        """A run in `data`, if it is exactly `count` commands, and all are known to begin alike, up
        to the mark of their third word: then there is nothing to check."""
        found = self._arrays(data, count)
        return None if found is None else [Publishes(channel, [words[2] for words in found])]


def _are_commands(found: list[Command], size: int) -> bool:
    """Whether these are nothing but arrays of bulk strings. Simple strings come out as bytes too,
    but are shorter on the wire."""
    if {*map(type, found)} != {list} or not all(found):
        return False
    words = list(chain.from_iterable(found))
    if {*map(type, words)} != {bytes}:
        return False
    counts, lengths = list(map(len, found)), list(map(len, words))
    digits = _digits(counts) + _digits(lengths)
    return size == digits + sum(lengths) + _HEAD_OVERHEAD * len(counts) + _BULK_OVERHEAD * len(
        words
    )


def _digits(numbers: list[int]) -> int:
    """How many digits the numbers have together."""
    if max(numbers) < len(_WIDTHS):
        return sum(map(_WIDTHS.__getitem__, numbers))
    return len("".join(map(str, numbers)))


class CommandReader:
    """One peer's commands. `fault` is set where the peer broke the protocol: what was read before
    it is still to be answered, then the connection ends."""

    __slots__ = (
        "_bulk_bytes",
        "_chunks",
        "_kept_bytes",
        "_left",
        "_limits",
        "_pipeline",
        "_run",
        "_wanted_bytes",
        "_words",
        "_words_bytes",
        "commands",
        "fault",
        "trusted",
    )

    def __init__(self, limits: RespLimits, pipeline: PipelineReader) -> None:
        self._limits = limits
        self._pipeline = pipeline
        self._chunks: list[bytes] = []
        self._kept_bytes = 0
        self._wanted_bytes = 0
        self._words: Command = []
        self._words_bytes = 0
        self._run: CommandRun | None = None
        self._left = 0
        self._bulk_bytes = -1
        self.commands = 0
        self.trusted = True
        self.fault: ProtocolError | None = None

    def maybe_publishes(self, data: bytes) -> tuple[bytes, Sequence[bytes]] | None:
        """The channel and the messages, if `data` is nothing but whole messages to one channel, and
        easily seen to be. What a publisher sends that waits for each answer is read with this.
        Nothing else may be begun."""
        run = self._run
        if run is None or not data.startswith(run.head):
            run = self._run = maybe_run(data)
        if run is None or len(data) > self._limits.bulk_bytes_max:
            return None
        value = run.maybe_only_value(data)
        if value is not None:
            return run.channel, (value,)
        values, end = run.even_values(data)
        if end != len(data):
            values = run.maybe_values(data)
        return (run.channel, values) if values else None

    def feed(self, data: bytes) -> list[Command | Publishes]:
        """The commands that are whole now, in their order."""
        found = self._feed(data)
        return found if len(found) < 2 else _joined(found)

    def _feed(self, data: bytes) -> list[Command | Publishes]:
        out: list[Command | Publishes] = []
        if self.fault is not None:
            return out
        if self._chunks:
            self._chunks.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes < self._wanted_bytes:
                return out
            data = b"".join(self._chunks)
            self._chunks = []
        try:
            at = self._read(data, out)
        except ProtocolError as fault:
            # Without what led to it, which has this reader in it.
            self.fault = fault.with_traceback(None)
            self._words, self._left, self._kept_bytes = [], 0, 0
            return out
        self._kept_bytes = len(data) - at
        if self._kept_bytes:
            self._chunks.append(data[at:])
        self.commands += len(out)
        return out

    @property
    def begun(self) -> bool:
        """Whether a command has begun and not ended."""
        return bool(self._left or self._kept_bytes)

    def _read(self, data: bytes, out: list[Command | Publishes]) -> int:
        at, size = 0, len(data)
        tried = False
        while at < size:
            if not self._left and not tried and data[at] == _STAR and self.trusted:
                tried = True
                at = self._read_pipeline(data, at, out)
                continue
            after = self._step(data, at, out)
            if after < 0:
                break
            at = after
        return at

    def _read_pipeline(self, data: bytes, at: int, out: list[Command | Publishes]) -> int:
        """Takes all commands but a cut last one, if there are several and none is odd."""
        rest = data[at:] if at else data
        if len(rest) > self._limits.bulk_bytes_max:
            return at  # one of its words may be too long
        run = self._run
        if run is None or not rest.startswith(run.head):
            run = self._run = maybe_run(rest)
        if run is not None:
            value = run.maybe_only_value(rest)
            if value is not None:
                out.append(Publishes(run.channel, (value,)))
                return at + len(rest)
            values, end = run.even_values(rest)
            if values:
                out.append(Publishes(run.channel, values))
                return at + end
        begun = rest.count(b"*")
        last = rest.rfind(b"*")
        if run is not None and rest.count(run.head, 0, last) == begun - 1:
            # All but the last command, which may be cut, are the run's: no other array, nor
            # anything else than its words, can be in there.
            read = partial(self._pipeline.read_run, run.channel)
            uniform = rest.startswith(run.head, last)
        else:
            read, uniform = self._pipeline.read, True
            begun = rest.count(_ANY_HEAD) + 1
            last = rest.rfind(_ANY_HEAD) + 2
            if begun < _PIPELINE_MIN or any(large.search(rest) for large in _LARGE_ARRAYS):
                return at
        # A command may also be cut where a line of it ends.
        end = len(rest)
        found = read(rest, begun) if uniform and rest.endswith(b"\r\n") else None
        if found is None and begun > 1:
            end = last
            found = read(rest[:end], begun - 1)
        if found is None:
            return at
        out += found
        return at + end

    # The exact parser, as Redis does it

    def _step(self, data: bytes, at: int, out: list[Command | Publishes]) -> int:
        """Reads one header, bulk string or line; where it ends, or -1 if it is cut."""
        if self._left:
            return self._bulk(data, at, out)
        if data[at] == _STAR:
            return self._head(data, at)
        return self._line(data, at, out)

    def _head(self, data: bytes, at: int) -> int:
        end = self._line_end(data, at, "too big mbulk count string")
        if end < 0:
            return -1
        count = _number(data[at + 1 : end])
        if count is None or count > min(_INT_MAX, self._limits.arguments_max):
            raise ProtocolError("Protocol error: invalid multibulk length")
        if count > UNTRUSTED_ARGUMENTS_MAX and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated multibulk length")
        self._left = max(0, count)
        return end + 2

    def _bulk(self, data: bytes, at: int, out: list[Command | Publishes]) -> int:
        if self._bulk_bytes < 0:
            end = self._line_end(data, at, "too big bulk count string")
            if end < 0:
                return -1
            self._bulk_bytes = self._bulk_length(data, at, end)
            return end + 2
        end = at + self._bulk_bytes
        if len(data) < end + 2:
            self._wanted_bytes = self._bulk_bytes + 2
            return -1
        self._words.append(data[at:end])
        self._bulk_bytes = -1
        self._left -= 1
        if not self._left:
            out.append(self._words)
            self._words, self._words_bytes = [], 0
        return end + 2

    def _bulk_length(self, data: bytes, at: int, end: int) -> int:
        if data[at] != _DOLLAR:
            kind = chr(data[at]) if 32 <= data[at] < 127 else "?"
            raise ProtocolError(f"Protocol error: expected '$', got '{kind}'")
        length = _number(data[at + 1 : end])
        if length is None or not 0 <= length <= self._limits.bulk_bytes_max:
            raise ProtocolError("Protocol error: invalid bulk length")
        if length > UNTRUSTED_BULK_BYTES_MAX and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated bulk length")
        self._words_bytes += length
        if self._words_bytes > self._limits.request_bytes_max:
            raise ProtocolError("Protocol error: request larger than redis.request_bytes_max")
        return length

    def _line_end(self, data: bytes, at: int, fault: str) -> int:
        """Where the line's CR is, or -1 if it, or what follows it, is not here yet."""
        most = self._limits.inline_bytes_max
        end = data.find(b"\r", at, at + most + 1)
        if end < 0 and len(data) - at > most:
            raise ProtocolError(f"Protocol error: {fault}")
        self._wanted_bytes = 0
        return end if 0 <= end < len(data) - 1 else -1

    def _line(self, data: bytes, at: int, out: list[Command | Publishes]) -> int:
        most = self._limits.inline_bytes_max
        end = data.find(b"\n", at, at + most + 1)
        if end < 0:
            if len(data) - at > most:
                raise ProtocolError("Protocol error: too big inline request")
            self._wanted_bytes = 0
            return -1
        words = split_line(data[at:end].removesuffix(b"\r"))
        if words is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        if words:
            out.append(words)
        return end + 1


def _joined(found: list[Command | Publishes]) -> list[Command | Publishes]:
    """Neighbours that publish to the same channel become one run."""
    joined: list[Command | Publishes] = []
    channel: bytes | None = None
    values: list[bytes] = []
    for item in found:
        if isinstance(item, Publishes):
            name, more = item.channel, item.values
        elif len(item) == 3 and item[0].upper() == b"PUBLISH":
            name, more = item[1], item[2:]
        else:
            joined.append(item)
            channel = None
            continue
        if name != channel:
            values = []
            joined.append(Publishes(name, values))
            channel = name
        values += more
    return joined


def _number(digits: bytes) -> int | None:
    """A number as Redis writes it: no plus, no leading zero, nothing around it."""
    positive = digits[1:] if digits[:1] == b"-" else digits
    if not positive.isdigit() or len(positive) > 19:
        return None
    if positive[:1] == b"0" and digits != b"0":
        return None
    return int(digits)


def split_line(line: bytes) -> Command | None:
    """The words of an inline command, quoted as in a shell; None where a quote does not end.

    >>> split_line(rb'PUBLISH news "a \\x41\\n"')
    [b'PUBLISH', b'news', b'a A\\n']
    """
    words: Command = []
    at = 0
    while True:
        while at < len(line) and line[at : at + 1].isspace():
            at += 1
        if at >= len(line):
            return words
        word = bytearray()
        while at < len(line) and not line[at : at + 1].isspace():
            if line[at] in b"\"'":
                after = _quoted(line, at, word)
                if after < 0:
                    return None
                at = after
                break
            word.append(line[at])
            at += 1
        words.append(bytes(word))


def _quoted(line: bytes, at: int, word: bytearray) -> int:
    """Takes in what stands between quotes; where the closing one ends, or -1."""
    quote = line[at]
    at += 1
    while at < len(line):
        byte = line[at]
        if byte == quote:
            # Nothing but a space may follow.
            return at + 1 if at + 1 == len(line) or line[at + 1 : at + 2].isspace() else -1
        if byte == 0x5C and at + 1 < len(line):
            if quote == 0x27:
                if line[at + 1] == 0x27:
                    at, byte = at + 1, 0x27
            elif line[at + 1] == 0x78 and _HEX.fullmatch(line, at + 2, at + 4):
                at, byte = at + 3, int(line[at + 2 : at + 4], 16)
            else:
                at += 1
                byte = _ESCAPES.get(line[at], line[at])
        word.append(byte)
        at += 1
    return -1
