"""What a connection knows of topics: numbers, partitions and settings.

Law: a number is good for one connection. After a loss the topic of a name may be another one.
"""

from __future__ import annotations

import msgspec

from fanlog.format.codecs import Codec, codec_named
from fanlog.format.messages import OpenTopic, TopicOpened, decode
from fanlog.model import HIDDEN_PREFIXES


def opening(name: str) -> OpenTopic:
    """The request that opens a topic to publish to it. It is created if it does not exist, but for
    an inbox, which its reader creates, and for a stream, which its writer begins."""
    return OpenTopic(name, create=not name.startswith(HIDDEN_PREFIXES))


def with_partitions(opened: TopicOpened, partitions: int) -> TopicOpened:
    """A topic with this many partitions, if that is more than it has."""
    if partitions <= opened.settings.partitions:
        return opened
    settings = msgspec.structs.replace(opened.settings, partitions=partitions)
    return msgspec.structs.replace(opened, settings=settings)


def codec_for(opened: TopicOpened, own: Codec) -> Codec:
    """How to compress batches for a topic: as it asks, or else as this client does."""
    asked = opened.settings.compression
    return own if asked == "producer" else codec_named(asked)


class TopicDirectory:
    """The topics of one connection, by name. Two kinds are kept: topics that transactions stage to,
    and the numbers of topics that are fetched from. A publisher keeps its own."""

    __slots__ = ("_grown", "_kept", "_numbers")

    def __init__(self) -> None:
        self._kept: dict[str, TopicOpened] = {}
        self._numbers: dict[str, int] = {}
        # Partitions by topic number, where topics grew on this connection.
        self._grown: dict[int, int] = {}

    def take(self, payload: bytes) -> TopicOpened:
        """An answer to OPEN_TOPIC, as of now: the topic may have grown since it was given."""
        opened = decode(TopicOpened, payload)
        return with_partitions(opened, self._grown.get(opened.number, 0))

    def keep(self, opened: TopicOpened) -> TopicOpened:
        """Keeps a topic for the next transaction that stages to it."""
        self._kept[opened.name] = opened
        return opened

    def maybe_kept(self, name: str) -> TopicOpened | None:
        return self._kept.get(name)

    def take_number(self, payload: bytes) -> int:
        """The same answer, of a topic to fetch from."""
        opened = decode(TopicOpened, payload)
        self._numbers[opened.name] = opened.number
        return opened.number

    def maybe_number(self, name: str) -> int | None:
        return self._numbers.get(name)

    def grew(self, number: int, partitions: int) -> None:
        """The broker says that a topic has more partitions."""
        self._grown[number] = partitions
        for name, opened in self._kept.items():
            if opened.number == number:
                self._kept[name] = with_partitions(opened, partitions)

    def forget(self, name: str) -> None:
        """The topic may be another one by now, so the next use opens it again."""
        self._kept.pop(name, None)
        self._numbers.pop(name, None)

    def clear(self) -> None:
        """The connection is another one."""
        self._kept.clear()
        self._numbers.clear()
        self._grown.clear()
