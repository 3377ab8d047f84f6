"""The topic of signals between processes. It is in memory, and short: signals are live only. A
process that missed some gets newer ones soon."""

from __future__ import annotations

from fanlog.model import KIB, MIB, TopicSettings

SIGNALS_SETTINGS = TopicSettings(
    durability="memory", retention_seconds=10, tail_bytes=1 * MIB, message_bytes_max=512 * KIB
)
