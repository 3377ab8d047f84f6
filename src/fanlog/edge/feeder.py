"""Feeds one target's batches into the mirror: a subscription at an upstream Fanlog."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fanlog.edge.mirror import Mirror
from fanlog.errors import FanlogError
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import (
    GapNotice,
    Joined,
    Left,
    Notice,
    Revoke,
    Subscribe,
    Subscribed,
    decode,
)
from fanlog.model import GapReason

# With fewer topics, the answer to a subscription lists all of them.
_JOINED_AT_ONCE = 1000


class Feeder:
    """A `Follower` of the client's connection. It has no window: the mirror takes every batch at
    once, and lets old ones go."""

    def __init__(
        self,
        mirror: Mirror,
        key: int,
        target: str,
        *,
        wildcard: bool,
        greeted: Callable[[], None],
        ended: Callable[[Feeder, FanlogError], None],
        many: Callable[[Feeder], None],
    ) -> None:
        """`many` is called if the answer to a continued subscription did not list all topics."""
        self._mirror = mirror
        self._wanted = Subscribe(target=target, wildcard=wildcard, mirror=True)
        self._greeted = greeted
        self._ended = ended
        self._many = many
        self._begun = False
        self.key = key
        self.target = target
        self.wildcard = wildcard
        self.attached = False

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        if not self._begun:
            return FrameKind.SUBSCRIBE, self._wanted
        return self.resuming()

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        positions = self._mirror.positions(self)
        return FrameKind.SUBSCRIBE, msgspec.structs.replace(self._wanted, resume=positions)

    def opened(self, payload: bytes) -> None:
        self._greeted()
        joined = decode(Subscribed, payload).joined
        if self._begun and len(joined) < _JOINED_AT_ONCE:
            self._mirror.missing(self, (topic.name for topic in joined))
        elif self._begun:
            self._many(self)
        self._begun = True
        for topic in joined:
            self._mirror.joined(topic, self)

    def joined(self, joined: Joined) -> None:
        self._mirror.joined(joined, self)

    def left(self, left: Left) -> None:
        self._mirror.left(left.number)

    def delivered(self, batch: Batch) -> None:
        data = batch.data
        self._mirror.take(data if isinstance(data, bytes) else bytes(data), batch.header)

    def missed_some(self, notice: GapNotice) -> None:
        if notice.reason is GapReason.RESET:
            self._mirror.reset(notice.number)
        else:
            self._mirror.gap(notice.number, notice.partition, notice.next)

    def end(self, error: FanlogError) -> None:
        self.attached = False
        self._ended(self, error)

    def noticed(self, notice: Notice) -> None:
        """The core notifies readers of existing and missing topics."""

    def revoked(self, revoke: Revoke) -> None:
        """Only for a group's member."""

    def leased(self, lease: Lease) -> None:
        """Only for a queue's worker."""
