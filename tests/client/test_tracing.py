"""Spans of a program with OpenTelemetry: what it publishes, and what its handlers work on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

import fanlog
import fanlog.sync
from fanlog.client.tracing import maybe_tracer
from fanlog.config import Config, ListenerOptions
from fanlog.format.trace_context import context_of


class Traced:
    """The program's OpenTelemetry, as far as a test needs it."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self._exporter = exporter

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if name in span.name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.spans(name)
        return found

    def begin(self, name: str) -> Any:
        return self.provider.get_tracer("test").start_as_current_span(name)


@pytest.fixture
def sampler() -> Any:
    return ParentBased(ALWAYS_ON)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, sampler: Any) -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The real one can be set once in a process, for all tests that follow.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield Traced(provider, exporter)
    provider.shutdown()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[fanlog.Broker, fanlog.Client]]:
    async with fanlog.Broker(None, Config(listener=ListenerOptions(port=0))) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with fanlog.connect(url) as client:
            yield broker, client


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_without_opentelemetry_set_up_there_is_no_tracer() -> None:
    assert maybe_tracer() is None


async def test_without_it_messages_have_no_headers_and_blocks_no_spans() -> None:
    async with connected() as (_, client):
        await client.publish("t", b"x")
        async with client.subscribe("t", start="earliest") as reader:
            message = await reader.next()
        with fanlog.processing(message):
            assert message.headers == {}


async def test_a_published_message_has_a_span_by_the_conventions(traced: Traced) -> None:
    async with connected() as (_, client):
        with traced.begin("checkout"):
            receipt = await client.publish("orders", b"tea", headers={"a": b"b"})
        async with client.subscribe("orders", start="earliest") as reader:
            message = await reader.next()
    span = traced.one("publish orders")
    assert span.kind is trace.SpanKind.PRODUCER
    assert parent_of(span) == id_of(traced.one("checkout"))
    assert attributes(span) == {
        "messaging.system": "fanlog",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 3,
        "messaging.destination.partition.id": "0",
        "messaging.fanlog.offset": receipt.offset,
    }
    context = context_of(message.headers)
    assert context is not None
    assert context.sampled
    assert int.from_bytes(context.span_id) == id_of(span)
    assert message.headers["a"] == b"b"


async def test_every_way_to_publish_has_a_span_that_ends(traced: Traced) -> None:
    async with connected() as (broker, client):
        await client.send("t", b"1")
        await client.send("t", b"2")
        await client.flush()
        await client.publish_many("t", [b"3", b"4"])
        await client.publish("t", b"5", delay_seconds=0.0)
        async with client.transaction() as transaction:
            await transaction.publish("t", b"6")
        await broker.publish("t", b"7")
        names = [span.name for span in traced.spans("publish")]
    assert names.count("publish t") == 6
    assert len(names) == 7


async def test_what_fails_says_so_in_its_span(traced: Traced) -> None:
    async with connected() as (_, client):
        await client.create_topic("state", cleanup="compact")
        with pytest.raises(fanlog.FanlogError):
            await client.publish("state", b"no key")
    span = traced.one("publish state")
    assert attributes(span)["error.type"] == "invalid_argument"
    assert not span.status.is_ok


@pytest.mark.parametrize("sampler", [ParentBased(ALWAYS_OFF)], ids=["off"])
async def test_what_is_not_sampled_says_so_to_everybody_behind(traced: Traced) -> None:
    async with connected() as (broker, client):
        await client.publish("t", b"x")
        async with client.subscribe("t", start="earliest") as reader:
            context = context_of((await reader.next()).headers)
        assert context is not None
        assert not context.sampled
        assert broker._node is not None
        assert len(broker._node.core.traces.spans) == 0
    assert traced.spans() == []


async def test_handlers_of_a_group_have_a_process_span_for_each_try(traced: Traced) -> None:
    async with connected() as (_, client):
        await client.publish("t", b"x")
        done, tries = asyncio.Event(), []

        async def handle(message: fanlog.Message) -> None:
            tries.append(trace.get_current_span())
            if len(tries) == 1:
                raise ValueError("no")
            await client.publish("out", message.value)
            done.set()

        quick = fanlog.Backoff(first_seconds=0.001)
        await client.consume("t", handle, group="g", reset="earliest", until=done, retry=quick)
    first, second = traced.spans("process t")
    publish = traced.one("publish t")
    assert parent_of(first) == parent_of(second) == id_of(publish)
    assert first.kind is trace.SpanKind.CONSUMER
    assert attributes(first)["error.type"] == "ValueError"
    assert second.status.is_ok or second.status.is_unset
    assert attributes(second)["messaging.consumer.group.name"] == "g"
    assert parent_of(traced.one("publish out")) == id_of(second)


