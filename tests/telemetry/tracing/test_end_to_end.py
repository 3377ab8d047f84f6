"""A trace spans a publisher, a broker and a worker: three processes, each with an OpenTelemetry of
its own, and one collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.telemetry.tracing.collector import Collected, collecting

SET_UP = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

service, collector, url = sys.argv[1:]
provider = TracerProvider(resource=Resource.create({"service.name": service}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))
trace.set_tracer_provider(provider)

import fanlog
"""
PUBLISHER = (
    SET_UP
    + """
async def main():
    async with fanlog.connect(url) as client:
        with trace.get_tracer("shop").start_as_current_span("POST /orders"):
            await client.publish("orders", b"one tea", key="alice")

asyncio.run(main())
"""
)
WORKER = (
    SET_UP
    + """
async def main():
    done = asyncio.Event()
    tries = []

    async def handle(job):
        tries.append(job)
        if len(tries) == 1:
            raise ValueError("the kettle is cold")
        await client.publish("bills", b"2.50")
        done.set()

    async with fanlog.connect(url, wait_seconds=60) as client:
        await client.work("orders", handle, queue="kitchen", until=done)

asyncio.run(main())
"""
)
BROKER = """
import asyncio, sys
from pathlib import Path
from fanlog.config import Config, ListenerOptions
from fanlog.config_security import TelemetryOptions
from fanlog.node import Node

async def main():
    telemetry = TelemetryOptions(
        otlp_endpoint=sys.argv[1], otlp_interval_seconds=0.05, service_name="broker"
    )
    node = Node(Path(sys.argv[2]), Config(listener=ListenerOptions(port=0), telemetry=telemetry))
    node.start()
    print(node.listen().port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.stop()

asyncio.run(main())
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def one(spans: list[Collected], service: str, name: str) -> Collected:
    [found] = [span for span in spans if (span.service, span.name) == (service, name)]
    return found


def test_a_trace_spans_publisher_broker_and_worker(tmp_path: Path) -> None:
    with collecting() as collector:
        broker = start(BROKER, collector.url, str(tmp_path))
        assert broker.stdout is not None
        url = f"fanlog://127.0.0.1:{int(broker.stdout.readline())}"
        worker = start(WORKER, "worker", collector.url, url)
        publisher = start(PUBLISHER, "publisher", collector.url, url)
        outputs = [process.communicate(timeout=90) for process in (publisher, worker)]
        broker.communicate(timeout=60)
        assert (publisher.returncode, worker.returncode, broker.returncode) == (0, 0, 0), outputs
        spans = collector.wait_for("publish orders", "append orders", "process orders")
        published = collector.wait_for_metric("fanlog_published_messages")

    assert published.sum.is_monotonic

    begun = one(spans, "publisher", "POST /orders")
    publish = one(spans, "publisher", "publish orders")
    append = one(spans, "broker", "append orders")
    assert (publish.parent_id, append.parent_id) == (begun.span_id, publish.span_id)
    assert publish.attributes["messaging.operation.type"] == "send"
    assert publish.attributes["messaging.fanlog.offset"] == 0
    delivers = [span for span in spans if span.name == "deliver orders"]
    assert [span.parent_id for span in delivers] == [append.span_id, append.span_id]
    processes = [span for span in spans if span.name == "process orders"]
    # The first try failed, and the second has the same context.
    assert [span.failed for span in processes] == [True, False]
    assert [span.parent_id for span in processes] == [publish.span_id, publish.span_id]
    assert processes[0].attributes["error.type"] == "ValueError"
    assert processes[1].attributes["messaging.consumer.group.name"] == "kitchen"
    assert processes[1].attributes["messaging.fanlog.deliveries"] == 2
    bill = one(spans, "worker", "publish bills")
    assert bill.parent_id == processes[1].span_id
    assert one(spans, "broker", "append bills").parent_id == bill.span_id
    assert len({span.trace_id for span in spans}) == 1
    kinds = {span.name.split()[0]: span.kind for span in spans if span is not begun}
    assert kinds == {"publish": 4, "append": 2, "deliver": 2, "process": 5}
