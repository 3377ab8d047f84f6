"""The embedded broker for plain code: `fanlog.sync.Broker`. It runs on a thread of its own, and its
methods may be called from any thread.

Law: what was acknowledged is as safe as with `fanlog.Broker`, also if the program ends without
`close`: the interpreter closes it at exit."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fanlog import node
from fanlog.client.blocking.client import BlockingClient
from fanlog.client.blocking.loop import LoopThread
from fanlog.config import Config
from fanlog.listeners.redis.server import RedisListener
from fanlog.listeners.server import NativeListener

T = TypeVar("T")


class BlockingBroker(BlockingClient):
    """A broker inside this program, with the API of `fanlog.sync.connect` and no socket. It starts
    when it is made.

    >>> with fanlog.sync.Broker("data/") as broker:  # doctest: +SKIP
    ...     broker.publish("greetings", "hello")

    Without a folder everything stays in memory. `listen()` opens the network as well.
    """

    def __init__(
        self, folder: str | Path | None = None, config: Config | None = None, **options: Any
    ) -> None:
        loop = LoopThread("fanlog-broker")
        try:
            broker = loop.call(_started(lambda: self._make(folder, config, options)))
        except BaseException:
            loop.stop()
            raise
        super().__init__(loop, broker, broker.stop)
        self._broker = broker
        atexit.register(self.close)

    def _make(
        self, folder: str | Path | None, config: Config | None, options: dict[str, Any]
    ) -> node.Broker:
        return node.Broker(folder, config, **options)

    def close(self) -> None:
        """Waits for what was published, makes it durable, and stops the broker. Raises what `send`
        ran into. Closing again does nothing."""
        atexit.unregister(self.close)
        super().close()

    def listen(self) -> NativeListener:
        """Opens the native listener as well, so that other processes can connect."""
        return self._on_loop(self._broker.listen)

    def listen_redis(self) -> RedisListener:
        """Opens the Redis listener as well."""
        return self._on_loop(self._broker.listen_redis)

    def _on_loop(self, call: Callable[[], T]) -> T:
        async def called() -> T:
            return call()

        return self._loop.call(called())


async def _started(make: Callable[[], node.Broker]) -> node.Broker:
    broker = make()
    await broker.start()
    return broker
