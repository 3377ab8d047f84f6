"""A broker's session with no socket, for tests that talk to it as a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fanlog.broker.messages.topics import BrokerSubscription, Cursor
from fanlog.broker.ports import SendBuffer
from fanlog.config import Config, ListenerOptions
from fanlog.errors import FanlogError
from fanlog.listeners.native import NativeSession
from fanlog.node import Node


class Wire:
    """The broker's way out, into a list of bytes."""

    def __init__(self) -> None:
        self.out = b""
        self.ended: FanlogError | str | None = None
        self.blocked = False
        self.feed: BrokerSubscription | None = None
        self.waiting: list[Cursor] = []
        self.session: NativeSession

    def write(self, data: SendBuffer) -> None:
        self.out += bytes(data)

    def send(self, piece: SendBuffer) -> int:
        self.write(piece)
        return len(piece)

    def hold(self, piece: SendBuffer, sent: int) -> None:
        raise AssertionError("this wire takes everything")

    def push(self, subscription: BrokerSubscription, pieces: Iterable[memoryview]) -> None:
        if self.feed is not subscription:
            self.feed = subscription
            self.write(self.session.marker(subscription))
        for piece in pieces:
            self.write(piece)

    def respond(self, buffers: list[SendBuffer]) -> None:
        for buffer in buffers:
            self.write(buffer)

    def lost(self, fault: Exception) -> None:
        raise AssertionError(fault)

    def resume(self) -> None:
        self.session.feed(b"")

    def evict(self, error: FanlogError, subscription: BrokerSubscription | None = None) -> None:
        self.ended = error

    def full(self) -> bool:
        return False

    def finish(self, why: str = "") -> None:
        self.ended = "goodbye"


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    running = Node(None, Config())
    running.start()
    try:
        yield running
    finally:
        await running.stop()


def session_of(running: Node) -> tuple[NativeSession, Wire]:
    wire = Wire()
    session = NativeSession(running.core, wire, ListenerOptions())
    wire.session = session
    return session, wire
