"""What is spoken on a connection that streams, as far as the connection needs to know it."""

from __future__ import annotations

from typing import Protocol

from fanlog.errors import FanlogError


class StreamProtocol(Protocol):
    """What is spoken on a connection."""

    def feed(self, data: bytes) -> None:
        """Takes bytes of the peer; without bytes it continues with those that are kept."""
        ...

    def held_up(self) -> bool:
        """Whether what has come must wait; `resume` says when it need not."""
        ...

    def swept(self, now: float) -> None:
        """Once a second: pings, and peers that are overdue."""
        ...

    def farewell(self, error: FanlogError) -> bytes:
        """What tells the peer why it is cut off."""
        ...

    def drain(self, after_ms: int) -> None:
        """Tells the peer to come back later, elsewhere, and ends."""
        ...

    def upstream(self, *, up: bool) -> None:
        """Tells the peer that the bus is lost, or back."""
        ...

    def recheck(self) -> None:
        """Permissions have changed: looks again who the peer is, and what it may still read."""
        ...

    def closed(self) -> None: ...


class _EndedStream:
    """The protocol of a closed connection. It breaks the reference cycle with the real one."""

    def feed(self, data: bytes) -> None: ...
    def held_up(self) -> bool:
        return False

    def swept(self, now: float) -> None: ...
    def farewell(self, error: FanlogError) -> bytes:
        return b""

    def drain(self, after_ms: int) -> None: ...
    def upstream(self, *, up: bool) -> None: ...
    def recheck(self) -> None: ...
    def closed(self) -> None: ...


ENDED = _EndedStream()
