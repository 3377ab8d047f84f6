"""Redis clients while a cluster is treated badly. PUBLISH can't be repeated safely: what had no
answer may be there or not, and is never sent again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.cluster.workload import SEGMENT_BYTES, Workload

CHANNEL = "news"
_PAUSE_SECONDS = 0.02
_TIMEOUT_SECONDS = 5.0


class RedisClients:
    """One publishes, one follows, each on a node, and on the next one when that fails."""

    def __init__(self, workload: Workload, addresses: Sequence[tuple[str, int]]) -> None:
        self._workload = workload
        self._addresses = addresses
        self.answered: list[bytes] = []
        self.unknown: set[bytes] = set()
        self.heard = 0
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return self._tasks

    async def start(self) -> None:
        async with self._workload.connect() as client:
            await client.create_topic(CHANNEL, durability="os", segment_bytes=SEGMENT_BYTES)
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._follow())]

    def _connect(self, turn: int) -> Redis:
        host, port = self._addresses[turn % len(self._addresses)]
        return Redis(
            host=host,
            port=port,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    async def _publish(self) -> None:
        number = turn = 0
        while not self._over.is_set():
            client = self._connect(turn)
            try:
                while not self._over.is_set():
                    value = b"%d" % number
                    number += 1
                    self.unknown.add(value)
                    await client.publish(CHANNEL, value)
                    self.unknown.discard(value)
                    self.answered.append(value)
                    await asyncio.sleep(_PAUSE_SECONDS)
            except (RedisError, OSError):
                turn += 1
                await asyncio.sleep(_PAUSE_SECONDS * 10)
            finally:
                await client.aclose()

    async def _follow(self) -> None:
        turn = 1
        while not self._over.is_set():
            client = self._connect(turn)
            reader = client.pubsub(ignore_subscribe_messages=True)
            last = -1
            try:
                await reader.subscribe(CHANNEL)
                while not self._over.is_set():
                    message = await reader.get_message(timeout=0.5)
                    if message is None:
                        continue
                    self.heard += 1
                    number = int(message["data"])
                    if number > last:
                        last = number
                    else:
                        # A node that stood still may publish what it had taken later than another
                        # node published the next ones: whoever had no answer was told nothing.
                        late = message["data"] in self.unknown
                        assert late, f"Redis: {number} came after {last}"
            except (RedisError, OSError):
                turn += 1
                await asyncio.sleep(_PAUSE_SECONDS * 10)
            finally:
                await reader.aclose()
                await client.aclose()

    async def finish(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def check(self, url: str) -> None:
        assert self.answered, "Redis: nothing was published"
        assert self.heard, "Redis: nothing was heard"
        found = [value for _, value in await self._workload.read_all(url, CHANNEL, 0)]
        twice = [value for value, count in Counter(found).items() if count > 1]
        assert not twice, f"Redis: published once and there twice: {twice}"
        lost = set(self.answered) - set(found)
        assert not lost, f"Redis: answered and lost: {sorted(lost)}"
        strange = set(found) - set(self.answered) - self.unknown
        assert not strange, f"Redis: never published: {strange}"
        answered = set(self.answered)
        order = [value for value in found if value in answered]
        assert order == self.answered, "Redis: the order is not that of publishing"

    def __str__(self) -> str:
        return f"Redis {len(self.answered)} published, {self.heard} heard"
