"""How many connections all listeners may have together: as many as there are file descriptors for,
beside those that the log needs. And how many of them one address may have."""

from __future__ import annotations

from fanlog.config_limits import NO_LIMITS
from fanlog.errors import TooManyConnectionsError
from fanlog.security.connections import ConnectionCounts


class Admission:
    """Counts the open connections of all listeners."""

    __slots__ = ("connections", "connections_max", "counts", "files_max")

    def __init__(
        self, connections_max: int, files_max: int, counts: ConnectionCounts | None = None
    ) -> None:
        self.connections = 0
        self.connections_max = connections_max
        self.files_max = files_max
        self.counts = ConnectionCounts(NO_LIMITS) if counts is None else counts

    def came(self, peer: str) -> None:
        """A connection is open."""
        self.connections += 1
        self.counts.came(peer)

    def went(self, peer: str) -> None:
        """A connection is closed."""
        self.connections -= 1
        self.counts.went(peer)

    def maybe_refusal(self, peer: str) -> TooManyConnectionsError | None:
        """Why another connection does not fit."""
        if self.connections < self.connections_max:
            return self.counts.maybe_refusal(peer)
        return TooManyConnectionsError(
            f"There are too many connections: the broker has {self.connections}, as many as its "
            f"limit of {self.files_max} open files allows. Close some, or raise the limit "
            "(ulimit -n) and restart the broker."
        )
