"""Everything that can be seen of a process at one moment, as plain values. `/metrics`,
`/v1/metrics`, `fanlog top` and what sends metrics elsewhere all show this one thing; an edge has
the same.

Of topics, groups, queues and readers it names those that matter most, `telemetry.topics_max` of
each, and sums up the others: it stays small however many there are.
"""

from __future__ import annotations

import msgspec

from fanlog.format.cluster_view import ClusterStatus
from fanlog.telemetry.histograms import HistogramData
from fanlog.telemetry.process import ProcessMetrics

# In the place of a name: all that are not named.
OTHERS = "(others)"


class TopicMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`published_messages` counts from the topic's first message, `published_bytes` and
    `missed_messages` since the start. The rates are per second, over the last ten or so."""

    name: str
    partitions: int = 0
    published_messages: int = 0
    published_bytes: int = 0
    stored_messages: int = 0
    stored_bytes: int = 0
    readers: int = 0
    missed_messages: int = 0
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group. `lag` is in messages."""

    name: str
    members: int = 0
    partitions: int = 0
    lag: int = 0
    rebalances: int = 0


class QueueMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. `lag` is all that is not done, `waiting` what failed and waits for its next try or
    was given back; the counters are since the start."""

    name: str
    workers: int = 0
    partitions: int = 0
    lag: int = 0
    in_flight: int = 0
    waiting: int = 0
    delivered: int = 0
    redelivered: int = 0
    dead_lettered: int = 0


class ReaderMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A reader that is behind. `bytes` is about what it has not got: what waits in its connection,
    and the messages behind that by their average size."""

    connection: str
    listener: str
    user: str = ""
    client: str = ""
    target: str = ""
    group: str = ""
    policy: str = ""
    messages: int = 0
    bytes: int = 0


class ListenerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A listener of this process. `refused` are connections over a limit."""

    name: str
    connections: int = 0
    accepted: int = 0
    refused: int = 0
    auth_failures: int = 0


class WorkerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of this broker. Counters continue when it is started again; `cpu_seconds` are those
    of its process."""

    number: int
    pid: int = 0
    up: bool = False
    restarts: int = 0
    connections: int = 0
    subscriptions: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start, of the whole process. `missed` is by reason: how many messages readers
    missed; `gaps` how often. `slow_readers` is by policy."""

    published_messages: int = 0
    published_bytes: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    fetched_bytes: int = 0
    delivered_jobs: int = 0
    redelivered_jobs: int = 0
    dead_letters: int = 0
    rebalances: int = 0
    missed: dict[str, int] = {}
    gaps: dict[str, int] = {}
    slow_readers: dict[str, int] = {}
    denied: dict[str, int] = {}
    limited: dict[str, int] = {}


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is now."""

    topics: int = 0
    partitions: int = 0
    groups: int = 0
    queues: int = 0
    connections: int = 0
    subscriptions: int = 0
    tail_bytes: int = 0
    pending_bytes: int = 0
    group_lag: int = 0
    queue_lag: int = 0
    delayed_messages: int = 0
    readers_behind: int = 0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Histograms, in µs and bytes."""

    turn_us: HistogramData
    loop_delay_us: HistogramData
    sync_us: HistogramData
    sync_bytes: HistogramData


class NamedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Some topics, groups and queues at one moment."""

    topics: tuple[TopicMetrics, ...] = ()
    groups: tuple[GroupMetrics, ...] = ()
    queues: tuple[QueueMetrics, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A process at one moment. `time` is Unix time in seconds. The topics, groups, queues and
    readers are as they were `scan_age_seconds` before: to look at all of them takes a while.
    `cluster` is None for a broker of its own."""

    time: float
    release: str
    python: str
    state: str
    role: str
    upstream: str = ""
    ready: bool
    uptime_seconds: float
    scan_age_seconds: float
    totals: Totals
    levels: Levels
    times: Times
    process: ProcessMetrics
    listeners: tuple[ListenerMetrics, ...] = ()
    topics: tuple[TopicMetrics, ...] = ()
    groups: tuple[GroupMetrics, ...] = ()
    queues: tuple[QueueMetrics, ...] = ()
    readers: tuple[ReaderMetrics, ...] = ()
    workers: tuple[WorkerMetrics, ...] = ()
    problems: tuple[str, ...] = ()
    cluster: ClusterStatus | None = None
