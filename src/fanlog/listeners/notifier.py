"""The outlet of a native session, and the notices that it sends to the reader of a subscription."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from fanlog.broker.messages.topics import BrokerSubscription, Outlet
from fanlog.broker.ports import SendBuffer
from fanlog.errors import FanlogError, LimitError, RateLimitedError
from fanlog.format import messages
from fanlog.format.frames import FrameKind, message_frame
from fanlog.listeners.faults import NOTHING_TAKEN
from fanlog.model import Gap


class NativeOutlet(Outlet, Protocol):
    def write(self, data: bytes) -> None: ...
    def respond(self, buffers: list[SendBuffer]) -> None: ...
    def full(self) -> bool:
        """Whether the peer has to take answers before it may ask on."""
        ...

    def resume(self) -> None:
        """Feeds the session what it has kept."""
        ...

    def finish(self, why: str = "") -> None: ...


class Notifier:
    """Tells one subscription's reader what happens to it. `subscriptions` are all those of its
    connection."""

    __slots__ = ("_in_turn", "_key", "_outlet", "_subscriptions")

    def __init__(
        self, outlet: NativeOutlet, key: int, subscriptions: dict[int, BrokerSubscription]
    ) -> None:
        self._outlet = outlet
        self._key = key
        self._subscriptions = subscriptions
        self._in_turn = False

    def gap(self, gap: Gap, number: int) -> None:
        notice = messages.GapNotice(number, gap.partition, gap.first, gap.next, gap.reason)
        self._tell(FrameKind.GAP, notice)

    def joined(self, joined: messages.Joined) -> None:
        self._tell(FrameKind.JOINED, joined)

    def left(self, number: int, name: str) -> None:
        self._tell(FrameKind.LEFT, messages.Left(number, name))

    def notice(self, notice: messages.Notice) -> None:
        self._tell(FrameKind.NOTICE, notice)

    def revoke(self, revoke: messages.Revoke) -> None:
        self._tell(FrameKind.REVOKE, revoke)

    def busy(self) -> bool:
        return self._outlet.full()

    def ended(self, error: FanlogError) -> None:
        self._subscriptions.pop(self._key, None)
        self._tell(FrameKind.ENDED, failure_of(error))

    def _tell(self, kind: FrameKind, notice: msgspec.Struct) -> None:
        """A reader that takes nothing does not get notices without end: it is disconnected, and
        comes back with its positions. The notices of one turn do not count, however many topics
        they are about: it can't have taken them yet."""
        if self._outlet.full() and not self._in_turn:
            self._outlet.evict(LimitError(NOTHING_TAKEN))
            return
        if not self._in_turn:
            self._in_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._outlet.write(message_frame(kind, notice, aux=self._key))

    def _end_turn(self) -> None:
        self._in_turn = False


def failure_of(fault: FanlogError) -> messages.ErrorAnswer:
    return messages.ErrorAnswer(
        fault.code,
        str(fault),
        getattr(fault, "first", 0),
        getattr(fault, "next", 0),
        retry_after(fault),
    )


def retry_after(fault: FanlogError) -> float:
    """When it is worth trying again; 0 where nobody knows."""
    return fault.retry_after_seconds if isinstance(fault, RateLimitedError) else 0.0
