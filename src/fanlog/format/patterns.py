"""What makes a name a pattern, and what fits it. Both sides must agree: a client says which of the
two it means."""

from __future__ import annotations

ONE = "*"
REST = ">"


def is_pattern(name: str) -> bool:
    """Whether a token of the name stands for others.

    >>> is_pattern("room.*"), is_pattern("room.2*2")
    (True, False)
    """
    return ("*" in name or ">" in name) and any(t in (ONE, REST) for t in name.split("."))


def literal_prefix(pattern: str) -> str:
    """What every name that fits begins with.

    >>> literal_prefix("room.*.door"), literal_prefix(">"), literal_prefix("room")
    ('room.', '', 'room')
    """
    tokens = pattern.split(".")
    for at, token in enumerate(tokens):
        if token in (ONE, REST):
            return "".join(f"{before}." for before in tokens[:at])
    return pattern


def fits(name: str, target: str) -> bool:
    """Whether who follows the target, a name or a pattern, reads the topic.

    >>> fits("room.2", "room.*"), fits("room.2.door", "room.*"), fits("room", "room.>")
    (True, False, False)
    """
    tokens, wanted = name.split("."), target.split(".")
    if wanted[-1] == REST and len(tokens) >= len(wanted):
        tokens, wanted = tokens[: len(wanted) - 1], wanted[:-1]
    return len(tokens) == len(wanted) and all(
        one in (token, ONE) for token, one in zip(tokens, wanted, strict=True)
    )
