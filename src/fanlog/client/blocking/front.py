"""The parts of the blocking client: fronts whose calls run on the client's own loop.

    class BlockingGroups(LoopFront[Groups]):
        list = blocking(Groups.list)

They have the types and the docstrings of the asyncio methods (see `client/forwarding.py`), with the
examples written without asyncio."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from fanlog.client.blocking.loop import LoopThread
from fanlog.client.forwarding import Front, standing_for

P = ParamSpec("P")
B = TypeVar("B")
F = TypeVar("F")
R = TypeVar("R")

# In examples (`>>> await x`), and in code that a sentence quotes.
_EXAMPLE = re.compile(r"^\s*(?:>>>|\.\.\.) .*$", re.MULTILINE)
_QUOTED = re.compile(r"`(?:await|async) ")
_ITERATED = re.compile(r"Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]$")
_ASYNCHRONOUS = re.compile(r"\b(?:await|async) ")


class LoopFront(Front[B]):
    """Stands in front of an object of the asyncio client, which lives on `_loop`."""

    __slots__ = ("_loop",)

    def __init__(self, loop: LoopThread, behind: B) -> None:
        super().__init__(behind)
        self._loop = loop


def blocking(
    method: Callable[Concatenate[B, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method of the object behind. The call returns when it is done."""
    name = method.__name__

    def called(front: Any, *given: P.args, **named: P.kwargs) -> R:
        return front._loop.call(getattr(front._behind, name)(*given, **named))

    return as_blocking(method, called)


def each(
    method: Callable[Concatenate[B, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """The method of the object behind. Its items are fetched one by one."""
    name = method.__name__

    def called(front: Any, *given: P.args, **named: P.kwargs) -> Iterator[R]:
        return front._loop.each(getattr(front._behind, name)(*given, **named))

    returned = str(inspect.signature(method).return_annotation)
    return as_blocking(method, called, returns=_ITERATED.sub(r"Iterator[\1]", returned))


def posted(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[Any, P], None]:
    """The method of the object behind. The loop does it soon, and nobody waits."""
    name = method.__name__

    def called(front: Any, *given: P.args, **named: P.kwargs) -> None:
        front._loop.post(partial(getattr(front._behind, name), *given, **named))

    return as_blocking(method, called)


def fronted(
    method: Callable[Concatenate[B, P], R], kind: Callable[[LoopThread, R], F]
) -> Callable[Concatenate[Any, P], F]:
    """The method of the object behind, whose result gets a front of its own."""
    name = method.__name__

    def called(front: Any, *given: P.args, **named: P.kwargs) -> F:
        return kind(front._loop, getattr(front._behind, name)(*given, **named))

    return as_blocking(method, called, returns=kind.__name__)


def like(
    method: Callable[Concatenate[B, P], Coroutine[Any, Any, R]],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """For a function that does more than pass a call on. Its arguments are those of the method."""
    return lambda called: as_blocking(method, called)


def as_blocking(
    method: Callable[..., Any], called: Callable[Concatenate[Any, P], R], *, returns: str = ""
) -> Callable[Concatenate[Any, P], R]:
    """The function `called` as the blocking form of a method."""
    made = standing_for(method, called, returns=returns)
    made.__doc__ = blocking_docstring(method.__doc__ or "")
    return made


def blocking_docstring(docstring: str) -> str:
    """A docstring of the asyncio client, rewritten for the blocking one."""
    examples = _EXAMPLE.sub(lambda line: _ASYNCHRONOUS.sub("", line[0]), docstring)
    return _QUOTED.sub("`", examples)
