"""The assignment of partitions to members: a pure function of the members, the topics that each
follows, and the current owners.

Balanced: of two members that could read the same partition, neither has two more than the other.
Sticky: a partition moves only if its owner left, or if balance requires it.

Topics with the same set of members form one *class*; there are few classes. Work is per partition
and per class, never per pair of partitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import TypeVar

from fanlog.model import TopicPartition

T = TypeVar("T")
# A class is known by its members, one bit for each distinct set of topics.
_Class = int
# Partitions that are dealt with before the caller may do something else.
_STEP = 512


def assign(
    wants: Mapping[str, Set[str]],
    partitions: Sequence[TopicPartition],
    current: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """The owner of each partition. `wants` has the topics that each member follows.

    >>> assign({"a": {"t"}, "b": {"t"}}, [("t", 0), ("t", 1)], {("t", 0): "b", ("t", 1): "b"})
    {('t', 0): 'a', ('t', 1): 'b'}
    """
    return finished(assigning(wants, partitions, current))


def finished(steps: Generator[None, None, T]) -> T:
    """Takes all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def assigning(
    wants: Mapping[str, Set[str]],
    partitions: Sequence[TopicPartition],
    current: Mapping[TopicPartition, str],
) -> Generator[None, None, dict[TopicPartition, str]]:
    """The same in small steps, for a caller with other work. The arguments must not change
    meanwhile."""
    classes, readers = yield from _classes(wants)
    balance = _Balance(wants, readers)
    owner: dict[TopicPartition, str] = {}
    free: list[TopicPartition] = []
    yield
    tps = sorted(partitions)
    # From the last to the first: partitions to give away first are at the end.
    for some in _steps(reversed(tps)):
        for tp in some:
            kind = classes.get(tp[0])
            if kind is None:
                continue
            holder = current.get(tp)
            if holder is not None and tp[0] in wants.get(holder, ()):
                balance.add(holder, kind, tp)
            else:
                free.append(tp)
        yield
    for some in _steps(reversed(free)):
        for tp in some:
            kind = classes[tp[0]]
            balance.add(balance.emptiest(kind), kind, tp)
        yield
    while (yield from balance.level()):
        pass
    for member, kinds in balance.owned.items():
        for kept in kinds.values():
            owner.update(dict.fromkeys(kept, member))
        yield
    return {tp: owner[tp] for tp in tps if tp in owner}


def _steps(items: Iterable[T]) -> Iterable[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, _STEP)):
        yield some


def _classes(
    wants: Mapping[str, Set[str]],
) -> Generator[None, None, tuple[dict[str, _Class], dict[_Class, list[str]]]]:
    """The class of each followed topic, and the members of each class."""
    # Members with the same target usually share one set.
    distinct: dict[int, tuple[Set[str], list[str]]] = {}
    for member in sorted(wants):
        distinct.setdefault(id(wants[member]), (wants[member], []))[1].append(member)
    classes: dict[str, _Class] = {}
    for i, (topics, _) in enumerate(distinct.values()):
        bit = 1 << i
        for topic in topics:
            classes[topic] = classes.get(topic, 0) | bit
        yield
    members = [those for _, those in distinct.values()]
    readers: dict[_Class, list[str]] = {}
    for kind in set(classes.values()):
        readers[kind] = [m for i, those in enumerate(members) if kind >> i & 1 for m in those]
    return classes, readers


class _Balance:
    """`owned` has the partitions of each member by class, and `loads` their number. Heaps may hold
    outdated loads: too low until they are checked, too high until the next `level`."""

    def __init__(self, wants: Iterable[str], readers: Mapping[_Class, list[str]]) -> None:
        self.loads = dict.fromkeys(sorted(wants), 0)
        self.owned: dict[str, dict[_Class, list[TopicPartition]]] = {
            member: {} for member in self.loads
        }
        self._readers = readers
        self._heaps: dict[_Class, list[tuple[int, str]]] = {}

    def add(self, member: str, kind: _Class, tp: TopicPartition) -> None:
        self.loads[member] += 1
        kept = self.owned[member].get(kind)
        if kept is None:
            self.owned[member][kind] = [tp]
        else:
            kept.append(tp)

    def emptiest(self, kind: _Class) -> str:
        """The member of a class that has the fewest partitions."""
        heap = self._heaps.get(kind)
        if heap is None:
            heap = self._heaps[kind] = [(self.loads[m], m) for m in self._readers[kind]]
            heapq.heapify(heap)
        while True:
            load, member = heap[0]
            if load >= self.loads[member]:
                return member
            heapq.heapreplace(heap, (self.loads[member], member))

    def level(self) -> Generator[None, None, bool]:
        """Moves partitions from the fullest member to the emptiest, as long as possible. Returns
        whether any moved: the giver may now be the emptiest of another class."""
        self._heaps = {}
        moves = 0
        givers = [(-load, member) for member, load in self.loads.items() if load]
        heapq.heapify(givers)
        open_to = {member: self._open_classes(member) for _, member in givers}
        yield
        while givers:
            load, giver = givers[0]
            if -load < self.loads[giver]:
                heapq.heapreplace(givers, (-self.loads[giver], giver))
            elif self._give(giver, open_to[giver]):
                moves += 1
                heapq.heapreplace(givers, (-self.loads[giver], giver))
                if not moves % _STEP:
                    yield
            else:
                heapq.heappop(givers)
        return moves > 0

    def _open_classes(self, member: str) -> list[tuple[int, _Class]]:
        """The classes that a member has partitions of, and the lowest load in each; as a heap."""
        found = [
            (self.loads[self.emptiest(kind)], kind)
            for kind, kept in self.owned[member].items()
            if kept
        ]
        heapq.heapify(found)
        return found

    def _give(self, giver: str, open_to: list[tuple[int, _Class]]) -> bool:
        """Gives one partition to the emptiest member that can have it, if that makes sense."""
        while open_to:
            load, kind = open_to[0]
            taker = self.emptiest(kind)
            if self.loads[taker] != load:
                heapq.heapreplace(open_to, (self.loads[taker], kind))
                continue
            if self.loads[giver] - load <= 1:
                return False
            kept = self.owned[giver][kind]
            self.add(taker, kind, kept.pop())
            self.loads[giver] -= 1
            if not kept:
                heapq.heappop(open_to)
            return True
        return False
