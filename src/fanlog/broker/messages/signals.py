"""The topic of signals between processes. It is in memory, and short: signals are live only. Who
was away for a moment is better off with what others say next."""

from __future__ import annotations

from fanlog.model import KIB, MIB, TopicSettings

SIGNALS_SETTINGS = TopicSettings(
    durability="memory", retention_seconds=10, tail_bytes=1 * MIB, message_bytes_max=512 * KIB
)