async def test_a_dead_letter_of_a_group_goes_on_with_the_trace(traced: Traced) -> None:
    async with connected() as (_, client):
        with traced.begin("checkout"):
            await client.publish("t", b"x")
        done = asyncio.Event()

        def handle(message: fanlog.Message) -> None:
            done.set()
            raise ValueError("no")

        await client.consume("t", handle, group="g", reset="earliest", until=done, max_attempts=1)
        async with client.subscribe("dead.t", start="earliest") as reader:
            letter = context_of((await reader.next()).headers)
    assert letter is not None
    assert parent_of(traced.one("publish dead.t")) == id_of(traced.one("publish t"))
    assert int.from_bytes(letter.span_id) == id_of(traced.one("publish dead.t"))


async def test_a_request_its_handler_and_its_reply_are_one_trace(traced: Traced) -> None:
    async with connected() as (broker, client):
        await client.create_topic("sums")

        async def answer(job: fanlog.Job) -> bytes:
            return b"42"

        serving = asyncio.ensure_future(broker.serve("sums", answer))
        async with asyncio.timeout(60):
            while True:
                try:
                    with traced.begin("ask"):
                        await client.request("sums", b"40+2", timeout_seconds=50)
                    break
                except fanlog.errors.NoRespondersError:
                    await asyncio.sleep(0.01)
        serving.cancel()
    process = traced.one("process sums")
    assert parent_of(process) == id_of(traced.one("publish sums"))
    [reply] = [s for s in traced.spans("publish _inbox") if parent_of(s) == id_of(process)]
    assert reply.context is not None
    assert process.context is not None
    assert reply.context.trace_id == process.context.trace_id


async def test_a_transform_is_one_trace(traced: Traced) -> None:
    async with connected() as (_, client):
        await client.publish("a", b"x")
        running = asyncio.ensure_future(client.transform("a", "b", lambda m: m.value, group="g"))
        async with client.subscribe("b", start="earliest") as reader:
            context = context_of((await reader.next()).headers)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    process = traced.spans("process a")[-1]
    published = {id_of(span): parent_of(span) for span in traced.spans("publish b")}
    assert context is not None
    assert published[int.from_bytes(context.span_id)] == id_of(process)


async def test_a_loop_can_process_a_message_in_its_trace(traced: Traced) -> None:
    async with connected() as (_, client):
        await client.publish("t", b"x")
        async with client.subscribe("t", start="earliest") as reader:
            message = await reader.next()
        with (
            traced.begin("loop") as loop,
            pytest.raises(KeyError),
            fanlog.processing(message, "readers"),
        ):
            raise KeyError("no")
    span = traced.one("process t")
    assert parent_of(span) == id_of(traced.one("publish t"))
    # What ran when the message came is linked, not lost.
    assert [link.context.span_id for link in span.links] == [loop.get_span_context().span_id]
    assert attributes(span)["messaging.consumer.group.name"] == "readers"


async def test_a_message_that_only_fits_without_the_context_goes_without(traced: Traced) -> None:
    async with connected() as (_, client):
        await client.create_topic("t", message_bytes_max=1024)
        await client.publish("t", b"x" * 1000)
        async with client.subscribe("t", start="earliest") as reader:
            assert "traceparent" not in (await reader.next()).headers
    assert len(traced.spans("publish t")) == 1


def test_the_blocking_client_takes_the_current_span_along(traced: Traced) -> None:
    with fanlog.sync.Broker() as client:
        with traced.begin("checkout"):
            client.publish("t", b"x")
        done = threading.Event()

        def handle(job: Any) -> None:
            client.publish("out", b"y")
            done.set()

        client.work("t", handle, queue="q", until=done)
        with client.work("out", queue="loop") as worker:
            for job in worker:
                with job:
                    client.publish("end", b"z")
                break
    assert parent_of(traced.one("publish t")) == id_of(traced.one("checkout"))
    process = traced.one("process t")
    assert parent_of(process) == id_of(traced.one("publish t"))
    assert parent_of(traced.one("publish out")) == id_of(process)
    assert parent_of(traced.one("publish end")) == id_of(traced.one("process out"))
