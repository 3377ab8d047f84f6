"""Followers of the broker on a connection: subscriptions, members of groups, workers of queues. The
table passes each its events, and lists those that a new connection must restore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec

from fanlog.client.core import events
from fanlog.client.core.events import Event
from fanlog.errors import FanlogError, RequestTimeoutError
from fanlog.format.batch import Batch
from fanlog.format.frames import FrameKind, Lease, message_frame
from fanlog.format.messages import GapNotice, Goodbye, Joined, Left, Notice, Revoke


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


class FollowerTable:
    """The followers of one client, by their numbers. A number is never used again."""

    __slots__ = ("_by_key", "_number")

    def __init__(self) -> None:
        self._by_key: dict[int, ClientFollower] = {}
        self._number = 0

    def take_number(self) -> int:
        """A number for one more follower."""
        self._number += 1
        return self._number

    def has(self, key: int) -> bool:
        return key in self._by_key

    # The request of a follower

    def begin(self, follower: ClientFollower) -> tuple[FrameKind, msgspec.Struct]:
        """Its first request. From now on it gets what the broker sends it."""
        request = follower.opening()
        self._by_key[follower.key] = follower
        return request

    def opened(self, follower: ClientFollower, payload: bytes) -> None:
        """The broker's answer to its first request, or to the one that continues it."""
        follower.attached = True
        follower.opened(payload)

    def given_up(self, follower: ClientFollower, fault: BaseException) -> bytes:
        """The first request has failed. Returns what to write: if the outcome is unknown, the
        broker may have started the follower, and would keep partitions and jobs for a client that
        does not take them. Request 0 drops the answer."""
        self._by_key.pop(follower.key, None)
        follower.attached = False
        if isinstance(fault, FanlogError) and not isinstance(fault, RequestTimeoutError):
            return b""
        return message_frame(FrameKind.UNSUBSCRIBE, Goodbye(), aux=follower.key)

    def attached(self) -> list[ClientFollower]:
        """The followers that a new connection has to restore."""
        return [follower for follower in self._by_key.values() if follower.attached]

    def remove(self, follower: ClientFollower) -> bool:
        """Forgets a follower. Whether it was there."""
        if self._by_key.get(follower.key) is not follower:
            return False
        del self._by_key[follower.key]
        return True

    def end(self, key: int, error: FanlogError) -> None:
        """The broker has ended a follower, or refused to continue it."""
        follower = self._by_key.pop(key, None)
        if follower is not None:
            follower.end(error)

    def end_all(self, error: FanlogError) -> None:
        """There will be no further connection."""
        for follower in list(self._by_key.values()):
            follower.end(error)

    # What the broker sends

    def delivered(self, key: int, batch: Batch) -> None:
        follower = self._by_key.get(key)
        if follower is not None:
            follower.delivered(batch)

    def heard(self, event: Event) -> None:
        """Any other event. Those that are for no follower are left out."""
        match event:
            case events.Ended(key, error) | events.RequestFailed(_, error, key):
                self.end(key, error)
            case _:
                hand_over = _HAND_OVER.get(type(event))
                if hand_over is None:
                    return
                key, content = cast("tuple[int, Any]", event)
                follower = self._by_key.get(key)
                if follower is not None:
                    hand_over(follower, content)


_HAND_OVER: dict[type, Callable[[ClientFollower, Any], None]] = {
    events.MessagesMissed: lambda follower, gap: follower.missed_some(gap),
    events.TopicJoined: lambda follower, joined: follower.joined(joined),
    events.TopicLeft: lambda follower, left: follower.left(left),
    events.Noticed: lambda follower, notice: follower.noticed(notice),
    events.Revoked: lambda follower, revoke: follower.revoked(revoke),
    events.Leased: lambda follower, lease: follower.leased(lease),
}
