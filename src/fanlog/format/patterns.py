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


def has_wildcard(name: str) -> bool:
    """Whether one of the characters of patterns is anywhere in the name."""
    return ONE in name or REST in name


def misplaced_wildcard(target: str) -> str:
    """What is wrong with a target's wildcards, as a sentence; empty if nothing is.

    >>> misplaced_wildcard("orders.*"), misplaced_wildcard("orders.>")
    ('', '')
    >>> misplaced_wildcard("orders>")
    "'orders>': > stands for everything below a name, after a dot: write orders.>."
    """
    if not has_wildcard(target):
        return ""
    tokens = target.split(".")
    for at, token in enumerate(tokens):
        if token in (ONE, REST):
            continue
        if has_wildcard(token):
            stem = token.rstrip(ONE + REST)
            above = ".".join([*tokens[:at], stem])
            plain = bool(stem) and not has_wildcard(above) and at == len(tokens) - 1
            return f"{target!r}: {_meaning(token, above if plain else '')}"
    if REST in tokens[:-1]:
        below = ".".join(tokens[: tokens.index(REST) + 1])
        return f"{target!r}: > stands for everything below a name: it must be the end, as {below}."
    return ""


def _meaning(token: str, above: str) -> str:
    """What the wildcard in a token stands for, and how to write it below the name `above`."""
    if ONE in token:
        write = f"write {above}.*, or {above}.> for everything below {above}" if above else ""
        meaning = "* stands for one whole part of a name between dots"
        return f"{meaning}: {write or 'write it alone there, as in orders.*'}."
    write = f"write {above}.>" if above else "write it alone at the end, as in orders.>"
    return f"> stands for everything below a name, after a dot: {write}."


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


def parent_of(pattern: str) -> str:
    """The name that everything which fits is below, and which does not fit itself; empty if the
    pattern is of another form.

    >>> parent_of("orders.>"), parent_of("*.>"), parent_of("orders.*")
    ('orders', '', '')
    """
    parent, _, rest = pattern.rpartition(".")
    return parent if rest == REST and not has_wildcard(parent) else ""


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


def meet(one: str, other: str) -> bool:
    """Whether there can be a topic that both targets, names or patterns, include.

    >>> meet("a.*", "*.b"), meet("a.>", "a.b.c"), meet("a.*", "b.>")
    (True, True, False)
    """
    tokens, wanted = one.split("."), other.split(".")
    for token, same in zip(tokens, wanted, strict=False):
        if REST in (token, same):
            return True
        if ONE not in (token, same) and token != same:
            return False
    return len(tokens) == len(wanted)
