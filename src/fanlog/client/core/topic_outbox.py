"""A topic that a client publishes to: its partitions' outboxes, and which log they are for.

When the topic grows, keys go to other partitions. So that a key's newer record is never stored
before its older one, what is put after that goes out only when the broker has answered for all
that was put before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fanlog.client.core.outbox import RECORD_OVERHEAD_BYTES, OutgoingRecords, PartitionOutbox
from fanlog.errors import no_partition, too_large
from fanlog.format.codecs import Codec
from fanlog.format.keys import partition_of
from fanlog.format.messages import TopicOpened
from fanlog.model import Durability


def log_of(opened: TopicOpened) -> tuple[int, int]:
    """Tells a topic's log from one that has replaced it: the number, and for a topic in memory also
    the broker's start."""
    in_memory = opened.settings.level is Durability.MEMORY
    return opened.number, opened.epoch if in_memory else 0


class TopicOutbox:
    """A topic that this client publishes to. Keys are spread over the first `spread` partitions;
    `before` is what has to be answered before anything else goes out. While it is `gone`, deleted
    at the broker, nothing does."""

    __slots__ = (
        "before",
        "codec",
        "durability",
        "epoch",
        "gone",
        "log",
        "message_bytes_max",
        "name",
        "number",
        "only",
        "partitions",
        "plain_bytes_max",
        "spread",
        "turn",
    )

    def __init__(self, opened: TopicOpened, codec: Codec) -> None:
        self.name = opened.name
        self.number = opened.number
        self.log = log_of(opened)
        self.epoch = opened.epoch
        self.durability = opened.settings.level
        self.codec = codec
        self.message_bytes_max = opened.settings.message_bytes_max
        self.partitions = [PartitionOutbox(i) for i in range(opened.settings.partitions)]
        self.only = self.partitions[0] if len(self.partitions) == 1 else None
        self.spread = len(self.partitions)
        self.before: set[OutgoingRecords] = set()
        self.gone = False
        self.plain_bytes_max = 0
        self.turn = 0

    def grow(self, partitions: int) -> None:
        """The topic has got more partitions. They are used at once, unless something still waits
        for what was put before the topic grew the last time."""
        while len(self.partitions) < partitions:
            self.partitions.append(PartitionOutbox(len(self.partitions)))
            self.only = None
        if self.spread < len(self.partitions) and not self.before:
            self.spread = len(self.partitions)
            for outbox in self.partitions:
                outbox.seal()
                self.before.update(outbox.unanswered())

    def answered(self, records: Iterable[OutgoingRecords]) -> bool:
        """The broker has answered for these; True if something has waited for just that."""
        if not self.before:
            return False
        self.before.difference_update(records)
        if self.before:
            return False
        self.grow(len(self.partitions))
        return True

    def waits_since(self, time: float) -> bool:
        """Whether a batch that was begun before that time is not answered yet."""
        return any(
            records.since <= time for outbox in self.partitions for records in outbox.unanswered()
        )

    def holds_back(self, outbox: PartitionOutbox) -> bool:
        """Whether what an outbox would send next has to wait. What was sent before, and comes
        back, never has."""
        if not self.before or outbox.again or outbox.returned:
            return False
        return not outbox.sealed or outbox.sealed[0] not in self.before

    def may_be_lost(self, epoch: int) -> bool:
        """Whether a start of the broker, which has this epoch now, may have lost the topic. If not,
        a topic that is not there was deleted."""
        return self.epoch != epoch and self.durability is not Durability.FSYNC

    def move_to(self, opened: TopicOpened, now_us: int) -> bool:
        """Continues with the broker's present log. True if that is another log, which has nothing
        of this producer yet."""
        self.gone = False
        self.number = opened.number
        self.epoch = opened.epoch
        self.durability = opened.settings.level
        before, self.log = self.log, log_of(opened)
        if self.log == before:
            self.grow(opened.settings.partitions)
            return False
        for outbox in self.partitions:
            outbox.begin_anew()
        if len(self.partitions) != opened.settings.partitions:
            self._spread_anew(opened.settings.partitions, now_us)
        return True

    def _spread_anew(self, partitions: int, now_us: int) -> None:
        """Puts all records where they belong in another log, with another number of partitions.
        A key's records keep their order: they were all in one."""
        former, self.before = self.partitions, set()
        self.partitions = [PartitionOutbox(i) for i in range(partitions)]
        self.only = self.partitions[0] if partitions == 1 else None
        self.spread = partitions
        for outbox in former:
            for records in [*outbox.unanswered(), *([] if outbox.open is None else [outbox.open])]:
                for key, one in records.each():
                    chosen = self.pick(key)
                    if chosen.open is None:
                        chosen.open = OutgoingRecords(records.since, records.priority)
                    chosen.open.take(one, now_us)
                # None becomes larger than the batch that it comes from.
                for chosen in self.partitions:
                    chosen.seal()

    def resume_after(self, former: TopicOutbox) -> None:
        """Numbers on where an outbox of the same log has stopped. What that one had in flight has
        those numbers, stored or not: used again, they would pass for repeats."""
        self.grow(len(former.partitions))
        for outbox, stopped in zip(self.partitions, former.partitions, strict=False):
            outbox.next_sequence = stopped.next_sequence

    def pick(self, key: bytes | None) -> PartitionOutbox:
        """A key's own partition; without one, in turn, a batch each."""
        partitions, spread = self.partitions, self.spread
        if key is not None:
            return partitions[partition_of(key, spread)]
        chosen = partitions[self.turn % spread]
        if chosen.open is None:
            self.turn += 1
            chosen = partitions[self.turn % spread]
        return chosen

    def partition(self, index: int) -> PartitionOutbox:
        if not 0 <= index < len(self.partitions):
            raise no_partition(self.name, len(self.partitions), index)
        return self.partitions[index]

    def check_size(self, size: int) -> None:
        given = size - RECORD_OVERHEAD_BYTES
        if given > self.message_bytes_max:
            raise too_large(f"The message has {given} bytes", self.name, self.message_bytes_max)


class Settling(NamedTuple):
    """What was put for some topics until a time, on its way."""

    topics: list[TopicOutbox]
    since: float

    @property
    def waits(self) -> bool:
        """Whether some of it is not answered yet."""
        return any(topic.waits_since(self.since) for topic in self.topics)
