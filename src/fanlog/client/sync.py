"""The blocking client: the asyncio client on a thread of its own, so that it pings, resumes and
re-sends while the program is busy. Messages cross over in whole batches, not one by one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from fanlog.client import aio
from fanlog.client.core import Fetched
from fanlog.client.message import Message, MessageBatch
from fanlog.client.publishing import Headers, Value
from fanlog.client.starts import StartLike
from fanlog.client.subscription import OnGap
from fanlog.client.subscription import Subscription as AsyncSubscription
from fanlog.config import ClientOptions
from fanlog.errors import ClosedError, FanlogError
from fanlog.format.messages import BrokerStatus, Position
from fanlog.model import Receipt, TopicInfo, TopicSettings

T = TypeVar("T")


class _LoopThread:
    """An event loop that runs beside the program."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fanlog-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.running:
            work.close()
            raise ClosedError("The client was closed.")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            waiting.cancel()
            raise

    def post(self, call: Callable[[], None]) -> None:
        if not self.running:
            raise ClosedError("The client was closed.")
        self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class Client:
    """A connection to a broker for plain code. Methods may be called from any thread."""

    def __init__(self, loop: _LoopThread, client: aio.Client) -> None:
        self._loop = loop
        self._client = client
        self._outgoing: deque[tuple[Any, ...]] = deque()
        self._handing_over = False
        self._hand_overs: set[asyncio.Task[None]] = set()
        self._one_hand_over = asyncio.Lock()
        self._send_error: FanlogError | None = None

    def close(self) -> None:
        """Waits for what was published, then says goodbye. Raises what `send` ran into."""
        if not self._loop.running:
            return
        try:
            self._loop.call(self._close())
        finally:
            self._loop.stop()

    async def _close(self) -> None:
        await self._hand_over()
        await self._client.close()
        self._raise_send_error()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Publishing

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Publishes one message and returns once the broker has it."""
        return self._loop.call(
            self._client.publish(
                topic,
                value,
                key=key,
                headers=headers,
                event_time=event_time,
                partition=partition,
            )
        )

    def publish_many(
        self, topic: str, values: list[bytes], *, key: bytes | str | None = None
    ) -> list[Receipt]:
        """Publishes values in order and waits for all of them."""
        return self._loop.call(self._client.publish_many(topic, values, key=key))

    def send(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        event_time: dt.datetime | int | None = None,
        partition: int | None = None,
    ) -> None:
        """Publishes without waiting; `flush` waits, and raises what went wrong."""
        self._outgoing.append((topic, value, key, headers, event_time, partition))
        if len(self._outgoing) > _OUTGOING_MAX:
            self._loop.call(self._hand_over())
        elif not self._handing_over:
            self._handing_over = True
            self._loop.post(self._hand_over_soon)

    def _hand_over_soon(self) -> None:
        self._handing_over = False
        task = asyncio.ensure_future(self._hand_over())
        self._hand_overs.add(task)
        task.add_done_callback(self._hand_overs.discard)

    async def _hand_over(self) -> None:
        """Gives all that waits to the client, one hand-over after the other: a flush that begins
        while a message waits for its topic must not overtake it."""
        async with self._one_hand_over:
            while self._outgoing:
                topic, value, key, headers, event_time, partition = self._outgoing.popleft()
                try:
                    await self._client.send(
                        topic,
                        value,
                        key=key,
                        headers=headers,
                        event_time=event_time,
                        partition=partition,
                    )
                except FanlogError as error:
                    self._send_error = self._send_error or error

    def _raise_send_error(self) -> None:
        error, self._send_error = self._send_error, None
        if error is not None:
            raise error

    def flush(self) -> None:
        """Waits until everything sent so far is acknowledged. Raises what `send` ran into."""
        self._loop.call(self._flush())

    async def _flush(self) -> None:
        await self._hand_over()
        try:
            await self._client.flush()
        except FanlogError:
            self._send_error = None
            raise
        self._raise_send_error()

    # Subscribing

    def subscribe(
        self,
        topic: str,
        *,
        start: StartLike = None,
        durable: str = "",
        policy: str = "catch-up",
        partitions: tuple[int, ...] | None = None,
        on_gap: OnGap | None = None,
        window_bytes: int | None = None,
    ) -> Subscription:
        """Follows a topic or a pattern; see the asyncio client."""
        subscription = self._client.subscribe(
            topic,
            start=start,
            durable=durable,
            policy=policy,
            partitions=partitions,
            on_gap=on_gap,
            window_bytes=window_bytes,
        )
        return Subscription(self._loop, subscription)

    def commit(self, durable: str, positions: tuple[Position, ...]) -> None:
        self._loop.call(self._client.commit(durable, positions))

    def committed(self, durable: str) -> tuple[Position, ...]:
        return self._loop.call(self._client.committed(durable))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> Fetched:
        """Pulls batches from an offset on."""
        return self._loop.call(
            self._client.fetch(
                topic, partition, offset, bytes_max=bytes_max, wait_seconds=wait_seconds
            )
        )

    # Topics

    def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        exist_ok: bool = False,
        **given: Any,
    ) -> TopicInfo:
        return self._loop.call(
            self._client.create_topic(name, settings, exist_ok=exist_ok, **given)
        )

    def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]:
        return self._loop.call(self._client.topics(pattern, internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        return self._loop.call(self._client.describe_topic(name))

    def delete_topic(self, name: str) -> None:
        self._loop.call(self._client.delete_topic(name))

    def find_offsets(self, topic: str, start: StartLike) -> dict[int, int]:
        return self._loop.call(self._client.find_offsets(topic, start))

    def status(self) -> BrokerStatus:
        return self._loop.call(self._client.status())


_OUTGOING_MAX = 10_000


class Subscription:
    """Iterate it for messages; `batches()` gives whole batches."""

    def __init__(self, loop: _LoopThread, subscription: AsyncSubscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._begun: Iterator[Message] = iter(())

    def start(self) -> None:
        self._loop.call(self._subscription.start())

    def close(self) -> None:
        self._loop.call(self._subscription.close())

    def __enter__(self) -> Subscription:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.next()
            except ClosedError:
                return

    def batches(self) -> Iterator[MessageBatch]:
        while True:
            try:
                yield self.next_batch()
            except ClosedError:
                return

    def next(self, timeout_seconds: float | None = None) -> Message:
        """The next message. Raises TimeoutError when none comes in time."""
        while True:
            for message in self._begun:
                self._subscription.took(message)
                return message
            self._begun = iter(self.next_batch(timeout_seconds).messages)

    def next_batch(self, timeout_seconds: float | None = None) -> MessageBatch:
        """The next batch as a whole. Raises TimeoutError when none comes in time."""
        return self._loop.call(self._subscription.next_batch(timeout_seconds))

    @property
    def gaps(self) -> int:
        return self._subscription.gaps

    @property
    def missed(self) -> int:
        return self._subscription.missed

    @property
    def positions(self) -> tuple[Position, ...]:
        return self._subscription.positions

    def commit(self, message: Message | None = None) -> None:
        """Makes the durable name continue after this message, or after all that were taken."""
        self._loop.call(self._subscription.commit(message))


def connect(
    url: str = "fanlog://127.0.0.1", options: ClientOptions | None = None, **given: Any
) -> Client:
    """Connects to a broker, for plain code.

    >>> with fanlog.sync.connect("fanlog://127.0.0.1:7420") as client:  # doctest: +SKIP
    ...     client.publish("greetings", "hello")
    """
    loop = _LoopThread()

    async def opening() -> aio.Client:
        return await aio.connect(url, options, **given)

    try:
        return Client(loop, loop.call(opening()))
    except BaseException:
        loop.stop()
        raise
