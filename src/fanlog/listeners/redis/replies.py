"""The replies to one peer, in the order of its commands. Replies to PUBLISH wait until the broker
has the messages, and later replies wait for them."""

from __future__ import annotations

from collections import deque


class Owed:
    """Replies in order. Some of them wait. While it is `open`, replies to messages of the same read
    join."""

    __slots__ = ("open", "parts", "waiting")

    def __init__(self, part: bytes) -> None:
        self.parts = [part]
        self.waiting = 1
        self.open = True

    def fail(self, at: int, failure: bytes) -> None:
        """Messages were not stored: `failure` replaces their reply."""
        self.waiting -= 1
        # Without a reply there is no failure either.
        if self.parts[at]:
            self.parts[at] = failure


class Replies:
    """`owed` has the waiting replies, and those after them. `kept_bytes` counts unsent bytes,
    `said_bytes` all bytes since the start."""

    __slots__ = ("_out", "kept_bytes", "owed", "said_bytes")

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self.owed: deque[Owed] = deque()
        self.kept_bytes = 0
        self.said_bytes = 0

    def put(self, data: bytes) -> None:
        """A reply that waits for nothing but those before it."""
        (self.owed[-1].parts if self.owed else self._out).append(data)
        self.kept_bytes += len(data)
        self.said_bytes += len(data)

    def owe(self, data: bytes) -> tuple[Owed, int]:
        """The reply to some messages, and its position. It is sent when its `Owed` waits for
        nothing more."""
        self.kept_bytes += len(data)
        if self.owed and self.owed[-1].open:
            owed = self.owed[-1]
            owed.parts.append(data)
            owed.waiting += 1
        else:
            owed = Owed(data)
            self.owed.append(owed)
        return owed, len(owed.parts) - 1

    def close(self) -> None:
        """Replies from now on do not wait together with earlier ones."""
        if self.owed:
            self.owed[-1].open = False

    def take(self) -> bytes:
        """All replies that may be sent now."""
        owed, out = self.owed, self._out
        if owed:
            if owed[0].waiting and not out:
                return b""
            while owed and not owed[0].waiting:
                out += owed.popleft().parts
        self._out = []
        data = out[0] if len(out) == 1 else b"".join(out)
        self.kept_bytes = max(0, self.kept_bytes - len(data)) if owed else 0
        return data
