"""A member of a consumer group without I/O: it asks for its group, comes back with its partitions,
and knows the generation of its membership. `owned_partitions.py` has the partitions."""

from __future__ import annotations

import msgspec

from fanlog.client.core.owned_partitions import OwnedPartitions
from fanlog.client.core.receiving import ReceivingHost
from fanlog.client.core.subscription_core import SubscriptionCore
from fanlog.errors import ClosedError, FanlogError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode


def followed(join: messages.JoinGroup) -> messages.Subscribe:
    """What a member follows, as a subscription."""
    return messages.Subscribe(
        target=join.target, wildcard=join.wildcard, window_bytes=join.window_bytes
    )


class MemberCore(SubscriptionCore):
    """A follower of the client's connection. `join` is its request, with the epoch of its
    membership since the broker has answered."""

    def __init__(
        self, host: ReceivingHost, key: int, join: messages.JoinGroup, owned: OwnedPartitions
    ) -> None:
        super().__init__(host, key, followed(join), None, owned)
        self.join = join
        self.owned = owned

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.JOIN_GROUP, self.join

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        self.receiving.window.reconnect()
        claims = self.owned.claims()
        wanted = msgspec.structs.replace(self.join, claims=claims, missing="wait", start=None)
        return FrameKind.JOIN_GROUP, wanted

    def opened(self, payload: bytes) -> None:
        epoch = decode(messages.GroupJoined, payload).epoch
        self.join = msgspec.structs.replace(self.join, epoch=epoch)

    def revoked(self, revoke: messages.Revoke) -> None:
        self.owned.revoked(revoke)

    def end(self, error: FanlogError) -> None:
        """No more messages come, and those here are not given out: other members will get them."""
        super().end(error)
        self.owned.ended(lost=not isinstance(error, ClosedError))

    def group_offsets(self, positions: tuple[messages.Position, ...]) -> messages.GroupOffsets:
        """These positions of this membership, for a transaction to commit."""
        positions = self.owned.offsets_for_commit(positions)
        return messages.GroupOffsets(self.join.group, self.join.member, self.join.epoch, positions)
