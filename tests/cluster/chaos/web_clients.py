"""Web clients while a cluster is treated badly: requests that are repeated with the same
`Idempotency-Key`, and a reader of server-sent events that resumes at its last event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import aiohttp

from tests.cluster.workload import SEGMENT_BYTES, Workload

TOPIC = "web"
_PAUSE_SECONDS = 0.05
_TIMEOUT_SECONDS = 5.0


class WebClients:
    """One posts, one follows, each on a node, and on the next one when that fails."""

    def __init__(self, workload: Workload, addresses: Sequence[tuple[str, int]]) -> None:
        self._workload = workload
        self._addresses = addresses
        # What was posted, in this order, with its offset.
        self.answered: list[tuple[int, bytes]] = []
        self.heard: list[tuple[int, bytes]] = []
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return self._tasks

    async def start(self) -> None:
        async with self._workload.connect() as client:
            await client.create_topic(TOPIC, durability="fsync", segment_bytes=SEGMENT_BYTES)
        self._tasks = [asyncio.create_task(self._post()), asyncio.create_task(self._follow())]

    def _url(self, turn: int, what: str) -> str:
        host, port = self._addresses[turn % len(self._addresses)]
        return f"http://{host}:{port}/v1/topics/{TOPIC}/{what}"

    async def _post(self) -> None:
        turn = 0
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._over.is_set():
                value = b"%d" % len(self.answered)
                headers = {"Idempotency-Key": f"post-{value.decode()}"}
                url = self._url(turn, "messages?raw=true")
                try:
                    async with session.post(url, data=value, headers=headers) as answer:
                        said = await answer.json()
                        assert answer.status in (200, 500, 502, 503, 504, 507), said
                        if answer.status == 200:
                            self.answered.append((said["published"][0]["offset"], value))
                        else:
                            turn += 1
                except (aiohttp.ClientError, TimeoutError):
                    turn += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        turn, last = 1, ""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                headers = {"Last-Event-ID": last} if last else {}
                try:
                    url = self._url(turn, "stream?start=earliest")
                    async with session.get(url, headers=headers) as answer:
                        if answer.status == 200:
                            last = await self._take(answer, last)
                except (aiohttp.ClientError, TimeoutError):
                    pass
                turn += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _take(self, answer: aiohttp.ClientResponse, last: str) -> str:
        """Takes events until the connection ends. The last one's id."""
        event, seen = "", last
        try:
            async for line in answer.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    seen = value
                elif name == "data" and not event:
                    message = json.loads(value)
                    self.heard.append((message["offset"], _bytes_of(message)))
                elif name == "data":
                    assert event != "gap", f"Web: a gap: {value}"
                elif not name:
                    event, last = "", seen
        except (aiohttp.ClientError, TimeoutError):
            pass
        return last

    async def finish(self) -> None:
        self._over.set()
        posting, following = self._tasks
        await posting
        wanted = set(self.answered)
        await self._workload.until(lambda: wanted <= set(self.heard), "the web reader has all")
        following.cancel()

    async def check(self, url: str) -> None:
        assert self.answered, "Web: nothing was posted"
        found = await self._workload.read_all(url, TOPIC, 0)
        values = [value for _, value in found]
        assert len(set(values)) == len(values), "Web: posted once and there twice"
        assert set(self.answered) <= set(found), "Web: answered and lost"
        assert values == sorted(values, key=int), "Web: the order is not that of posting"
        assert self.heard == found[: len(self.heard)], "Web: events are not what is stored"

    def __str__(self) -> str:
        return f"web {len(self.answered)} posted, {len(self.heard)} heard"


def _bytes_of(message: dict[str, object]) -> bytes:
    return str(message.get("text", message.get("json"))).encode()
