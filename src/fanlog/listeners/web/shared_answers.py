"""Answers that several dashboards share. An expensive answer is computed once for all requests
within a few seconds.

Law: this takes a small part of the loop's time, however many requests come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

# An answer is kept for this time, or for a multiple of the time that it took, up to a bound.
_GOOD_SECONDS = 2.0
_TIMES = 30.0
_GOOD_SECONDS_MAX = 10.0
# Answers to different questions. Past it nothing is kept: nobody fills the memory with questions.
_ANSWERS_MAX = 100


@dataclass(slots=True)
class _SharedAnswer(Generic[T]):
    task: asyncio.Task[T]
    begun: float
    good_until: float = float("inf")


class SharedAnswers(Generic[T]):
    """One answer for each owner, such as a listener, and each question. It is forgotten when it is
    too old."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[object, dict[Hashable, _SharedAnswer[T]]] = (
            WeakKeyDictionary()
        )

    async def get(
        self, owner: object, find: Callable[[], Coroutine[Any, Any, T]], key: Hashable = None
    ) -> T:
        """The answer that is kept, or a new one. A caller that is cancelled does not stop it for
        the others. `key` has all that the answer depends on, such as the account."""
        loop = asyncio.get_running_loop()
        answers = self._kept.setdefault(owner, {})
        kept = answers.get(key)
        if kept is None or loop.time() >= kept.good_until:
            if len(answers) >= _ANSWERS_MAX:
                return await find()
            kept = answers[key] = _SharedAnswer(loop.create_task(find()), loop.time())
            mine = kept
            mine.task.add_done_callback(lambda task: _found(answers, key, mine))
        return await asyncio.shield(kept.task)

    def forget(self, owner: object) -> None:
        """Something has changed: the next answer must show that."""
        self._kept.pop(owner, None)


def _found(
    answers: dict[Hashable, _SharedAnswer[Any]], key: Hashable, kept: _SharedAnswer[Any]
) -> None:
    if kept.task.cancelled() or kept.task.exception() is not None:
        _drop(answers, key, kept)
        return
    loop = kept.task.get_loop()
    took = loop.time() - kept.begun
    good = min(max(_GOOD_SECONDS, _TIMES * took), _GOOD_SECONDS_MAX)
    kept.good_until = loop.time() + good
    loop.call_later(good, _drop, answers, key, kept)


def _drop(
    answers: dict[Hashable, _SharedAnswer[Any]], key: Hashable, kept: _SharedAnswer[Any]
) -> None:
    if answers.get(key) is kept:
        del answers[key]
