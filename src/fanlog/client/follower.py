"""What follows the broker on a connection: a subscription, a group's member, a queue's worker. The
client hands each what is for it, and brings each back on a new connection."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fanlog.errors import FanlogError
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, Lease
from fanlog.format.messages import GapNotice, Joined, Left, Notice, Revoke


class ClientFollower(Protocol):
    """`attached` once the broker has answered its request; it is then resumed by itself."""

    attached: bool

    @property
    def key(self) -> int:
        """The number of this follower on its connection."""
        ...

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        """The request that begins it."""
        ...

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        """The request that continues it on a new connection."""
        ...

    def opened(self, payload: bytes) -> None:
        """The answer to either, before anything that comes behind it."""
        ...

    def end(self, error: FanlogError) -> None:
        """No more will come."""
        ...

    def delivered(self, batch: Batch) -> None: ...
    def missed_some(self, notice: GapNotice) -> None: ...
    def joined(self, joined: Joined) -> None: ...
    def left(self, left: Left) -> None: ...
    def noticed(self, notice: Notice) -> None: ...
    def revoked(self, revoke: Revoke) -> None: ...
    def leased(self, lease: Lease) -> None: ...
