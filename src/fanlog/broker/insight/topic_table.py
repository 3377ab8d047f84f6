"""All topics as a table with search, sort and pages, for many concurrent users. Names, orders and
lags are computed in slices and shared. A row is made for each request of its page, so its figures
are current. With very many topics, the order of the rows may be some seconds old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from fanlog.broker.insight.metric_scan import missed_in
from fanlog.broker.insight.shared_results import SharedResults
from fanlog.broker.insight.sliced_sort import order_of
from fanlog.broker.insight.topic_lags import LargestLag, TopicLags, scan_lags
from fanlog.format.globs import Glob
from fanlog.format.patterns import fits, is_pattern, misplaced_wildcard
from fanlog.model import HIDDEN_PREFIXES, INTERNAL_PREFIX

if TYPE_CHECKING:
    from fanlog.broker.insight.metrics import MeasuredBroker
    from fanlog.broker.messages.topics import BrokerTopic
    from fanlog.broker.ports import Runtime
    from fanlog.telemetry.snapshot import Snapshot

TopicSort = Literal[
    "name", "partitions", "size", "messages", "rate", "byte_rate", "readers", "lag", "missed"
]
TopicState = Literal["ok", "damaged", "failed"]

# Names, topics or partitions scanned in one step: 50 to 100 µs.
_NAMES_A_STEP = 512
_TOPICS_A_STEP = 32
_PARTITIONS_A_STEP = 128
_OWN_PREFIXES = (INTERNAL_PREFIX, *HIDDEN_PREFIXES)


class TopicFigures(NamedTuple):
    """Counts of a topic: `messages` and `bytes` are those kept now, `published` is the total."""

    messages: int
    published: int
    bytes: int
    readers: int
    newest_us: int
    state: TopicState


class TopicRow(NamedTuple):
    topic: BrokerTopic
    figures: TopicFigures
    lag: LargestLag | None


class TopicSelection(NamedTuple):
    """A filter and an order of topics. Viewers with different permissions have a different
    `viewer`. `may_see` checks a topic; None allows all."""

    search: str = ""
    internal: bool = False
    sort: TopicSort = "name"
    descending: bool = False
    viewer: Hashable = None
    may_see: Callable[[str], bool] | None = None


class _OrderedTopics(NamedTuple):
    """Sorted topics, and the catalog's change count at that time."""

    topics: Sequence[BrokerTopic]
    changes: int


class TopicTable:
    """The table of a broker."""

    def __init__(self, broker: MeasuredBroker, runtime: Runtime) -> None:
        self._broker = broker
        self._results = SharedResults(broker.slices, runtime)
        self._snapshot: asyncio.Task[Snapshot] | None = None

    async def page(
        self, wanted: TopicSelection, offset: int, limit: int
    ) -> tuple[list[TopicRow], int]:
        """A page of rows from `offset` on, and the number of all."""
        self._measure_rates()
        names = await self._results.get("names", self._collect, self._is_of_now, lasting=True)
        seen = await self._seen(names, wanted)
        lags = await self.lags()
        count = len(seen.topics)
        if wanted.sort == "name":
            # They are sorted in this order, or in reverse.
            picked = range(count - 1, -1, -1) if wanted.descending else range(count)
            some = [seen.topics[i] for i in picked[offset : offset + limit]]
        else:
            order = await self._results.get(
                ("order", *wanted[:5]),
                lambda: _ordered(seen, wanted, lags),
                lambda kept: kept.changes == seen.changes,
            )
            some = order.topics[offset : offset + limit]
        return await self._broker.slices.result(_rows(some, lags)), count

    async def lags(self) -> TopicLags:
        """The largest lag of each topic, at most a few seconds old."""
        return await self._results.get("lags", lambda: scan_lags(self._broker))

    async def _seen(self, names: _OrderedTopics, wanted: TopicSelection) -> _OrderedTopics:
        """The topics that match a search. Permissions are checked once for all searches of a
        viewer, because that takes longest."""
        visible = await self._results.get(
            ("visible", wanted.internal, wanted.viewer),
            lambda: _visible(names, wanted),
            lambda kept: kept.changes == names.changes,
            lasting=True,
        )
        if not wanted.search:
            return visible
        return await self._results.get(
            ("found", wanted.search, wanted.internal, wanted.viewer),
            lambda: _found(visible, wanted.search),
            lambda kept: kept.changes == visible.changes,
            lasting=True,
        )

    def _is_of_now(self, kept: _OrderedTopics) -> bool:
        """Whether no topic was created or deleted since."""
        return kept.changes == self._broker.catalog.changes

    def _collect(self) -> Generator[None, None, _OrderedTopics]:
        """All topics by name."""
        catalog = self._broker.catalog
        changes, after = catalog.changes, ""
        found: list[BrokerTopic] = []
        while True:
            # A list, because topics may be created or deleted between two steps.
            names = list(islice(catalog.names_since(after), _NAMES_A_STEP + 1))
            topics = (catalog.find(name) for name in names if name != after)
            found += [topic for topic in topics if topic is not None]
            if len(names) <= _NAMES_A_STEP:
                return _OrderedTopics(found, changes)
            after = names[-1]
            yield

    def _measure_rates(self) -> None:
        """Rates are from the scan for metrics. It is started here if needed, without waiting for
        it."""
        if self._snapshot is None or self._snapshot.done():
            metrics = self._broker.metrics
            self._snapshot = asyncio.get_running_loop().create_task(metrics.snapshot())


