"""A snapshot as Prometheus wants it: in its text format or as OpenMetrics, by prometheus-client.

`docs/observability.md` lists every name. Labels are bounded: a topic, group or queue is a label
only if the snapshot names it, and the others are one line, `(others)`.

It is long because it is a list: each metric has its name and its help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fanlog.format.cluster_view import ClusterStatus
from fanlog.telemetry.histograms import HistogramData
from fanlog.telemetry.snapshot import Snapshot, WorkerMetrics

# States of `fanlog_state`: one of them is 1.
STATES = ("ok", "degraded", "failing", "draining")
# Roles of `fanlog_cluster_role`.
ROLES = ("primary", "follower", "waiting")


def render(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """The text, and its content type, in the newest format that `accept` (the header of a request)
    allows."""
    encoder, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(snapshot))
    return encoder(registry), content_type


class _Once(Collector):
    """Hands out one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        return families(self._snapshot)


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """All metrics of a snapshot."""
    yield from _about(snapshot)
    yield from _totals(snapshot)
    yield from _levels(snapshot)
    yield from _listeners(snapshot)
    yield from _times(snapshot)
    yield from _topics(snapshot)
    yield from _groups(snapshot)
    yield from _queues(snapshot)
    if snapshot.cluster is not None:
        yield from _cluster(snapshot.cluster)
    yield from _process(snapshot)
    if snapshot.workers:
        yield from _workers(snapshot.workers)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value=value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value)


def _text(name: str) -> str:
    """A name as UTF-8 can have it: one from a client may hold half a character."""
    return name.encode(errors="replace").decode()


