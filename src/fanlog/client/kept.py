"""The warning for a topic that is stored less safely than its settings ask, because the broker has
no data folder. It comes once for each setting: a test suite makes many topics."""

from __future__ import annotations

import logging
from typing import Any

from fanlog.model import TopicInfo, TopicSettings

logger = logging.getLogger("fanlog.client")


class KeptWarnings:
    def __init__(self) -> None:
        self._said: set[str] = set()

    def compare(
        self, settings: TopicSettings | None, given: dict[str, Any], made: TopicInfo
    ) -> None:
        """Warns if a new topic is in memory although its settings ask for disk."""
        if made.settings.durability != "memory":
            return
        durability = _asked("durability", settings, given)
        if durability in ("os", "fsync"):
            self._say(
                "durability",
                f"topic {made.name!r} asks for durability {durability}, but its messages are "
                "lost when the broker stops. Of each partition it keeps the newest "
                f"{made.settings.tail_bytes} bytes (tail_bytes).",
            )
        if _asked("cleanup", settings, given) == "compact":
            self._say(
                "cleanup",
                f"topic {made.name!r} is not compacted, and keeps every message of a key.",
            )

    def _say(self, kind: str, what: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(
                "This broker keeps everything in memory: %s Give it a data folder, such as "
                "fanlog.Broker('data/') or fanlog serve --data data.",
                what,
            )


def _asked(name: str, settings: TopicSettings | None, given: dict[str, Any]) -> object:
    """A setting that the caller chose; None if it is the default."""
    if name in given:
        return given[name]
    if settings is None or getattr(settings, name) == getattr(TopicSettings(), name):
        return None
    return getattr(settings, name)
