"""Chooses the topics that the explorer reads: named topics, and readable topics that match a
pattern. Topics with the newest messages come first.

A pattern may match 100,000 topics, and pages ask for it every second. So the result is cached, for
longer if it took more work. Permissions are part of the cached result.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.names import check_name, check_pattern
from fanlog.errors import LimitError, no_partition
from fanlog.format.patterns import has_wildcard
from fanlog.identity import Verb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import BrokerTopic, Partition
    from fanlog.identity import Account

TARGETS_MAX = 16
# The most topics that one request reads. A pattern with more leaves some out, and the answer says
# so.
TOPICS_MAX = 200
PARTITIONS_READ_MAX = 512
# Matching topics to check at most: many of them may not be readable.
_CANDIDATES_MAX = 5000
_KEPT_MAX = 64
_KEPT_SECONDS_MIN = 3.0
# The search may use at most one part in this many of the loop's time.
_KEPT_PER_WORK = 100
_clock = time.monotonic


class _Fitting(NamedTuple):
    """Readable topics of a pattern, the newest first, and whether these are all."""

    names: list[str]
    is_all: bool
    until: float
    # Kept alive, so that no other account gets the same `id()`.
    account: Account | None


class Chosen(NamedTuple):
    """The partitions to read, the number of topics, and whether more match."""

    partitions: list[Partition]
    topics: int
    is_all: bool


class ExploredTopics:
    """The patterns that were used lately."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._kept: OrderedDict[tuple[str, str, int, int], _Fitting] = OrderedDict()

    async def choose(self, targets: Sequence[str], only: set[int], permit: Permit) -> Chosen:
        """The partitions of these topics and patterns, or `only` some of them. Raises for a topic
        that is named and may not be read, or is not there."""
        named = [target for target in targets if not has_wildcard(target)]
        patterns = [target for target in targets if has_wildcard(target)]
        for name in named:
            permit.ask(Verb.SUBSCRIBE, check_name(name))
            self._core.catalog.get(name)
        fitting = [await self._fitting(check_pattern(pattern), permit) for pattern in patterns]
        partitions: list[Partition] = []
        for name in dict.fromkeys(named):
            partitions += self._named_partitions(name, only)
        if len(partitions) > PARTITIONS_READ_MAX:
            raise LimitError(
                f"These topics have {len(partitions)} partitions, and {PARTITIONS_READ_MAX} can be "
                "read at once. Choose some with partition=."
            )
        more = dict.fromkeys(name for fits in fitting for name in fits.names)
        topics, is_all = len(set(named)), all(fits.is_all for fits in fitting)
        for name in (name for name in more if name not in named):
            own = self._partitions(name, only)
            if not own:
                continue
            if topics >= TOPICS_MAX or len(partitions) + len(own) > PARTITIONS_READ_MAX:
                is_all = False
                continue
            topics += 1
            partitions += own
        return Chosen(partitions, topics, is_all)

    def _named_partitions(self, name: str, only: set[int]) -> list[Partition]:
        topic = self._core.catalog.get(name)
        for index in only:
            if index >= len(topic.partitions):
                raise no_partition(name, len(topic.partitions), index)
        return self._partitions(name, only)

    def _partitions(self, name: str, only: set[int]) -> list[Partition]:
        topic = self._core.catalog.find(name)
        if topic is None:
            return []
        if not only:
            return topic.partitions
        return [partition for partition in topic.partitions if partition.index in only]

    async def _fitting(self, pattern: str, permit: Permit) -> _Fitting:
        who = permit.who
        key = (pattern, who.user, id(who.account), self._core.permissions_epoch)
        known = self._kept.get(key)
        if known is not None and known.until > _clock():
            return known
        pages = _Pages(self._core, pattern)
        newest: list[tuple[int, str]] = []
        async for found in self._core.slices.each(pages):
            for topic in found:
                entry = (max(p.last_time_us for p in topic.partitions), topic.name)
                if len(newest) < _CANDIDATES_MAX:
                    heapq.heappush(newest, entry)
                elif entry > newest[0]:
                    heapq.heapreplace(newest, entry)
        names: list[str] = []
        is_all = pages.count <= _CANDIDATES_MAX
        newest.sort(reverse=True)
        async for _, name in self._core.slices.each(newest):
            if len(names) > TOPICS_MAX:
                is_all = False
                break
            if permit.may(Verb.SUBSCRIBE, name):
                names.append(name)
        until = _clock() + max(_KEPT_SECONDS_MIN, _KEPT_PER_WORK * pages.seconds)
        made = _Fitting(names, is_all, until, who.account)
        self._kept[key] = made
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return made


class _Pages:
    """The topics that fit a pattern, page by page; how many there were, and how long that took."""

    def __init__(self, core: BrokerCore, pattern: str) -> None:
        self._core = core
        self._pattern = pattern
        self.count = 0
        self.seconds = 0.0

    def __iter__(self) -> Iterator[list[BrokerTopic]]:
        after = ""
        while True:
            began = _clock()
            found, after = self._core.catalog.page(self._pattern, after, internal=False)
            self.count += len(found)
            self.seconds += _clock() - began
            yield found
            if not after:
                return
