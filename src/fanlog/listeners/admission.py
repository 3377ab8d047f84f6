"""How many connections all listeners may have together: as many as there are file descriptors for,
beside those that the log needs."""

from __future__ import annotations


class Admission:
    """Counts the open connections of all listeners."""

    __slots__ = ("connections", "connections_max", "files_max")

    def __init__(self, connections_max: int, files_max: int) -> None:
        self.connections = 0
        self.connections_max = connections_max
        self.files_max = files_max

    def reason_against_one_more(self) -> str:
        """Why another connection does not fit; empty if it does."""
        if self.connections < self.connections_max:
            return ""
        return (
            f"the broker has {self.connections}, as many as its limit of {self.files_max} open "
            "files allows. Close some, or raise the limit (ulimit -n) and restart the broker."
        )
