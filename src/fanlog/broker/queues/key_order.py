"""Order per key: the first job of a key is handed out, and the others wait for it."""

from __future__ import annotations

from collections import deque


class KeyOrder:
    """A line of jobs for each key that has one handed out. The first in line may go to a worker; it
    stays first, through failures too, until it is done."""

    __slots__ = ("_keys", "_lines", "parked")

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._lines: dict[bytes, deque[int]] = {}
        self.parked = 0

    def may_go(self, offset: int, key: bytes | None) -> bool:
        line = None if key is None else self._lines.get(key)
        return line is None or line[0] == offset

    def enter(self, offset: int, key: bytes | None) -> None:
        """Puts a job at the end of its key's line, if it is in none yet."""
        if key is None or offset in self._keys:
            return
        self._keys[offset] = key
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque((offset,))
        else:
            line.append(offset)
            self.parked += 1

    def known_within(self, first: int, next: int) -> list[int]:
        """The jobs between two offsets that wait in a line, in order."""
        if next - first <= len(self._keys):
            return [offset for offset in range(first, next) if offset in self._keys]
        return sorted(offset for offset in self._keys if first <= offset < next)

    def leave(self, offset: int) -> int | None:
        """A job is done. Returns the next job of its key that may go out now, if one waited."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        line = self._lines[key]
        if line[0] != offset:
            # It was acked while it waited in line: it is skipped when its turn comes.
            self.parked -= 1
            return None
        line.popleft()
        while line and line[0] not in self._keys:
            line.popleft()
        if not line:
            del self._lines[key]
            return None
        self.parked -= 1
        return line[0]
