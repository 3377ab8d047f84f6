"""The replies to one peer, in the order of its commands. Those to PUBLISH wait until the broker has
taken the messages in, and nothing behind them goes out before."""

from __future__ import annotations

from collections import deque


class Owed:
    """Replies of which some wait. While it is `open`, replies to messages of the same read join."""

    __slots__ = ("open", "parts", "waiting")

    def __init__(self, part: bytes) -> None:
        self.parts = [part]
        self.waiting = 1
        self.open = True

    def fail(self, at: int, failure: bytes) -> None:
        """Messages were not taken in: `failure` goes out in place of the reply to them."""
        self.waiting -= 1
        # Where nothing was to be said, nothing is said of a failure either.
        if self.parts[at]:
            self.parts[at] = failure


class Replies:
    """`owed` has those that wait, and what stands behind them. `kept_bytes` counts what has not
    gone out, `said_bytes` all that was ever said."""

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
        """The reply to some messages, and where it stands. It goes out when its `Owed` is not
        waiting for anything more."""
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
        """What is owed from now on does not wait together with what was owed before."""
        if self.owed:
            self.owed[-1].open = False

    def take(self) -> bytes:
        """All that may go out now."""
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
