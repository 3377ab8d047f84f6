"""The caller that the code runs for, for log lines: the connection and its user.

Each connection has its own context. Its callbacks and their tasks run in it, so there is no cost
per message.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import Protocol

from fanlog.identity import Identity


class Caller(Protocol):
    """A caller that may log in while the connection is open: a permit."""

    @property
    def who(self) -> Identity: ...


CALLER: ContextVar[Caller | None] = ContextVar("fanlog_caller", default=None)


def context_of(caller: Caller) -> Context:
    """A context in which everything is done for this caller."""
    context = copy_context()
    context.run(CALLER.set, caller)
    return context


def maybe_who() -> Identity | None:
    """The current caller, if any."""
    caller = CALLER.get()
    return None if caller is None else caller.who


def connection_id(who: Identity) -> str:
    """The id of a client's connection in `fanlog connections`. A web client that streams has an id
    of its own; of others the address is the id, because a port is one connection's at a time."""
    if who.listener == "web" and who.connection and "@" not in who.connection:
        return who.connection
    if not who.address:
        return ""
    return f"{who.listener}@{who.address}"


def describe(who: Identity | None) -> str:
    """` for ann on native@127.0.0.1:50312`, to put behind a sentence; empty for the broker's own
    work."""
    if who is None:
        return ""
    found = [part for part in (who.user, connection_id(who)) if part]
    return f" for {' on '.join(found)}" if found else ""
