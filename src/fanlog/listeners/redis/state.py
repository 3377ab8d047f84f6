"""State shared by all sessions of a Redis listener: connections, settings that clients may read and
change, and the numbers of INFO."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.security.gate import SecurityGate

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.config import RedisOptions
    from fanlog.listeners.redis.session import RedisSession

# The Redis version of these commands: clients choose features by it.
REDIS_VERSION = "7.2.0"


class ServerState:
    """`settings` are those of CONFIG: what a client of publish and subscribe asks for."""

    def __init__(self, broker: BrokerCore, options: RedisOptions, now: Callable[[], float]) -> None:
        self.broker = broker
        self.options = options
        self.now = now
        self.started_at = now()
        self.sessions: dict[int, RedisSession] = {}
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
