"""The names of metrics: what the document lists is what the broker shows, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

import fanlog
from fanlog.format.cluster_view import ClusterMember, ClusterStatus
from fanlog.telemetry.prometheus import families, render
from fanlog.telemetry.snapshot import OTHERS, Snapshot, TopicMetrics, WorkerMetrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "observability.md"
ROW = re.compile(r"^\| `((?:fanlog|process)_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \|$", re.MULTILINE)
OPEN = "application/openmetrics-text; version=1.0.0"


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = ROW.findall(DOCUMENT.read_text())
    assert len(rows) == len({row[0] for row in rows}), "A name has two rows."
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows
    }


CLUSTER = ClusterStatus(
    cluster="orders",
    epoch=3,
    primary="a",
    min_in_sync=2,
    replicas_wanted=3,
    nodes=[ClusterMember(node=name, role="in sync", alive=True, in_sync=True) for name in "ab"],
    problems=[],
    node="a",
    role="primary",
)


async def snapshot_of(folder: Path) -> Snapshot:
    free = fanlog.Config(redis=fanlog.config.RedisOptions(port=0))
    async with fanlog.Broker(folder, free) as broker:
        broker.listen_redis()
        await broker.create_topic("orders", durability="fsync")
        await broker.publish("orders", "x")
        assert broker._node is not None
        found = await broker._node.core.metrics.snapshot()
        # As a broker with workers has it.
        return msgspec.structs.replace(found, workers=(WorkerMetrics(number=1),))


async def test_the_document_lists_every_metric_with_its_type_and_labels(tmp_path: Path) -> None:
    shown: dict[str, tuple[str, frozenset[str]]] = {}
    alone = await snapshot_of(tmp_path)
    assert not [one.name for one in families(alone) if "cluster" in one.name]
    for family in families(msgspec.structs.replace(alone, cluster=CLUSTER)):
        kind = "gauge" if family.type == "info" else family.type
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = frozenset(name for sample in family.samples for name in sample.labels)
        shown[family.name + suffix] = (kind, labels - {"le"})
    assert shown == documented()


async def test_both_formats_can_be_read_and_say_the_same(tmp_path: Path) -> None:
    snapshot = await snapshot_of(tmp_path)
    text, text_type = render(snapshot, "text/plain")
    opened, open_type = render(snapshot, OPEN)
    assert text_type.startswith("text/plain")
    assert open_type.startswith("application/openmetrics-text")
    both = []
    for found in (parse_text(text.decode()), parse_open(opened.decode())):
        samples = (sample for family in found for sample in family.samples)
        both.append({(s.name, *sorted(s.labels.items())): s.value for s in samples})
    assert both[0] == both[1]
    assert both[0]["fanlog_topic_published_messages_total", ("topic", "orders")] == 1


async def test_a_name_can_not_write_a_line_of_its_own(tmp_path: Path) -> None:
    """Names come from clients: quotes, breaks and halves of characters stay in their label."""
    evil = 'a"} 1\nfanlog_topics 666\r\n\\ \udc80 \u2028 \x1b[31m'
    snapshot = await snapshot_of(tmp_path)
    topics = (TopicMetrics(name=evil, published_messages=7), TopicMetrics(name=OTHERS))
    snapshot = msgspec.structs.replace(snapshot, topics=topics)
    for accept, parse in (("", parse_text), (OPEN, parse_open)):
        text, _ = render(snapshot, accept)
        families_read = {family.name: family for family in parse(text.decode())}
        assert [s.value for s in families_read["fanlog_topics"].samples] != [666.0]
        named = families_read["fanlog_topic_published_messages"].samples[0]
        assert (named.value, named.labels["topic"]) == (7, evil.replace("\udc80", "?"))
