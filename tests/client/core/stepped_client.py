"""A client that follows a broker in one thread, with no socket. Bytes move when the test says so,
and a connection may be cut at any byte in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from fanlog.client.core.client_core import ClientCore
from fanlog.client.core.events import Delivered
from fanlog.client.core.follower import ClientFollower, FollowerTable
from fanlog.client.core.states import ConnectionState
from fanlog.client.message import MessageBatch
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError
from fanlog.format import messages
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.node import Node
from tests.client.core.broker_session import node, session_of

_QUIET_TURNS = 4


class StepAnswer:
    """What became of a request. `opened` gets the payload before any later event."""

    def __init__(self, opened: Callable[[bytes], None] = lambda _: None) -> None:
        self._opened = opened
        self.payload: bytes | None = None
        self.error: FanlogError | None = None

    def answered(self, payload: bytes) -> None:
        self._opened(payload)
        self.payload = payload

    def failed(self, error: FanlogError) -> None:
        self.error = error


@dataclass
class RepeatedRequest:
    kind: FrameKind
    wanted: msgspec.Struct
    key: int
    answered: Callable[[bytes], None]
    answer: StepAnswer

    def is_answered(self) -> bool:
        error = self.answer.error
        if error is not None and not isinstance(error, ConnectionLostError):
            raise error
        return self.answer.payload is not None


class SteppedClient:
    """`written` is on its way to the broker, and what the broker has sent is in `wire.out`."""

    def __init__(self, running: Node) -> None:
        self.node = running
        self.core = ClientCore(ClientOptions())
        self.followers = FollowerTable()
        self.written = b""
        self.numbers: dict[str, int] = {}
        self._repeated: list[RepeatedRequest] = []

    # The host of followers

    @property
    def welcome(self) -> messages.Welcome | None:
        return self.core.welcome

    def write(self, data: bytes) -> None:
        self.written += data

    def decoded(self, batch: Batch) -> MessageBatch:
        return MessageBatch(batch)

    # The connection

    async def connect(self) -> None:
        """Connects; the followers are asked to be continued, and the answers are awaited."""
        self.session, self.wire = session_of(self.node)
        self.written = b""
        self.core.dial()
        self.write(self.core.greet(None, 0.0))
        await self.exchange()
        for follower in self.followers.attached():
            await self._ask(*follower.resuming(), follower)
        self.core.resumed()
        self._repeated = [request for request in self._repeated if not request.is_answered()]
        for request in self._repeated:
            request.answer = self.send(request.kind, request.wanted, request.key, request.answered)

    def lose(self) -> None:
        self.core.lose(None)
        self.session.closed()
        self.node.core.turns.end()

    async def attach(self, follower: ClientFollower) -> StepAnswer:
        return await self._ask(*self.followers.begin(follower), follower)

    async def _ask(
        self, kind: FrameKind, wanted: msgspec.Struct, follower: ClientFollower
    ) -> StepAnswer:
        answer = StepAnswer(partial(self.followers.opened, follower))
        _, data = self.core.ask(kind, wanted, answer, aux=follower.key)
        self.write(data)
        await self.exchange()
        if answer.error is not None:
            raise answer.error
        return answer

    async def ask(self, kind: FrameKind, wanted: msgspec.Struct, key: int = 0) -> bytes:
        """A request, and its answer."""
        answer = self.send(kind, wanted, key)
        await self.exchange()
        if answer.error is not None:
            raise answer.error
        assert answer.payload is not None
        return answer.payload

    def request(
        self,
        kind: FrameKind,
        wanted: msgspec.Struct,
        key: int,
        answered: Callable[[bytes], None],
    ) -> None:
        """A request that is sent again on each new connection until it is answered."""
        answer = self.send(kind, wanted, key, answered)
        self._repeated.append(RepeatedRequest(kind, wanted, key, answered, answer))

    def send(
        self,
        kind: FrameKind,
        wanted: msgspec.Struct,
        key: int = 0,
        answered: Callable[[bytes], None] = lambda _: None,
    ) -> StepAnswer:
        """A request that is on its way."""
        answer = StepAnswer(answered)
        _, data = self.core.ask(kind, wanted, answer, aux=key)
        self.write(data)
        return answer

    async def exchange(self) -> None:
        """Moves all bytes there and back."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            quiet = 0 if self.written or self.wire.out else quiet + 1
            self.move(len(self.written), None)
            # Some requests of the broker take more than one turn of its loop.
            await asyncio.sleep(0)

    def move(self, there: int, back: int | None) -> None:
        """Moves so many bytes to the broker, and so many of its answers back."""
        data, self.written = self.written[:there], self.written[there:]
        self.session.feed(data)
        self.node.core.turns.end()
        out = self.wire.out if back is None else self.wire.out[:back]
        self.wire.out = self.wire.out[len(out) :]
        if self.core.state is ConnectionState.LOST:
            return
        for event in self.core.feed(out, 0.0):
            if isinstance(event, Delivered):
                self.followers.delivered(event.subscription, event.batch)
            else:
                self.followers.heard(event)

    # For tests

    async def create(self, name: str) -> int:
        """Makes a topic; its number."""
        opened = decode(
            messages.TopicOpened,
            await self.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic(name, create=True)),
        )
        self.numbers[name] = opened.number
        return opened.number

    def publish(self, name: str, *values: bytes) -> None:
        """Stores values as one batch, over another connection."""
        session, wire = session_of(self.node)
        other = ClientCore(ClientOptions())
        other.dial()
        batch = encode_batch(values, topic=self.numbers[name])
        session.feed(other.greet(None, 0.0) + batch)
        self.node.core.turns.end()
        assert wire.ended is None
        session.closed()


def stepped(steps: Callable[[SteppedClient], Awaitable[None]]) -> None:
    """Runs a test against a broker in this thread."""

    async def run() -> None:
        async with node() as running:
            client = SteppedClient(running)
            await client.connect()
            await steps(client)

    asyncio.run(run())


def stored_batch(
    first: int, *values: bytes, topic: int = 1, partition: int = 0, epoch: int = 1
) -> Batch:
    """A batch as the broker sends it."""
    data = encode_batch(values, partition=partition)
    return Batch(stamp(data, base_offset=first, append_time_us=1, leader_epoch=epoch, topic=topic))