def _visible(
    names: _OrderedTopics, wanted: TopicSelection
) -> Generator[None, None, _OrderedTopics]:
    """The topics that a viewer may see."""
    may_see = wanted.may_see
    found: list[BrokerTopic] = []
    step = _NAMES_A_STEP if may_see is None else _TOPICS_A_STEP
    for i, topic in enumerate(names.topics):
        if not i % step:
            yield
        name = topic.name
        if (
            not topic.deleted
            and (wanted.internal or not name.startswith(_OWN_PREFIXES))
            and (may_see is None or may_see(name))
        ):
            found.append(topic)
    return _OrderedTopics(found, names.changes)


def _found(visible: _OrderedTopics, search: str) -> Generator[None, None, _OrderedTopics]:
    """The topics that match the search."""
    matches = matcher(search)
    found: list[BrokerTopic] = []
    for first in range(0, len(visible.topics), _TOPICS_A_STEP):
        some = visible.topics[first : first + _TOPICS_A_STEP]
        found += [topic for topic in some if matches is None or matches(topic.name)]
        yield
    return _OrderedTopics(found, visible.changes)


def matcher(search: str) -> Callable[[str], bool] | None:
    """The names that a search finds: those that match a pattern of topics; with stars elsewhere,
    those that match as in a shell; else names that contain all of its words, in upper or lower
    case.

    >>> find = matcher("ord eu")
    >>> find("orders.EU"), find("orders.us")
    (True, False)
    """
    text = search.strip()
    if not text:
        return None
    if is_pattern(text) and not misplaced_wildcard(text):
        return lambda name: fits(name, text)
    if "*" in text or "?" in text:
        glob = Glob(text.lower().encode(errors="replace"))
        return lambda name: glob.matches(name.lower().encode(errors="replace"))
    words = text.lower().split()
    if len(words) == 1:
        (word,) = words
        return lambda name: word in name.lower()
    return lambda name: all(word in name.lower() for word in words)


def _ordered(
    seen: _OrderedTopics, wanted: TopicSelection, lags: TopicLags
) -> Generator[None, None, _OrderedTopics]:
    topics = seen.topics
    values: list[float] = []
    for i, topic in enumerate(topics):
        if not i % _TOPICS_A_STEP:
            yield
        values.append((yield from _value(topic, wanted.sort, lags)))
    order = yield from order_of(values, descending=wanted.descending)
    found: list[BrokerTopic] = []
    for first in range(0, len(order), _NAMES_A_STEP):
        found += [topics[i] for i in order[first : first + _NAMES_A_STEP]]
        yield
    return _OrderedTopics(found, seen.changes)


def _value(topic: BrokerTopic, sort: TopicSort, lags: TopicLags) -> Generator[None, None, float]:
    """The sort key of a topic."""
    if sort == "lag":
        lag = lags.get(topic.name)
        return -1 if lag is None else lag.lag
    if sort in ("rate", "byte_rate"):
        return 0.0 if topic.rates is None else topic.rates[sort == "byte_rate"]
    if sort == "missed":
        return missed_in(topic)
    if sort == "partitions":
        return len(topic.partitions)
    found = 0
    for i, partition in enumerate(topic.partitions):
        if not (i + 1) % _PARTITIONS_A_STEP:
            yield
        if sort == "readers":
            found += partition.readers
        elif partition.visible_end:
            log = partition.log
            found += log.bytes if sort == "size" else partition.visible_end - log.start_offset
    return found


def _rows(topics: Sequence[BrokerTopic], lags: TopicLags) -> Generator[None, None, list[TopicRow]]:
    rows: list[TopicRow] = []
    for topic in topics:
        yield
        if not topic.deleted:
            figures = yield from figures_of(topic)
            rows.append(TopicRow(topic, figures, lags.get(topic.name)))
    return rows


def figures_of(topic: BrokerTopic) -> Generator[None, None, TopicFigures]:
    """The current counts of a topic."""
    messages = published = size = readers = newest_us = 0
    state: TopicState = "ok"
    for i, partition in enumerate(topic.partitions):
        if not (i + 1) % _PARTITIONS_A_STEP:
            yield
        log, end = partition.log, partition.visible_end
        readers += partition.readers
        if log.failure is not None:
            state = "failed"
        elif state == "ok" and log.damaged:
            state = "damaged"
        if end:
            messages += max(0, end - log.start_offset)
            published += end
            size += log.bytes
            newest_us = max(newest_us, log.last_time_us)
    return TopicFigures(messages, published, size, readers, newest_us, state)


def is_own(name: str) -> bool:
    """Whether a topic is internal, an inbox or a stream. Lists show these on request."""
    return name.startswith(_OWN_PREFIXES)