def _counters(
    name: str, help: str, label: str, values: Iterable[tuple[str, float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=(label,))
    for of, value in values:
        family.add_metric((_text(of),), value)
    return family


def _gauges(
    name: str, help: str, label: str, values: Iterable[tuple[str, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=(label,))
    for of, value in values:
        family.add_metric((_text(of),), value)
    return family


def _histogram(name: str, help: str, data: HistogramData, per_unit: float) -> Metric:
    """`per_unit`: how many of what was observed are one of the metric's unit."""
    bounds = [*(str(bound / per_unit) for bound in data.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(data.counts), strict=True))
    return HistogramMetricFamily(name, help, buckets=buckets, sum_value=data.total / per_unit)


def _about(snapshot: Snapshot) -> Iterator[Metric]:
    about = {
        "version": snapshot.release,
        "python": snapshot.python,
        "role": snapshot.role,
    }
    yield InfoMetricFamily("fanlog_build", "Release of Fanlog and Python, and the role.", about)
    yield _gauges(
        "fanlog_state",
        "1 for the state that the broker is in.",
        "state",
        [(state, float(state == snapshot.state)) for state in STATES],
    )
    yield _gauge("fanlog_ready", "1 if this broker is ready for clients.", float(snapshot.ready))
    yield _gauge("fanlog_problems", "Problems that the status lists.", len(snapshot.problems))
    yield _gauge(
        "fanlog_scan_age_seconds",
        "Age of the figures of topics, groups and queues.",
        snapshot.scan_age_seconds,
    )


def _totals(snapshot: Snapshot) -> Iterator[Metric]:
    totals = snapshot.totals
    yield _counter("fanlog_published_messages", "Messages published.", totals.published_messages)
    yield _counter("fanlog_published_bytes", "Bytes of their batches.", totals.published_bytes)
    yield _counter(
        "fanlog_delivered_messages",
        "Messages sent to readers: each counts once for every reader.",
        totals.delivered_messages,
    )
    yield _counter("fanlog_delivered_bytes", "Bytes sent to readers.", totals.delivered_bytes)
    yield _counter("fanlog_fetched_bytes", "Bytes that clients fetched.", totals.fetched_bytes)
    yield _counter(
        "fanlog_delivered_jobs", "Jobs of queues handed to workers.", totals.delivered_jobs
    )
    yield _counter("fanlog_redelivered_jobs", "Jobs handed out again.", totals.redelivered_jobs)
    yield _counter("fanlog_dead_letters", "Jobs that became dead letters.", totals.dead_letters)
    yield _counter(
        "fanlog_group_rebalances", "Times that partitions moved in a group.", totals.rebalances
    )
    yield _counters(
        "fanlog_missed_messages",
        "Messages that readers did not get, by reason.",
        "reason",
        totals.missed.items(),
    )
    yield _counters("fanlog_gaps", "Gaps of readers, by reason.", "reason", totals.gaps.items())
    yield _counters(
        "fanlog_slow_readers",
        "Readers that fell behind the tail, by their policy.",
        "policy",
        totals.slow_readers.items(),
    )
    yield _counters(
        "fanlog_denied", "Requests without permission, by verb.", "verb", totals.denied.items()
    )
    yield _counters(
        "fanlog_limited",
        "Publishers above a limit, and logins after too many wrong ones, by what was done.",
        "outcome",
        totals.limited.items(),
    )


def _levels(snapshot: Snapshot) -> Iterator[Metric]:
    levels = snapshot.levels
    yield _gauge("fanlog_topics", "Topics, the broker's own included.", levels.topics)
    yield _gauge("fanlog_partitions", "Partitions of all topics.", levels.partitions)
    yield _gauge("fanlog_groups", "Consumer groups.", levels.groups)
    yield _gauge("fanlog_queues", "Queues.", levels.queues)
    yield _gauge("fanlog_subscriptions", "Open subscriptions.", levels.subscriptions)
    yield _gauge("fanlog_readers_behind", "Readers that are behind.", levels.readers_behind)
    yield _gauge(
        "fanlog_delayed_messages", "Messages that are not due yet.", levels.delayed_messages
    )
    yield _gauge("fanlog_tail_bytes", "Bytes of tails in memory.", levels.tail_bytes)
    yield _gauge("fanlog_pending_bytes", "Bytes that wait for the disk.", levels.pending_bytes)


def _listeners(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.listeners
    yield _gauges(
        "fanlog_connections",
        "Open connections.",
        "listener",
        [(one.name, one.connections) for one in found],
    )
    yield _counters(
        "fanlog_connections_accepted",
        "Connections that were accepted.",
        "listener",
        [(one.name, one.accepted) for one in found],
    )
    yield _counters(
        "fanlog_connections_refused",
        "Connections that were refused because of a limit.",
        "listener",
        [(one.name, one.refused) for one in found],
    )
    yield _counters(
        "fanlog_auth_failures",
        "Logins that failed.",
        "listener",
        [(one.name, one.auth_failures) for one in found],
    )


def _times(snapshot: Snapshot) -> Iterator[Metric]:
    times = snapshot.times
    yield _histogram(
        "fanlog_turn_seconds", "Time to commit and fan out a turn.", times.turn_us, 1e6
    )
    yield _histogram(
        "fanlog_loop_delay_seconds", "How late the event loop is.", times.loop_delay_us, 1e6
    )
    yield _histogram("fanlog_sync_seconds", "Time to sync to disk.", times.sync_us, 1e6)
    yield _histogram("fanlog_sync_bytes", "Bytes that one sync makes durable.", times.sync_bytes, 1)


def _topics(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.topics
    yield _counters(
        "fanlog_topic_published_messages",
        "Messages ever published to a topic.",
        "topic",
        [(one.name, one.published_messages) for one in found],
    )
    yield _counters(
        "fanlog_topic_published_bytes",
        "Bytes published to a topic since the start.",
        "topic",
        [(one.name, one.published_bytes) for one in found],
    )
    yield _counters(
        "fanlog_topic_missed_messages",
        "Messages that readers of a topic did not get.",
        "topic",
        [(one.name, one.missed_messages) for one in found],
    )
    yield _gauges(
        "fanlog_topic_stored_bytes",
        "Bytes that a topic keeps.",
        "topic",
        [(one.name, one.stored_bytes) for one in found],
    )
    yield _gauges(
        "fanlog_topic_readers",
        "Readers of a topic's partitions.",
        "topic",
        [(one.name, one.readers) for one in found],
    )


def _groups(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.groups
    yield _gauges(
        "fanlog_group_lag_messages",
        "Messages that a group has not committed.",
        "group",
        [(one.name, one.lag) for one in found],
    )
    yield _gauges(
        "fanlog_group_members",
        "Members of a group.",
        "group",
        [(one.name, one.members) for one in found],
    )


def _queues(snapshot: Snapshot) -> Iterator[Metric]:
    found = snapshot.queues
    yield _gauges(
        "fanlog_queue_lag_jobs",
        "Jobs of a queue that are not done.",
        "queue",
        [(one.name, one.lag) for one in found],
    )
    yield _gauges(
        "fanlog_queue_in_flight_jobs",
        "Jobs that workers have.",
        "queue",
        [(one.name, one.in_flight) for one in found],
    )
    yield _gauges(
        "fanlog_queue_waiting_jobs",
        "Jobs that wait to be handed out again.",
        "queue",
        [(one.name, one.waiting) for one in found],
    )
    yield _gauges(
        "fanlog_queue_workers",
        "Workers on a queue.",
        "queue",
        [(one.name, one.workers) for one in found],
    )
    yield _counters(
        "fanlog_queue_redelivered_jobs",
        "Jobs of a queue handed out again.",
        "queue",
        [(one.name, one.redelivered) for one in found],
    )
    yield _counters(
        "fanlog_queue_dead_letters",
        "Jobs of a queue that became dead letters.",
        "queue",
        [(one.name, one.dead_lettered) for one in found],
    )


def _workers(workers: tuple[WorkerMetrics, ...]) -> Iterator[Metric]:
    def each(name: str) -> list[tuple[str, float]]:
        return [(str(one.number), float(getattr(one, name))) for one in workers]

    yield _gauges("fanlog_worker_up", "1 if the worker runs and answers.", "worker", each("up"))
    yield _counters(
        "fanlog_worker_restarts",
        "Times that the worker was started again.",
        "worker",
        each("restarts"),
    )
    yield _gauges(
        "fanlog_worker_connections", "Clients of the worker.", "worker", each("connections")
    )
    yield _gauges(
        "fanlog_worker_subscriptions",
        "Subscriptions at the worker.",
        "worker",
        each("subscriptions"),
    )
    yield _counters(
        "fanlog_worker_delivered_messages",
        "Messages that the worker delivered.",
        "worker",
        each("delivered_messages"),
    )
    yield _counters(
        "fanlog_worker_delivered_bytes",
        "Bytes that the worker delivered.",
        "worker",
        each("delivered_bytes"),
    )
    yield _counters(
        "fanlog_worker_cpu_seconds",
        "CPU time of the worker's process.",
        "worker",
        each("cpu_seconds"),
    )
    yield _gauges(
        "fanlog_worker_resident_memory_bytes",
        "Memory of the worker's process.",
        "worker",
        each("resident_bytes"),
    )


def _cluster(cluster: ClusterStatus) -> Iterator[Metric]:
    yield _gauges(
        "fanlog_cluster_role",
        "1 for the role that the node has.",
        "role",
        [(role, float(role == cluster.role)) for role in ROLES],
    )
    yield _gauge("fanlog_cluster_epoch", "Epoch of the reign.", cluster.epoch)
    yield _counter("fanlog_cluster_reigns", "Reigns of this process.", cluster.reigns)
    yield _gauge("fanlog_cluster_in_sync_nodes", "Nodes in sync.", cluster.in_sync)
    yield _gauge(
        "fanlog_cluster_min_in_sync_nodes",
        "With fewer nodes in sync nothing is stored.",
        cluster.min_in_sync,
    )
    yield _gauge(
        "fanlog_cluster_replicas_wanted", "Nodes that should be in sync.", cluster.replicas_wanted
    )
    yield _gauge(
        "fanlog_cluster_etcd_reachable", "1 if etcd answers.", float(cluster.etcd_reachable)
    )
    yield _gauge("fanlog_cluster_problems", "Problems of the cluster.", len(cluster.problems))
    yield _gauge(
        "fanlog_cluster_uncommitted_turns",
        "Turns that not every node in sync has synced.",
        cluster.position - cluster.synced,
    )
    yield _gauge(
        "fanlog_cluster_uncommitted_bytes",
        "Bytes that wait until they are committed.",
        cluster.uncommitted_bytes,
    )
    followers = [one for one in cluster.nodes if one.node != cluster.primary]
    known = followers if cluster.role == "primary" else []
    yield _gauges(
        "fanlog_cluster_follower_level",
        "1 if everything has been sent to a follower.",
        "node",
        [(one.node, float(one.level)) for one in known],
    )
    yield _gauges(
        "fanlog_cluster_follower_behind_turns",
        "Turns that a follower has not synced.",
        "node",
        [(one.node, one.behind_positions) for one in known],
    )
    yield _gauges(
        "fanlog_cluster_follower_behind_bytes",
        "Bytes that a follower has not got.",
        "node",
        [(one.node, one.behind_bytes) for one in known],
    )


def _process(snapshot: Snapshot) -> Iterator[Metric]:
    """By the names that every dashboard knows."""
    process = snapshot.process
    yield _counter("process_cpu_seconds", "CPU time.", process.cpu_seconds)
    yield _gauge("process_start_time_seconds", "Start, in Unix time.", process.started)
    yield _gauge("process_resident_memory_bytes", "Resident memory.", process.resident_bytes)
    yield _gauge("process_virtual_memory_bytes", "Virtual memory.", process.virtual_bytes)
    yield _gauge("process_open_fds", "Open files and sockets.", process.open_files)
    yield _gauge("process_max_fds", "Limit of open files and sockets.", process.open_files_max)
    yield _gauge("process_threads", "Threads.", process.threads)
    if process.disk_total_bytes:
        yield _gauge(
            "fanlog_disk_free_bytes", "Free on the data folder's disk.", process.disk_free_bytes
        )
        yield _gauge(
            "fanlog_disk_total_bytes", "Size of the data folder's disk.", process.disk_total_bytes
        )
