"""Dead letters for the blocking client: what `dead_letters.py` does, each call on the client's own
loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fanlog.client import dead_letters
from fanlog.client.blocking.loop import LoopThread
from fanlog.client.dead_letters import DeadLetter, DeadLetterTopic, Progress, Where

Letters = list[DeadLetter]


class BlockingDeadLetters:
    """`client.dead_letters`; see the asyncio client."""

    def __init__(self, loop: LoopThread, letters: dead_letters.DeadLetters) -> None:
        self._loop = loop
        self._letters = letters

    def topics(self) -> list[DeadLetterTopic]:
        return self._loop.call(self._letters.topics())

    def scan(self, topic: str, where: Where | None = None) -> Iterator[DeadLetter]:
        return self._loop.each(self._letters.scan(topic, where))

    def list(
        self, topic: str, *, after: str = "", limit: int = 100, where: Where | None = None
    ) -> Letters:
        return self._loop.call(self._letters.list(topic, after=after, limit=limit, where=where))

    def show(self, topic: str, id: str) -> DeadLetter:
        return self._loop.call(self._letters.show(topic, id))

    def replay(
        self,
        topic: str,
        ids: Iterable[str] | None = None,
        *,
        to: str = "",
        where: Where | None = None,
        progress: Progress | None = None,
    ) -> int:
        return self._loop.call(
            self._letters.replay(topic, ids, to=to, where=where, progress=progress)
        )

    def delete(
        self,
        topic: str,
        ids: Iterable[str] | None = None,
        *,
        where: Where | None = None,
        progress: Progress | None = None,
    ) -> int:
        return self._loop.call(self._letters.delete(topic, ids, where=where, progress=progress))

    def purge(self, topic: str) -> int:
        return self._loop.call(self._letters.purge(topic))

    def export(self, topic: str, where: Where | None = None) -> Iterator[bytes]:
        return self._loop.each(self._letters.export(topic, where))
