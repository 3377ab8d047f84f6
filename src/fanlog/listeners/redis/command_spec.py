"""The description of a command: its arguments, Redis's documentation, and its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.format.resp import Command
    from fanlog.format.resp_replies import RespReply
    from fanlog.listeners.redis.session import RedisSession

CommandHandler = Callable[["RedisSession", "Command"], "RespReply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """`arity` counts the command's own name; below 0 it is the least. `subscribed`: allowed to a
    RESP2 subscriber; `at_once`: not queued by MULTI; `waits`: for all published before it."""

    name: str
    arity: int
    handler: CommandHandler
    flags: tuple[str, ...] = ("loading", "stale")
    categories: tuple[str, ...] = ("slow",)
    keys: tuple[int, int, int] = (0, 0, 0)
    summary: str
    since: str
    group: str
    subcommands: dict[str, CommandSpec] = field(default_factory=dict["str", "CommandSpec"])
    subscribed: bool = False
    at_once: bool = False
    no_auth: bool = False
    waits: bool = False
    # The permission for the command as a whole; commands on channels check each channel.
    verb: Verb | None = None

    def fits(self, count: int) -> bool:
        """Whether a command may have this many arguments."""
        return count == self.arity if self.arity >= 0 else count >= -self.arity
