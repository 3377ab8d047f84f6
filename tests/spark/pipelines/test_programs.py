"""The pipelines that are programs, end to end on generated data: archive, replay, drops."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import fanlog
from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.model import TopicPartition
from fanlog.spark.examples import KINDS, Example, Shape
from fanlog.spark.lake import SCHEMA, Lake
from fanlog.spark.pipelines import find
from fanlog.spark.pipelines.drops_page import DropsFacts, write_report
from fanlog.spark.pipelines.progress import look
from tests.scenarios.broker_process import BrokerProcess
from tests.scenarios.test_drops import DROPS, TAIL_BYTES, gaps_until_the_end, slow_reader
from tests.scenarios.test_drops import publish as publish_much
from tests.spark.pipelines.programs import load_program, run_program
from tests.spark.test_kill import published

RECORDS = 600
# Two days of orders, one in five minutes.
SLOW = Shape(per_second=1 / 300)


def publish(client: fanlog.sync.Client, topic: str, shape: Shape = SLOW) -> list[Example]:
    """Example orders in a topic of two partitions."""
    client.create_topic(topic, partitions=2)
    examples = list(islice(KINDS["orders"](1, shape), RECORDS))
    for some in examples:
        client.send(topic, some.value, key=some.key, event_time=some.event_time_us)
    client.flush()
    return examples


def archived(client: fanlog.sync.Client, url: str, topic: str, folder: Path) -> list[Example]:
    examples = publish(client, topic)
    run_program(
        "archive",
        folder / "archive",
        url=url,
        topics=topic,
        lake=str(folder / "lake"),
        batch_records="100",
        merge_files="2",
    )
    return examples


def test_an_archive_lies_by_topic_and_date_in_few_files(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    examples = archived(client, broker.url, "archive.orders", tmp_path)
    lake = Lake(tmp_path / "lake")
    files = [str(path.relative_to(lake.root)) for path in lake.files()]
    assert len(files) == 3, files
    assert files[0].startswith("topic=archive.orders/date=2026-01-01/merged-")
    rows = lake.read(spark).selectExpr("cast(value as string) as value", "event_time").collect()
    assert Counter(row["value"] for row in rows) == Counter(e.value.decode() for e in examples)
    # Once more: there is nothing new, and nothing comes twice.
    options = {"url": broker.url, "topics": "archive.orders", "lake": str(lake.root)}
    run_program("archive", tmp_path / "archive", **options)
    assert lake.read(spark).count() == RECORDS
    (stream,) = look(tmp_path / "archive")
    assert stream.rows == RECORDS
    ends = {TopicPartition("archive.orders", i): 310 for i in range(2)}
    assert stream.lag(ends) == 20
    # The topic is made anew: it goes on only if it is told to.
    client.delete_topic("archive.orders")
    with fanlog.sync.connect(broker.url) as other:
        other.publish("archive.orders", b"new")
    with pytest.raises(StreamingQueryException, match="Set the option failOnDataLoss to false"):
        run_program("archive", tmp_path / "archive", **options)
    run_program("archive", tmp_path / "archive", **options, failOnDataLoss="false")
    assert lake.read(spark).count() == RECORDS + 1


def test_a_slice_is_replayed_once_at_its_rate_even_if_it_is_started_again(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    examples = archived(client, broker.url, "replay.orders", tmp_path)
    options = {
        "url": broker.url,
        "lake": str(tmp_path / "lake"),
        "topics": "replay.orders",
        "from": "2026-01-01T06:00:00Z",
        "until": "2026-01-02T06:00:00Z",
        "where": "get_json_object(cast(value as string), '$.item') <> 'pen'",
        "to": "replay.again",
        "rate": "20",
    }
    first, end = (1_767_225_600_000_000 + hours * 3_600_000_000 for hours in (6, 30))
    wanted = Counter(
        some.value.decode()
        for some in examples
        if first <= some.event_time_us < end and b'"pen"' not in some.value
    )
    pace = load_program(find("replay").program).Pace
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program("replay", tmp_path / "replay", pace(lambda: 0.0, sleep), **options)
    # It was ended after the second chunk was written and before that was noted.
    state = tmp_path / "replay"
    assert json.loads((state / "progress.json").read_text())["chunks_done"] == 1
    run_program("replay", state, pace(lambda: 0.0, lambda _: None), **options)
    assert published(client, "replay.again") == wanted
    # Started once more, it has nothing to do, and does not rely on what the broker remembers.
    written = (state / "progress.json").stat().st_mtime_ns
    run_program("replay", state, pace(lambda: 0.0, lambda _: None), **options)
    assert (state / "progress.json").stat().st_mtime_ns == written
    total = sum(wanted.values())
    chunks = json.loads((state / "plan.json").read_text())["chunks"]
    sizes = [sum(stretch["records"] for stretch in chunk) for chunk in chunks]
    assert max(sizes) <= 20 * 5
    assert slept == [sizes[0] / 20, (sizes[0] + sizes[1]) / 20]
    (progress,) = look(state)
    assert (progress.rows, progress.left) == (total, 0)
    with pytest.raises(ConfigError, match="the replay of another slice"):
        run_program("replay", state, **options | {"until": ""})


def test_a_key_that_moved_as_its_topic_grew_is_replayed_in_order(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    lake = Lake(tmp_path / "lake")
    lake.claim("a stream")
    # Eighty in partition 0, then the topic grew, and the key went on in partition 2. The clock was
    # once set back.
    places = [(0, i) for i in range(80)] + [(2, i) for i in range(20)]
    times = [start + dt.timedelta(seconds=i if i != 50 else 0) for i in range(100)]
    rows = [
        (b"k", b"%d" % i, *place, time, start, None, "grown", start.date())
        for i, (place, time) in enumerate(zip(places, times, strict=True))
    ]
    lake.add(spark.createDataFrame(rows, SCHEMA), 0)
    lake.release()
    options = {"url": broker.url, "lake": str(lake.root)}
    for rate in ("10", "0"):
        topic = f"grown.again.{rate}"
        pace = load_program(find("replay").program).Pace(lambda: 0.0, lambda _: None)
        run_program("replay", tmp_path / topic, pace, **options, rate=rate, to=topic)
        with client.subscribe(topic, start="earliest") as replayed:
            values = [int(message.value or b"") for message in islice(replayed, 100)]
        assert values == list(range(100))
    for where in ("event_time < now()", "rand() < 2", "timestamp < current_date"):
        with pytest.raises(InvalidArgumentError, match="the current time or on chance"):
            run_program("replay", tmp_path / "no", **options, to="no", where=where)
    # Somebody has added to the lake what lies between the records of a plan.
    plan = json.loads((tmp_path / "grown.again.0/plan.json").read_text())
    plan["chunks"][0][0]["records"] -= 1
    (tmp_path / "changed").mkdir()
    plan["slice"]["to"] = "changed"
    (tmp_path / "changed/plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match="has 100 records where it had 99"):
        run_program("replay", tmp_path / "changed", **options, rate="0", to="changed")
    assert "changed" not in [info.name for info in client.topics()]


def miss(broker: BrokerProcess, client: fanlog.sync.Client, topic: str) -> tuple[int, int, int]:
    """A reader that skips, until that is written down: from where, up to where, and how much."""
    client.create_topic(topic, durability="memory", tail_bytes=TAIL_BYTES)
    with client.subscribe(DROPS) as log, slow_reader(broker.port, topic) as reader:
        publish_much(client, topic)
        gaps = gaps_until_the_end(reader)
        records = sum(gap.next - gap.first for gap in gaps)
        written = 0
        while written < records:
            drop = json.loads(log.next(60).value or b"")
            written += drop["records"] if drop["topic"] == topic else 0
    return gaps[0].first, gaps[-1].next, records


def test_the_report_tells_of_misses_dead_letters_and_lag_with_pictures(
    spark: SparkSession, broker: BrokerProcess, client: fanlog.sync.Client, tmp_path: Path
) -> None:
    for number in range(6):
        client.send("drops.jobs", str(number))
    client.flush()
    with client.work("drops.jobs", queue="drops.workers", reset="earliest") as worker:
        for job, number in zip(worker, range(4), strict=False):
            if number == 3:
                job.ack()
            else:
                job.reject("the <printer> is on fire" if number else "no paper")
    first, end, records = miss(broker, client, "drops.busy")
    run_program("drops", tmp_path / "state", url=broker.url, report=str(tmp_path / "report"))
    figures = json.loads((tmp_path / "report/report.json").read_text())
    ours = {
        some["reason"]: (some["letters"], some["waiting"])
        for some in figures["letters"]
        if some["queue"] == "drops.workers"
    }
    assert ours == {"the <printer> is on fire": (2, 2), "no paper": (1, 1)}
    assert figures["lag"]["drops.workers"] == 2
    (reader,) = [some for some in figures["missed"]["readers"] if some["topic"] == "drops.busy"]
    assert (reader["reader"], reader["records"]) == ("durable wall", records)
    assert (reader["published"], reader["warning"]) == (end, True)
    (count,) = [some for some in figures["missed"]["counts"] if some["topic"] == "drops.busy"]
    assert (count["kind"], count["records"]) == ("skipped", records)
    gaps = [some for some in figures["missed"]["gaps"] if some["topic"] == "drops.busy"]
    assert {gap["kind"] for gap in gaps} == {"skipped"}
    assert min(gap["first"] for gap in gaps) == first
    assert max(gap["next"] for gap in gaps) == end
    assert sum(gap["records"] for gap in gaps) == records
    assert figures["counted"]["drops.busy"]["skipped_records"] == records
    page = (tmp_path / "report/report.html").read_text()
    assert "the &lt;printer&gt; is on fire" in page
    assert "<tr class=warn><td>durable wall</td><td>drops.busy</td>" in page
    assert page.count("data:image/png;base64,") == 5
    for name in ("missed", "missed-topics", "missed-readers", "dead", "lag"):
        assert (tmp_path / f"report/{name}.png").read_bytes().startswith(b"\x89PNG")
    # Where nothing was written down, there are the broker's counters.
    write_report(tmp_path / "less", DropsFacts(client.topics(), [], None, [], []), reasons_max=8)
    page = (tmp_path / "less/report.html").read_text()
    assert "Counted since the broker started" in page
    assert f"<td>drops.busy</td><td class=n>{records}</td>" in page
