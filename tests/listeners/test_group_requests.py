"""Groups over a connection: members that are told much at once, and those that are cut off."""

from __future__ import annotations

import asyncio

from fanlog.broker.messages.topics import BrokerSubscription, Cursor
from fanlog.broker.ports import SendBuffer
from fanlog.client.core.handshake import hello
from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import Claim, JoinGroup
from fanlog.listeners.native import NativeSession
from tests.broker.stage import Stage, stage
from tests.listeners.peers import request


class Tight:
    """A way out that takes so many bytes more, and then is full."""

    def __init__(self, on: Stage) -> None:
        self.session = NativeSession(on.core, self, ListenerOptions())
        self.room: int | None = None
        self.evicted: FanlogError | None = None
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []

    def send(self, piece: SendBuffer) -> int:
        return len(piece)

    def write(self, data: bytes) -> None:
        if self.room is not None:
            self.room -= len(data)

    def respond(self, buffers: list[SendBuffer]) -> None:
        self.write(b"".join(buffers))

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        self.feed = subscription

    def hold(self, piece: SendBuffer, sent: int) -> None: ...
    def lost(self, fault: Exception) -> None: ...
    def resume(self) -> None: ...
    def full(self) -> bool:
        return self.room is not None and self.room < 0

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self.evicted = error
        self.finish()

    def finish(self, why: str = "") -> None:
        self.session.closed()


async def test_a_member_that_is_cut_off_while_it_joins_does_not_keep_its_seat() -> None:
    with stage() as on:
        on.core.open_topic("t", create=True)
        tight = Tight(on)
        tight.session.feed(hello("tight"))
        wanted = JoinGroup(group="g", member="m", target="t")
        tight.session.feed(request(FrameKind.JOIN_GROUP, wanted, aux=1))
        on.run()
        # The first member hears that it is replaced, and then there is no room for another word.
        tight.room = 0
        again = JoinGroup(group="g", member="m", target="t", claims=(Claim("gone", 0, 0),))
        tight.session.feed(request(FrameKind.JOIN_GROUP, again, aux=2))
        assert tight.evicted is not None
        group = on.core.groups.find("g")
        assert group is not None
        assert group.members["m"].subscription is None


async def test_a_member_is_told_of_any_number_of_topics_at_once_but_not_without_end() -> None:
    with stage() as on:
        for i in range(100):
            on.core.open_topic(f"many.{i}", create=True)
        tight = Tight(on)
        tight.session.feed(hello("tight"))
        wanted = JoinGroup(group="g", member="m", target="many.>", wildcard=True)
        tight.room = 100
        tight.session.feed(request(FrameKind.JOIN_GROUP, wanted, aux=1))
        on.run()
        assert tight.evicted is None
        assert tight.room < -1000
        # The next turn comes, and it has taken nothing of it.
        await asyncio.sleep(0)
        on.core.open_topic("many.more", create=True)
        on.run()
        assert tight.evicted is None
        room = tight.room
        on.runtime.time_us += 29_000_000
        on.core.tick()
        on.run()
        assert (tight.evicted, tight.room) == (None, room)
        on.runtime.time_us += 1_000_000
        on.core.tick()
        on.run()
        assert tight.evicted is not None
