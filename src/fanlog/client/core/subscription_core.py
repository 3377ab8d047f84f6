"""A subscription without I/O: its requests, its received batches, and where it resumes on the next
connection. It grants the broker a window of bytes, so that a slow application holds up only
itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from fanlog.client.core.reached import Reached, as_positions, reached
from fanlog.client.core.receiving import OnGap, ReaderProgress, Receiving, ReceivingHost
from fanlog.client.message import Message, MessageBatch
from fanlog.client.notices import Notices
from fanlog.errors import FanlogError, InvalidArgumentError
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import (
    GapNotice,
    Joined,
    Left,
    Notice,
    Position,
    Revoke,
    Subscribe,
    Subscribed,
    decode,
)
from fanlog.model import TopicPartition


class MessageSource(ReaderProgress, Protocol):
    """Where a subscription gets its messages: as they come, or as a group hands them out."""

    @property
    def receiving(self) -> Receiving: ...
    def maybe_next(self) -> MessageBatch | None:
        """The application wants the next batch, and is done with what it has. None if it has to
        wait for one; the shell then takes it from `receiving`."""
        ...

    def run(self, batch: MessageBatch) -> Iterator[Message]:
        """The messages of that batch, for who takes them one by one."""
        ...

    def positions(self) -> tuple[Position, ...]:
        """Up to where the application has taken messages."""
        ...

    def left(self, topic: str) -> None:
        """The topic is gone."""
        ...


class SeenMessages:
    """The source of a plain subscription: all that has been given counts as seen."""

    def __init__(self, receiving: Receiving) -> None:
        self.receiving = receiving
        self._seen: dict[TopicPartition, Reached] = {}

    def maybe_next(self) -> MessageBatch | None:
        return self.receiving.maybe_take(self)

    def run(self, batch: MessageBatch) -> Iterator[Message]:
        return iter(batch.messages)

    def took(self, batch: MessageBatch) -> None:
        receiving = self.receiving
        receiving.current = None
        if not receiving.partings.is_stale(batch.batch):
            self._seen[TopicPartition(batch.topic, batch.partition)] = reached(
                batch.batch, batch.next_offset
            )
        receiving.window.free(batch.batch.header.length)

    def unreadable(self, batch: MessageBatch) -> None:
        """It was counted as seen."""

    def positioned(self, tp: TopicPartition, start: Reached, last: Reached | None) -> None:
        receiving = self.receiving
        receiving.next[tp] = start.offset
        receiving.epochs[tp] = start.epoch
        if last is not None and (last.offset, last.number) != (start.offset, start.number):
            receiving.partings.note(tp, last, start)
            self._seen[tp] = start
        # Committed as well: or what comes there while nobody reads would be skipped.
        self._seen.setdefault(tp, start)

    def left(self, topic: str) -> None:
        for tp in [tp for tp in self._seen if tp[0] == topic]:
            del self._seen[tp]

    def positions(self) -> tuple[Position, ...]:
        seen = dict(self._seen)
        current = self.receiving.current
        if current is not None and not self.receiving.partings.is_stale(current.batch):
            tp = TopicPartition(current.topic, current.partition)
            seen[tp] = reached(current.batch, current.offset + 1)
        return as_positions(seen)


class SubscriptionCore:
    """A follower of the client's connection, whose number there is `key`."""

    def __init__(
        self,
        host: ReceivingHost,
        key: int,
        wanted: Subscribe,
        on_gap: OnGap | None,
        source: MessageSource | None = None,
    ) -> None:
        self.key = key
        self.attached = False
        self.wanted = wanted
        self.source = source or SeenMessages(Receiving(host, key, wanted, on_gap))
        self.receiving = self.source.receiving
        self.arrivals = self.receiving.arrivals
        # Without a step between: every batch comes by here.
        self.delivered = self.receiving.delivered
        self.notices = Notices(wanted.target)

    # For the application

    def positions_for_commit(self, message: Message | None) -> tuple[Position, ...]:
        """Behind this message, or behind all that were taken."""
        if not self.wanted.durable:
            raise InvalidArgumentError(
                "This subscription has no durable name to commit to: give subscribe(durable=...)."
            )
        if message is None:
            return self.source.positions()
        tp = TopicPartition(message.topic, message.partition)
        return as_positions({tp: reached(message.batch, message.offset + 1)})

    # The conversation

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.SUBSCRIBE, self.wanted

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """The request that continues this subscription on a new connection."""
        receiving = self.receiving
        receiving.window.reconnect()
        resume = tuple(receiving.position(tp) for tp in receiving.next)
        wanted = msgspec.structs.replace(self.wanted, resume=resume, missing="wait")
        return FrameKind.SUBSCRIBE, wanted

    def opened(self, payload: bytes) -> None:
        for topic in decode(Subscribed, payload).joined:
            self.joined(topic)

    def end(self, error: FanlogError) -> None:
        """No more will come; what is here can still be taken."""
        self.arrivals.close(error)

    # What the broker sends

    def missed_some(self, notice: GapNotice) -> None:
        self.receiving.missed_some(notice)

    def joined(self, joined: Joined) -> None:
        self.receiving.joined(joined, self.source)

    def left(self, left: Left) -> None:
        self.notices.left(left.name)
        self.receiving.left(left)
        self.source.left(left.name)

    def noticed(self, notice: Notice) -> None:
        self.notices.take(notice, was_there=bool(self.receiving.next))
        self.receiving.noticed(notice)

    def revoked(self, revoke: Revoke) -> None:
        """Only for a group's member."""

    def leased(self, lease: Lease) -> None:
        """Only for a queue's worker."""
