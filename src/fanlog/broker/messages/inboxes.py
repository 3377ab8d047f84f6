"""Inboxes: topics in memory to which the answers to one client's requests go. A client that ends
without a goodbye leaves its inbox behind. It is deleted when nobody has read it for a while."""

from __future__ import annotations

from collections.abc import Iterable

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.model import INBOX_PREFIX, MIB

INBOX_SETTINGS: dict[str, int | str] = {
    "partitions": 1,
    "durability": "memory",
    "retention_seconds": 300,
    "retention_bytes": 0,
    "tail_bytes": 4 * MIB,
    "role": "inbox",
}


def is_inbox(name: str) -> bool:
    return name.startswith(INBOX_PREFIX)


class Inboxes:
    """Since when nobody has read which inbox."""

    def __init__(self, idle_seconds: int) -> None:
        self._idle_us = idle_seconds * 1_000_000
        self._unread_since_us: dict[str, int] = {}

    def left_behind(self, inboxes: Iterable[BrokerTopic], now_us: int) -> list[str]:
        """Inboxes to delete, because nobody has read them for too long."""
        unread = [topic.name for topic in inboxes if not any(p.readers for p in topic.partitions)]
        known = self._unread_since_us
        self._unread_since_us = {name: known.get(name, now_us) for name in unread}
        return [
            name
            for name, since_us in self._unread_since_us.items()
            if now_us - since_us >= self._idle_us
        ]
