"""What the broker records of messages that are sampled, with no OpenTelemetry anywhere: the
publisher's headers say so, and the client tells the broker in front of the batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from fanlog.config_security import TelemetryOptions
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind, frame
from fanlog.format.trace_context import SampledRecord, TraceContext, context_of, traced_frame
from fanlog.log.partition import PartitionLog
from fanlog.node import Node
from fanlog.telemetry.tracing.spans import Span, SpanLog
from tests.listeners.peers import HOST, Serving

PARENT = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
HEADERS = {"traceparent": PARENT.traceparent}


@asynccontextmanager
async def running(
    folder: Path | None = None, **telemetry: float
) -> AsyncIterator[tuple[Serving, SpanLog]]:
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        telemetry=TelemetryOptions(**telemetry),  # pyright: ignore[reportArgumentType]
    )
    node = Node(folder, config)
    node.start()
    served = Serving(node)
    try:
        yield served, node.core.traces.spans
    finally:
        served.close_peers()
        await node.stop()


def named(spans: SpanLog, name: str) -> list[Span]:
    return [span for span in spans.newest() if span.name == name]


async def test_a_sampled_message_has_an_append_and_a_deliver_span(tmp_path: Path) -> None:
    async with running(tmp_path) as (served, spans), served.client() as client:
        await client.create_topic("orders", durability="fsync")
        async with client.subscribe("orders") as reader:
            await reader.start()
            receipt = await client.publish("orders", b"tea", headers=HEADERS)
            message = await reader.next()
        assert context_of(message.headers) == PARENT
        [append] = named(spans, "append orders")
        assert (append.trace_id, append.parent_id) == (PARENT.trace_id, PARENT.span_id)
        assert append.kind == "server"
        assert append.attributes == {
            "messaging.system": "fanlog",
            "messaging.destination.name": "orders",
            "messaging.operation.name": "append",
            "messaging.destination.partition.id": "0",
            "messaging.fanlog.offset": receipt.offset,
            "messaging.fanlog.batch.bytes": append.attributes["messaging.fanlog.batch.bytes"],
            "messaging.fanlog.durability": "fsync",
        }
        [deliver] = named(spans, "deliver orders")
        assert (deliver.trace_id, deliver.parent_id) == (PARENT.trace_id, append.span_id)
        assert deliver.attributes["messaging.fanlog.readers"] == 1
        assert deliver.start_us >= append.end_us


async def test_what_is_not_sampled_leaves_no_span_and_keeps_its_header() -> None:
    async with running() as (served, spans), served.client() as client:
        unsampled = PARENT._replace(sampled=False)
        await client.publish("t", b"1", headers={"traceparent": unsampled.traceparent})
        await client.publish("t", b"2", headers={"traceparent": "nonsense"})
        await client.publish("t", b"3")
        async with client.subscribe("t", start="earliest") as reader:
            assert context_of((await reader.next()).headers) == unsampled
            assert (await reader.next()).headers == {"traceparent": b"nonsense"}
        assert len(spans) == 0
        assert not served.node.core.traces.recent


async def test_sampled_and_other_messages_share_a_batch() -> None:
    async with running() as (served, spans), served.client(linger_ms=50) as client:
        await client.create_topic("t")
        sampled = [n % 3 == 0 for n in range(12)]
        receipts = await asyncio.gather(
            *(client.publish("t", b"x", headers=HEADERS if s else None) for s in sampled)
        )
        appends = named(spans, "append t")
        offsets = {span.attributes["messaging.fanlog.offset"] for span in appends}
        assert offsets == {r.offset for r, s in zip(receipts, sampled, strict=True) if s}
        assert {span.attributes["messaging.batch.message_count"] for span in appends} == {12}


async def test_a_batch_of_sampled_messages_has_a_bounded_number_of_spans() -> None:
    async with running() as (served, spans), served.client() as client:
        await client.publish_many("t", [b"x"] * 200, headers=HEADERS)
        appends = named(spans, "append t")
        batches = {span.start_us for span in appends}
        assert len(appends) <= 64 * len(batches)
        assert len(appends) >= 64


async def test_a_second_has_a_bounded_number_of_traced_messages() -> None:
    async with running(traced_per_second_max=5) as (served, spans), served.client() as client:
        await client.publish_many("t", [b"x"] * 60, headers=HEADERS)
        assert 5 <= len(named(spans, "append t")) <= 10
        # The client keeps to it. One that does not gets no more of it.
        peer = await served.greeted()
        number = await peer.open_topic("t")
        marks = [SampledRecord(n, PARENT.trace_id, PARENT.span_id) for n in range(60)]
        await peer.send(traced_frame(marks) + encode_batch([b"x"] * 60, topic=number))
        await served.until(lambda: served.node.core.turns.published_records == 120)
        assert len(named(spans, "append t")) <= 20
        assert spans.left_out >= 40


async def test_readers_who_come_later_and_workers_have_deliver_spans() -> None:
    async with running() as (served, spans), served.client() as client:
        await client.publish("jobs", b"x", headers=HEADERS)
        async with client.consume("jobs", group="g", reset="earliest") as member:
            await member.next()
        async with client.work("jobs", queue="q") as worker:
            job = await worker.next()
            await job.nack(delay_seconds=0)
            again = await worker.next()
            assert context_of(again.headers) == PARENT
            await again.reject("no")
        delivers = list(reversed(named(spans, "deliver jobs")))
        groups = [span.attributes.get("messaging.consumer.group.name") for span in delivers]
        assert groups == ["g", "q", "q"]
        assert [s.attributes.get("messaging.fanlog.deliveries") for s in delivers] == [None, 1, 2]
        # The dead letter goes on with the trace.
        async with client.subscribe("dead.jobs", start="earliest") as reader:
            assert context_of((await reader.next()).headers) == PARENT


async def test_many_late_readers_have_few_spans() -> None:
    async with running() as (served, spans), served.client() as client:
        await client.publish("t", b"x", headers=HEADERS)
        for _ in range(20):
            async with client.subscribe("t", start="earliest") as reader:
                await reader.next()
        assert len(named(spans, "deliver t")) == 8


async def test_what_is_followed_is_bounded_and_a_deleted_topic_is_forgotten() -> None:
    async with running(traced_per_second_max=10_000) as (served, _), served.client() as client:
        traces = served.node.core.traces
        for n in range(1030):
            await client.send(f"t{n % 3}", b"x", headers=HEADERS)
            await client.flush()
        assert sum(map(len, traces.recent.values())) == 1024
        for n in range(3):
            await client.delete_topic(f"t{n}")
        assert not traces.recent


async def test_a_repeat_is_not_appended_twice_and_lies_do_no_harm() -> None:
    async with running() as (served, spans):
        peer = await served.greeted()
        number = await peer.open_topic("t")
        batch = encode_batch([b"x"], topic=number, producer_id=7)
        mark = SampledRecord(0, PARENT.trace_id, PARENT.span_id)
        await peer.send(traced_frame([mark]) + batch)
        await peer.send(traced_frame([mark]) + batch)
        # About records that the batch does not have, about no batch at all, and of zeros.
        await peer.send(traced_frame([mark._replace(record=9)]))
        await peer.send(encode_batch([b"y"], topic=number, producer_id=7, first_sequence=1))
        await peer.send(traced_frame([mark]) + encode_batch([b"z"], topic=999))
        await peer.send(frame(FrameKind.TRACED, bytes(28)))
        await peer.send(encode_batch([b"w"], topic=number, producer_id=7, first_sequence=2))
        await served.until(lambda: served.node.core.turns.published_records == 3)
        assert len(named(spans, "append t")) == 1


async def test_the_broker_begins_traces_for_its_share_of_batches() -> None:
    async with running(trace_ratio=1.0) as (served, spans), served.client() as client:
        for _ in range(20):
            await client.publish("t", b"x")
        appends = named(spans, "append t")
        assert len(appends) == 20
        assert len({span.trace_id for span in appends}) == 20
        assert {span.parent_id for span in appends} == {b""}
    async with running(trace_ratio=0.1, traced_per_second_max=9999) as (served, spans):
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(b"".join(encode_batch([b"x"], topic=number) for _ in range(2000)))
        await served.until(lambda: served.node.core.turns.published_records == 2000)
        assert 100 <= len(named(spans, "append t")) <= 320


async def test_a_compacted_topic_waits_for_its_check_and_is_traced_once() -> None:
    async with running() as (served, spans), served.client() as client:
        await client.create_topic("state", cleanup="compact")
        big = b"".join(b"%d" % n for n in range(50_000))
        await client.publish("state", big, key="k", headers=HEADERS)
        await client.publish("state", b"small", key="k", headers=HEADERS)
        assert len(named(spans, "append state")) == 2


async def test_delayed_messages_and_transactions_keep_the_context() -> None:
    async with running() as (served, _), served.client() as client:
        await client.publish("later", b"x", delay_seconds=0.01, headers=HEADERS)
        async with client.transaction() as transaction:
            await transaction.publish("bought", b"x", headers=HEADERS)
        for topic in ("later", "bought"):
            async with client.subscribe(topic, start="earliest") as reader:
                assert context_of((await reader.next()).headers) == PARENT


def _has_worker(served: Serving) -> bool:
    return any(queue.workers for queue in served.node.core.queues._queues.values())


async def test_requests_and_replies_keep_the_context() -> None:
    async with running() as (served, _), served.client() as asking, served.client() as answering:
        seen: list[TraceContext | None] = []

        def answer(job: fanlog.Job) -> bytes:
            seen.append(context_of(job.headers))
            return b"42"

        serving = asyncio.ensure_future(answering.serve("sums", answer))
        await asking.create_topic("sums")
        await served.until(lambda: _has_worker(served))
        reply = await asking.request("sums", b"40+2", headers=HEADERS, timeout_seconds=30)
        serving.cancel()
        assert (reply.value, seen) == (b"42", [PARENT])


async def test_a_failed_append_ends_in_an_error_and_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (served, spans), served.client() as client:
        await client.create_topic("t", durability="os")
        await client.publish("t", b"fine")

        def fail(*given: object) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(PartitionLog, "append", fail)
        with pytest.raises(fanlog.FanlogError):
            await client.publish("t", b"lost", headers=HEADERS)
        [append] = named(spans, "append t")
        assert "the disk is gone" in append.error
        assert append.attributes["error.type"] == "log_failed"
        assert not served.node.core.traces.recent
