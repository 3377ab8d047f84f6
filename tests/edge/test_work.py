"""Queues and streams through edges: each request may come to another process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import fanlog
from fanlog.config import Config, ListenerOptions
from tests.client.ways import PATIENCE_SECONDS
from tests.edge.stage import broker_at, edge_of, until
from tests.edge.test_rest import web_edge

QUEUE = "/v1/queues/jobs/q"


async def test_a_job_is_taken_on_one_edge_and_acked_on_another() -> None:
    async with broker_at() as broker:
        upstream = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with web_edge(upstream) as (_, one), web_edge(upstream) as (_, other):
            await broker.publish("jobs", {"to": "ann"})
            async with one.post(f"{QUEUE}/take?wait_seconds=60") as answer:
                (job,) = (await answer.json())["jobs"]
            assert job["message"]["json"] == {"to": "ann"}
            async with other.post(f"{QUEUE}/ack", json={"receipts": [job["receipt"]]}) as answer:
                assert await answer.json() == {"settled": 1, "late": []}
            assert (await broker.groups.describe("q")).lag == 0


async def test_a_stream_is_continued_on_another_edge() -> None:
    tokens = ["Tea ", "is ", "ready."]
    async with broker_at() as broker:
        upstream = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with web_edge(upstream) as (_, one), web_edge(upstream) as (_, other):
            assert (await one.post("/v1/streams/a")).status == 201
            assert (await one.post("/v1/streams/a/append", data=tokens[0])).status == 200
            first = await _pieces(one, "")
            assert [message["text"] for message in first["messages"]] == tokens[:1]
            reading = asyncio.create_task(_text(other, first["position"]))
            for token in tokens[1:]:
                assert (await one.post("/v1/streams/a/append", data=token)).status == 200
            assert (await other.post("/v1/streams/a/end")).status == 204
            assert await asyncio.wait_for(reading, PATIENCE_SECONDS) == "".join(tokens[1:])
            rest = await _pieces(other, first["position"])
            assert [message["text"] for message in rest["messages"]] == tokens[1:]
            assert rest["ended"]


async def _pieces(http: Any, position: str) -> Any:
    async with http.get(f"/v1/streams/a?format=json&position={position}") as answer:
        return await answer.json()


async def _text(http: Any, position: str) -> str:
    async with http.get(f"/v1/streams/a?position={position}") as answer:
        return await answer.text()


async def test_a_client_may_ack_jobs_that_came_after_upstream_was_restarted(tmp_path: Path) -> None:
    """The edge greeted it with the epoch from before: no job of the new one is of that epoch."""
    async with AsyncExitStack() as stack:
        async with fanlog.Broker(tmp_path) as first:
            port = first.listen().port
            await first.create_topic("jobs")
            edge = await stack.enter_async_context(edge_of(f"fanlog://127.0.0.1:{port}"))
            client = await stack.enter_async_context(fanlog.connect(edge.url))
            before = edge.node.core.epoch
        config = Config(listener=ListenerOptions(port=port))
        again = await stack.enter_async_context(fanlog.Broker(tmp_path, config=config))
        again.listen()
        await until(lambda: edge.node.core.epoch > before)
        await again.publish("jobs", "new")
        async with client.work("jobs", queue="q") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            await job.ack()
        assert (await again.groups.describe("q")).lag == 0
