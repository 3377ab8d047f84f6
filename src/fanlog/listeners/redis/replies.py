"""The replies to one peer, in the order of its commands. Those to PUBLISH wait until the broker has
taken the messages in, and nothing behind them goes out before."""

from __future__ import annotations

from collections import deque


class Owed:
    """Replies of which some wait. While it is `open`, replies to messages of the same read join."""

    __slots__ = ("open", "parts", "waiting")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.waiting = 0
        self.open = True


# Where the reply to some messages stands, and how many they are.
Place = tuple[Owed, int, int]


class Replies:
    """`kept_bytes` counts what has not gone out, `said_bytes` all that was ever said."""

    __slots__ = ("_out", "_owed", "kept_bytes", "said_bytes")

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._owed: deque[Owed] = deque()
        self.kept_bytes = 0
        self.said_bytes = 0

    def put(self, data: bytes) -> None:
        """A reply that waits for nothing but those before it."""
        (self._owed[-1].parts if self._owed else self._out).append(data)
        self.kept_bytes += len(data)
        self.said_bytes += len(data)

    def owe(self, data: bytes, count: int) -> Place:
        """The reply to so many messages, which `settle` lets go."""
        if not self._owed or not self._owed[-1].open:
            self._owed.append(Owed())
        owed = self._owed[-1]
        owed.waiting += 1
        owed.parts.append(data)
        self.kept_bytes += len(data)
        return owed, len(owed.parts) - 1, count

    def close(self) -> None:
        """What is owed from now on does not wait together with what was owed before."""
        if self._owed:
            self._owed[-1].open = False

    def settle(self, places: list[Place], failure: bytes = b"") -> None:
        """The messages were taken in, or were not."""
        for owed, at, count in places:
            owed.waiting -= 1
            # Where nothing was to be said, nothing is said of a failure either.
            if failure and owed.parts[at]:
                owed.parts[at] = failure * count

    @property
    def owing(self) -> bool:
        return bool(self._owed)

    def take(self) -> bytes:
        """All that may go out now."""
        owed = self._owed
        if not self._out and owed and owed[0].waiting:
            return b""
        while owed and not owed[0].waiting:
            self._out += owed.popleft().parts
        out, self._out = self._out, []
        data = out[0] if len(out) == 1 else b"".join(out)
        self.kept_bytes = max(0, self.kept_bytes - len(data)) if owed else 0
        return data
