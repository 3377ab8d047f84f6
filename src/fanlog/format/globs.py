"""Redis's glob patterns over bytes: `*`, `?`, `[a-z]`, `[^a-z]` and `\\` before any of them.

A pattern is cut at its stars into stretches of fixed length. The first must begin the name, the
last must end it, and each one between matches at the earliest possible place, so that no pattern
makes a match slow.
"""

from __future__ import annotations

import re

_ANY = b"(?s:.)"


class Glob:
    """A compiled pattern.

    >>> Glob(b"news.[a-c]*").matches(b"news.arts"), Glob(b"h?llo").matches(b"hllo")
    (True, False)
    """

    __slots__ = ("_first", "_last", "_least", "_middle", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        stretches = _stretches(text)
        compiled = [re.compile(b"".join(stretch)) for stretch in stretches]
        self._least = sum(map(len, stretches))
        self._first = compiled[0]
        # One stretch alone has no star beside it, and must be the whole name.
        self._last = (compiled[-1], len(stretches[-1])) if len(compiled) > 1 else None
        self._middle = [
            part for part, stretch in zip(compiled[1:-1], stretches[1:-1], strict=True) if stretch
        ]

    def matches(self, name: bytes) -> bool:
        size = len(name)
        if not size:
            return not self.text  # in Redis not even a star stands for the empty name
        if self._last is None:
            return self._first.fullmatch(name) is not None
        begin = self._first.match(name)
        if begin is None or size < self._least:
            return False
        last, last_bytes = self._last
        at, end = begin.end(), size - last_bytes
        for part in self._middle:
            found = part.search(name, at, end)
            if found is None:
                return False
            at = found.end()
        return last.fullmatch(name, end) is not None


def _stretches(text: bytes) -> list[list[bytes]]:
    """The stretches between stars, each a list of expressions for one byte."""
    stretches: list[list[bytes]] = [[]]
    at = 0
    while at < len(text):
        byte = text[at : at + 1]
        at += 1
        if byte == b"*":
            stretches.append([])
        elif byte == b"?":
            stretches[-1].append(_ANY)
        elif byte == b"[":
            expression, at = _class(text, at)
            stretches[-1].append(expression)
        else:
            if byte == b"\\" and at < len(text):
                byte = text[at : at + 1]
                at += 1
            stretches[-1].append(re.escape(byte))
    return stretches


def _class(text: bytes, at: int) -> tuple[bytes, int]:
    """The class that begins after its bracket, and where it ends. One that is not closed ends with
    the pattern, as in Redis."""
    negated = text[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while at < len(text) and text[at : at + 1] != b"]":
        if text[at : at + 1] == b"\\" and at + 1 < len(text):
            members.add(text[at + 1])
            at += 2
        elif text[at + 1 : at + 2] == b"-" and at + 2 < len(text):
            low, high = sorted((text[at], text[at + 2]))
            members.update(range(low, high + 1))
            at += 3
        else:
            members.add(text[at])
            at += 1
    if not members:
        return _ANY if negated else b"(?!)", at + 1
    listed = b"".join(b"\\x%02x" % byte for byte in sorted(members))
    return b"[%b%b]" % (b"^" if negated else b"", listed), at + 1
