"""What makes a name a pattern. Both sides must agree: a client says which of the two it means."""

from __future__ import annotations

ONE = "*"
REST = ">"


def is_pattern(name: str) -> bool:
    """Whether a token of the name stands for others.

    >>> is_pattern("room.*"), is_pattern("room.2*2")
    (True, False)
    """
    return ("*" in name or ">" in name) and any(t in (ONE, REST) for t in name.split("."))
