"""A Redis client as its commands see it: the session's port, what a command is, and what all
sessions of a listener share. They know each other, so they are in one file.

Law: a command takes `RedisPeer`. It does not know `session.py`, which runs the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from fanlog.broker.messages.topics import Outlet
from fanlog.format.resp_replies import ErrorReply
from fanlog.identity import Verb
from fanlog.listeners.redis.channels import ChannelFollower
from fanlog.security.gate import SecurityGate

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.config import RedisOptions
    from fanlog.errors import FanlogError
    from fanlog.format.resp import Command
    from fanlog.format.resp_replies import RespReply
    from fanlog.identity import Account, Identity
    from fanlog.listeners.redis.pubsub import PubSub

# The Redis version of these commands: clients choose features by it.
REDIS_VERSION = "7.2.0"


class RedisOutlet(Outlet, Protocol):
    """The connection, as far as the session needs it."""

    heard_at: float

    @property
    def kept_bytes(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    def finish(self, why: str = "") -> None: ...
    def crowded(self) -> bool:
        """Whether the peer has to take replies before it may ask on."""
        ...

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...
    def proceed_soon(self) -> None:
        """Feeds the session nothing, after others had their turn."""
        ...


class RedisPeer(ChannelFollower, Protocol):
    """One client. Commands read and change its fields."""

    # All commands, by name.
    commands: ClassVar[Mapping[str, CommandSpec]]

    # The listener's side.
    pubsub: PubSub
    state: ServerState
    peer: str
    local: str
    created_at: float
    # The identity before the login.
    arrived: Identity

    # Facts about the client.
    library: tuple[bytes, bytes]
    database: int
    last_command: str
    replies: Literal["on", "off", "skip"]
    skip_next: bool

    # What it follows, and the bytes of these names.
    channels: dict[bytes, None]
    patterns: dict[bytes, None]
    shard_channels: dict[bytes, None]
    names_bytes: int

    # Commands that MULTI has queued; None outside of MULTI.
    queue: list[tuple[CommandSpec, Command]] | None
    queue_failed: bool
    in_transaction: bool

    @property
    def outlet(self) -> RedisOutlet: ...
    @property
    def trusted(self) -> bool:
        """Whether it has logged in, if it has to."""
        ...

    @trusted.setter
    def trusted(self, trusted: bool, /) -> None: ...
    @property
    def user(self) -> str: ...
    @property
    def subscribed(self) -> bool: ...

    def find_command(self, words: Command, /) -> CommandSpec | ErrorReply: ...
    def say(self, reply: RespReply) -> None: ...
    def push(self, data: bytes) -> None: ...
    def publish(self, channel: bytes, value: bytes, *, shard: bool) -> RespReply: ...
    def wait_for(self, work: Coroutine[Any, Any, RespReply]) -> RespReply: ...
    def split(self, words: Command) -> list[bytes]: ...
    def speak(self, version: int) -> None: ...
    def unsubscribe_all(self) -> None: ...
    def begin_queue(self) -> None: ...
    def drop_queue(self) -> None: ...
    def run_queue(self) -> RespReply: ...
    def become(self, account: Account) -> None: ...
    def log_out(self) -> None: ...
    def maybe_forbidden(self) -> FanlogError | None: ...
    def end(self) -> None: ...


CommandHandler = Callable[["RedisPeer", "Command"], "RespReply"]


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


class ServerState:
    """`settings` are those of CONFIG: what a client of publish and subscribe asks for."""

    def __init__(self, broker: BrokerCore, options: RedisOptions, now: Callable[[], float]) -> None:
        self.broker = broker
        self.options = options
        self.now = now
        self.started_at = now()
        self.sessions: dict[int, RedisPeer] = {}
        self.port = options.port
        self.connections_received = 0
        self.connections_rejected = 0
        self._last_number = 0
        # Whether clients must log in before they do anything.
        self.guarded = bool(options.password) or broker.gate.guarded
        self.settings = {
            "appendonly": "no",
            "client-output-buffer-limit": "normal 0 0 0 slave 0 0 0 pubsub 0 0 0",
            "databases": "16",
            "maxclients": str(options.connections_max),
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "notify-keyspace-events": "",
            "proto-max-bulk-len": str(options.bulk_bytes_max),
            "save": "",
            "tcp-keepalive": "300",
            "timeout": "0",
        }

    def knows_user(self, name: str) -> bool:
        """Whether an account of this name exists, or is connected."""
        gate = self.broker.gate
        if isinstance(gate, SecurityGate) and (
            name in gate.directory.users or name in gate.directory.keys
        ):
            return True
        return any(session.user == name for session in self.sessions.values())

    def next_number(self) -> int:
        """A client's id, which is never reused."""
        self._last_number += 1
        return self._last_number

    def now_us(self) -> int:
        return self.broker.now_us()


def no_permission(session: RedisPeer, wanted: str) -> ErrorReply:
    """Redis's reply for a forbidden command."""
    return ErrorReply(f"NOPERM User {session.user} has no permissions to {wanted}")
