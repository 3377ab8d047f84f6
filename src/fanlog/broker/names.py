"""Topic names and wildcards. Names are tokens with dots between; `*` stands for one token, `>`
for one or more at the end. A tree of tokens finds what matches without looking at the rest."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from fanlog.errors import InvalidNameError, TopicNotFoundError
from fanlog.format.dead_letters import TOPIC_PREFIX as DEAD_LETTER_PREFIX
from fanlog.format.patterns import ONE, REST, has_wildcard, is_pattern, misplaced_wildcard
from fanlog.model import HIDDEN_PREFIXES, INTERNAL_PREFIX, STREAM_PREFIX, TOPIC_NAME_BYTES_MAX

T = TypeVar("T")


def check_name(name: str) -> str:
    """The name, if it can be a topic's."""
    size = len(name.encode(errors="surrogateescape"))
    if not 1 <= size <= TOPIC_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"A topic's name has 1 to {TOPIC_NAME_BYTES_MAX} bytes, not {size}: choose another."
        )
    if any(unicodedata.category(c) == "Cc" for c in name):
        raise InvalidNameError(f"The topic name {name!r} has a control character; leave it out.")
    if is_pattern(name):
        raise InvalidNameError(f"{name!r} is a pattern: * and > are for readers. Name one topic.")
    if has_wildcard(name):
        raise InvalidNameError(
            f"{name!r} can't be a topic's name: * and > are for readers' patterns, such as "
            "orders.* and orders.>. Name one topic without them."
        )
    return name


def check_public_name(name: str) -> str:
    return check_name(check_not_internal(name))


def check_not_internal(name: str) -> str:
    """The name, if it is not that of one of the broker's own topics."""
    if name.startswith(INTERNAL_PREFIX):
        raise InvalidNameError(
            f"The name {name!r} can't be used: names that begin with {INTERNAL_PREFIX!r} are the "
            "broker's own. Choose another."
        )
    return name


def is_hidden(name: str, pattern: str) -> bool:
    """Whether a pattern leaves a topic out, whatever its wildcards match: an inbox, or a resumable
    stream, and the pattern does not begin like one."""
    return any(
        name.startswith(prefix) and not pattern.startswith(prefix) for prefix in HIDDEN_PREFIXES
    )


def check_pattern(pattern: str) -> str:
    """The pattern, or the name of one topic, if a reader can follow it."""
    if not pattern or len(pattern.encode(errors="surrogateescape")) > TOPIC_NAME_BYTES_MAX:
        raise InvalidNameError(
            f"A pattern has 1 to {TOPIC_NAME_BYTES_MAX} bytes: use a shorter one."
        )
    wrong = misplaced_wildcard(pattern)
    if wrong:
        raise InvalidNameError(wrong)
    return pattern


def check_target(target: str, *, wildcard: bool) -> str:
    """What a reader wants to follow, if it can: a pattern with `wildcard`, else one topic."""
    if wildcard:
        return check_pattern(target)
    wrong = "" if is_pattern(target) else misplaced_wildcard(target)
    if wrong:
        raise InvalidNameError(wrong)
    return check_name(target)


def missing_topic(name: str, *, creatable: bool = True) -> TopicNotFoundError:
    """The error of a missing topic: it says how such a topic is created."""
    if is_pattern(name):
        return TopicNotFoundError(f"{name!r} is a pattern; here one topic must be named.")
    if has_wildcard(name):
        return TopicNotFoundError(f"There is no topic {misplaced_wildcard(name)}")
    if name.startswith(INTERNAL_PREFIX):
        return TopicNotFoundError(
            f"There is no topic {name!r} yet: the broker makes its own topics when it has "
            "something to write there."
        )
    if name.startswith(STREAM_PREFIX):
        return TopicNotFoundError(
            f"There is no stream {name.removeprefix(STREAM_PREFIX)!r}. It has expired, the broker "
            "was restarted and the stream lived in memory, or nobody has begun it. A writer begins "
            "one with client.stream(...)."
        )
    if name.startswith(DEAD_LETTER_PREFIX):
        return TopicNotFoundError(
            f"There is no topic {name!r} yet: it appears by itself with the first dead letter. See "
            "which there are with: fanlog dead list"
        )
    hint = f"; or create it with: fanlog topic create {shlex.quote(name)}" if creatable else ""
    return TopicNotFoundError(
        f"There is no topic {name!r}. List the topics with: fanlog topic list{hint}"
    )


class _Node(Generic[T]):
    __slots__ = ("children", "items")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] | None = None
        self.items: list[T] | None = None

    def child(self, token: str) -> _Node[T] | None:
        return None if self.children is None else self.children.get(token)

    def below(self) -> Iterable[_Node[T]]:
        return () if self.children is None else self.children.values()


class NameTree(Generic[T]):
    """Items under names or under patterns, found by the other of the two."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, name: str, item: T) -> None:
        node = self._root
        for token in name.split("."):
            if node.children is None:
                node.children = {}
            node = node.children.setdefault(token, _Node())
        if node.items is None:
            node.items = []
        node.items.append(item)

    def remove(self, name: str, item: T) -> None:
        path: list[tuple[_Node[T], str]] = []
        node = self._root
        for token in name.split("."):
            path.append((node, token))
            child = node.child(token)
            if child is None:
                raise KeyError(name)
            node = child
        if node.items is not None:
            node.items.remove(item)
            node.items = node.items or None
        for parent, token in reversed(path):
            child = parent.child(token)
            if child is None or child.items is not None or child.children:
                return
            if parent.children is not None:
                del parent.children[token]

    def at(self, name: str) -> Iterator[T]:
        """Items under this very name or pattern."""
        node: _Node[T] | None = self._root
        for token in name.split("."):
            node = node.child(token)
            if node is None:
                return
        yield from node.items or ()

    def matching(self, pattern: str) -> Iterator[T]:
        """Items under names that fit this pattern."""
        yield from self._matching(self._root, pattern.split("."), 0)

    def _matching(self, node: _Node[T], tokens: list[str], at: int) -> Iterator[T]:
        if at == len(tokens):
            yield from node.items or ()
        elif tokens[at] == REST:
            for child in node.below():
                yield from self._all_under(child)
        elif tokens[at] == ONE:
            for child in node.below():
                yield from self._matching(child, tokens, at + 1)
        elif (child := node.child(tokens[at])) is not None:
            yield from self._matching(child, tokens, at + 1)

    def _all_under(self, node: _Node[T]) -> Iterator[T]:
        stack = [node]
        while stack:
            node = stack.pop()
            yield from node.items or ()
            stack.extend(node.below())

    def fitting(self, name: str) -> Iterator[T]:
        """Items under patterns that this name fits."""
        yield from self._fitting(self._root, name.split("."), 0)

    def _fitting(self, node: _Node[T], tokens: list[str], at: int) -> Iterator[T]:
        if at == len(tokens):
            yield from node.items or ()
            return
        rest = node.child(REST)
        if rest is not None:
            yield from rest.items or ()
        for token in {tokens[at], ONE}:
            child = node.child(token)
            if child is not None and token != REST:
                yield from self._fitting(child, tokens, at + 1)
